"""Thresholds of hard choices, where every slope F′ and every smaller tail has underflowed.

ΣF − k says nothing there: on the plateau between the last entry above ½ and the first below all of
it is 0. The same equation does on a logarithmic scale, log Σ_{F≤½} F = log Σ_{F>½} (1 − F), which
no underflow reaches. docs/gradients.md derives what follows from it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.kinds import Array, cast, namespace
from kofn.links.link import Link

if TYPE_CHECKING:
    from kofn.solver.reductions import Reductions


class Balance(NamedTuple):
    """The equation on a logarithmic scale, in the rows asked for; 0 in the others."""

    excess: Array  # log Σ_{F≤½} F − log Σ_{F>½} (1 − F)
    slopes: Array  # by which z of each entry moves it; no derivative follows them
    slope: Array  # their sum, 1 where they are of no use
    usable: Array  # rows that have both tails


def balance(link: Link, z: Array, live: Array, where: Array, over: Reductions) -> Balance:
    """Of entries z in the rows `where`, differentiable in z and the link's parameter."""
    xp = namespace(z)
    asked = live & over.expand(where)
    upper = asked & link.above_half(stop_gradient(z))
    below, slopes_below = _log_sum(link.log_cdf, link.cdf_slope, link, z, asked & ~upper, over)
    above, slopes_above = _log_sum(link.log_sf, link.sf_slope, link, z, upper, over)
    usable = where & (below > -math.inf) & (above > -math.inf)
    slopes = xp.where(over.expand(usable), slopes_below + slopes_above, 0.0)
    excess = xp.where(usable, below, 0.0) - xp.where(usable, above, 0.0)
    slope = xp.where(usable, over.sum(slopes), 1.0)
    return Balance(excess, slopes, slope, usable)


def _log_sum(
    log_tail: Any, slope: Any, link: Link, z: Array, where: Array, over: Reductions
) -> tuple[Array, Array]:
    """(log of the sum of tails, what each entry's z moves it by without its sign)."""
    xp = namespace(z)
    half = link.median(z)
    # A tail that is 0 has no logarithm to differentiate.
    some = where & (log_tail(xp.where(where, stop_gradient(z), half)) > -math.inf)
    z = xp.where(some, z, half)
    logs = log_tail(z)
    greatest = over.max(xp.where(some, stop_gradient(logs), -math.inf))
    found = greatest > -math.inf
    raised = xp.exp(xp.where(some, logs - over.expand(xp.where(found, greatest, 0.0)), -math.inf))
    total = xp.where(found, over.sum(raised), 1.0)
    fixed = stop_gradient(z)
    slopes = xp.where(some, stop_gradient(raised) * slope(fixed), 0.0)
    return greatest + xp.log(total), slopes / over.expand(stop_gradient(total))


def at_end(
    x: Array, k: Array, temperature: Array, link: Link, hi: Array, lo: Array, over: Reductions
) -> tuple[Array, Array]:
    """θ of rows in which k entries have F = 1 while what the others have has underflowed.

    It is not 0, so the least of the k has F = 1 by as little: it is where F comes to its end. The
    link is per row and capped, the row not settled.
    """
    xp = namespace(x)
    entry_link, live = link.map_alpha(over.expand), x != -math.inf
    z = ((x - over.expand(hi)) - over.expand(lo)) / over.expand(temperature)
    upper = live & entry_link.above_half(z)
    least = over.min(xp.where(upper, x, math.inf))
    greatest = over.max(xp.where(live & ~upper, x, -math.inf))
    end = link.quantile(xp.ones_like(k))
    beyond = ((least - hi) - lo) / temperature - end > 4 * float(xp.finfo(x.dtype).eps)
    # A support that ends above them leaves θ open.
    some = link.log_cdf((greatest - least) / temperature + end) > -math.inf
    moves = (cast(over.count(upper), k.dtype) == k) & beyond & some
    if link.capped is not True:  # per row, as its alpha is
        moves = moves & link.capped
    return xp.where(moves, least, hi), xp.where(moves, -temperature * end, lo)
