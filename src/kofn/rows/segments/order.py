"""Segments whose places are known: which of them are laid out together as dense rows."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from kofn import kernels
from kofn.arrays import torch as of_torch
from kofn.arrays.kinds import Array, is_torch

MOST_PADDING = 0.125
"""The share of padding up to which segments of other lengths join a block."""
MOST = 1 << 40
"""Segments that no machine has memory for."""
FEW = 1 << 14
"""Padding that costs less than a block of its own."""


class Block(NamedTuple):
    """Segments that are laid out as rows of one length."""

    which: np.ndarray  # their numbers
    length: int


class Order:
    """Where the entries of each segment are: from `starts` on, in the order of the segments."""

    def __init__(
        self, starts: np.ndarray, lengths: np.ndarray, places: np.ndarray | None = None
    ) -> None:
        self.starts, self.lengths = starts, lengths
        self.places = places
        """The place of the i-th entry in that order; None if they are in it already."""

    @classmethod
    def of_ids(cls, ids: np.ndarray, count: int | None) -> Order:
        """Return the order of entries, where entry i is in segment ids[i], all in [0, count)."""
        ids = np.ascontiguousarray(ids, np.int64)
        copies = kernels.copies() if kernels.wanted() else None
        if not ids.size or copies is None:
            return cls._by_sorting(ids, count)
        is_sorted, least, greatest = copies.statistics(ids)
        lengths = copies.lengths_of(ids, checked_count(least, greatest, count))
        starts = np.cumsum(lengths) - lengths
        return cls(starts, lengths, None if is_sorted else copies.places_of(ids, starts))

    @classmethod
    def _by_sorting(cls, ids: np.ndarray, count: int | None) -> Order:
        if ids.size:
            count = checked_count(int(ids.min()), int(ids.max()), count)
        lengths = np.bincount(ids, minlength=count or 0)
        places = None if np.all(ids[1:] >= ids[:-1]) else np.argsort(ids, kind="stable")
        return cls(np.cumsum(lengths) - lengths, lengths, places)

    @classmethod
    def of_ends(cls, ptr: np.ndarray) -> Order:
        """Return the order of segments that go from ptr[i] to ptr[i + 1]."""
        return cls(ptr[:-1].copy(), np.diff(ptr))

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
        by_entry = np.empty_like(ids)
        by_entry[self.places] = ids
        return by_entry

    def within(self, entries: np.ndarray) -> np.ndarray:
        """Return the place of an entry in each segment, from 0 on; −1 where it is of another."""
        if self.places is not None:
            ranks = np.empty_like(self.places)
            ranks[self.places] = np.arange(len(ranks))
            entries = ranks[entries]
        places = entries - self.starts
        return np.where(places < self.lengths, places, -1).clip(-1)

    @cached_property
    def common_length(self) -> int:
        """Return the length of all segments; 0 where it is not the same, or some are empty."""
        lengths = self.lengths
        return int(lengths[0]) if len(lengths) and (lengths == lengths[0]).all() else 0

    @property
    def is_dense(self) -> bool:
        """Return whether the entries are dense rows as they are."""
        return self.places is None and self.common_length > 0

    @cached_property
    def blocks(self) -> list[Block]:
        """The segments by length, as blocks with little padding; an empty one is a row of one."""
        lengths = np.maximum(self.lengths, 1)
        if not lengths.size:
            return []
        if self.common_length:
            return [Block(np.arange(len(lengths)), self.common_length)]
        order = _from_longest(lengths)
        sorted_lengths = lengths[order]
        firsts = np.flatnonzero(np.diff(sorted_lengths, prepend=0))
        counts = np.diff(firsts, append=len(lengths))
        ends = np.cumsum(_together(sorted_lengths[firsts], counts))
        return [Block(part, int(lengths[part[0]])) for part in np.split(order, ends[:-1])]


def _from_longest(lengths: np.ndarray) -> np.ndarray:
    """Return the order of falling lengths; NumPy sorts integers of 16 bits in linear time."""
    longest = int(lengths.max())
    short = longest < 1 << 16
    return np.argsort((longest - lengths).astype(np.uint16 if short else np.int64), kind="stable")


def checked_count(least: int, greatest: int, count: int | None) -> int:
    """Return how many segments there are; raise an error if an id is out of range."""
    if least < 0 or (count is not None and greatest >= count):
        bad = least if least < 0 else greatest
        allowed = "at least 0" if count is None else f"in [0, {count}), given num_segments={count}"
        raise ValueError(f"segment_ids must be {allowed}; got {bad}")
    if greatest >= MOST:
        raise ValueError(
            f"segment_ids must be below 2**40; got {greatest}: number the segments from 0 on, as "
            "numpy.unique(ids, return_inverse=True) does"
        )
    return greatest + 1 if count is None else count


def numbers_of(which: np.ndarray, per_row: Array) -> Array:
    """Return the numbers, (…, rows), of some of the rows, without gaps in memory."""
    if is_torch(per_row):
        return per_row.index_select(-1, as_index(which, is_torch(per_row)))
    return np.take(np.asarray(per_row), which, axis=-1)


def put_numbers(which: np.ndarray, per_row: Any, numbers: Array) -> None:
    """Write the numbers, (…, rows), of some of the rows."""
    per_row[..., as_index(which, is_torch(per_row))] = numbers


def as_index(numbers: np.ndarray, for_torch: bool) -> Any:
    """Return numbers of entries or rows in the form that indexes arrays of a framework."""
    return of_torch.state.from_memory(numbers) if for_torch else numbers


def _together(sizes: np.ndarray, counts: np.ndarray) -> list[int]:
    """Return how many segments each block has, for lengths from the longest on."""
    blocks, longest, members, padding = [], 0, 0, 0
    for size, count in zip(sizes.tolist(), counts.tolist(), strict=True):
        more = padding + (longest - size) * count
        entries = longest * (members + count)
        if members and more <= max(FEW, MOST_PADDING * entries):
            members, padding = members + count, more
            continue
        if members:
            blocks.append(members)
        longest, members, padding = size, count, 0
    return [*blocks, members]
