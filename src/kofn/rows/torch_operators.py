"""The kernels as torch operators with a first derivative, which compiled functions call.

k, the temperature and alpha are each a tensor per row or a number for all rows, as kernels take
them. No output of an operator shares memory with another, or with an input.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kofn import kernels
from kofn.arrays.torch_operator import REFUSED, define, differentiate, refuse_second
from kofn.links.link import by_id
from kofn.rows import kernel_rows, kernel_weights
from kofn.rows.given import Given, without_bad_temperatures

_ROWS = "Tensor? k, float? every_k, Tensor? t, float? every_t, str link, float? alpha"
"""The arguments of an operator that every row has, after those of its own."""


def _given(x: Tensor, rows: Any) -> Given:
    k, every_k, t, every_t, link, alpha = rows
    k = float(every_k) if k is None else k
    t = float(every_t) if t is None else t
    return Given(x, k, t, by_id(link, alpha))


def _backend(x: Tensor) -> kernels.RowKernels:
    """Return the kernels found while tracing; a later KOFN_KERNELS does not change the road."""
    backend = kernels.for_rows(x, "torch")
    assert backend is not None
    return backend


def _chooser(x: Tensor) -> kernels.ChoiceKernels:
    chooser = kernels.for_choice(x, "torch")
    assert chooser is not None
    return chooser


def _batch(x: Tensor) -> Any:
    return x.shape[:-1]


def _per_row(x: Tensor, *before: int) -> Tensor:
    """Return numbers of each row, which are never of half precision."""
    return x.new_empty((*before, *_batch(x)), dtype=torch.float32 if x.itemsize == 2 else None)


def _single(x: Tensor) -> Tensor:
    """Return numbers of each entry, which are not of half precision."""
    return x.new_empty(x.shape, dtype=torch.float32 if x.itemsize == 2 else None)


def _entries_and_pair(x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), _per_row(x, 2)


def _slopes_like(cotangent: Tensor, x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return _entries_and_pair(x)


def _slopes_if_any(cotangent: Tensor, x: Tensor, *rows: Any) -> tuple[Tensor, Tensor]:
    numbers = rows[1] is None and rows[3] is None
    return x.new_empty(x.shape), x.new_empty(0) if numbers else _per_row(x, 2)


def _in_arguments(ctx: Any, in_x: Any, in_k: Any, in_t: Any) -> tuple[Any, ...]:
    """Return the cotangents of x and `_ROWS`."""
    return in_x, in_k, None, in_t, None, None, None


# Weights, hard choices with their gradient, and logarithms: each has θ as two floats besides.


@define(f"Tensor x, {_ROWS}", "(Tensor, Tensor)", _entries_and_pair)
def weights(x: Tensor, *rows: Any) -> tuple[Tensor, Tensor]:
    return kernel_weights.weights(_backend(x), _given(x, rows))


@define(f"Tensor x, {_ROWS}", "(Tensor, Tensor)", _entries_and_pair)
def hard_weights(x: Tensor, *rows: Any) -> tuple[Tensor, Tensor]:
    given = _given(x, rows)
    chosen = _chooser(x).hard(without_bad_temperatures(given).scores, given.k)
    return chosen, kernel_rows.threshold_of(_backend(x), given)


@define(f"Tensor x, {_ROWS}", "(Tensor, Tensor)", _entries_and_pair)
def log_weights(x: Tensor, *rows: Any) -> tuple[Tensor, Tensor]:
    return kernel_weights.log_weights(_backend(x), _given(x, rows))


@define(f"Tensor cotangent, Tensor x, Tensor theta, {_ROWS}", "(Tensor, Tensor)", _slopes_if_any)
def weights_backward(
    cotangent: Tensor, x: Tensor, theta: Tensor, *rows: Any
) -> tuple[Tensor, Tensor]:
    """Return the cotangents of the scores, and those of k and the temperature, or nothing."""
    _, k, t, link, _ = _given(x, rows)
    in_x, in_rows = _backend(x).gradients(x, cotangent, theta, k, t, link)
    return in_x, x.new_empty(0) if in_rows is None else in_rows


@define(f"Tensor cotangent, Tensor x, Tensor theta, {_ROWS}", "(Tensor, Tensor)", _slopes_if_any)
def log_weights_backward(
    cotangent: Tensor, x: Tensor, theta: Tensor, *rows: Any
) -> tuple[Tensor, Tensor]:
    """Return the cotangents of the scores and, (2, …), of nothing and T; or nothing of numbers."""
    given = _given(x, rows)
    in_x, in_t = kernel_weights.log_gradients(_backend(x), given, cotangent, theta)
    if type(given.k) is type(given.temperature) is float:
        return in_x, x.new_empty(0)
    return in_x, torch.stack((torch.zeros_like(in_t), in_t))


def _keep_rows(ctx: Any, inputs: Any, output: Any) -> None:
    x, k, ctx.every_k, t, ctx.every_t, ctx.link, ctx.alpha = inputs
    ctx.save_for_backward(x, output[1], k, t)
    ctx.set_materialize_grads(False)


def _pullback_by(operator: Any) -> Callable:
    def pullback(ctx: Any, cotangent: Tensor | None, of_theta: Tensor | None) -> Any:
        if of_theta is not None:
            raise RuntimeError(REFUSED)
        if cotangent is None:
            return (None,) * 7
        x, theta, k, t = ctx.saved_tensors
        rows = k, ctx.every_k, t, ctx.every_t, ctx.link, ctx.alpha
        in_x, in_rows = operator(cotangent, x, theta, *rows)
        slopes = (None if number is None else in_rows[i] for i, number in enumerate((k, t)))
        return _in_arguments(ctx, in_x, *slopes)

    return pullback


for _operator in (weights, hard_weights):
    differentiate(_operator, _pullback_by(weights_backward), _keep_rows)
differentiate(log_weights, _pullback_by(log_weights_backward), _keep_rows)
for _operator in (weights_backward, log_weights_backward):
    refuse_second(_operator)


# θ, as one number and as two floats.


def _row_and_pair(x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return _per_row(x), _per_row(x, 2)


@define(f"Tensor x, {_ROWS}", "(Tensor, Tensor)", _row_and_pair)
def located(x: Tensor, *rows: Any) -> tuple[Tensor, Tensor]:
    return kernel_weights.located(_backend(x), _given(x, rows))


@define(f"Tensor cotangent, Tensor x, Tensor theta, {_ROWS}", "(Tensor, Tensor)", _slopes_like)
def located_backward(
    cotangent: Tensor, x: Tensor, theta: Tensor, *rows: Any
) -> tuple[Tensor, Tensor]:
    """Return the cotangents of the scores, and those of k and the temperature as (2, …)."""
    in_x, *in_rows = kernel_weights.location_gradients(None, _given(x, rows), cotangent, theta)
    return in_x, torch.stack(in_rows)


differentiate(located, _pullback_by(located_backward), _keep_rows)
refuse_second(located_backward)


# S_k, and Fenchel–Young losses. Their slopes are computed with them, if there is a use for them.
# What shapes depend on is an int, not a bool: DTensor remembers shapes by arguments from the first
# int on.


def _value_and_slopes(x: Tensor, *rows_and_slopes: Any) -> tuple[Tensor, ...]:
    none = x.new_empty(0)
    if not rows_and_slopes[-1]:
        return x.new_empty(_batch(x)), none, x.new_empty(0), x.new_empty(0)
    in_rows = (x.new_empty(_batch(x)) for _ in range(2))
    return x.new_empty(_batch(x)), x.new_empty(x.shape), *in_rows


@define(f"Tensor x, {_ROWS}, int slopes", "(Tensor, Tensor, Tensor, Tensor)", _value_and_slopes)
def value(x: Tensor, *rows_and_slopes: Any) -> tuple[Tensor, ...]:
    """Return S_k and, if `slopes`, those in the scores, k and the temperature."""
    *rows, slopes = rows_and_slopes
    given, backend = _given(x, rows), _backend(x)
    if slopes:
        answer, in_x, in_k, in_t = kernel_weights.value(backend, given)
        return answer, in_x, in_k, in_t.clone()
    theta = kernel_rows.threshold_of(backend, given)
    answer = backend.values(x, theta, *given[1:4])[0].clone()
    return answer, x.new_empty(0), x.new_empty(0), x.new_empty(0)


@define("Tensor cotangent, Tensor x, Tensor in_x", "Tensor", lambda _, x, __: x.new_empty(x.shape))
def value_backward(cotangent: Tensor, x: Tensor, in_x: Tensor) -> Tensor:
    """Return the cotangents of the scores.

    A compiler would save where scores are +inf for this, with a loop over single entries.
    """
    return (cotangent[..., None] * in_x).masked_fill_(x == torch.inf, 0.0)


def _keep_slopes(ctx: Any, inputs: Any, output: Any) -> None:
    x, k, _, t, _, _, _, ctx.slopes = inputs
    ctx.moving = k is not None, t is not None
    ctx.save_for_backward(x, *output[1:])
    ctx.set_materialize_grads(False)


def _value_pullback(ctx: Any, cotangent: Tensor | None, *of_slopes: Tensor | None) -> Any:
    if not ctx.slopes or any(slope is not None for slope in of_slopes):
        raise RuntimeError(REFUSED)
    if cotangent is None:
        return (None,) * 8
    x, in_x, *in_rows = ctx.saved_tensors
    each = value_backward(cotangent, x, in_x)
    slopes = (
        cotangent * slope if moves else None
        for slope, moves in zip(in_rows, ctx.moving, strict=True)
    )
    return *_in_arguments(ctx, each, *slopes), None


differentiate(value, _value_pullback, _keep_slopes)
refuse_second(value_backward)


def _loss_and_slopes(x: Tensor, target: Tensor, *rows_and_flags: Any) -> tuple[Tensor, ...]:
    if not rows_and_flags[-1]:
        return _per_row(x), x.new_empty(0), x.new_empty(0)
    return _per_row(x), _single(x), _per_row(x)


@define(
    f"Tensor x, Tensor target, {_ROWS}, int likely, int slopes",
    "(Tensor, Tensor, Tensor)",
    _loss_and_slopes,
)
def gap(x: Tensor, target: Tensor, *rows_and_flags: Any) -> tuple[Tensor, ...]:
    """Return the losses of rows and, if `slopes`, p − t and Σ(p − t)z; see `RowKernels.gaps`."""
    *rows, likely, slopes = rows_and_flags
    given, backend = _given(x, rows), _backend(x)
    target = kernel_weights.target_of(x, target) if target.ndim == x.ndim else target
    loss, away, moved = kernel_weights.gap(backend, given, target, likely, wanted=bool(slopes))
    if not slopes:
        return loss.clone(), x.new_empty(0), x.new_empty(0)
    return loss.clone(), away, moved.clone()


def _keep_gap(ctx: Any, inputs: Any, output: Any) -> None:
    x, target, _, _, t, ctx.every_t, _, _, ctx.likely, ctx.slopes = inputs
    labels = (x, target) if ctx.likely and t is not None else (None, None)
    ctx.save_for_backward(t, *labels, *output[1:])
    ctx.dtype = x.dtype
    ctx.set_materialize_grads(False)


def _gap_pullback(ctx: Any, cotangent: Tensor | None, *of_slopes: Tensor | None) -> Any:
    if not ctx.slopes or any(slope is not None for slope in of_slopes):
        raise RuntimeError(REFUSED)
    if cotangent is None:
        return (None,) * 10
    t, x, labels, away, moved = ctx.saved_tensors
    temperature = ctx.every_t if t is None else t
    each, in_t = cotangent / temperature, None
    if t is not None:
        if ctx.likely:
            moved = kernel_weights.moved_from_labels(x, labels, away) / temperature
        in_t = -each * moved
    in_x, *others = _in_arguments(ctx, (each[..., None] * away).to(ctx.dtype), None, in_t)
    return in_x, None, *others, None, None


differentiate(gap, _gap_pullback, _keep_gap)


# Choices, without a gradient.


def _entries(x: Tensor, *_: Any) -> Tensor:
    return x.new_empty(x.shape)


@define("Tensor x, Tensor? k, float? every_k", "Tensor", _entries)
def hard(x: Tensor, k: Tensor | None, every_k: float | None) -> Tensor:
    count = float(every_k) if k is None else k  # type: ignore[arg-type]
    return _chooser(x).hard(x, count)


def _indices(x: Tensor, k: int) -> Tensor:
    return x.new_empty((*_batch(x), k), dtype=torch.int64)


@define("Tensor x, SymInt k", "Tensor", _indices)
def largest(x: Tensor, k: int) -> Tensor:
    return _chooser(x).largest(x, k)


# Softmax over the largest scores, and its loss.

_OF_SUPPORT = "SymInt? k, float? p, Tensor? t, float? every_t"


@define(f"Tensor x, {_OF_SUPPORT}", "Tensor", _entries)
def truncated(x: Tensor, k: int | None, p: float | None, *t: Any) -> Tensor:
    return _chooser(x).truncated(x, k, p, _temperature(*t), None, True)[0]


def _temperature(t: Tensor | None, every_t: float | None) -> Any:
    return float(every_t) if t is None else t  # type: ignore[arg-type]


def _slopes_of_truncated(x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(_batch(x))


@define(
    "Tensor x, Tensor weights, Tensor cotangent, Tensor? t, float? every_t",
    "(Tensor, Tensor)",
    _slopes_of_truncated,
)
def truncated_backward(
    x: Tensor, weights: Tensor, cotangent: Tensor, *t: Any
) -> tuple[Tensor, Tensor]:
    """Return the cotangents of the scores and of temperatures per row."""
    temperature = _temperature(*t)
    in_x, in_t = _chooser(x).truncated_gradients(x, weights, cotangent, temperature)
    return in_x, x.new_zeros(_batch(x)) if type(temperature) is float else in_t


def _keep_weights(ctx: Any, inputs: Any, output: Any) -> None:
    x, _, _, t, ctx.every_t = inputs
    ctx.save_for_backward(x, t, output)


def _truncated_pullback(ctx: Any, cotangent: Tensor) -> Any:
    x, t, found = ctx.saved_tensors
    in_x, in_t = truncated_backward(x, found, cotangent, t, ctx.every_t)
    return in_x, None, None, None if t is None else in_t, None


differentiate(truncated, _truncated_pullback, _keep_weights)
refuse_second(truncated_backward)


def _loss_and_away(x: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    return _per_row(x), _single(x) if others[-1] else x.new_empty(0)


@define(f"Tensor x, Tensor labels, {_OF_SUPPORT}, int slopes", "(Tensor, Tensor)", _loss_and_away)
def truncated_loss(
    x: Tensor, labels: Tensor, k: int | None, p: float | None, t: Any, every_t: Any, slopes: bool
) -> tuple[Tensor, Tensor]:
    """Return the losses of rows and, if `slopes`, p − t."""
    temperature = _temperature(t, every_t)
    away, loss = _chooser(x).truncated(x, k, p, temperature, labels, slopes)
    return loss.clone(), away if slopes else x.new_empty(0)


def _keep_away(ctx: Any, inputs: Any, output: Any) -> None:
    x, labels, _, _, t, ctx.every_t, ctx.slopes = inputs
    needed = (x, labels) if t is not None else (None, None)
    ctx.save_for_backward(t, *needed, output[1])
    ctx.dtype = x.dtype
    ctx.set_materialize_grads(False)


def _truncated_loss_pullback(ctx: Any, cotangent: Tensor | None, of_away: Tensor | None) -> Any:
    if not ctx.slopes or of_away is not None:
        raise RuntimeError(REFUSED)
    if cotangent is None:
        return (None,) * 7
    t, x, labels, away = ctx.saved_tensors
    each, in_t = cotangent / (ctx.every_t if t is None else t), None
    if t is not None:
        in_t = -each * kernel_weights.moved_from_labels(x, labels, away) / t
    return (each[..., None] * away).to(ctx.dtype), None, None, None, in_t, None, None


differentiate(truncated_loss, _truncated_loss_pullback, _keep_away)
