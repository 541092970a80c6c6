"""The reductions over a row (min, max, sum, count) that the solver uses."""

from __future__ import annotations

from typing import Protocol

from kofn.arrays.kinds import Array, namespace


class Reductions(Protocol):
    """The reductions over a row that the solver uses."""

    def min(self, values: Array) -> Array: ...
    def max(self, values: Array) -> Array: ...
    def sum(self, values: Array) -> Array: ...
    def count(self, flags: Array) -> Array: ...
    def expand(self, per_row: Array) -> Array: ...


class DenseRows:
    """Reductions for rows along the last axis of an array."""

    @staticmethod
    def min(values: Array) -> Array:
        return namespace(values).min(values, axis=-1)

    @staticmethod
    def max(values: Array) -> Array:
        return namespace(values).max(values, axis=-1)

    @staticmethod
    def sum(values: Array) -> Array:
        return namespace(values).sum(values, axis=-1)

    @staticmethod
    def count(flags: Array) -> Array:
        return namespace(flags).sum(flags, axis=-1)

    @staticmethod
    def expand(per_row: Array) -> Array:
        return per_row[..., None]


DENSE: Reductions = DenseRows()
