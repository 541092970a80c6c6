"""Scores as rows: the chosen dimension last, every edge case settled before the mathematics.

A row is split into entries in play (`live`: finite scores, or NaN), scores of +inf (`top`), and
the rest (masked, −inf, or an additive mask's finfo.min), which is never chosen. What is left to
solve is k' = k − #top out of the live entries; where k' is 0 or all of them the answer needs no
equation.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from kofn.arrays.checks import (
    check_dim,
    check_k,
    check_mask,
    check_per_row,
    check_real,
    check_same_kind,
    check_scores,
    check_temperature,
)
from kofn.arrays.flow import alike
from kofn.arrays.kinds import (
    Array,
    adopt,
    cast,
    cast_like,
    compute_dtype,
    contiguous,
    deleted,
    dtype_name,
    framework,
    full_like,
    is_jax,
    move_axis,
    namespace,
    quiet,
)
from kofn.links.link import Link

# The least and the greatest that rounding leaves room for; see `temperature_of`. By name, because
# every call asks; and NumPy has no bfloat16.
TEMPERATURES = {"bfloat16": (2.0**-119, (2 - 2.0**-7) * 2.0**120)} | {
    str(info.dtype): (float(info.smallest_normal / info.eps), float(info.max * info.eps))
    for info in (np.finfo("float16"), np.finfo("float32"), np.finfo("float64"))
}


class Given(NamedTuple):
    """The arguments of a map, checked: rows last in the compute dtype, numbers per row."""

    scores: Array  # −inf where masked or deleted
    k: Array  # NaN where an array asks for what there is not
    temperature: Array
    link: Any  # an inner Link, its parameter a number or per row


def given(
    scores: Array,
    k: Any,
    link: Link,
    temperature: Any,
    dim: int,
    mask: Any,
    *,
    keep_deleted: bool = False,
) -> Given:
    """Check the arguments and bring them to the one form that the mathematics knows.

    `keep_deleted` is for callers who leave the scores to fused rows or to `rows_of`: those see by
    themselves what counts as deleted, and spare a pass over all scores. Half types are cast before
    that, so they are told here.
    """
    check_scores(scores)
    dim = check_dim(dim, scores.ndim)
    cast_first = compute_dtype(scores) != scores.dtype
    x = last(scores if keep_deleted and not cast_first else without_deleted(scores), dim)
    if mask is not None:
        x = namespace(x).where(last_mask(mask, scores, dim), x, -math.inf)
    batch, n = tuple(x.shape[:-1]), x.shape[-1]
    if n == 0:  # one entry that is out of play, so that a row has a minimum
        x = full_like(x, (*batch, 1), -math.inf)
    link = _link_of(link, batch, x, dim)
    k, t = _k_of(k, batch, n, x, dim), temperature_of(temperature, batch, x, dim)
    if link.parted()[1] is None:
        x, k, t = alike(x, k, t)
        return Given(x, k, t, link)
    x, k, t, alpha = alike(x, k, t, link.alpha)
    return Given(x, k, t, link.at(alpha))


def only_one(scores: Array, dim: int) -> int:
    """k = 1, or 0 along an empty dimension, where there is nothing to choose."""
    check_scores(scores)
    return min(1, scores.shape[check_dim(dim, scores.ndim)])


def without_deleted(scores: Array) -> Array:
    """`scores` with −inf for what counts as deleted in their dtype, by `kinds.deleted`."""
    return namespace(scores).where(deleted(scores), -math.inf, scores)


def last(scores: Array, dim: int) -> Array:
    """`scores` in the compute dtype with `dim` moved to the end, contiguous there."""
    x = cast(scores, compute_dtype(scores))
    return contiguous(x if dim == -1 else move_axis(x, dim, -1))


def last_mask(mask: Any, scores: Array, dim: int, of: str = "scores") -> Array:
    """Where an entry may be chosen, with `dim` last."""
    check_mask(mask, scores, of)
    xp = namespace(scores)
    mask = xp.broadcast_to(adopt(mask, scores), scores.shape)
    return mask if dim == -1 else move_axis(mask, dim, -1)


def weights_in_play(weights: Array, dim: int, mask: Array | None) -> tuple[Array, Any]:
    """(the weights with `dim` last in the compute dtype, 0 where masked; what is in play)."""
    check_scores(weights, "weights")
    dim = check_dim(dim, weights.ndim)
    p = last(weights, dim)
    xp = namespace(p)
    if mask is None:
        return p, xp.ones_like(p, dtype=xp.bool)
    playing = last_mask(mask, weights, dim, "weights")
    return xp.where(playing, p, 0.0), playing


def entries(values: Array, rows: Array, dim: int) -> Array:
    """An array of the scores' shape in the form the rows of scores have."""
    xp = namespace(values)
    if values.shape[dim] == 0:
        return xp.zeros_like(rows)
    return contiguous(move_axis(values, dim, -1))


def restore(weights: Array, scores: Array, dim: int) -> Array:
    """Weights with the dtype of `scores` and the last dimension where the user has it."""
    dim = check_dim(dim, scores.ndim)
    weights = cast(weights, scores.dtype)
    if scores.shape[dim] == 0:
        weights = weights[..., :0]
    return weights if dim == -1 else move_axis(weights, -1, dim)


def _k_of(k: Any, batch: tuple[int, ...], n: int, x: Array, dim: int) -> Array:
    """k per row; NaN where an array asks for fewer than 0 or more than n."""
    if framework(k) is None:
        return full_like(x, batch, check_k(k, n))
    k = _spread(_per_row("k", k, batch, x, dim), batch, x)
    return namespace(x).where((k >= 0) & (k <= n), k, math.nan)


def temperature_of(
    temperature: Any, batch: tuple[int, ...], x: Array, dim: int | None = None
) -> Array:
    """T per row, no less than the smallest whose rounding still is a normal number, and no more
    than what leaves room for T·F⁻¹.

    Beyond them (1e-31 and 4e31 in float32) the map is the hard top-k, or k/n, to every digit.
    """
    floor, ceiling = TEMPERATURES[dtype_name(x)]
    if framework(temperature) is None:
        number = check_temperature(temperature)
        return full_like(x, batch, min(max(number, floor), ceiling))
    xp = namespace(x)
    temperature = _per_row("temperature", temperature, batch, x, dim)
    with quiet(x):
        t = _spread(temperature, batch, x)
    # Judged before the cast: a float64 temperature that float32 rounds to 0 is small, not wrong.
    good = (temperature > 0) & (temperature < math.inf)
    return xp.where(_spread(good, batch, x) > 0, xp.clip(t, floor, ceiling), math.nan)


def _link_of(link: Link, batch: tuple[int, ...], x: Array, dim: int) -> Link:
    link = link.inner
    if link.alpha is None:
        return link
    if framework(link.alpha) is None:
        # A number stays one, which costs less. Under jit it is compiled in, so few numbers do.
        dynamic = is_jax(x) and link.alpha not in (1.0, 1.5, 2.0)
        return link.at(full_like(x, batch, link.alpha)) if dynamic else link
    alpha = _spread(_per_row("alpha", link.alpha, batch, x, dim), batch, x)
    good = (alpha >= 1) & (alpha < math.inf)
    return link.at(namespace(x).where(good, alpha, math.nan))


def _per_row(name: str, value: Array, batch: tuple[int, ...], x: Array, dim: int | None) -> Array:
    """An array argument that broadcasts to the batch shape, never enlarging it."""
    check_same_kind(name, value, x)
    check_real(name, value)
    return check_per_row(name, value, batch, dim)


def _spread(value: Array, batch: tuple[int, ...], x: Array) -> Array:
    # Arithmetic makes NumPy's arrays without dimensions scalars.
    value = np.asarray(value) if isinstance(value, np.generic) else value
    return namespace(x).broadcast_to(cast_like(value, x), batch)
