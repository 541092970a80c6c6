"""Arrays on the devices of named mesh axes, and extremes that keep NaN on the way."""

from __future__ import annotations

from typing import Any

import jax
from jax import lax


def varying(x: jax.Array, names: tuple[str, ...]) -> jax.Array:
    """Return x as an array that may differ along these axes, as reductions over them require."""
    missing = tuple(name for name in names if name not in variations(x))
    if not missing:
        return x
    if hasattr(lax, "pcast"):
        return lax.pcast(x, missing, to="varying")

    return lax.pvary(x, missing)  # type: ignore[attr-defined]  # before JAX 0.7


def variations(x: jax.Array) -> frozenset[str]:
    """Return the axes along which JAX says that x may differ; none where it does not track them."""
    kind: Any = jax.typeof(x) if hasattr(jax, "typeof") else None  # JAX before 0.6 tracks nothing
    if hasattr(kind, "manual_axis_type"):
        return frozenset(kind.manual_axis_type.varying)
    return frozenset(getattr(kind, "vma", ()))


_INTEGERS = {2: "int16", 4: "int32", 8: "int64"}


def as_integers(x: jax.Array, nan: int) -> jax.Array:
    """Return integers in the order of the numbers, NaN before all (−1) or after all (1).

    A maximum over devices may drop a NaN, one of integers cannot.
    """
    bits = lax.bitcast_convert_type(x, _INTEGERS[x.dtype.itemsize])
    info = jax.numpy.iinfo(bits.dtype)
    ordered = jax.numpy.where(bits < 0, bits ^ info.max, bits)
    return jax.numpy.where(jax.numpy.isnan(x), info.max if nan > 0 else info.min, ordered)


def without_negative_zeros(x: jax.Array) -> jax.Array:
    """Return x with 0 for −0, by the bits: XLA may take a subnormal number for 0 and compare so."""
    if not jax.numpy.issubdtype(x.dtype, jax.numpy.floating):
        return x
    bits = lax.bitcast_convert_type(x, _INTEGERS[x.dtype.itemsize])
    bits = jax.numpy.where(bits == jax.numpy.iinfo(bits.dtype).min, 0, bits)
    return lax.bitcast_convert_type(bits, x.dtype)


def keys_of(x: jax.Array, nan: int = 1) -> jax.Array:
    """Return integers in the order of numbers of any type, equal where these are equal."""
    if not jax.numpy.issubdtype(x.dtype, jax.numpy.floating):
        return x
    return as_integers(without_negative_zeros(x), nan)


def as_numbers(ordered: jax.Array, dtype: Any) -> jax.Array:
    """Return the numbers of `as_integers`."""
    bits = jax.numpy.where(ordered < 0, ordered ^ jax.numpy.iinfo(ordered.dtype).max, ordered)
    return lax.bitcast_convert_type(bits, dtype)
