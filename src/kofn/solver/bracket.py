"""The initial guess and the bracket for θ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from kofn.arrays.flow import only_if
from kofn.arrays.kinds import Array, cast, namespace
from kofn.solver.equation import Problem
from kofn.solver.reductions import Reductions, maxima_of, sums_of

WIDE = 1e5
"""The spread, in temperatures, from which on a row may have outliers that a start must not see."""


def bracket(p: Problem, open_: Array) -> tuple[Array, Array, Array]:
    """Return (start, low, high): low = min(x) − T·F⁻¹(k/n), high = max(x) − T·F⁻¹(k/n).

    The start uses mean and variance. Additive masks such as −1e9 would distort these, so if more
    than k scores are near the greatest one, only those count.
    """
    xp = namespace(p.x)
    info = xp.finfo(p.x.dtype)
    eps, largest = float(info.eps), float(info.max)
    greatest = p.over.max(p.x)
    least = p.over.min(xp.where(p.live, p.x, math.inf))
    share = xp.where(open_, p.k / xp.where(open_, p.n, 1.0), 0.5)
    end = p.temperature * p.row_link.quantile(share)

    def near() -> tuple[Array, ...]:
        within = p.live & (p.over.expand(greatest) - p.x < p.over.expand(WIDE * p.temperature))
        number = cast(p.over.count(within), p.x.dtype)
        enough = open_ & (number > p.k)
        smallest = p.over.min(xp.where(within, p.x, math.inf))
        number = xp.where(enough, number, p.n)
        of_near = xp.where(enough, p.k / xp.where(enough, number, 1.0), share)
        reach = p.temperature * p.row_link.quantile(of_near)
        return number, xp.where(enough, smallest, least), of_near, reach

    wide = ~(greatest - least < WIDE * p.temperature)
    known: tuple[Array, ...] = p.n, least, share, end
    number, smallest, share, reach = only_if(wide, near, known)
    sizes = (smallest, greatest, p.temperature, reach)
    slack = sum(4 * eps * xp.abs(size) for size in sizes)
    low = xp.clip(smallest - reach - slack, -largest, largest)
    high = xp.clip(greatest - end + slack, -largest, largest)

    number = xp.maximum(number, xp.ones_like(number))
    usual = p.live & (p.x >= p.over.expand(smallest))
    mean = p.over.sum(xp.where(usual, p.x, 0.0)) / number
    spread = xp.where(usual, p.x - p.over.expand(mean), 0.0) / p.over.expand(p.temperature)
    variance = p.over.sum(spread * spread) / number
    # Normally distributed scores widen the link; for the normal link this is exact.
    own, far = p.row_link.quantile(share) + p.row_link.edge, bell(share) * xp.sqrt(variance)
    start = mean - reach - p.temperature * widening(own, far)
    middle = low / 2 + high / 2
    return xp.where(xp.isfinite(start), xp.clip(start, low, high), middle), low, high


class Moments(NamedTuple):
    """What is known of rows in parts by two messages, a maximum and a sum."""

    greatest: Array  # of the available scores; −inf if there are none
    least: Array
    live: Array  # how many are available
    near: Array  # how many are less than WIDE temperatures below the greatest
    near_moments: Sequence[Array]  # Σd and Σd² of these, d = (x − greatest)/T
    moments: Sequence[Array]  # of all available ones


def moments_of(x: Array, live: Array, temperature: Array, over: Reductions) -> Moments:
    """Return the moments of rows, of which scores that are not available are −∞."""
    xp, expand = namespace(x), over.expand
    greatest, negated = maxima_of(over, x, xp.where(live, -x, -math.inf))
    d = xp.where(live, x - expand(greatest), 0.0) / expand(temperature)
    near = live & (d > -WIDE)
    close = xp.where(near, d, 0.0)
    number, of_near, *sums = sums_of(over, live, near, close, close * close, d, d * d)
    return Moments(greatest, -negated, number, of_near, sums[:2], sums[2:])


def bracket_of(p: Any, s: Any, open_: Array) -> tuple[Array, Array, Array]:
    """Return the same as `bracket` from `Moments`; `p` are equations, with n known."""
    xp, info = namespace(p.k), namespace(p.x).finfo(p.x.dtype)
    eps, largest = float(info.eps), float(info.max)
    t, one = p.temperature, xp.ones_like(p.k)
    share, of_all = share_of(p, open_)
    enough = open_ & (s.near > p.k) & (s.near < s.live)

    def near() -> tuple[Array, ...]:
        of_near = xp.where(enough, p.k / xp.where(enough, s.near, one), share)
        return xp.where(enough, s.near, p.n), of_near, p.row_link.quantile(of_near)

    # Of all, that is known already: JAX compiles a quantile anew wherever it is used.
    known: tuple[Array, ...] = p.n, share, of_all
    number, share, quantile = only_if(enough, near, known)
    end, reach = t * of_all, t * quantile
    least = xp.where(enough, s.greatest - WIDE * t, s.least)
    slack = 4 * eps * (xp.abs(least) + xp.abs(s.greatest) + xp.abs(t) + xp.abs(reach))
    low = xp.clip(least - reach - slack, -largest, largest)
    high = xp.clip(s.greatest - end + slack, -largest, largest)

    pairs = zip(s.near_moments, s.moments, strict=True)
    first, second = (xp.where(enough, *pair) / xp.maximum(number, one) for pair in pairs)
    variance = xp.maximum(second - first * first, 0 * one)
    own, wider = quantile + p.row_link.edge, bell(share) * xp.sqrt(variance)
    start = s.greatest + t * first - reach - t * widening(own, wider)
    middle = low / 2 + high / 2
    return xp.where(xp.isfinite(start), xp.clip(start, low, high), middle), low, high


def share_of(p: Any, open_: Array) -> tuple[Array, Array]:
    """Return k/n of the rows that are open, ½ of the others, and its quantile."""
    xp = namespace(p.k)
    share = xp.where(open_, p.k / xp.where(open_, p.n, xp.ones_like(p.k)), 0.5)
    return share, p.row_link.quantile(share)


def widening(own: Array, far: Array) -> Array:
    """Return ±√(own² + far²) − own with the sign of own + far; exactly 0 where far is 0.

    The search for rows of equal scores then starts at θ itself.
    """
    xp = namespace(own)
    hypotenuse = xp.sqrt(own * own + far * far)
    negative = own + far < 0
    apart = negative != (own < 0)
    total = hypotenuse + xp.abs(own)
    size = xp.where(apart, total, far * far / xp.where(total > 0, total, 1.0))
    return xp.where(negative, -size, size)


def bell(share: Array) -> Array:
    """Return Φ⁻¹, the quantile of the normal distribution, to 3e-3 (Hastings 1955)."""
    xp = namespace(share)
    t = xp.sqrt(-2 * xp.log(xp.minimum(share, 1 - share)))
    size = t - (2.30753 + 0.27061 * t) / (1 + t * (0.99229 + 0.04481 * t))
    return xp.where(share < 0.5, -size, size)
