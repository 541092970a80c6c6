"""Reductions of sets of entries whose rows lie in several processes: a part of each set in each.

test_distributed_sparse_softmax.py holds them.
"""

from __future__ import annotations

from kofn.arrays.kinds import Array
from kofn.solver.reductions import Reductions


class PartsOfSets:
    """Reductions of the segments here, and then of the parts of rows; see distributed/."""

    def __init__(self, here: Reductions, parts: Reductions) -> None:
        self.here, self.parts = here, parts

    def min(self, values: Array) -> Array:
        return self.parts.min(self.here.min(values)[..., None])

    def max(self, values: Array) -> Array:
        return self.parts.max(self.here.max(values)[..., None])

    def sum(self, values: Array) -> Array:
        return self.parts.sum(self.here.sum(values)[..., None])

    def count(self, flags: Array) -> Array:
        return self.parts.sum(self.here.count(flags)[..., None])

    def any(self, flags: Array) -> Array:
        return self.count(flags) > 0

    def expand(self, per_row: Array) -> Array:
        return self.here.expand(self.parts.expand(per_row)[..., 0])
