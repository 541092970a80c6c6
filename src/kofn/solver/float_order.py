"""θ as the nearest score plus a distance, by one bisection in the order of floats. For JAX.

It finds what `neighbours.py` finds, by a program of half the length, which XLA compiles sooner: one
loop, that a loop repeats, first for the float above which ΣF < k, then for the distance from the
score next to it. A look is one round of sums. Each digit of a float is a look.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from kofn.arrays.flow import repeat
from kofn.arrays.keys import in_order, numbers_of
from kofn.arrays.kinds import Array, dtype_name, namespace
from kofn.solver.equation import Problem
from kofn.solver.neighbours import Place
from kofn.solver.reductions import maxima_of


class _Ray(NamedTuple):
    """The places start + sign·v, with v in (low, high]; `found` is θ as the last ray gave it."""

    start: Array
    sign: Array
    low: Array
    high: Array
    found: Place


def between_neighbours(p: Problem, wanted: Array) -> Place:
    """Return (score, distance) of θ in the selected rows."""
    xp = namespace(p.x)
    zero = xp.zeros_like(p.k)
    largest, kind = float(xp.finfo(p.x.dtype).max), dtype_name(p.x)
    # Above the greatest score, or below the least, the distance of θ is at most |F⁻¹(k/n)|.
    reach = 1.01 * p.temperature * p.row_link.quantile(xp.where(wanted, p.k / p.n, 0.5))

    def along(ray: _Ray) -> _Ray:
        """Find where ΣF falls below k, and return the ray to θ from the score nearest to it."""

        def look(ends: tuple[Any, Any]) -> tuple[Any, Any]:
            low, high = ends  # integers
            middle = (low >> 1) + (high >> 1) + (low & high & 1)
            v = numbers_of(middle, kind)
            beyond = ray.sign * p.excess(ray.start, ray.sign * v) > 0
            return xp.where(beyond, middle, low), xp.where(beyond, high, middle)

        bits = int(xp.finfo(p.x.dtype).bits)
        ends = repeat(p.x, bits + 1, look, (in_order(ray.low), in_order(ray.high)))
        v = numbers_of(ends[1], kind)
        found = Place(ray.start, ray.sign * v)
        under = p.x < p.over.expand(v)
        below, above = maxima_of(
            p.over, xp.where(under, p.x, -math.inf), xp.where(under, -math.inf, -p.x)
        )
        above = -above
        outside = (below == -math.inf) | (above == math.inf)
        half = xp.where(outside, xp.abs(reach), above / 2 - below / 2)
        upwards = (above == math.inf) | (~outside & (p.excess(below, half) < 0))
        score, sign = xp.where(upwards, below, above), xp.where(upwards, 1.0, zero - 1.0)
        return _Ray(xp.where(wanted, score, 0.0), sign, zero, half, found)

    everywhere = _Ray(zero, zero + 1.0, zero - largest, zero + largest, Place(zero, zero))
    return repeat(p.x, 2, along, everywhere).found
