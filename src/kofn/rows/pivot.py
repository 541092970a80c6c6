"""The number that stands for θ in derivatives in T."""

from __future__ import annotations

from kofn.arrays.kinds import Array, namespace
from kofn.links.link import Link
from kofn.solver.reductions import Reductions, sums_of


def pivot_of(
    link: Link, z: Array, moves: Array, hi: Array, lo: Array, t: Array, over: Reductions
) -> tuple[Array, Array]:
    """Return the mean of x in the weights F′, and (θ − pivot)/T.

    The derivatives in T are sums of (x − θ)u with Σu = 0, so any number may stand for θ. What
    rounding leaves of Σu is multiplied by its distance from that mean; and where scores differ by
    less than θ is from them, x − θ would round off what they differ by.
    """
    xp = namespace(z)
    slope = xp.where(moves, link.pdf(xp.where(moves, z, 0.0)), 0.0)
    weight, moment = sums_of(over, slope, xp.where(slope == 0, 0.0, slope * z))
    mean = moment / xp.where(weight > 0, weight, 1.0)
    return pivot_at(mean, hi, lo, t)


def pivot_at(mean: Array, hi: Array, lo: Array, t: Array) -> tuple[Array, Array]:
    """Return the score at z = mean, or θ where that is not known; and (θ − pivot)/T.

    Next to scores of 1e37 these may be more temperatures apart than there are numbers.
    """
    xp = namespace(mean)
    pivot = hi + (lo + t * xp.where(xp.isfinite(mean), mean, 0.0))
    most = float(xp.finfo(hi.dtype).max)
    return pivot, xp.clip(((hi - pivot) + lo) / t, -most, most)
