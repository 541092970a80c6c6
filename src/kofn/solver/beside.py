"""θ told from the score next to it: for any row, in a number of looks that is known.

Newton's steps end in a handful of looks, unless scores are so far apart, or a link so steep, that
they lead nowhere. Then the two neighbouring scores that θ lies between are found first, by halving
in the order of floats and looking at scores themselves; after that its distance from the nearer
one, the same way. What is looked at is x − score − distance, of which no digit is lost at the
entries that count, however large the scores are.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from kofn.arrays.flow import while_loop
from kofn.arrays.kinds import Array, namespace

if TYPE_CHECKING:
    from kofn.solver.equation import Problem


class Place(NamedTuple):
    """A θ of every row in two floats, anchor + offset.

    One float32 is not enough: θ = 24 at T = 0.3 would move every z by 5e-6.
    """

    anchor: Array
    offset: Array

    def moved(self, step: Array) -> Place:
        """The place a step away; what rounding leaves over is the offset, exactly (two-sum)."""
        step = self.offset + step
        anchor = self.anchor + step
        part = anchor - self.anchor
        return Place(anchor, (self.anchor - (anchor - part)) + (step - part))

    def to(self, other: Place) -> Array:
        """How far it is to `other`."""
        return (other.anchor - self.anchor) + (other.offset - self.offset)

    def where(self, flags: Array, other: Place) -> Place:
        """This place where flagged, else the other."""
        xp = namespace(flags)
        pairs = zip(self, other, strict=True)
        return Place(*(xp.where(flags, one, another) for one, another in pairs))


class _Neighbours(NamedTuple):
    low: Array  # a score with ΣF ≥ k, or −inf
    high: Array  # one with ΣF < k, or +inf
    last: Array  # the greatest score between them


class _Distance(NamedTuple):
    short: Array
    long: Array
    found: Array


def beside(p: Problem, wanted: Array) -> Place:
    """(score, distance) of θ in the rows that are wanted."""
    xp = namespace(p.x)
    low, high = _neighbours(p, wanted)
    # Above the greatest score, or below the least, θ is no farther than F⁻¹(k/n).
    reach = 1.01 * p.temperature * p.row_link.quantile(xp.where(wanted, p.k / p.n, 0.5))
    outside = (low == -math.inf) | (high == math.inf)
    half = xp.where(outside, xp.abs(reach), high / 2 - low / 2)
    upwards = high == math.inf
    upwards = upwards | (~outside & (p.excess(low, half) < 0))
    score, sign = xp.where(upwards, low, high), xp.where(upwards, 1.0, -xp.ones_like(half))
    score = xp.where(wanted, score, 0.0)
    return Place(score, sign * _distance(p, score, sign, half, wanted))


def _neighbours(p: Problem, wanted: Array) -> tuple[Array, Array]:
    xp = namespace(p.x)
    zero = xp.zeros_like(p.k)

    def below(high: Array) -> Array:
        return p.over.max(xp.where(p.x < p.over.expand(high), p.x, -math.inf))

    def unfinished(s: _Neighbours) -> Array:
        return xp.any(wanted & (s.last > s.low))  # of the others none is looked for

    def advance(s: _Neighbours) -> _Neighbours:
        least = p.over.min(xp.where(p.x > p.over.expand(s.low), p.x, math.inf))
        middle = _halfway(least, s.last)
        score = p.over.min(xp.where(p.x >= p.over.expand(middle), p.x, math.inf))
        excess, active = p.excess(score, zero), s.last > s.low
        more, less = active & (excess >= 0), active & (excess < 0)
        return _Neighbours(
            low=xp.where(more, score, s.low),
            high=xp.where(less, score, s.high),
            last=xp.where(less, below(middle), s.last),
        )

    start = _Neighbours(zero - math.inf, zero + math.inf, p.over.max(p.x))
    found = while_loop(p.x, unfinished, advance, start)
    return found.low, found.high


def _distance(p: Problem, score: Array, sign: Array, half: Array, wanted: Array) -> Array:
    xp = namespace(p.x)
    zero = xp.zeros_like(half)

    def unfinished(s: _Distance) -> Array:
        return xp.any(~s.found)

    def advance(s: _Distance) -> _Distance:
        middle = _halfway(s.short, s.long)
        beyond = sign * p.excess(score, sign * middle)
        exact = (beyond == 0) & ~s.found
        short = xp.where((beyond > 0) & ~s.found | exact, middle, s.short)
        long = xp.where((beyond < 0) & ~s.found | exact, middle, s.long)
        ended = (middle <= s.short) | (middle >= s.long) | (beyond != beyond)
        return _Distance(short, long, s.found | exact | ended)

    return while_loop(p.x, unfinished, advance, _Distance(zero, half, ~wanted)).long


def _halfway(low: Array, high: Array) -> Array:
    """The middle in the order of floats: of the exponents, where they differ."""
    xp = namespace(low)
    tiny = 16 * float(xp.finfo(low.dtype).smallest_normal)
    larger = xp.maximum(xp.abs(low), xp.abs(high))
    smaller = xp.maximum(xp.minimum(xp.abs(low), xp.abs(high)), tiny + xp.zeros_like(low))
    geometric = xp.sign(low + high) * xp.sqrt(larger) * xp.sqrt(smaller)
    geometric = xp.where((low < 0) & (high > 0), 0.0, geometric)
    use = (larger > 4 * smaller) & (geometric > low) & (geometric < high)
    return xp.where(use, geometric, low / 2 + high / 2)
