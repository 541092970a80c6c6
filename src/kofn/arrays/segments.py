"""Reductions of one long axis, segment by segment, in each framework."""

from __future__ import annotations

import math
import sys

import numpy as np

from kofn.arrays.kinds import (
    Array,
    cast,
    dtype_name,
    full_like,
    is_jax,
    is_torch,
    most_precise_dtype,
    namespace,
)


def segment_sum(values: Array, ids: Array, count: int) -> Array:
    """Return Σ of each segment's values, (count,), to rounding of the sum, with derivatives.

    Adding a long segment up in float32, one number after another, would lose several digits.
    """
    if not dtype_name(values).startswith("float"):
        return _added(values, ids, count)
    if is_jax(values) and sys.modules["jax"].config.jax_enable_x64:
        wide = namespace(values).float64
    else:
        wide = most_precise_dtype(values)
    if wide != values.dtype:
        return cast(_added(cast(values, wide), ids, count), values.dtype)
    if dtype_name(values) == "float64":
        return _added(values, ids, count)
    return _in_lanes(values, ids, count)


LANES = 256
"""The most parts of an axis that are added up by themselves."""


def _in_lanes(values: Array, ids: Array, count: int) -> Array:
    """Add up every so many numbers by themselves, where there is nothing wider than float32.

    JAX transposes it, so it must be linear, operation by operation.
    """
    xp, size = namespace(values), values.shape[0]
    lanes = max(1, min(LANES, 2 * size // max(count, 1)))
    lane = xp.cumsum(xp.ones_like(ids), axis=0) % lanes
    parts = _added(values, ids * lanes + lane, count * lanes)
    return xp.sum(xp.reshape(parts, (count, lanes)), axis=-1)


def segment_min(values: Array, ids: Array, count: int) -> Array:
    """Return the least of each segment's values; +inf of none."""
    return _least(values, ids, count, "min")


def segment_max(values: Array, ids: Array, count: int) -> Array:
    """Return the greatest of each segment's values; −inf of none."""
    return _least(values, ids, count, "max")


def _added(values: Array, ids: Array, count: int) -> Array:
    if is_torch(values):
        return values.new_zeros(count).index_add(0, ids, values)
    if is_jax(values):
        return sys.modules["jax"].ops.segment_sum(values, ids, count)
    total = np.zeros(count, values.dtype)
    np.add.at(total, ids, values)
    return total


def _least(values: Array, ids: Array, count: int, how: str) -> Array:
    none = math.inf if how == "min" else -math.inf
    if is_torch(values):
        found = full_like(values, (count,), none)
        return found.scatter_reduce(0, ids, values, f"a{how}")
    if is_jax(values):
        return getattr(sys.modules["jax"].ops, f"segment_{how}")(values, ids, count)
    found = np.full(count, none, values.dtype)
    {"min": np.minimum, "max": np.maximum}[how].at(found, ids, values)
    return found
