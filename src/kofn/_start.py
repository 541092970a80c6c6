"""Where a search for θ starts, and between what it may go."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kofn._array import Array, cast, namespace
from kofn._flow import only_if

if TYPE_CHECKING:
    from kofn.threshold import Problem


def bracket(p: Problem, open_: Array) -> tuple[Array, Array, Array, Array]:
    """(anchor, offset) of the start, between min(x) − T·F⁻¹(k/n) and max(x) − T·F⁻¹(k/n), and those
    two relative to the anchor.

    Scores such as finfo.min, an additive mask, would overflow the variance and tell nothing; and a
    bracket that reaches that far takes more halvings than there are. They are certain, unless k
    says that the threshold is among them.
    """
    xp = namespace(p.x)
    info = xp.finfo(p.x.dtype)
    eps, largest = float(info.eps), float(info.max)
    limit = math.sqrt(largest) * 1e-3 * xp.clip(p.temperature, 1.0, None)
    usual = p.live & (xp.abs(p.x) < p.over.expand(limit))
    least, greatest = p.over.min(p.x), p.over.max(p.x)

    def ends() -> tuple[Array, ...]:
        far_off = p.live & (xp.abs(p.x) >= p.over.expand(limit))  # a NaN is not
        hidden = cast(p.over.count(far_off & (p.x < 0)), p.x.dtype)
        certain = cast(p.over.count(far_off & (p.x > 0)), p.x.dtype)
        between = open_ & (p.k > certain) & (p.k < p.n - hidden)
        asked = p.live & ~(far_off & p.over.expand(between))
        smallest = p.over.min(xp.where(asked, p.x, math.inf))
        return hidden, certain, smallest, p.over.max(xp.where(asked, p.x, -math.inf))

    odd = ~((least > -limit) & (greatest < limit))
    none = xp.zeros_like(p.n)
    hidden, certain, smallest, greatest = only_if(odd, ends, (none, none, least, greatest))
    among_hidden, among_certain = open_ & (p.k > p.n - hidden), open_ & (p.k < certain)
    between = open_ & (p.k > certain) & (p.k < p.n - hidden)
    number = xp.where(between, p.n - hidden - certain, xp.where(open_, p.n, 1.0))
    share = xp.where(open_, xp.where(between, p.k - certain, p.k) / number, 0.5)
    reach = p.temperature * p.row_link.quantile(share)
    slack = 4 * eps * (xp.abs(smallest) + xp.abs(greatest) + p.temperature + xp.abs(reach))
    low = xp.clip(smallest - reach - slack, -largest, largest)
    high = xp.clip(greatest - reach + slack, -largest, largest)

    count = xp.maximum(p.n - hidden - certain, xp.ones_like(p.n))
    mean = p.over.sum(xp.where(usual, p.x, 0.0)) / count
    spread = xp.where(usual, p.x - p.over.expand(mean), 0.0) / p.over.expand(p.temperature)
    variance = p.over.sum(spread * spread) / count
    # Scores that are normal widen the link: for the normal one this is exact.
    own, far = p.row_link.quantile(share) + p.row_link.edge, _bell(share) * xp.sqrt(variance)
    start = mean - reach - p.temperature * _widening(own, far)
    start = xp.where(xp.isnan(start), low, xp.clip(start, low, high))
    # Among masks, which are alike, it is known.
    start = xp.where(among_hidden, smallest, xp.where(among_certain, greatest, start))
    rest = xp.where(among_hidden, p.k - (p.n - hidden), xp.where(among_certain, p.k, 1.0))
    rest = rest / xp.where(among_hidden, hidden, xp.where(among_certain, certain, 2.0))
    known = -p.temperature * p.row_link.quantile(rest)
    alike = among_hidden | among_certain
    offset = xp.where(alike, known, 0.0)
    low, high = (xp.clip(end - start, -largest, largest) for end in (low, high))
    # Past the largest float the offset still has room.
    low = xp.where(alike, xp.minimum(low, offset - p.temperature), low)
    high = xp.where(alike, xp.maximum(high, offset + p.temperature), high)
    return start, offset, low, high


def _widening(own: Array, far: Array) -> Array:
    """±√(own² + far²) − own with the sign of own + far; 0 where far is, to the last digit.

    So alike scores start at their θ.
    """
    xp = namespace(own)
    away = xp.sqrt(own * own + far * far)
    negative = own + far < 0
    apart = negative != (own < 0)
    total = away + xp.abs(own)
    size = xp.where(apart, total, far * far / xp.where(total > 0, total, 1.0))
    return xp.where(negative, -size, size)


def _bell(share: Array) -> Array:
    """Φ⁻¹, the quantile of the normal distribution, to 3e-3 (Hastings 1955)."""
    xp = namespace(share)
    t = xp.sqrt(-2 * xp.log(xp.minimum(share, 1 - share)))
    size = t - (2.30753 + 0.27061 * t) / (1 + t * (0.99229 + 0.04481 * t))
    return xp.where(share < 0.5, -size, size)
