"""The entries of segments in the order of their numbers."""

from __future__ import annotations

from typing import Any, NamedTuple

from kofn.arrays.kinds import Array, full_like, is_jax, namespace, scalar
from kofn.arrays.operations import (
    as_indices,
    as_numbers,
    cumulative_sums,
    stable_order,
    take_along_last,
)
from kofn.rows.segments.form import SegmentForm
from kofn.solver.segments import SegmentRows


class Ordered(NamedTuple):
    """Entries, segment by segment, each in its order."""

    order: Array  # the entries
    first: Array  # where each segment begins in that order
    members: Array  # how many entries each has

    def at(self, places: Array, last: Array) -> Array:
        """Return the entries at places (segments, …), limited to 0 and the place `last`."""
        xp = namespace(places)
        none = scalar(places, 0)
        within = xp.maximum(xp.minimum(places, last[..., None]), none) + self.first[..., None]
        # A segment without entries may begin behind the last one.
        within = xp.minimum(within, full_like(within, (), self.order.shape[0] - 1))
        return self.order[within]


def ordered(x: Array, over: SegmentRows, descending: bool, states: Array | None = None) -> Ordered:
    """Return the entries of segments by their numbers, equal ones by their index; NaN is largest.

    Args:
        x: (n,). states: integers (n,), or None for 0; see `formulas.choice.order_by_states`.
    """
    if states is not None:
        x = namespace(x).where(states == 0, x, scalar(x, 0))
    order = stable_order(x, descending)
    keys = [over.ids] if states is None else [states, over.ids]
    for key in keys:  # the last one decides
        order = take_along_last(order, stable_order(take_along_last(key, order)))
    members = over.count(namespace(x).ones_like(x, dtype=namespace(x).bool))
    return Ordered(order, cumulative_sums(members) - members, members)


def states_of(form: SegmentForm, mask: Any) -> Array | None:
    """Return 0 for entries in play, 1 where a flat mask leaves one out, 2 for those in no segment.

    None if all are in play.
    """
    xp = form.xp
    states = None if mask is None else as_numbers(~mask, xp.int32)
    if form.unassigned is None:
        return states
    flags = form.unassigned[(..., *[None] * (len(form.shape) - 1))]
    outside = form.flat(xp.broadcast_to(flags, form.shape))
    if states is None:
        return 2 * as_numbers(outside, xp.int32)
    return xp.where(outside, scalar(states, 2), states)


def in_column(entries: Array, form: SegmentForm) -> Array:
    """Return the indices along the first axis of x of entries of its flat form."""
    places = entries % form.shape[0] if form.shape[0] else entries
    return as_indices(places) if is_jax(places) else places
