"""The sketch of a row, by the first pass over its blocks: extremes, and counts of scores by place.

A histogram by the first 16 bits of the scores says where each of them is to a part in 128. From it
follow a start for the search of θ, a bracket, and the first digit of the score where a hard choice
ends.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kofn import kernels
from kofn.arrays.keys import keys_of, numbers_of
from kofn.arrays.kinds import Array, deleted
from kofn.links.link import Link
from kofn.streaming.blocks import Blocks, Part, Shared, added, in_memory
from kofn.streaming.equation import Equation, Sums

DIGIT = 16


class Sketch(NamedTuple):
    """The first pass over a row."""

    least: float  # of the finite scores that are not masked
    greatest: float
    live: int  # how many these are
    top: int  # how many are +inf
    bad: int  # how many are NaN
    counts: np.ndarray  # how many scores have which first digit
    bits: int

    @property
    def is_masked(self) -> bool:
        """Return whether some scores are −inf or count as such."""
        return self.live + self.top + self.bad < int(self.counts.sum())


def sketch_of(blocks: Blocks) -> Sketch:
    """Return the sketch of a row, in one pass."""
    every: list[np.ndarray] = []
    shared, compiled, bits = Shared(1 << DIGIT, every), kernels.blocks(), bits_of(blocks)

    def see(block: Array, _: Part) -> np.ndarray:
        x = in_memory(block)
        count(x, shared.counts, 0, bits - DIGIT, DIGIT)
        return (_full_statistics if compiled is None else compiled.full_statistics)(x)

    least, greatest, numbers = np.inf, -np.inf, np.zeros(3, np.int64)
    for seen in blocks.each("survey", see):
        least, greatest = min(least, seen[0]), max(greatest, seen[1])
        numbers += seen[2:].astype(np.int64)
    live, top, bad = numbers.tolist()
    counts = added(every)
    return Sketch(float(least), float(greatest), live, top, bad, counts, bits)


def bits_of(blocks: Blocks) -> int:
    """Return the bits of a score."""
    return 64 if blocks.is_double else 32


def _full_statistics(x: np.ndarray) -> np.ndarray:
    """Return the least and the greatest finite score, and how many are finite, +inf and NaN."""
    finite = x[np.isfinite(x) & ~deleted(x)]
    ends = (finite.min(), finite.max()) if len(finite) else (np.inf, -np.inf)
    return np.array([*ends, len(finite), (x == np.inf).sum(), np.isnan(x).sum()])


def count(x: np.ndarray, counts: np.ndarray, prefix: int, below: int, width: int) -> None:
    """Add to the numbers of scores whose key >> (below + width) is the prefix, by next digit."""
    compiled = kernels.blocks()
    if compiled is not None:
        compiled.histogram(x, counts, prefix, below, width)
        return
    keys, first = keys_of(x) >> below, below + width == 8 * x.itemsize
    if not first:
        keys = keys[keys >> width == prefix]
    digits = (keys & ((1 << width) - 1)) ^ (1 << (width - 1) if first else 0)
    counts += np.bincount(digits, minlength=1 << width)


def scores_of(keys: np.ndarray, bits: int) -> np.ndarray:
    """Return the scores of signed keys."""
    return numbers_of(keys.astype(f"i{bits // 8}"), f"float{bits}")


class Bins(NamedTuple):
    """A sketch as a row: each of its float64 scores stands for many."""

    values: np.ndarray
    counts: np.ndarray

    @property
    def is_double(self) -> bool:
        return True

    def bracket(self, how: Equation) -> tuple[float, float, float]:
        """Return (start, low, high): min and max less T·F⁻¹(k/n), as in the solver."""
        reach = how.temperature * float(how.link.quantile(np.asarray(how.budget / how.total)))
        low, high = self.values[0] - reach, self.values[-1] - reach
        slack = 1e-6 * (abs(low) + abs(high) + how.temperature)
        return low / 2 + high / 2, low - slack, high + slack

    def look(self, theta: float, rest: float, how: Equation) -> Sums:
        """Return the sums of the search at θ."""
        upper, tail, density = how.link.tails(self._z(theta, rest, how))
        tails = self.counts * tail
        weight = float(self.counts @ density)
        signed = float(tails[~upper].sum() - tails[upper].sum())
        return Sums(float(self.counts[upper].sum()), signed, float(tails.sum()), weight, weight)

    def glance(self, theta: float, how: Equation) -> None:
        """Return None: `look` is no more work."""

    def log_look(
        self, theta: float, rest: float, how: Equation
    ) -> tuple[float, float, float, float]:
        """Return the sums of both tails apart, with their slopes."""
        upper, tail, density = how.link.tails(self._z(theta, rest, how))
        below, above = self.counts * ~upper, self.counts * upper
        sums = below @ tail, below @ density, above @ tail, above @ density
        return float(sums[0]), float(sums[1]), float(sums[2]), float(sums[3])

    def _z(self, theta: float, rest: float, how: Equation) -> np.ndarray:
        return np.clip(((self.values - theta) - rest) / how.temperature, -1e150, 1e150)


def guess(sketch: Sketch, k: float, temperature: float, link: Link) -> tuple[float, float, float]:
    """Return (start, low, high) for the θ by which k of the finite scores are chosen.

    In the bracket every score is at an end of its bin: θ grows with the scores.
    """
    lower, upper, counts = _ends(sketch)

    def solved(values: np.ndarray) -> float:
        values = np.clip(values, sketch.least, sketch.greatest)
        return Equation(Bins(values, counts), k, float(sketch.live), temperature, link).solve()

    low, start, high = map(solved, (lower, lower / 2 + upper / 2, upper))
    slack = 1e-6 * temperature + 1e-7 * (abs(low) + abs(high))
    return start, low - slack, high + slack


def _ends(sketch: Sketch) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the least and the greatest score of each bin, and how many are in it."""
    below = sketch.bits - DIGIT
    keys = np.flatnonzero(sketch.counts) - (1 << (DIGIT - 1)) << below
    lower = scores_of(keys, sketch.bits).astype(np.float64)
    upper = scores_of(keys + ((1 << below) - 1), sketch.bits).astype(np.float64)
    inside = np.isfinite(lower) & np.isfinite(upper)
    inside &= (upper >= sketch.least) & (lower <= sketch.greatest)
    counts = sketch.counts[sketch.counts > 0][inside].astype(np.float64)
    counts[0] -= counts.sum() - sketch.live  # masked scores may share the first bin
    return lower[inside], upper[inside], counts
