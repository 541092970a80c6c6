"""The hard choice of segments: ones at the k largest scores of each, equal ones in their order."""

from __future__ import annotations

import math

from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.kinds import Array, cast, deleted, namespace
from kofn.arrays.operations import arange, put_along_last
from kofn.rows.given import Given
from kofn.rows.segments.ordered import ordered
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
    xp = namespace(x)
    known = xp.where(deleted(x) | xp.isnan(x), -math.inf, x)
    order = ordered(known, over, descending=True)
    place = put_along_last(
        xp.zeros_like(order.order), order.order, arange(order.order, x.shape[-1])
    )
    return cast(place - over.expand(cast(order.first, over.ids.dtype)), x.dtype)
