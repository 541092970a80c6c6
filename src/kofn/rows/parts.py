"""Reductions of sets of entries whose rows lie in several processes: a part of each set in each.

test_distributed_sparse_softmax.py holds them.
"""

from __future__ import annotations

from typing import Any

from kofn.arrays.kinds import Array


class PartsOfSets:
    """Reductions of the segments here, and then of the parts of rows; see distributed/."""

    def __init__(self, here: Any, parts: Any) -> None:
        self.here, self.parts = here, parts

    def min(self, values: Any) -> Array:
        found: Array = self.parts.min(self.here.min(values)[..., None])
        return found

    def max(self, values: Any) -> Array:
        found: Array = self.parts.max(self.here.max(values)[..., None])
        return found

    def sum(self, values: Any) -> Array:
        found: Array = self.parts.sum(self.here.sum(values)[..., None])
        return found

    def count(self, flags: Any) -> Array:
        found: Array = self.parts.sum(self.here.count(flags)[..., None])
        return found

    def any(self, flags: Any) -> Array:
        return self.count(flags) > 0

    def expand(self, per_row: Any) -> Array:
        found: Array = self.here.expand(self.parts.expand(per_row)[..., 0])
        return found
