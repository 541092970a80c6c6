"""Arrays on the devices of named mesh axes, and extremes that keep NaN on the way."""

from __future__ import annotations

from typing import Any

import jax
from jax import lax

from kofn.arrays.keys import in_order


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


def as_integers(x: jax.Array) -> jax.Array:
    """Return integers in the order of the numbers, NaN after all.

    A maximum over devices may drop a NaN, one of integers cannot.
    """
    ordered = in_order(x)
    return jax.numpy.where(jax.numpy.isnan(x), jax.numpy.iinfo(ordered.dtype).max, ordered)
