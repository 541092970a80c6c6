"""θ as the nearest score plus a distance: a bisection with a bounded number of evaluations.

Newton's method needs a few evaluations, unless the scores are so far apart, or the link so steep,
that it does not converge. This search first finds the two neighbouring scores around θ, by
bisection over floats and scores; then the distance of θ from the nearer score, the same way. It
evaluates F at x − score − distance, which is accurate for the entries that count, however large
the scores are.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from kofn.arrays.flow import while_loop
from kofn.arrays.kinds import Array, namespace
from kofn.solver.equation import Problem


class Place(NamedTuple):
    """θ of every row as an unevaluated sum of two floats, anchor + offset.

    One float32 is not enough: for θ = 24 and T = 0.3, rounding it would change every z by 5e-6.
    """

    anchor: Array
    offset: Array

    def stepped(self, step: Array) -> Place:
        """Return the place a step away; the offset is the exact rounding error (two-sum)."""
        step = self.offset + step
        anchor = self.anchor + step
        part = anchor - self.anchor
        return Place(anchor, (self.anchor - (anchor - part)) + (step - part))

    def to(self, other: Place) -> Array:
        """Return the distance to `other`."""
        return (other.anchor - self.anchor) + (other.offset - self.offset)

    def where(self, flags: Array, other: Place) -> Place:
        """Return this place where `flags` is set, else the other."""
        xp = namespace(flags)
        pairs = zip(self, other, strict=True)
        return Place(*(xp.where(flags, one, another) for one, another in pairs))


def most_steps(x: Array) -> int:
    """Return a bound on the steps of a bisection.

    Until the ends are within a factor of four, each step halves the distance of their exponents,
    which has a dozen binary digits; after that, each gains a digit, of at most 64. Where one end is
    0 or the signs differ, the other comes down to the smallest normal number first.
    """
    return 2 * int(namespace(x).finfo(x.dtype).bits)


class _Neighbours(NamedTuple):
    low: Array  # a score with ΣF ≥ k, or −inf
    high: Array  # one with ΣF < k, or +inf
    last: Array  # the greatest score between them


class _Distance(NamedTuple):
    short: Array
    long: Array
    met: Array  # the pairs between which θ is as close as floats allow


def between_neighbours(p: Problem, wanted: Array) -> Place:
    """Return (score, distance) of θ in the selected rows."""
    xp = namespace(p.x)
    low, high = _neighbours(p, wanted)
    # Above the greatest score, or below the least, the distance of θ is at most |F⁻¹(k/n)|.
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
        return xp.any(wanted & (s.last > s.low))  # the other rows need no search

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
    end = while_loop(p.x, unfinished, advance, start, most_steps(p.x))
    return end.low, end.high


def _distance(p: Problem, score: Array, sign: Array, half: Array, wanted: Array) -> Array:
    xp = namespace(p.x)
    zero = xp.zeros_like(half)

    def unfinished(s: _Distance) -> Array:
        return xp.any(~s.met)

    def advance(s: _Distance) -> _Distance:
        middle = _halfway(s.short, s.long)
        beyond = sign * p.excess(score, sign * middle)
        exact = (beyond == 0) & ~s.met
        short = xp.where((beyond > 0) & ~s.met | exact, middle, s.short)
        long = xp.where((beyond < 0) & ~s.met | exact, middle, s.long)
        ended = (middle <= s.short) | (middle >= s.long) | (beyond != beyond)
        return _Distance(short, long, s.met | exact | ended)

    start = _Distance(zero, half, ~wanted)
    return while_loop(p.x, unfinished, advance, start, most_steps(p.x)).long


def _halfway(low: Array, high: Array) -> Array:
    """Return the middle in the order of floats: of the exponents, if they differ.

    It is between the two, ends included, also where half of a subnormal number is rounded.
    """
    xp = namespace(low)
    tiny = 16 * float(xp.finfo(low.dtype).smallest_normal)
    larger = xp.maximum(xp.abs(low), xp.abs(high))
    smaller = xp.maximum(xp.minimum(xp.abs(low), xp.abs(high)), tiny + xp.zeros_like(low))
    geometric = xp.sign(low + high) * xp.sqrt(larger) * xp.sqrt(smaller)
    geometric = xp.where((low < 0) & (high > 0), 0.0, geometric)
    use = (larger > 4 * smaller) & (geometric > low) & (geometric < high)
    middle = xp.minimum(xp.maximum(low / 2 + high / 2, low), high)
    return xp.where(use, geometric, middle)
