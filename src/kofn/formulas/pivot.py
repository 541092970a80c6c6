"""The number that stands for θ in derivatives in T."""

from __future__ import annotations

from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.kinds import Array, namespace
from kofn.links.link import Link
from kofn.solver.equation import least_weight
from kofn.solver.reductions import Reductions, sums_of


def pivot_of(
    link: Link,
    z: Array,
    moves: Array,
    hi: Array,
    lo: Array,
    t: Array,
    over: Reductions,
    costs: Array | None = None,
) -> tuple[Array, Array]:
    """Return the mean of x in the weights F′, and (θ − pivot)/T.

    The derivatives in T are sums of (x − θ)u with Σu = 0, so any number may stand for θ. What
    rounding leaves of Σu is multiplied by its distance from that mean; and where scores differ by
    less than θ is from them, x − θ would round off what they differ by. With costs, x less the
    pivot's cost sums to 0 with the weights cF′.
    """
    xp = namespace(z)
    costs = None if costs is None else stop_gradient(costs)
    moves = moves if costs is None else moves & (costs > 0)
    slope = xp.where(moves, link.pdf(xp.where(moves, z, 0.0)), 0.0)
    if costs is None:
        weight, moment = sums_of(over, slope, xp.where(slope == 0, 0.0, slope * z))
        known = weight > 0
    else:  # θ does not absorb the edge
        slope = xp.where(moves, costs * slope, 0.0)
        moment = xp.where(slope == 0, 0.0, slope * (z + link.edge))
        weight, moment = sums_of(over, xp.where(moves, costs * slope, 0.0), moment)
        known = weight >= least_weight(weight)
    mean = moment / xp.where(known, weight, 1.0)
    pivot, shift = pivot_at(mean, hi, lo, t)
    # Where no score decides θ, it does not move with T; `shift` would be lo/T, a rounding error.
    return pivot, xp.where(known, shift, 0.0)


def pivot_at(mean: Array, hi: Array, lo: Array, t: Array) -> tuple[Array, Array]:
    """Return the score at z = mean, or θ where that is not known; and (θ − pivot)/T.

    Next to scores of 1e37 these may be more temperatures apart than there are numbers.
    """
    xp = namespace(mean)
    pivot = hi + (lo + t * xp.where(xp.isfinite(mean), mean, 0.0))
    most = float(xp.finfo(hi.dtype).max)
    return pivot, xp.clip(((hi - pivot) + lo) / t, -most, most)
