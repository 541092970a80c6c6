"""Reductions over a row: all that the solver may ask of it."""

from __future__ import annotations

from typing import Protocol

from kofn.arrays.kinds import Array, namespace


class Reductions(Protocol):
    """What the solver may ask of a row."""

    def min(self, values: Array) -> Array: ...
    def max(self, values: Array) -> Array: ...
    def sum(self, values: Array) -> Array: ...
    def count(self, flags: Array) -> Array: ...
    def expand(self, per_row: Array) -> Array: ...


class DenseRows:
    """Rows along the last axis of one array."""

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
