"""Exact order statistics of a row in blocks: the k largest numbers, and numbers by their rank."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from kofn.arrays.kinds import cast, contiguous, dtype_name, namespace
from kofn.maps.ordered.largest import topk
from kofn.streaming.blocks import Blocks, OfArray, Part, Shared, added, in_memory
from kofn.streaming.sketch import DIGIT, count, scores_of

FEW = 1 << 22
"""So many numbers that may have a wanted rank are kept and sorted; more take another pass."""


MOST = 16
"""So many groups of numbers are counted in a pass, each in half a megabyte per thread."""


class OfNumbers(OfArray):
    """The numbers of an array as they are: none counts as masked."""

    def __init__(self, array: Any, wide: bool) -> None:
        super().__init__(array)
        self.wide = wide or self.is_double
        self.is_double = False  # as `Blocks` need not convert them

    def read(self, start: int, stop: int) -> Any:
        return _numbers_at(self.flat, start, stop, self.wide)


def _numbers_at(flat: Any, start: int, stop: int, wide: bool) -> Any:
    """Return numbers as they are, floats in float32 or float64."""
    block = contiguous(flat[start:stop])
    if "float" not in dtype_name(block):
        return block
    xp = namespace(block)
    return cast(block, xp.float64 if wide else xp.float32)


class WithoutNaN(OfArray):
    """Scores of an array, −inf, which is never chosen, in the place of NaN.

    Nothing else is masked.
    """

    def read(self, start: int, stop: int) -> Any:
        block = _numbers_at(self.flat, start, stop, self.is_double)
        xp = namespace(block)
        return xp.where(xp.isnan(block), -math.inf, block)


def blocks_of(arrays: Sequence[Any], progress: Callable[[str, int, int], None] | None) -> Blocks:
    """Return the row of all numbers of some arrays, in one type."""
    wide = any(dtype_name(each) == "float64" for each in arrays)
    return Blocks([OfNumbers(each, wide) for each in arrays], progress)


def largest_of(blocks: Blocks, k: int, largest: bool, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the values of the k largest numbers, or the smallest, and their places, in one pass.

    Of a block, only numbers beyond the k-th best so far are kept.
    """
    best = Best(k, largest, dtype)

    def see(block: Any, part: Part) -> Any:
        return best.beyond(in_memory(block), part.place)

    for values, places in blocks.each("largest", see):
        best.add(values, places)
    return best.found()


class Best:
    """The k best numbers that were seen, and some more. Threads read `bound`, and one adds."""

    def __init__(self, k: int, largest: bool, dtype: Any) -> None:
        self.k, self.largest = k, largest
        self.kept = [(np.empty(0, dtype), np.empty(0, np.int64))]
        self.size = 0
        self.bound: Any = None
        """The k-th best number so far. Of equal ones that come later, none is wanted."""

    def beyond(self, x: np.ndarray, place: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers of a block that may be among the best, and their places in the row."""
        bound = self.bound
        if bound is None:
            places = np.sort(topk(x, min(self.k, len(x)), largest=self.largest).indices)
        elif self.largest:
            places = np.flatnonzero(~(x <= bound) & (bound == bound))  # NaN is the largest
        else:
            places = np.flatnonzero((x < bound) | ((bound != bound) & (x == x)))
        return x[places], place + places

    def add(self, values: np.ndarray, places: np.ndarray) -> None:
        """Take numbers of the next block."""
        self.kept.append((values, places))
        self.size += len(values)
        if self.size >= 2 * self.k + (1 << 16) or (self.bound is None and self.size >= self.k):
            self._shrink()

    def found(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the best numbers, in their order, and their places."""
        self._shrink()
        return self.kept[0]

    def _shrink(self) -> None:
        values, places = (np.concatenate(parts) for parts in zip(*self.kept, strict=True))
        # Equal numbers stand in the order of their places, which topk keeps.
        best = topk(values, min(self.k, len(values)), largest=self.largest)
        self.kept, self.size = [(best.values, places[best.indices])], len(best.values)
        if self.k and self.size == self.k:
            self.bound = best.values[-1]


class Ranks:
    """The numbers of a row without its NaN, by their rank."""

    def __init__(self, blocks: Blocks) -> None:
        self.blocks = blocks
        self.bits = 64 if any(getattr(each, "wide", False) for each in blocks.sources) else 32
        every: list[np.ndarray] = []
        shared = Shared(1 << DIGIT, every)

        def see(block: Any, _: Part) -> int:
            x = in_memory(block)
            numbers = _numbers(x)
            count(numbers, shared.counts, 0, self.bits - DIGIT, DIGIT)
            return len(x) - len(numbers)

        self.missing = sum(blocks.each("survey", see))
        self.counts = added(every)

    @property
    def size(self) -> int:
        """Return how many numbers there are."""
        return self.blocks.size - self.missing

    def of(self, ranks: np.ndarray) -> np.ndarray:
        """Return the numbers of these ranks, 0 for the smallest, all in [0, size)."""
        groups = [_Group(0, np.asarray(ranks, np.int64), np.arange(len(ranks)))]
        answers = np.zeros(len(ranks), np.float64)
        below, counts = self.bits, [self.counts]
        while True:
            width = below if below < DIGIT else DIGIT
            pairs = zip(groups, counts, strict=True)
            groups = [
                part for group, each in pairs for part in group.parts(each, below == self.bits)
            ]
            below -= width
            if below == 0:
                for group in groups:
                    answers[group.which] = self._scores(np.array([group.prefix]))[0]
                return answers
            if sum(group.size for group in groups) <= FEW:
                for group, numbers in zip(groups, self._kept(groups, below), strict=True):
                    answers[group.which] = np.sort(numbers)[group.ranks]
                return answers
            parts = (groups[i : i + MOST] for i in range(0, len(groups), MOST))
            counts = [each for part in parts for each in self._pass(part, below)]

    def _scores(self, keys: np.ndarray) -> np.ndarray:
        return scores_of(keys, self.bits).astype(np.float64)

    def _pass(self, groups: list[_Group], below: int) -> list[np.ndarray]:
        """Return how many numbers of each group have which next digit."""
        width = min(below, DIGIT)
        every: list[np.ndarray] = []
        shared = Shared(len(groups) << width, every)

        def see(block: Any, _: Part) -> None:
            numbers = _numbers(in_memory(block))
            for i, group in enumerate(groups):
                each = shared.counts[i << width : (i + 1) << width]
                count(numbers, each, group.prefix, below - width, width)

        self.blocks.run("choice", see)
        return list(added(every).reshape(len(groups), -1))

    def _kept(self, groups: list[_Group], below: int) -> list[np.ndarray]:
        """Return the numbers of each group."""

        def see(block: Any, _: Part) -> list[np.ndarray]:
            numbers = _numbers(in_memory(block))
            return [numbers[(numbers >= low) & (numbers <= high)] for low, high in ends]

        firsts = np.array([group.prefix << below for group in groups])
        low, high = (scores_of(keys, self.bits) for keys in (firsts, firsts + (1 << below) - 1))
        # A NaN is beyond ±∞.
        low, high = np.where(np.isnan(low), -np.inf, low), np.where(np.isnan(high), np.inf, high)
        ends = list(zip(low, high, strict=True))
        parts = list(self.blocks.each("choice", see))
        return [np.concatenate(each) for each in zip(*parts, strict=True)]


class _Group(NamedTuple):
    """Wanted ranks among the numbers whose keys begin with a prefix."""

    prefix: int
    ranks: np.ndarray  # among these
    which: np.ndarray  # of the wanted ones
    size: int = 0  # how many numbers these are

    def parts(self, counts: np.ndarray, first: bool) -> list[_Group]:
        """Return the groups of the next digit, whose numbers are counted."""
        ends = np.cumsum(counts)
        digits = np.searchsorted(ends, self.ranks, side="right")
        width = len(counts).bit_length() - 1
        groups = []
        for digit in np.unique(digits):
            here = digits == digit
            before = int(ends[digit] - counts[digit])
            offset = int(digit) - (1 << (width - 1)) if first else int(digit)
            prefix = (self.prefix << width) + offset
            size = int(counts[digit])
            groups.append(_Group(prefix, self.ranks[here] - before, self.which[here], size))
        return groups


def _numbers(x: np.ndarray) -> np.ndarray:
    """Return the numbers without the NaN."""
    missing = np.isnan(x)
    return x[~missing] if missing.any() else x
