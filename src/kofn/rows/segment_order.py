"""Segments whose places are known: laid out as dense rows of a few lengths, and back."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from kofn.arrays.kinds import Array, is_torch, of_torch

MOST_PADDING = 0.125
"""The share of padding up to which segments of other lengths join a block."""
FEW = 4096
"""Padding that costs less than a block of its own."""


class Block(NamedTuple):
    """Segments that are laid out as rows of one length."""

    which: np.ndarray  # their numbers
    length: int


class Order:
    """Where the entries of each segment are: from `starts` on, once they are sorted."""

    def __init__(self, starts: np.ndarray, lengths: np.ndarray, places: np.ndarray | None) -> None:
        self.starts, self.lengths = starts, lengths
        self.places = places
        """The places of the entries, sorted by segment; None if they are sorted already."""

    @classmethod
    def of_ids(cls, ids: np.ndarray, count: int) -> Order:
        """Return the order of entries of which entry i is in segment ids[i]."""
        places = None
        if ids.size and not np.all(ids[1:] >= ids[:-1]):
            places = np.argsort(ids, kind="stable")
            ids = ids[places]
        return cls.of_ends(np.searchsorted(ids, np.arange(count + 1)), places)

    @classmethod
    def of_ends(cls, ptr: np.ndarray, places: np.ndarray | None = None) -> Order:
        """Return the order of segments that go from ptr[i] to ptr[i + 1]."""
        ptr = ptr.astype(np.int64, copy=False)
        return cls(ptr[:-1].copy(), np.diff(ptr), places)

    def repeated(self, times: int, size: int) -> Order:
        """Return the order of so many columns of that size, one after another."""
        if times == 1:
            return self
        each = np.arange(times, dtype=np.int64)[:, None] * size
        places = None if self.places is None else (self.places + each).reshape(-1)
        return Order((self.starts + each).reshape(-1), np.tile(self.lengths, times), places)

    def ids(self) -> np.ndarray:
        """Return the segment of each entry."""
        ids = np.repeat(np.arange(len(self.lengths)), self.lengths)
        if self.places is None:
            return ids
        found = np.empty_like(ids)
        found[self.places] = ids
        return found

    @cached_property
    def blocks(self) -> list[Block]:
        """The segments by length, as blocks with little padding; an empty one is a row of one."""
        lengths = np.maximum(self.lengths, 1)
        if not lengths.size:
            return []
        if lengths.min() == lengths.max():
            return [Block(np.arange(len(lengths)), int(lengths[0]))]
        order = np.argsort(-lengths, kind="stable")
        sizes, counts = np.unique(lengths, return_counts=True)
        ends = np.cumsum(_together(sizes[::-1], counts[::-1]))
        return [Block(part, int(lengths[part[0]])) for part in np.split(order, ends[:-1])]

    @cached_property
    def is_dense(self) -> bool:
        """Whether all segments have one length, and follow each other."""
        if len(self.blocks) != 1 or self.places is not None:
            return False
        return bool((self.lengths == self.blocks[0].length).all())

    def sorted(self, values: Array) -> Array:
        """Return numbers per entry, sorted by segment."""
        return values if self.places is None else values[self._places_of(values)]

    def unsorted(self, values: Array) -> Array:
        """Return sorted numbers in the order of the entries."""
        if self.places is None:
            return values
        found = values.new_empty(values.shape) if is_torch(values) else np.empty_like(values)
        found[self._places_of(values)] = values
        return found

    def _places_of(self, like: Array) -> Any:
        return _as_index(self.places, like)


def numbers_of(which: np.ndarray, per_row: Array) -> Array:
    """Return the numbers, (…, rows), of some of the rows, without gaps in memory."""
    if is_torch(per_row):
        return per_row.index_select(-1, _as_index(which, per_row))
    return np.take(per_row, which, axis=-1)


def put_numbers(which: np.ndarray, per_row: Array, numbers: Array) -> None:
    """Write the numbers, (…, rows), of some of the rows."""
    per_row[..., _as_index(which, per_row)] = numbers


def _as_index(which: Any, like: Array) -> Any:
    if not is_torch(like):
        return which
    return of_torch("state").from_memory(which)


def _together(sizes: np.ndarray, counts: np.ndarray) -> list[int]:
    """Return how many segments each block has, for lengths from the longest on."""
    found, longest, members, padding = [], 0, 0, 0
    for size, count in zip(sizes.tolist(), counts.tolist(), strict=True):
        more = padding + (longest - size) * count
        entries = longest * (members + count)
        if members and more <= max(FEW, MOST_PADDING * entries):
            members, padding = members + count, more
            continue
        if members:
            found.append(members)
        longest, members, padding = size, count, 0
    return [*found, members]
