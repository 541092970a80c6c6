"""The initial guess and the bracket for θ."""

from __future__ import annotations

import math

from kofn.arrays.flow import only_if
from kofn.arrays.kinds import Array, cast, namespace
from kofn.solver.equation import Problem

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
