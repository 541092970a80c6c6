"""Sums over a row in blocks at some θ, and its weights: by kernels, or by array code."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from kofn import kernels
from kofn.arrays.kinds import LEAST_IN_PLAY, Array, namespace
from kofn.kernels.contract import BOUNDED, kind_of
from kofn.links.link import Link
from kofn.solver.equation import far
from kofn.streaming.blocks import Blocks, Part, in_memory
from kofn.streaming.equation import Equation, Sums, rounded
from kofn.streaming.sketch import Sketch, guess

USUAL = 1e15
"""Scores up to it are searched for by sums in their own type."""

BESIDE = 3.0
"""Temperatures from θ to the nearest number of the type of the scores, up to which kernels serve:
they take e to the power of both sides of that number apart, which might overflow, or lose digits.
"""


class Spot(NamedTuple):
    """θ of an inner link as two floats; the type of the scores holds the first."""

    high: float
    low: float

    @property
    def theta(self) -> float:
        return self.high + self.low


def spot(theta: float, rest: float, blocks: Blocks) -> Spot:
    """Return theta + rest, a finite number, as two floats."""
    if blocks.is_double:
        return Spot(theta, rest)
    high = rounded(theta)
    return Spot(high, (theta - high) + rest)


class BlockRow:
    """The finite scores of a row in blocks, as the search sees them; its link is an inner one."""

    def __init__(self, blocks: Blocks, sketch: Sketch, link: Link) -> None:
        self.blocks, self.sketch, self.link = blocks, sketch, link
        self.is_usual = max(abs(sketch.least), abs(sketch.greatest)) <= USUAL
        self.compiled: Any = kernels.blocks(link) if self.is_usual else None
        self.last: Sums | None = None

    @property
    def is_double(self) -> bool:
        return self.blocks.is_double

    def bracket(self, how: Equation) -> tuple[float, float, float]:
        """Return (start, low, high) for θ, from the sketch."""
        return guess(self.sketch, how.budget, how.temperature, self.link)

    def look(self, theta: float, rest: float, how: Equation) -> Sums:
        """Return the sums of the search at θ."""
        at = spot(theta, rest, self.blocks)
        see = self._kernel_sums if self._is_near(at, how.temperature) else self._array_sums

        def one(block: Array, _: Part) -> Any:
            return see(block, at, how.temperature)

        total = np.zeros(4)
        for sums in self.blocks.each("threshold", one):
            total += sums
        tails, above, weight, count = total.tolist()
        signed = tails - 2 * above
        self.last = Sums(count - self.sketch.top, signed, tails, weight, weight)
        return self.last

    def glance(self, theta: float, how: Equation) -> None:
        """Return None: `look` is no more work."""

    def log_look(
        self, theta: float, rest: float, how: Equation
    ) -> tuple[float, float, float, float]:
        """Return the sums of both tails apart, with their slopes."""
        at = spot(theta, rest, self.blocks)

        def one(block: Array, _: Part) -> Any:
            upper, tail, density = self._tails(block, at, how.temperature)
            xp = namespace(tail)
            sides = [xp.where(flags, each, 0.0) for flags in (~upper, upper)
                     for each in (tail, density)]  # fmt: skip
            return [float(xp.sum(each, dtype=xp.float64)) for each in sides]

        total = np.sum(list(self.blocks.each("threshold", one)), axis=0)
        below, in_below, above, in_above = total.tolist()
        return below, in_below, above, in_above

    def weights(self, block: Array, at: Spot, temperature: float) -> np.ndarray:
        """Return F of a block, in the dtype that is computed in."""
        if self._is_near(at, temperature):
            x = in_memory(block)
            out = np.empty_like(x)
            self.compiled.weights(x, self._place(at, temperature), out)
            return out
        upper, tail, _ = self._tails(block, at, temperature)
        return in_memory(namespace(tail).where(upper, 1 - tail, tail))

    def _is_near(self, at: Spot, temperature: float) -> bool:
        """Return whether kernels serve the row at θ."""
        kind = kind_of(self.link)
        near = kind in BOUNDED or abs(at.low) <= BESIDE * temperature
        return near and self.compiled is not None

    def _kernel_sums(self, block: Array, at: Spot, temperature: float) -> Any:
        return self.compiled.sums(in_memory(block), self._place(at, temperature))[:4]

    def _place(self, at: Spot, temperature: float) -> Any:
        alpha = self.link.alpha if isinstance(self.link.alpha, float) else 0.0
        kind = kind_of(self.link)
        return self.compiled.At(kind, at.high, at.low, temperature, alpha)

    def _array_sums(self, block: Array, at: Spot, temperature: float) -> list[float]:
        upper, tail, density = self._tails(block, at, temperature)
        xp = namespace(tail)
        above = xp.where(upper, tail, 0.0)
        return [float(xp.sum(each, dtype=xp.float64)) for each in (tail, above, density, upper)]

    def _tails(self, block: Array, at: Spot, temperature: float) -> tuple[Array, Array, Array]:
        """Return F > ½, the smaller tail and F′ of a block, 0 where a score is masked."""
        xp = namespace(block)
        limit = far(xp.finfo(block.dtype))
        z = xp.clip(((block - at.high) - at.low) / temperature, -limit, limit)
        upper, tail, density = self.link.tails(z)
        tail = xp.where(tail > 0, tail, 0.0)  # a cdf of the user's may round to below 0
        finite = xp.abs(block) < math.inf
        if self.sketch.is_masked:
            playing = block > LEAST_IN_PLAY["float64" if self.is_double else "float32"]
            upper, tail, finite = upper & playing, xp.where(playing, tail, 0.0), finite & playing
        return upper, xp.where(finite, tail, 0.0), xp.where(finite, density, 0.0)
