"""Gumbel noise, for whatever chooses the largest of what is perturbed."""

from __future__ import annotations

from typing import Any

from kofn._array import Array, cast, is_jax, namespace, scalar, uniform


def gumbel(rng: Any, shape: tuple[int, ...], like: Array) -> Array:
    """Standard Gumbel noise, −log of an exponential variable, from `rng`, in `like`'s dtype.

    Finite whatever the generator draws. From float64 numbers, or for JAX from two of float32: of
    one, the largest few are too far apart for the largest of many.
    """
    xp = namespace(like)
    if is_jax(like):
        dtype = xp.promote_types(like.dtype, "float32")
        high, low = uniform(rng, (2, *shape), xp.zeros((), dtype))
        step = float(xp.finfo(dtype).eps)
        # From ½ on the sum could round up to 1.
        u = xp.where(high < 0.5, high + step * low, high)
    else:
        u = uniform(rng, shape, cast(scalar(like, 0.0), xp.float64))
    tiny = float(xp.finfo(u.dtype).smallest_normal)
    return cast(-xp.log(xp.clip(-xp.log1p(-u), tiny, None)), like.dtype)
