"""Weights, logarithms and losses of rows with an alpha each, as one that is learned: PyTorch.

Kernels take an alpha per row. Alphas of 1, 1.5 and 2 have links of their own, and kernels serve
none that is nearer to 1, or above 2. So rows are dealt out by the kind of their link, which is the
same for most; the array code takes what kernels do not serve. A row's answer does not depend on the
others. Which alphas there are is known in the call only: an operator asks there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kofn import kernels
from kofn.adapters import array_code
from kofn.adapters.theta import theta_of
from kofn.arrays.torch.state import is_plain, recording
from kofn.formulas import answers
from kofn.kernels.contract import GENERAL, SPECIAL_ALPHA, is_general
from kofn.links.link import Link
from kofn.operations import logarithms, losses, topk
from kofn.operations.operation import ENTRY, PAIR, WIDE, Operation
from kofn.operations.signatures import EACH_ALPHA
from kofn.rows.given import Given
from kofn.rows.settled import rows_of

Answers = tuple[Tensor | None, ...]


def _serves(x: Tensor, link: Link, framework: str, offered: str) -> Any:
    """Return the kernels of a general alpha, which serve the special ones, too."""
    if not (isinstance(link.alpha, Tensor) and is_plain(x) and is_plain(link.alpha)):
        return None
    return kernels.serving_of("rows", x, framework, link.with_alpha(GENERAL), offered)


OF = EACH_ALPHA._replace(serves=_serves)


def parts_of(given: Given[Tensor]) -> Iterator[tuple[Tensor | None, Given[Tensor], bool]]:
    """Yield which rows have a kind of link, as flags, these, and whether kernels serve them.

    There are no flags if all have the same.
    """
    alpha: Tensor = given.link.alpha.detach()
    values = alpha.numpy() if alpha.is_cpu else alpha.cpu().numpy()
    least, most = (values.min(), values.max()) if values.size else (GENERAL, GENERAL)
    if least == most and float(most) in SPECIAL_ALPHA:
        yield None, given._replace(link=given.link.with_alpha(float(most))), True
        return
    # 1.5 lies between the ends, and has to be looked for.
    if is_general(least) and is_general(most) and (values != 1.5).all():
        yield None, given, True
        return
    others = torch.ones_like(alpha, dtype=torch.bool)
    for number in (None, *SPECIAL_ALPHA):
        some = is_general(alpha) if number is None else alpha == number
        if bool(some.any()):
            others = others & ~some
            part = _some_of(given, some)
            link = part.link if number is None else part.link.with_alpha(number)
            yield some, part._replace(link=link), True
    if bool(others.any()):
        yield others, _some_of(given, others), False


def _some_of(given: Given[Tensor], rows: Tensor) -> Given[Tensor]:
    x, k, t, link, form = given[:5]
    k, t = (each if type(each) is float else each[rows] for each in (k, t))
    return Given(x[rows], k, t, link.map_alpha(lambda alpha: alpha[rows]), form)


def _dealt(
    of: Operation, by_kernel: Callable[..., Any], by_array_code: Callable[..., Any]
) -> Callable[..., Any]:
    """Return a kernel function of an operation that deals out its rows."""

    def kernel(backend: Any, given: Given[Tensor], *own: Any) -> Any:
        whole: list[Tensor | None] = []
        for rows, part, served in parts_of(given):
            if rows is None:
                return by_kernel(backend, part, *own)
            pairs = zip(own, takes, strict=True)
            some = [each if kind is None else each[_index(rows, kind)] for each, kind in pairs]
            parts = by_kernel(backend, part, *some) if served else by_array_code(part, *some)
            if not whole:
                each_of = zip(parts, gives, strict=True)
                whole = [_room(given, each, kind) for each, kind in each_of]
            for into, answer, kind in zip(whole, parts, gives, strict=True):
                if into is not None:
                    into[_index(rows, kind)] = answer
        return tuple(whole)

    kinds = {each.name: each.kind for each in of.arguments if each.name in of.arrays}
    takes, gives = [kinds.get(name) for name in of.own], [each.kind for each in of.answers]
    return kernel


def _index(rows: Tensor, kind: str) -> Any:
    return (slice(None), rows) if kind == PAIR else rows


def _room(given: Given[Tensor], answer: Tensor | None, kind: str) -> Tensor | None:
    """Return memory for an answer of all rows, like the answer of some of them."""
    if answer is None:
        return None
    if kind in (ENTRY, WIDE):
        return answer.new_empty(given.scores.shape)
    return answer.new_empty((2, *given.batch) if kind == PAIR else given.batch)


# What kernels do not serve.


def _answer(reference: Callable[..., Any], part: Given) -> Answers:
    """Return the answer of rows, and θ as two floats, by array code."""
    with torch.no_grad():
        rows = rows_of(part)
        theta = theta_of(rows)
        return reference(rows, theta=theta), torch.stack(theta)


def _slopes(
    reference: Callable[[Given[Tensor]], Tensor], part: Given[Tensor], cotangent: Tensor
) -> list[Tensor]:
    """Return the answer of rows, and the cotangents of the scores, alpha, k and temperature."""
    x, k, t, link = part.per_row()[:4]
    alpha = link.alpha if isinstance(link.alpha, Tensor) else torch.full_like(t, link.alpha)
    values: tuple[Tensor, ...] = x, alpha, k, t
    leaves = [each.detach().clone().requires_grad_() for each in values]
    x, alpha, k, t = leaves
    answer = reference(Given(x, k, t, link.with_alpha(alpha)))
    slopes = torch.autograd.grad(answer, leaves, cotangent, materialize_grads=True)
    return [answer.detach(), *slopes]


def _cotangents(reference: Callable[..., Any], part: Given[Tensor], cotangent: Tensor) -> Answers:
    """Return the cotangents of the scores, k and T, and alpha, as a kernel's way back does."""

    def of(given: Given[Tensor]) -> Tensor:
        rows = rows_of(given)
        answer: Tensor = reference(rows, theta=theta_of(rows))
        return answer

    slopes: list[Tensor] = recording(_slopes, of, part, cotangent)
    _, in_x, in_alpha, in_k, in_t = slopes
    numbers = type(part.k) is type(part.temperature) is float
    return in_x, None if numbers else torch.stack((in_k, in_t)), in_alpha


# Weights and logarithms.


def _weights_back(
    backend: Any, part: Given[Tensor], cotangent: Tensor, theta: Tensor, of_alpha: int
) -> Answers:
    x, *rest = part[:4]
    if of_alpha:
        slopes: Answers = backend.gradients(x, cotangent, theta, *rest, of_alpha=True)
        return slopes
    return *backend.gradients(x, cotangent, theta, *rest), None


def _log_weights_back(
    backend: Any, part: Given[Tensor], cotangent: Tensor, theta: Tensor, of_alpha: int
) -> Answers:
    if not of_alpha:
        slopes: Any = logarithms.log_weights_back(backend, part, cotangent, theta)
        return *slopes, None
    x, k, t, link = part[:4]
    rows = x, cotangent, theta, k, t, link
    in_x, in_rows, lost, in_alpha = backend.log_gradients(*rows, of_alpha=True)
    if lost:
        where = in_rows[0].isnan()
        some = _some_of(part, where).per_row()
        pulled = _cotangents(answers.log_weights, some, cotangent[where])
        in_x[where], in_rows[:, where], in_alpha[where] = pulled
    if type(k) is type(t) is float:
        return in_x, None, in_alpha
    in_rows[0] = 0
    return in_x, in_rows, in_alpha


def _of_each(name: str, of: Operation, back: Callable[..., Answers]) -> Operation:
    """Declare an operation for rows with an alpha each, by the operation for one number."""
    way = Operation(
        name=f"{name}_slopes",
        takes="cotangent n, x n, theta 2, alpha r, k #, t #, link str, of_alpha int",
        gives="x n, k+t 2 if k t, alpha r if of_alpha",
        of=OF,
        kernel=back,
    )
    way.kernel = _dealt(
        way, back, lambda part, cotangent, *_: _cotangents(of.reference, part, cotangent)
    )
    dealt = replace(of, name=name, takes=OF.takes, of=OF, back=(way,), **_ALONE)
    dealt.kernel = _dealt(dealt, of.kernel, lambda part: _answer(of.reference, part))
    return dealt


_ALONE: dict[str, Any] = dict(
    pullback=None, sloped=None, compared=None, xla=None, moves_as=None, each_alpha="", closed=None
)

WEIGHTS = _of_each("weights_each_alpha", topk.WEIGHTS, _weights_back)
LOG_WEIGHTS = _of_each("log_weights_each_alpha", logarithms.LOG_WEIGHTS, _log_weights_back)


def _saved(of: Operation) -> Operation:
    """Declare the way back as programs know it that were compiled by older versions and kept."""

    def kernel(backend: Any, given: Given, cotangent: Tensor, _: Tensor, theta: Tensor) -> Answers:
        in_x, in_rows, in_alpha = of.back[0].kernel(backend, given, cotangent, theta, 1)
        pair = torch.zeros_like(theta) if in_rows is None else in_rows
        return in_x, torch.stack((in_alpha, *pair))

    return Operation(
        name=f"{of.name}_backward",
        takes="cotangent n, x n, found n, theta 2, alpha r, k #, t #, link str",
        gives="x n, alpha+k+t 3",
        of=OF,
        kernel=kernel,
    )


# Losses.


def _loss(
    backend: Any, part: Given, target: Tensor, likely: int, of_alpha: int, slopes: int
) -> Answers:
    answers: Any = losses.loss_and_slopes(backend, part, target, likely, slopes, of_alpha)
    in_parts: Answers = answers
    return in_parts


def _loss_by_array_code(
    part: Given[Tensor], target: Tensor, likely: int, of_alpha: int, slopes: int
) -> Answers:
    def of(given: Given[Tensor]) -> Tensor:
        loss: Tensor = array_code.answer(losses.LOSS, given, (target,), (likely, 0))
        return loss

    if not slopes:
        with torch.no_grad():
            return of(part), None, None, None
    part = part.per_row()
    one = torch.ones_like(part.temperature)
    pulled: list[Tensor] = recording(_slopes, of, part, one)
    loss, in_x, in_alpha, _, in_t = pulled
    residual, lever = in_x * part.temperature[..., None], -in_t * part.temperature
    return loss, residual, lever, in_alpha if of_alpha else None


LOSS = replace(
    losses.LOSS,
    name="gap_each_alpha",
    takes=f"x n, target n, {OF.takes.removeprefix('x n, ')}, likely int, of_alpha int, slopes int",
    gives=f"{losses.LOSS.gives}, in_alpha r if of_alpha",
    of=OF,
    back=(
        replace(losses.LOSS.back[0], of=OF),
        Operation(
            name="",
            takes="cotangent r, in_alpha r",
            gives="alpha r",
            of=OF,
            kernel=lambda _, __, cotangent, in_alpha: cotangent * in_alpha,
            elementwise=True,
        ),
    ),
    onward=None,
    **_ALONE,
)
LOSS.kernel = _dealt(LOSS, _loss, _loss_by_array_code)

DECLARED = WEIGHTS, LOG_WEIGHTS, LOSS, _saved(WEIGHTS), _saved(LOG_WEIGHTS)
