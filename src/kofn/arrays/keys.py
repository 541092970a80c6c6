"""Floats as integers in the same order, which are counted and sent exactly."""

from __future__ import annotations

import math
from typing import Any

from kofn.arrays.dtensor import is_dtensor
from kofn.arrays.kinds import Array, dtype_name, is_jax, namespace
from kofn.arrays.typing import ArrayT


def keys_of(x: ArrayT) -> ArrayT:
    """Return integers in the order of numbers of any type, equal where these are equal.

    A NaN stands beyond the infinity of its sign.
    """
    return in_order(without_negative_zeros(x)) if "float" in dtype_name(x) else x


def in_order(x: ArrayT) -> ArrayT:
    """Return integers in the order of floats, −0 before 0."""
    return _flipped(_seen_as(x, f"int{8 * x.dtype.itemsize}"))


def numbers_of(keys: ArrayT, dtype: str) -> ArrayT:
    """Return the floats of `keys_of` or `in_order`, whose size the keys have."""
    return _seen_as(_flipped(keys), dtype)


def without_negative_zeros(x: ArrayT) -> ArrayT:
    """Return x with 0 for −0."""
    if "float" not in dtype_name(x):
        return x
    if not is_jax(x):
        return x + 0.0
    # By the bits: XLA may take a subnormal number for 0 and compare so.
    bits = _seen_as(x, f"int{8 * x.dtype.itemsize}")
    bits = namespace(x).where(bits == -_greatest(bits) - 1, 0, bits)
    return _seen_as(bits, dtype_name(x))


def with_one_nan(x: Array) -> Array:
    """Return x with NaNs of one sign, the positive one."""
    return namespace(x).where(x != x, math.nan, x) if "float" in dtype_name(x) else x


def _flipped(bits: Any) -> Any:
    """Reverse the order of negative floats, which as integers are ordered by size."""
    greatest = _greatest(bits)
    if is_dtensor(bits):  # which PyTorch shifts wrongly
        return namespace(bits).where(bits < 0, bits ^ greatest, bits)
    return bits ^ ((bits >> greatest.bit_length()) & greatest)


def _greatest(integers: Any) -> int:
    """Return the greatest number of a type of signed integers."""
    return (1 << (8 * integers.dtype.itemsize - 1)) - 1


def _seen_as(x: Any, dtype: str) -> Any:
    """Return the bits of x as numbers of another type of its size."""
    if is_jax(x):
        from jax import lax

        return lax.bitcast_convert_type(x, dtype)
    return x.view(getattr(namespace(x), dtype))
