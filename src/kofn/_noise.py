"""Gumbel noise, for whatever chooses the largest of what is perturbed."""

from __future__ import annotations

from typing import Any

from kofn._array import Array, cast, most_precise_dtype, namespace, scalar, uniform


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
