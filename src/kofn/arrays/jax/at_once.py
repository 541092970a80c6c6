"""Several reductions along the last axis, as one operation of XLA: it compiles in a third of the
time of as many operations, each of which computes what they share anew.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax

from kofn.arrays.jax.axes import as_integers
from kofn.arrays.kinds import promoting

EXACT = 1 << 24
"""Entries that float32 can count."""


@jax.custom_jvp
def sums(*values: jax.Array) -> tuple[jax.Array, ...]:
    """Return the sum of each of the arrays, of flags their count, as floats."""
    number = next((each.dtype for each in values if each.dtype != bool), jax.numpy.zeros(()).dtype)
    whole = number if values[0].shape[-1] <= EXACT else "int32"
    each = [each.astype(whole) if each.dtype == bool else each for each in values]
    totals = _reduced(lax.add, each, [jax.numpy.zeros((), one.dtype) for one in each])
    return tuple(total.astype(number) for total in totals)


@sums.defjvp
@promoting
def _(primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
    answers = sums(*primals)
    pairs = zip(answers, primals, tangents, strict=True)
    return answers, tuple(
        jax.numpy.zeros_like(answer) if each.dtype == bool else change.sum(-1)
        for answer, each, change in pairs
    )


def maxima(*keys: jax.Array) -> tuple[jax.Array, ...]:
    """Return the maximum of each of arrays of `as_integers`, −∞ of no entries."""
    ends = [
        as_integers(jax.numpy.asarray(-math.inf, f"float{8 * each.dtype.itemsize}"))
        for each in keys
    ]
    return _reduced(lax.max, keys, ends)


def as_one(*values: jax.Array) -> tuple[jax.Array, ...]:
    """Return arrays of one shape as the answers of one operation. It has no derivative.

    Where a loop or a branch hands on many numbers per row, XLA compiles a program for each on a
    CPU, and what they share anew in each. The operation is the maximum of a number and a least one
    behind it along a new axis: along an axis of one entry XLA has nothing to do.
    """
    least = [*map(_least, values)]
    ways = [*((0, 0, 0) for _ in values[0].shape), (0, 1, 0)]
    pairs = zip(values, least, strict=True)
    padded = [lax.pad(each[..., None], none, ways) for each, none in pairs]
    return _reduced(lax.max, padded, least)


def _least(like: jax.Array) -> jax.Array:
    """Return what no number of the type of an array is below."""
    of: Any = jax.numpy
    if like.dtype == bool:
        return jax.numpy.zeros((), bool)
    floating = of.issubdtype(like.dtype, of.floating)
    return jax.numpy.asarray(-math.inf if floating else of.iinfo(like.dtype).min, like.dtype)


def _reduced(
    join: Callable[..., Any], values: Sequence[jax.Array], none: Sequence[jax.Array]
) -> tuple[jax.Array, ...]:
    shape = jax.numpy.broadcast_shapes(*(each.shape for each in values))
    each = tuple(jax.numpy.broadcast_to(one, shape) for one in values)

    def joined(one: Sequence[Any], other: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(map(join, one, other))

    return lax.reduce(each, tuple(none), joined, (len(shape) - 1,))
