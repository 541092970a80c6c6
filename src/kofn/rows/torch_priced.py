"""The kernels for rows with costs as torch operators with a first derivative, for compiled code."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kofn import kernels
from kofn.arrays.torch_operator import REFUSED, call, define, differentiate, refuse_second
from kofn.arrays.torch_state import constant_result, is_compiled
from kofn.links.link import by_id
from kofn.rows import priced_kernels
from kofn.rows.priced_given import PricedGiven

_ROWS = "Tensor costs, Tensor budget, Tensor t, str link, float? alpha"


def serves(given: PricedGiven) -> bool:
    """Return whether the rows of a compiled function go to the operators."""
    if not is_compiled():
        return False
    number, alpha = given.link.static_and_array_alpha()
    x = given.scores
    return alpha is None and _is_served(x.device.type, x.dtype, given.link.id, number)


@constant_result
def _is_served(device: str, dtype: torch.dtype, link: str, number: float | None) -> bool:
    like = torch.empty(0, dtype=dtype, device=device)
    return kernels.serving_priced(like, by_id(link, number), "torch") is not None


def weights_of(given: PricedGiven, hard: bool) -> Tensor:
    """Return the weights, or the hard choice with their gradient."""
    x, costs, budget, t, link = given
    number, _ = link.static_and_array_alpha()
    name = "knapsack_hard" if hard else "knapsack_weights"
    found: Tensor = call(name, x, costs, budget, t, link.id, number)[0]
    return found


def _backend(x: Tensor) -> kernels.PricedKernels:
    """Return the kernels found while tracing; a later KOFN_KERNELS does not change the road."""
    backend = kernels.for_priced(x, "torch")
    assert backend is not None
    return backend


def _given(x: Tensor, rows: Any) -> PricedGiven:
    costs, budget, t, link, alpha = rows
    return PricedGiven(x, costs, budget, t, by_id(link, alpha))


def _entries_and_pair(x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty((2, *x.shape[:-1]))


@define(f"Tensor x, {_ROWS}", "(Tensor, Tensor)", _entries_and_pair)
def knapsack_weights(x: Tensor, *rows: Any) -> tuple[Tensor, Tensor]:
    return priced_kernels.weights(_backend(x), _given(x, rows))


@define(f"Tensor x, {_ROWS}", "(Tensor, Tensor)", _entries_and_pair)
def knapsack_hard(x: Tensor, *rows: Any) -> tuple[Tensor, Tensor]:
    given, backend = _given(x, rows), _backend(x)
    return priced_kernels.fill(backend, given), backend.price(*given)[0]


def _slopes(cotangent: Tensor, x: Tensor, theta: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    in_x, in_rows = _entries_and_pair(x)
    return in_x, x.new_empty(x.shape if rest[-1] else 0), in_rows


@define(
    f"Tensor cotangent, Tensor x, Tensor theta, {_ROWS}, int of_costs",
    "(Tensor, Tensor, Tensor)",
    _slopes,
)
def knapsack_backward(
    cotangent: Tensor, x: Tensor, theta: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the cotangents of the scores, of the costs or nothing, and of budget and T."""
    *rows, of_costs = rest
    given = _given(x, rows)
    in_x, in_costs, in_rows = priced_kernels.gradients(
        _backend(x), given, cotangent, theta, bool(of_costs)
    )
    return in_x, x.new_empty(0) if in_costs is None else in_costs, in_rows


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    x, costs, budget, t, ctx.link, ctx.alpha = inputs
    ctx.save_for_backward(x, output[1], costs, budget, t)
    ctx.set_materialize_grads(False)


def _pullback(ctx: Any, cotangent: Tensor | None, of_theta: Tensor | None) -> Any:
    if of_theta is not None:
        raise RuntimeError(REFUSED)
    if cotangent is None:
        return (None,) * 6
    x, theta, *rows = ctx.saved_tensors
    wanted = ctx.needs_input_grad
    in_x, in_costs, in_rows = knapsack_backward(
        cotangent, x, theta, *rows, ctx.link, ctx.alpha, int(wanted[1])
    )
    slopes = in_costs, in_rows[0], in_rows[1]
    some = (slope if want else None for slope, want in zip(slopes, wanted[1:4], strict=True))
    return in_x, *some, None, None


for _operator in (knapsack_weights, knapsack_hard):
    differentiate(_operator, _pullback, _keep)
refuse_second(knapsack_backward)
