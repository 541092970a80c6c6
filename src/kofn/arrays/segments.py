"""Reductions of one long axis, segment by segment, in each framework."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from kofn.arrays.autodiff import has_gradients
from kofn.arrays.kinds import (
    Array,
    cast,
    dtype_name,
    full_like,
    is_jax,
    is_numpy,
    is_torch,
    most_precise_dtype,
    namespace,
    promoting,
)


def segment_sum(values: Array, ids: Array, count: int) -> Array:
    """Return Σ of each segment's values, (count,), to rounding of the sum, with derivatives.

    Adding a long segment up in float32, one number after another, would lose several digits.
    """
    if not dtype_name(values).startswith("float"):
        return _added(values, ids, count)
    wide = _wide(values)
    if wide != values.dtype:
        return cast(_added(cast(values, wide), ids, count), values.dtype)
    if dtype_name(values) == "float64":
        return _added(values, ids, count)
    return _in_lanes(values, ids, count)


def segment_expand(per_row: Array, ids: Array) -> Array:
    """Return the number of each entry's segment.

    Its derivative backwards is `segment_sum`, to the same rounding. An index alone adds up
    one float32 after another.
    """
    if is_numpy(per_row) or dtype_name(per_row) != "float32" or not has_gradients(per_row):
        return per_row[ids]
    if is_jax(per_row):
        return _jax_expand()(per_row, ids)
    return cast(cast(per_row, _wide(per_row))[ids], per_row.dtype)


@cache
def _jax_expand() -> Callable[[Array, Array], Array]:
    """Return an expansion that only its derivative has a cost for."""
    import jax

    @jax.custom_jvp
    def expand(per_row: Array, ids: Array) -> Array:
        return per_row[ids]

    @expand.defjvp
    @promoting
    def _(primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
        per_row, ids = primals
        wide, change = _wide(per_row), tangents[0]
        if wide != per_row.dtype:
            return expand(per_row, ids), cast(cast(change, wide)[ids], per_row.dtype)
        lane, lanes = _lanes(ids, per_row.shape[0])
        repeated = jax.numpy.repeat(change, lanes)
        return expand(per_row, ids), repeated[ids * lanes + lane]

    return expand


def _wide(values: Array) -> Any:
    """Return the dtype that sums of floats are made in."""
    if is_jax(values) and sys.modules["jax"].config.jax_enable_x64:
        return namespace(values).float64
    return most_precise_dtype(values)


LANES = 256
"""The most parts of an axis that are added up by themselves."""


def _in_lanes(values: Array, ids: Array, count: int) -> Array:
    """Add up every so many numbers by themselves, where there is nothing wider than float32.

    JAX transposes it, so it must be linear, operation by operation.
    """
    xp, (lane, lanes) = namespace(values), _lanes(ids, count)
    parts = _added(values, ids * lanes + lane, count * lanes)
    return xp.sum(xp.reshape(parts, (count, lanes)), axis=-1)


def _lanes(ids: Array, count: int) -> tuple[Array, int]:
    """Return the lane of each entry, and how many there are."""
    xp = namespace(ids)
    lanes = max(1, min(LANES, 2 * ids.shape[0] // max(count, 1)))
    return xp.cumsum(xp.ones_like(ids), axis=0) % lanes, lanes


def segment_min(values: Array, ids: Array, count: int) -> Array:
    """Return the least of each segment's values; +inf of none."""
    return _least(values, ids, count, "min")


def segment_max(values: Array, ids: Array, count: int) -> Array:
    """Return the greatest of each segment's values; −inf of none."""
    return _least(values, ids, count, "max")


def _added(values: Array, ids: Array, count: int) -> Array:
    if is_torch(values):
        return values.new_zeros(count).index_add(0, ids, values)  # type: ignore[arg-type]
    if is_jax(values):
        from jax.ops import segment_sum as add

        return add(values, ids, count)  # type: ignore[arg-type]  # of JAX
    total = np.zeros(count, np.asarray(values).dtype)
    np.add.at(total, np.asarray(ids), values)
    return total


def _least(values: Array, ids: Array, count: int, how: str) -> Array:
    none = math.inf if how == "min" else -math.inf
    if is_torch(values):
        nothing = full_like(values, (count,), none)
        return nothing.scatter_reduce(0, ids, values, f"a{how}")  # type: ignore[arg-type]
    if is_jax(values):
        from jax import ops

        return {"min": ops.segment_min, "max": ops.segment_max}[how](values, ids, count)  # type: ignore[arg-type]
    least = np.full(count, none, np.asarray(values).dtype)
    {"min": np.minimum, "max": np.maximum}[how].at(least, np.asarray(ids), values)
    return least
