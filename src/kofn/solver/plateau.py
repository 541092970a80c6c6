"""Thresholds of hard choices, where every slope F′ and every smaller tail has underflowed.

There, ΣF − k is flat: it is 0 everywhere between the last entry above ½ and the first below it.
The same equation on a logarithmic scale, log Σ_{F≤½} F = log Σ_{F>½} (1 − F), does not underflow
and determines θ. docs/formulas.md derives its consequences.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from kofn.arrays.autodiff import moving, stop_gradient
from kofn.arrays.kinds import Array, cast, namespace
from kofn.links.link import Link
from kofn.solver.equation import far
from kofn.solver.reductions import Reductions


class Balance(NamedTuple):
    """The equation on a logarithmic scale in selected rows; 0 in the others."""

    excess: Array  # log Σ_{F≤½} F − log Σ_{F>½} (1 − F), of terms times their costs
    slopes: Array  # its derivative in z of each entry, as a constant; of one tail, if that is all
    slope: Array  # the sum of the slopes, times costs; 1 where they are 0
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
    z, over, fixed = row.z, row.over, stop_gradient(row.z)
    xp, half = namespace(z), link.median(z)
    inside = row.live & over.expand(where)
    upper = inside & link.above_half(fixed)
    # The logarithm of a tail of 0 has no derivative.
    some = inside & (link.log_tail(xp.where(inside, fixed, half)) > -math.inf)
    z = xp.where(some, z, half)
    logs, fixed = link.log_tail(z), stop_gradient(z)
    logs = logs if row.costs is None else logs + xp.log(xp.where(some, row.costs, 1.0))
    ends = [
        over.max(xp.where(some & side, stop_gradient(logs), -math.inf)) for side in (~upper, upper)
    ]
    known = [end > -math.inf for end in ends]
    ratio = logs - _of_side(
        upper, [xp.where(*each, 0.0) for each in zip(known, ends, strict=True)], over
    )
    if row.costs is None:
        # Far from θ, two z may round to one number though the scores differ: −10⁹ next to 0 and 1.
        greatest = over.max(xp.where(inside & ~upper, row.scores, -math.inf))
        least = over.min(xp.where(upper, row.scores, math.inf))
        pairs = zip(known, (greatest, least), strict=True)
        nearest = _of_side(upper, [xp.where(*each, 0.0) for each in pairs], over)
        apart = xp.where(some, xp.where(some, row.scores, 0.0) - nearest, 0.0)
        apart = apart / over.expand(row.temperature)
        close, capped = xp.abs(apart) <= xp.abs(fixed) / 64, xp.abs(fixed) >= far(xp.finfo(z.dtype))
        middle = fixed - xp.where(close, apart / 2, 0.0)
        exact = xp.where(apart == 0, 0.0, -xp.abs(apart) * link.tail_slope(middle))
        ratio = xp.where(some & (close | capped), exact + moving(logs), ratio)
    raised = xp.exp(xp.where(some, ratio, -math.inf))
    sums = [over.sum(xp.where(side, raised, 0.0)) for side in (~upper, upper)]
    totals = [xp.where(*each, 1.0) for each in zip(known, sums, strict=True)]
    below, above = (end + xp.log(total) for end, total in zip(ends, totals, strict=True))
    slopes = xp.where(some, stop_gradient(raised) * link.tail_slope(fixed), 0.0)
    slopes = slopes / _of_side(upper, [stop_gradient(total) for total in totals], over)
    usable = where & (below > -math.inf) & (above > -math.inf)
    excess = xp.where(usable, below, 0.0) - xp.where(usable, above, 0.0)
    slope = over.sum(slopes if row.costs is None else row.costs * slopes)
    return Balance(excess, slopes, xp.where(slope > 0, slope, 1.0), usable)


def _of_side(upper: Array, sides: Sequence[Array], over: Reductions) -> Array:
    """Return per entry its side's number per row; `sides` are the numbers for F ≤ ½ and F > ½."""
    below, above = map(over.expand, sides)
    return namespace(upper).where(upper, above, below)


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
