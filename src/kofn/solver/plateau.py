"""Thresholds of hard choices, where every slope F′ and every smaller tail has underflowed.

There, ΣF − k is flat: it is 0 everywhere between the last entry above ½ and the first below it.
The same equation on a logarithmic scale, log Σ_{F≤½} F = log Σ_{F>½} (1 − F), does not underflow
and determines θ. docs/formulas.md derives its consequences.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from kofn.arrays.autodiff import moving, stop_gradient
from kofn.arrays.kinds import Array, cast, namespace
from kofn.links.link import Link
from kofn.solver.equation import far

if TYPE_CHECKING:
    from kofn.solver.reductions import Reductions


class Balance(NamedTuple):
    """The equation on a logarithmic scale in selected rows; 0 in the others."""

    excess: Array  # log Σ_{F≤½} F − log Σ_{F>½} (1 − F), of terms times their costs
    slopes: Array  # its derivative in z of each entry, as a constant
    slope: Array  # the sum of the slopes, times costs; 1 where they are not usable
    usable: Array  # rows with both tails


class Entries(NamedTuple):
    """Rows to balance. All but z and costs are constants; temperature is per row."""

    z: Array
    scores: Array
    temperature: Array
    live: Array  # with costs, the entries that cost something
    over: Reductions
    costs: Array | None = None


def balance(link: Link, row: Entries, where: Array) -> Balance:
    """Return the balance in rows `where`, differentiable in z and the parameter of the link."""
    z, over = row.z, row.over
    xp = namespace(z)
    inside = row.live & over.expand(where)
    upper = inside & link.above_half(stop_gradient(z))
    lower = inside & ~upper
    greatest = least = None
    if row.costs is None:
        greatest = over.max(xp.where(lower, row.scores, -math.inf))
        least = over.min(xp.where(upper, row.scores, math.inf))
    below, slopes_below = _log_sum(link.log_cdf, link.cdf_slope, link, row, lower, greatest)
    above, slopes_above = _log_sum(link.log_sf, link.sf_slope, link, row, upper, least)
    usable = where & (below > -math.inf) & (above > -math.inf)
    slopes = xp.where(over.expand(usable), slopes_below + slopes_above, 0.0)
    excess = xp.where(usable, below, 0.0) - xp.where(usable, above, 0.0)
    slope = xp.where(usable, over.sum(slopes if row.costs is None else row.costs * slopes), 1.0)
    return Balance(excess, slopes, slope, usable)


def _log_sum(
    log_tail: Callable[[Array], Array],
    slope: Callable[[Array], Array],
    link: Link,
    row: Entries,
    where: Array,
    nearest: Array | None,
) -> tuple[Array, Array]:
    """Return the log of a sum of tails, and its absolute derivative in each z.

    `nearest` is the score next to θ among the entries `where`, None if these have costs.
    """
    z, over = row.z, row.over
    xp = namespace(z)
    half = link.median(z)
    # The logarithm of a tail of 0 has no derivative.
    some = where & (log_tail(xp.where(where, stop_gradient(z), half)) > -math.inf)
    z = xp.where(some, z, half)
    logs, fixed = log_tail(z), stop_gradient(z)
    logs = logs if row.costs is None else logs + xp.log(xp.where(some, row.costs, 1.0))
    greatest = over.max(xp.where(some, stop_gradient(logs), -math.inf))
    known = greatest > -math.inf
    ratio = logs - over.expand(xp.where(known, greatest, 0.0))
    if nearest is not None:
        # Far from θ, two z may round to one number though the scores differ: −10⁹ next to 0 and 1.
        apart = xp.where(some, row.scores, 0.0) - over.expand(xp.where(known, nearest, 0.0))
        apart = xp.where(some, apart, 0.0) / over.expand(row.temperature)
        close, capped = xp.abs(apart) <= xp.abs(fixed) / 64, xp.abs(fixed) >= far(xp.finfo(z.dtype))
        half = xp.where(close, apart / 2, 0.0)
        exact = xp.where(apart == 0, 0.0, -xp.abs(apart) * slope(fixed - half))
        ratio = xp.where(some & (close | capped), exact + moving(logs), ratio)
    raised = xp.exp(xp.where(some, ratio, -math.inf))
    total = xp.where(known, over.sum(raised), 1.0)
    slopes = xp.where(some, stop_gradient(raised) * slope(fixed), 0.0)
    return greatest + xp.log(total), slopes / over.expand(stop_gradient(total))


def at_end(
    x: Array, k: Array, temperature: Array, link: Link, hi: Array, lo: Array, over: Reductions
) -> tuple[Array, Array]:
    """Return θ of rows in which k entries have F = 1 and the others' F has underflowed.

    Their sum is positive, so the least of the k entries is just below F = 1, at the end of the
    support. The link is per row and capped; the rows are not settled.
    """
    xp = namespace(x)
    entry_link, live = link.map_alpha(over.expand), x != -math.inf
    z = ((x - over.expand(hi)) - over.expand(lo)) / over.expand(temperature)
    upper = live & entry_link.above_half(z)
    least = over.min(xp.where(upper, x, math.inf))
    greatest = over.max(xp.where(live & ~upper, x, -math.inf))
    end = link.quantile(xp.ones_like(k))
    beyond = ((least - hi) - lo) / temperature - end > 4 * float(xp.finfo(x.dtype).eps)
    # If the support ends above them, θ is not determined.
    some = link.log_cdf((greatest - least) / temperature + end) > -math.inf
    moves = (cast(over.count(upper), k.dtype) == k) & beyond & some
    if link.capped is not True:  # per row, as its alpha is
        moves = moves & link.capped
    return xp.where(moves, least, hi), xp.where(moves, -temperature * end, lo)
