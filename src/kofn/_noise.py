"""Gumbel noise, for whatever chooses the largest of what is perturbed."""

from __future__ import annotations

import math
from typing import Any

from kofn._array import (
    Array,
    cast,
    most_precise_dtype,
    namespace,
    quiet,
    scalar,
    stop_gradient,
    uniform,
)
from kofn._validate import check_rng, check_shape


def with_gumbel(y: Array, dim: int, shape: Any, rng: Any) -> Array:
    """y, `centred`, + Gumbel noise: shape + y.shape, differentiable in y."""
    shape, rng = check_shape(shape), check_rng(rng, y)
    with quiet(y):
        return centred(y, dim) + gumbel(rng, (*shape, *y.shape), y)


def centred(y: Array, dim: int) -> Array:
    """y less the largest finite entry of its row, a constant that no choice sees.

    Far from 0 rounding of the sum would make ties of the noise.
    """
    if y.shape[dim] == 0:
        return y
    xp = namespace(y)
    finite = xp.abs(stop_gradient(y)) < math.inf
    top = xp.max(xp.where(finite, stop_gradient(y), -math.inf), axis=dim, keepdims=True)
    return y - xp.where(top == -math.inf, 0.0, top)


def gumbel(rng: Any, shape: tuple[int, ...], like: Array) -> Array:
    """Standard Gumbel noise, −log of an exponential variable, from `rng`, in `like`'s dtype.

    Finite whatever the generator draws. From float64 numbers, or where there are none (JAX as it
    comes, Apple's GPUs) from two of float32: of one, the largest few are too far apart for the
    largest of many.
    """
    xp, dtype = namespace(like), most_precise_dtype(like)
    number = cast(scalar(like, 0.0), dtype)
    if dtype == xp.float64:
        u = uniform(rng, shape, number)
    else:
        high, low = uniform(rng, (2, *shape), number)
        # From ½ on the sum could round up to 1.
        u = xp.where(high < 0.5, high + float(xp.finfo(dtype).eps) * low, high)
    tiny = float(xp.finfo(u.dtype).smallest_normal)
    return cast(-xp.log(xp.clip(-xp.log1p(-u), tiny, None)), like.dtype)
