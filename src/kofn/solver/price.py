"""Solve Σ c·F((x − θc)/T) = B for θ, the price of a unit of cost, for all rows at once.

The search is as in `solver/threshold.py`, with weighted sums. Costs change this: θ multiplies
them, so x − θc is computed without rounding θc; the scores cross θ in the order of x/c; sums of
costs have rounding errors, which counts have not. docs/maps_knapsack.md derives the rules.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from kofn.arrays.flow import barrier
from kofn.arrays.kinds import Array, namespace, quiet
from kofn.arrays.operations import in_parts, on_grid, power_of_two
from kofn.links.link import Link
from kofn.solver.bracket import bell, widening
from kofn.solver.costs import Costs
from kofn.solver.equation import Problem
from kofn.solver.neighbours import Place
from kofn.solver.reductions import DENSE, Reductions
from kofn.solver.threshold import answered, searched


class Price(NamedTuple):
    """θ of every row in units of `scale`, and how far each score is from θ times its cost."""

    high: Array  # θ·scale = high + low; +inf takes no entry of positive cost, −inf takes each
    low: Array
    distance: Array  # x − θc − T·edge, to a rounding error of its own size; θ = 0 where infinite
    scale: Array  # a power of two, by which costs and budgets were divided


def solve(
    x: Array, costs: Array, budget: Array, temperature: Array, link: Link, over: Reductions = DENSE
) -> Price:
    """Return θ of every row, and the distances of its scores from it.

    Args:
        x: scores (…, n), −inf where an entry is excluded, no +inf.
        costs: like x, finite and ≥ 0. Entries of cost 0 take no part.
        budget: per row; NaN asks for NaN.
        temperature: per row, in score units.
        link: an inner link; its parameter is a number or per row.
        over: the reductions over a row.
    """
    xp = namespace(x)
    with quiet(x):
        p, scale = _problem(x, costs, budget, temperature, link, over)
        has_nan = xp.isnan(budget) | xp.isnan(temperature) | xp.isnan(over.max(x))
        if link.alpha is not None:
            has_nan = has_nan | xp.isnan(link.alpha + temperature)
        open_ = (p.k > 0) & (p.k < p.n) & ~has_nan
        at = searched(p, _bracket(p, open_), open_)
        if link.capped is not False:
            at = _at_end(p, at, open_)
        high, low = answered(p, at, open_, has_nan)
        return Price(high, low, _distance(p, x, Place(xp.where(open_, high, 0.0), low)), scale)


def price_at(
    x: Array,
    costs: Array,
    budget: Array,
    temperature: Array,
    link: Link,
    at: Place,
    over: Reductions = DENSE,
) -> Price:
    """Return what `solve` does, from a θ that is known: ±∞ and NaN as there.

    The arguments are as for `solve`; θ is in the units of these costs.
    """
    xp = namespace(x)
    with quiet(x):
        p, scale = _problem(x, costs, budget, temperature, link, over)
        finite = xp.isfinite(at.anchor)
        high, low = (xp.where(finite, part * scale, 0.0) for part in at)
        distance = _distance(p, x, Place(high, low))
        return Price(xp.where(finite, high, at.anchor), low, distance, scale)


def _problem(
    x: Array, costs: Array, budget: Array, temperature: Array, link: Link, over: Reductions
) -> tuple[Problem, Array]:
    """Return the equations, and the unit of their costs."""
    xp = namespace(x)
    pays = (x != -math.inf) & (costs > 0)
    costs = xp.where(pays, costs, 0.0)
    scale = power_of_two(over.max(costs))
    costs, budget = costs / over.expand(scale), budget / scale
    x, rest = _shifted(x, pays, temperature, link, over)
    coarse = on_grid(costs), on_grid(budget)
    own = Costs(
        each=costs,
        rest=rest,
        parts=in_parts(costs),
        coarse=coarse,
        fine=(costs - coarse[0], budget - coarse[1]),
    )
    entry_link, total = link.map_alpha(over.expand), over.sum(costs)
    return Problem(x, pays, budget, total, temperature, entry_link, link, over, own), scale


def _shifted(
    x: Array, where: Array, temperature: Array, link: Link, over: Reductions
) -> tuple[Array, Array]:
    """Return x − T·edge as two numbers: costs differ, so θ does not absorb the edge of the link."""
    xp = namespace(x)
    x = xp.where(where, x, 0.0)
    if isinstance(link.edge, float) and link.edge == 0:
        return x, xp.zeros_like(x)
    (edge,) = barrier(temperature * link.edge)
    edge = over.expand(edge)
    shifted = x - edge
    part = shifted - x
    rest = (x - (shifted - part)) - (edge + part)
    return shifted, xp.where(xp.isfinite(rest), rest, 0.0)


def _distance(p: Problem, x: Array, at: Place) -> Array:
    """Return x − θc − T·edge of all available entries, the ones of cost 0 too."""
    assert p.costs is not None
    x, rest = _shifted(x, x != -math.inf, p.temperature, p.row_link, p.over)
    return p._replace(x=x, costs=p.costs._replace(rest=rest)).distance(*at)


def _bracket(p: Problem, open_: Array) -> tuple[Array, Array, Array]:
    """Return (start, low, high): the least and the greatest (x − T·F⁻¹(q))/c, q = B/Σc.

    The start is the θ of a normal sample of residuals x − θc.
    """
    assert p.costs is not None
    xp, over, costs = namespace(p.x), p.over, p.costs.each
    info = xp.finfo(p.x.dtype)
    eps, largest = float(info.eps), float(info.max)
    total = xp.where(open_, p.n, 1.0)
    share = xp.where(open_, p.k / total, 0.5)
    rest = xp.where(open_, (p.n - p.k) / total, 0.5)
    quantile, upper = p.row_link.quantile(share), p.row_link.upper_quantile(rest)
    own = xp.where(share > 0.5, upper, quantile)
    reach = over.expand(p.temperature * own)

    crossing, slack = p.x - reach, 8 * eps * (xp.abs(p.x) + xp.abs(reach))
    low = over.min(xp.where(p.live, p.costs.crossing(crossing - slack), math.inf))
    high = over.max(xp.where(p.live, p.costs.crossing(crossing + slack), -math.inf))
    low, high = xp.clip(low, -largest, largest), xp.clip(high, -largest, largest)

    square = xp.where(open_, over.sum(costs * costs), 1.0)
    middle = over.sum(costs * p.x) / square
    residual = xp.where(p.live, p.x - over.expand(middle) * costs, 0.0)
    residual = residual / over.expand(p.temperature)
    variance = over.sum(costs * residual * residual) / total
    wider = widening(own + p.row_link.edge, bell(share) * xp.sqrt(variance))
    start = middle - (own + wider) * p.temperature * (p.n / square)
    halfway = low / 2 + high / 2
    return xp.where(xp.isfinite(start), xp.clip(start, low, high), halfway), low, high


def _at_end(p: Problem, at: Place, open_: Array) -> Place:
    """Return θ of rows that spend all on entries with F = 1, while the others' F has underflowed.

    Their sum is positive, so the first of the entries with F = 1 is just below it. The link is
    capped; see `plateau.at_end`.
    """
    assert p.costs is not None
    xp, over, crossing = namespace(p.x), p.over, p.costs.crossing
    z = p.z(*at)
    upper = p.live & p.link.above_half(z)
    end = p.row_link.quantile(xp.ones_like(p.k))
    reach = over.expand(p.temperature * end)
    least = over.min(xp.where(upper, crossing(p.x - reach), math.inf))
    beyond = over.min(xp.where(upper, z, math.inf)) - end > 4 * float(xp.finfo(z.dtype).eps)
    taken = over.sum(xp.where(upper, p.costs.each, 0.0))
    least = xp.where(xp.isfinite(least), least, 0.0)
    # One number is not enough: this is how far the first entry is from the end there.
    distance = crossing(p.distance(least, xp.zeros_like(least)) - reach)
    distance = over.min(xp.where(upper, distance, math.inf))
    to = Place(least, xp.where(xp.isfinite(distance), distance, 0.0))
    # If the support ends above the other entries, θ is not determined.
    others = p.link.log_cdf(p.z(*to)) > -math.inf
    some = over.count(others & p.live & ~upper) > 0
    moves = open_ & (taken == p.k) & beyond & some
    if p.row_link.capped is not True:  # per row, as its alpha is
        moves = moves & p.row_link.capped
    return to.where(moves, at)
