"""Random numbers from each framework's generators."""

from __future__ import annotations

import math
import sys
from typing import Any

from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.checks import check_rng, check_shape
from kofn.arrays.kinds import (
    Array,
    _of_torch,
    cast,
    is_jax,
    is_torch,
    most_precise_dtype,
    namespace,
    quiet,
    scalar,
)


def uniform(rng: Any, shape: tuple[int, ...], like: Array) -> Array:
    """Numbers in [0, 1) from a generator or key of `like`'s framework, in its dtype, on its device.

    float16 and bfloat16 would have too few of them.
    """
    if is_torch(like):
        return _of_torch("rand", rng, shape, like)
    if is_jax(like):
        return sys.modules["jax"].random.uniform(rng, shape, like.dtype)
    return rng.random(shape, dtype=like.dtype)


def standard_normal(rng: Any, shape: tuple[int, ...], like: Array) -> Array:
    """Standard normal noise from `rng` in `like`'s dtype, float32 or float64."""
    if is_torch(like):
        return _of_torch("randn", rng, shape, like)
    if is_jax(like):
        return sys.modules["jax"].random.normal(rng, shape, like.dtype)
    return rng.standard_normal(shape, dtype=like.dtype)


def split_rng(rng: Any, count: int) -> tuple[Any, ...]:
    """`count` sources of independent numbers: keys from a JAX key, else the generator itself."""
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(rng, jax.Array):
        return tuple(jax.random.split(rng, count))
    return (rng,) * count


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
