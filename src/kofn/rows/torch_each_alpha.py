"""Weights of entmax with an alpha per row as a torch operator, which compiled functions call.

Which alphas there are is known in the call only: the operator asks there, and runs the array code
if kernels do not serve them all.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kofn.arrays.torch_operator import REFUSED, call, define, differentiate, refuse_second
from kofn.arrays.torch_state import recording
from kofn.links.link import by_id
from kofn.rows import answers, each_alpha
from kofn.rows.given import Given
from kofn.rows.settled import rows_of

_ROWS = "Tensor alpha, Tensor? k, float? every_k, Tensor? t, float? every_t, str link"


def weights_of(given: Given) -> Tensor:
    """Return the weights of rows with an alpha each, which torch.compile traces."""
    x, k, t, link, _ = given.wide()
    of_k = (None, k) if type(k) is float else (k, None)
    of_t = (None, t) if type(t) is float else (t, None)
    return call("weights_each_alpha", x, link.alpha, *of_k, *of_t, link.id)[0]


def _given(x: Tensor, rows: Any) -> Given:
    alpha, k, every_k, t, every_t, link = rows
    k = float(every_k) if k is None else k
    t = float(every_t) if t is None else t
    return Given(x, k, t, by_id(link, alpha))


def _entries_and_pair(x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty((2, *x.shape[:-1]))


def _entries_and_three(cotangent: Tensor, x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty((3, *x.shape[:-1]))


@define(f"Tensor x, {_ROWS}", "(Tensor, Tensor)", _entries_and_pair)
def weights_each_alpha(x: Tensor, *rows: Any) -> tuple[Tensor, Tensor]:
    """Return the weights, and θ as two floats where a kernel found it."""
    given = _given(x, rows)
    alphas = each_alpha.alphas_of(given.link, x)
    if alphas is not None:
        return each_alpha.weights_by_each(given, alphas)
    with torch.no_grad():
        return answers.weights(rows_of(given)), x.new_zeros((2, *x.shape[:-1]))


@define(
    f"Tensor cotangent, Tensor x, Tensor found, Tensor theta, {_ROWS}",
    "(Tensor, Tensor)",
    _entries_and_three,
)
def weights_each_alpha_backward(
    cotangent: Tensor, x: Tensor, found: Tensor, theta: Tensor, *rows: Any
) -> tuple[Tensor, Tensor]:
    """Return the cotangents of the scores, and of alpha, k and the temperature as (3, …)."""
    given = _given(x, rows)
    alphas = each_alpha.alphas_of(given.link, x)
    if alphas is None:
        return recording(_by_reference, given, cotangent)
    in_x, in_rows = each_alpha.gradients_by_each(given, alphas, cotangent, theta)
    in_alpha = each_alpha.in_alpha_of(found, cotangent, given.link.alpha)
    return in_x, torch.stack((in_alpha, *in_rows))


def _by_reference(given: Given, cotangent: Tensor) -> tuple[Tensor, Tensor]:
    x, k, t, link, _ = given.per_row()
    leaves = [each.detach().clone().requires_grad_() for each in (x, link.alpha, k, t)]
    scores, alpha, k, t = leaves
    found = answers.weights(rows_of(Given(scores, k, t, link.with_alpha(alpha))))
    in_x, *in_rows = torch.autograd.grad(found, leaves, cotangent, materialize_grads=True)
    return in_x, torch.stack(in_rows)


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    x, alpha, k, ctx.every_k, t, ctx.every_t, ctx.link = inputs
    ctx.save_for_backward(x, *output, alpha, k, t)
    ctx.set_materialize_grads(False)


def _pullback(ctx: Any, cotangent: Tensor | None, of_theta: Tensor | None) -> Any:
    if of_theta is not None:
        raise RuntimeError(REFUSED)
    if cotangent is None:
        return (None,) * 7
    x, found, theta, alpha, k, t = ctx.saved_tensors
    rows = alpha, k, ctx.every_k, t, ctx.every_t, ctx.link
    in_x, (in_alpha, in_k, in_t) = weights_each_alpha_backward(cotangent, x, found, theta, *rows)
    in_k, in_t = (None if a is None else b for a, b in ((k, in_k), (t, in_t)))
    return in_x, in_alpha, in_k, None, in_t, None, None


differentiate(weights_each_alpha, _pullback, _keep)
refuse_second(weights_each_alpha_backward)
