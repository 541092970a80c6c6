"""Checked arguments of a map: scores as rows, the dimension `dim` last, numbers per row.

A row has available entries (`live`: finite scores, or NaN), scores of +inf (`top`), and excluded
entries (masked, −inf, or an additive mask's finfo.min), which are never chosen. The equation
chooses k' = k − #top of the live entries; it is not needed if k' is 0 or all of them.
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
    is_numpy,
    move_axis,
    namespace,
    quiet,
)
from kofn.links.link import Link

# The least and the greatest usable temperatures; see `temperature_of`. Keyed by dtype name, because
# that is fast and NumPy has no bfloat16.
TEMPERATURES = {"bfloat16": (2.0**-119, (2 - 2.0**-7) * 2.0**120)} | {
    str(info.dtype): (float(info.smallest_normal / info.eps), float(info.max * info.eps))
    for info in (np.finfo("float16"), np.finfo("float32"), np.finfo("float64"))
}


HALF_TYPES = ("float16", "bfloat16")

NUMBERS = (int, float)  # what most callers give, and cheaper to ask for than for an array


class Given(NamedTuple):
    """The checked arguments of a map: scores with `dim` last, in the compute dtype."""

    scores: Array  # −inf where excluded
    k: Array  # NaN where an array of k is out of range
    temperature: Array
    link: Any  # an inner Link; its parameter is a number or per row


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
    """Check the arguments and bring them to a common form.

    `keep_deleted` skips a pass over the scores, for callers who use the kernels or `rows_of`: these
    detect excluded scores themselves. Half-precision scores are cast before, so they are always
    checked here.
    """
    dtype = check_scores(scores)
    dim = check_dim(dim, scores.ndim)
    by_caller = keep_deleted and dtype not in HALF_TYPES
    x = last(scores if by_caller else without_deleted(scores), dim, dtype)
    if mask is not None:
        x = namespace(x).where(last_mask(mask, scores, dim), x, -math.inf)
    batch, n = tuple(x.shape[:-1]), x.shape[-1]
    if n == 0:  # one excluded entry, so that a row has a minimum
        x = full_like(x, (*batch, 1), -math.inf)
    link = _link_of(link, batch, x, dim)
    k, t = _k_of(k, batch, n, x, dim), temperature_of(temperature, batch, x, dim)
    if link.parted()[1] is None:
        x, k, t = alike(x, k, t)
        return Given(x, k, t, link)
    x, k, t, alpha = alike(x, k, t, link.alpha)
    return Given(x, k, t, link.at(alpha))


def only_one(scores: Array, dim: int) -> int:
    """Check the arguments with k = 1, or k = 0 along an empty dimension."""
    check_scores(scores)
    return min(1, scores.shape[check_dim(dim, scores.ndim)])


def without_deleted(scores: Array) -> Array:
    """Return `scores` with −inf where `kinds.deleted` says that they count as masked."""
    return namespace(scores).where(deleted(scores), -math.inf, scores)


def last(scores: Array, dim: int, dtype: str = "") -> Array:
    """Return `scores` in the compute dtype with `dim` moved to the end and contiguous."""
    known = dtype in ("float32", "float64") and not is_numpy(scores)
    x = scores if known else cast(scores, compute_dtype(scores))
    return contiguous(x if dim == -1 else move_axis(x, dim, -1))


def last_mask(mask: Any, scores: Array, dim: int, of: str = "scores") -> Array:
    """Return where an entry may be chosen, with `dim` last."""
    check_mask(mask, scores, of)
    xp = namespace(scores)
    mask = xp.broadcast_to(adopt(mask, scores), scores.shape)
    return mask if dim == -1 else move_axis(mask, dim, -1)


def weights_in_play(weights: Array, dim: int, mask: Array | None) -> tuple[Array, Any]:
    """Return weights with `dim` last in the compute dtype, 0 where masked, and the mask."""
    check_scores(weights, "weights")
    dim = check_dim(dim, weights.ndim)
    p = last(weights, dim)
    xp = namespace(p)
    if mask is None:
        return p, xp.ones_like(p, dtype=xp.bool)
    playing = last_mask(mask, weights, dim, "weights")
    return xp.where(playing, p, 0.0), playing


def entries(values: Array, rows: Array, dim: int) -> Array:
    """Bring an array of the scores' shape to the form of the rows."""
    xp = namespace(values)
    if values.shape[dim] == 0:
        return xp.zeros_like(rows)
    return contiguous(move_axis(values, dim, -1))


def restore(weights: Array, scores: Array, dim: int) -> Array:
    """Return weights in the dtype of `scores`, with the last dimension moved back to `dim`."""
    dim = check_dim(dim, scores.ndim)
    weights = cast(weights, scores.dtype)
    if scores.shape[dim] == 0:
        weights = weights[..., :0]
    return weights if dim == -1 else move_axis(weights, -1, dim)


def _k_of(k: Any, batch: tuple[int, ...], n: int, x: Array, dim: int) -> Array:
    """Return k per row; NaN where an array of k is below 0 or above n."""
    if type(k) in NUMBERS or framework(k) is None:
        return full_like(x, batch, check_k(k, n))
    k = _spread(_per_row("k", k, batch, x, dim), batch, x)
    return namespace(x).where((k >= 0) & (k <= n), k, math.nan)


def temperature_of(
    temperature: Any, batch: tuple[int, ...], x: Array, dim: int | None = None
) -> Array:
    """Return T per row, limited so that T·eps is a normal number and T·F⁻¹ does not overflow.

    Beyond the limits (1e-31 and 4e31 in float32) the map equals the hard top-k, or k/n, exactly.
    """
    floor, ceiling = TEMPERATURES[dtype_name(x)]
    if type(temperature) in NUMBERS or framework(temperature) is None:
        number = check_temperature(temperature)
        return full_like(x, batch, min(max(number, floor), ceiling))
    xp = namespace(x)
    temperature = _per_row("temperature", temperature, batch, x, dim)
    with quiet(x):
        t = _spread(temperature, batch, x)
    # Checked before the cast: a float64 temperature that float32 rounds to 0 is valid.
    good = (temperature > 0) & (temperature < math.inf)
    return xp.where(_spread(good, batch, x) > 0, xp.clip(t, floor, ceiling), math.nan)


def _link_of(link: Link, batch: tuple[int, ...], x: Array, dim: int) -> Link:
    link = link.inner
    if link.alpha is None:
        return link
    if framework(link.alpha) is None:
        # A number stays a number, which is cheaper; few do under jit, where it is a constant.
        dynamic = is_jax(x) and link.alpha not in (1.0, 1.5, 2.0)
        return link.at(full_like(x, batch, link.alpha)) if dynamic else link
    alpha = _spread(_per_row("alpha", link.alpha, batch, x, dim), batch, x)
    good = (alpha >= 1) & (alpha < math.inf)
    return link.at(namespace(x).where(good, alpha, math.nan))


def _per_row(name: str, value: Array, batch: tuple[int, ...], x: Array, dim: int | None) -> Array:
    """Return an array argument, checked to broadcast to the batch shape."""
    check_same_kind(name, value, x)
    check_real(name, value)
    return check_per_row(name, value, batch, dim)


def _spread(value: Array, batch: tuple[int, ...], x: Array) -> Array:
    # Arithmetic turns NumPy arrays without dimensions into scalars.
    value = np.asarray(value) if isinstance(value, np.generic) else value
    return namespace(x).broadcast_to(cast_like(value, x), batch)
