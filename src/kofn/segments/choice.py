"""The hard choice of segments: ones at the k largest scores of each, equal ones in their order."""

from __future__ import annotations

import math

from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.kinds import Array, cast, deleted, namespace
from kofn.arrays.operations import (
    arange,
    cumulative_sums,
    put_along_last,
    stable_order,
    take_along_last,
)
from kofn.inputs.given import Given
from kofn.solver.segments import SegmentRows


def hard(given: Given) -> Array:
    """Return the hard top-k of the segments of `given`, without a gradient."""
    x, k = stop_gradient(given.scores), stop_gradient(given.per_row().k)
    over: SegmentRows = given.form.over
    xp, playing = namespace(x), ~deleted(x)
    share = xp.clip(over.expand(k) - _ranks(x, over), 0.0, 1.0)
    chosen = xp.where(playing, share, 0.0)
    bad = over.expand((over.count(xp.isnan(x)) > 0) | xp.isnan(k))
    has_nan = bad & ((x != math.inf) | over.expand(xp.isnan(k)))
    return xp.where(has_nan & playing, math.nan, chosen)


def _ranks(x: Array, over: SegmentRows) -> Array:
    """Return how many scores of its segment come before each: larger ones, then earlier ones."""
    xp, ids = namespace(x), over.ids
    known = xp.where(deleted(x) | xp.isnan(x), -math.inf, x)
    by_size = stable_order(-known)
    ids_by_size = take_along_last(xp.broadcast_to(ids, x.shape), by_size)
    order = take_along_last(by_size, stable_order(ids_by_size))
    members = over.count(xp.ones_like(x, dtype=xp.bool))
    first = cast(cumulative_sums(members) - members, ids.dtype)
    place = put_along_last(xp.zeros_like(order), order, arange(order, x.shape[-1]))
    return cast(place - over.expand(first), x.dtype)
