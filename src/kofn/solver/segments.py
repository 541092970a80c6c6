"""Reductions for ragged rows: segments of one long axis, in any order."""

from __future__ import annotations

from typing import Any

from kofn.arrays.kinds import Array, cast, is_torch, namespace
from kofn.arrays.segments import segment_expand, segment_max, segment_min, segment_sum


class SegmentRows:
    """Reductions of rows where entry i belongs to row `ids[i]`, one of `count`.

    On JAX the ids are an argument of compiled functions, and the count is part of these.
    """

    def __init__(self, ids: Array, count: int) -> None:
        self.ids, self.count_of_rows = ids, count

    def min(self, values: Array) -> Array:
        return segment_min(self._each(values), self.ids, self.count_of_rows)

    def max(self, values: Array) -> Array:
        return segment_max(self._each(values), self.ids, self.count_of_rows)

    def sum(self, values: Array) -> Array:
        return segment_sum(self._each(values), self.ids, self.count_of_rows)

    def count(self, flags: Array) -> Array:
        xp = namespace(flags)
        whole: Any = xp.int64 if is_torch(flags) else int
        return segment_sum(cast(self._each(flags), whole), self.ids, self.count_of_rows)

    def any(self, flags: Array) -> Array:
        return self.count(flags) > 0

    def expand(self, per_row: Array) -> Array:
        return segment_expand(per_row, self.ids)

    def _each(self, values: Array) -> Array:
        shape = tuple(self.ids.shape)
        if tuple(values.shape) == shape:
            return values
        return namespace(values).broadcast_to(values, shape)
