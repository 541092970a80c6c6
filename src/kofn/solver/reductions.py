"""The reductions over a row (min, max, sum, count) that the solver uses."""

from __future__ import annotations

from typing import Any, Protocol

from kofn.arrays.kinds import Array, namespace
from kofn.arrays.operations import greatest, least


class Reductions(Protocol):
    """The only operations over a row that `solver/` and `formulas/` use.

    There are two kinds of arrays: those with a number per entry, and those with one per row. Each
    kind has one shape, or one that broadcasts with it, and may hold rows as it likes: as the last
    axis, as segments of one long axis, as a shard of every row. What lies between the reductions
    is elementwise, and whether a branch or a round is due that reduces or expands is decided by
    numbers per row, or by `any`. So shards of a row, who know the same of it, decide alike.

    Where a row has no entries, its least is +inf, its greatest −inf, and its sum and count 0. A NaN
    is the least and the greatest of its row.

    Derivatives: `sum` and `expand` are differentiated, to any order, and each is the transpose of
    the other: what a row's number gets back is the sum over all of the row's entries. min, max,
    count and any only see arrays without derivatives. On JAX this is a pytree: what arrays it holds
    are arguments of compiled functions and of rules of custom_jvp, which may not close over them;
    inside, all of it is called under vmap, in branches and loops.

    The arguments have no type, for in shards it is torch.Tensor, or jax.Array.
    """

    def min(self, values: Any) -> Array:
        """Reduce numbers per entry to one per row."""

    def max(self, values: Any) -> Array:
        """Reduce numbers per entry to one per row."""

    def sum(self, values: Any) -> Array:
        """Sum numbers per entry to one per row; their shape may broadcast with the entries'."""

    def count(self, flags: Any) -> Array:
        """Count the set flags of each row, in any dtype of numbers."""

    def any(self, flags: Any) -> Array:
        """Return flags of any shape, one of them set if one is set among the entries, in other
        shards too: by these, branches that reduce or expand may be decided.
        """

    def expand(self, per_row: Any) -> Array:
        """Expand numbers or flags per row to a shape that broadcasts with the entries."""


class DenseRows:
    """Reductions for rows along the last axis of an array."""

    @staticmethod
    def min(values: Array) -> Array:
        return least(values)

    @staticmethod
    def max(values: Array) -> Array:
        return greatest(values)

    @staticmethod
    def sum(values: Array) -> Array:
        return namespace(values).sum(values, axis=-1)

    @staticmethod
    def count(flags: Array) -> Array:
        return namespace(flags).sum(flags, axis=-1)

    @staticmethod
    def any(flags: Array) -> Array:
        return flags  # all of them are at hand

    @staticmethod
    def expand(per_row: Array) -> Array:
        return per_row[..., None]


DENSE: Reductions = DenseRows()


def sums_of(over: Reductions, *values: Array) -> tuple[Array, ...]:
    """Return the sum of each of the arrays, of flags their count.

    It is one message where rows lie in several processes.
    """
    together = getattr(over, "sums", None)
    return tuple(_sum(over, one) for one in values) if together is None else together(*values)


def sends(over: Reductions) -> bool:
    """Return whether a sum is a message between processes, which is spared where it can be."""
    return hasattr(over, "wide_sums")


def is_in_parts(over: Reductions) -> bool:
    """Return whether rows lie in several processes, or on several JAX devices."""
    return sends(over) or hasattr(over, "copies")


def wide_sums_of(over: Reductions, *values: Array) -> tuple[Array, ...]:
    """Return `sums_of`, in float64 where a message carries them so."""
    together = getattr(over, "wide_sums", None)
    return sums_of(over, *values) if together is None else together(*values)


def _sum(over: Reductions, values: Array) -> Array:
    return over.count(values) if values.dtype == namespace(values).bool else over.sum(values)


def maxima_of(over: Reductions, *values: Array) -> tuple[Array, ...]:
    """Return the maximum of each of the arrays; by one message where `sums_of` needs one."""
    together = getattr(over, "maxima", None)
    return tuple(map(over.max, values)) if together is None else together(*values)
