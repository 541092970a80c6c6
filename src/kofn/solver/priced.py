"""Solve Σ c·F((x − θc)/T) = B for θ, the price of a unit of cost, for all rows at once.

The search is that of `solver/threshold.py`, with weighted sums. What costs change: θ multiplies
them, so x − θc is computed without rounding θc; the scores cross θ in the order of x/c; sums of
costs have rounding errors, which counts have not. docs/maps_knapsack.md derives the rules.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from kofn.arrays.flow import barrier, only_if
from kofn.arrays.kinds import Array, namespace, quiet, scalar
from kofn.arrays.operations import in_parts, on_grid, power_of_two
from kofn.links.link import Link
from kofn.solver.beside import Place
from kofn.solver.bracket import bell, widening
from kofn.solver.equation import far
from kofn.solver.reductions import DENSE, Reductions, sums_of
from kofn.solver.threshold import Newton, Search, anew, logsumexps, newton_search


class Price(NamedTuple):
    """θ of every row in units of `scale`, and how far each score is from θ times its cost."""

    high: Array  # θ·scale = high + low; +inf takes no entry of positive cost, −inf takes each
    low: Array
    distance: Array  # x − θc − T·edge, to a rounding error of its own size; θ = 0 where infinite
    scale: Array  # a power of two, by which costs and budgets were divided


class Priced(NamedTuple):
    """The equations to solve, one per row; costs and budgets are in units of `Price.scale`."""

    x: Array  # 0 where an entry does not pay
    rest: Array  # what rounding x − T·edge left over, so that x + rest is exact
    pays: Array  # available entries of positive cost
    costs: Array  # 0 where an entry does not pay
    parts: tuple[Array, Array]  # costs as a sum of two numbers of half the digits
    coarse: tuple[Array, Array]  # costs and budget on a grid, so that sums are exact
    fine: tuple[Array, Array]  # what is left of them
    budget: Array
    total: Array  # Σ costs
    temperature: Array
    link: Link
    row_link: Link  # the link with its parameter per row; `link` has it per entry
    over: Reductions

    def distance(self, anchor: Array, offset: Array) -> Array:
        """Return x − θc; products of halves are exact, so it has an error of its own size."""
        left = less_product(self.x, self.parts, anchor, self.over)
        return (left - self.costs * self.over.expand(offset)) + self.rest

    def z(self, anchor: Array, offset: Array) -> Array:
        xp = namespace(self.x)
        limit = far(xp.finfo(self.x.dtype))
        z = self.distance(anchor, offset) / self.over.expand(self.temperature)
        return xp.clip(z, -limit, limit)


def less_product(x: Array, parts: tuple[Array, Array], theta: Array, over: Reductions) -> Array:
    """Return x − θc of costs in parts."""
    large, small = parts
    first, second = (over.expand(part) for part in in_parts(theta))
    left = x - large * first
    return ((left - large * second) - small * first) - small * second


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
        pays = (x != -math.inf) & (costs > 0)
        costs = xp.where(pays, costs, 0.0)
        scale = power_of_two(over.max(costs))
        problem = _problem(x, pays, costs, budget, temperature, link, over, scale)
        spoiled = xp.isnan(budget) | xp.isnan(temperature) | xp.isnan(over.max(x))
        if link.alpha is not None:
            spoiled = spoiled | xp.isnan(link.alpha + temperature)
        none, every = problem.budget <= 0, problem.budget >= problem.total
        open_ = ~(none | every | spoiled)
        search = newton_search(problem, _begin(problem, open_), _balance, _rounds(x))
        if link.has_infinite_tails(x) is not False:
            search = only_if(search.flat, lambda: _between(problem, search), search)
        zero = xp.zeros_like(budget)
        at = search.at.where(open_, Place(zero, zero))
        if link.capped is not False:
            at = at_end(problem, at, open_)
        whole = _with_every_entry(problem, x)
        closed = xp.where(none, math.inf, scalar(x, -math.inf))
        high = xp.where(spoiled, math.nan, xp.where(open_, at.anchor, closed))
        return Price(high, at.offset, whole.distance(*at), scale)


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

    The arguments are those of `solve`; θ is in the units of these costs.
    """
    xp = namespace(x)
    with quiet(x):
        pays = (x != -math.inf) & (costs > 0)
        costs = xp.where(pays, costs, 0.0)
        scale = power_of_two(over.max(costs))
        problem = _problem(x, pays, costs, budget, temperature, link, over, scale)
        finite = xp.isfinite(at.anchor)
        high = xp.where(finite, at.anchor * scale, 0.0)
        low = xp.where(finite, at.offset * scale, 0.0)
        distance = _with_every_entry(problem, x).distance(high, low)
        return Price(xp.where(finite, high, at.anchor), low, distance, scale)


def _rounds(x: Array) -> int:
    """Return the most looks: bisection alone, from a bracket of any size, takes no more."""
    return 4 * int(namespace(x).finfo(x.dtype).bits)


def _problem(
    x: Array,
    pays: Array,
    costs: Array,
    budget: Array,
    temperature: Array,
    link: Link,
    over: Reductions,
    scale: Array,
) -> Priced:
    costs, budget = costs / over.expand(scale), budget / scale
    x, rest = _shifted(x, pays, temperature, link, over)
    coarse = on_grid(costs), on_grid(budget)
    return Priced(
        x=x,
        rest=rest,
        pays=pays,
        costs=costs,
        parts=in_parts(costs),
        coarse=coarse,
        fine=(costs - coarse[0], budget - coarse[1]),
        budget=budget,
        total=over.sum(costs),
        temperature=temperature,
        link=link.map_alpha(over.expand),
        row_link=link,
        over=over,
    )


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


def _with_every_entry(p: Priced, x: Array) -> Priced:
    """Return the problem with the scores of cost 0 in their places."""
    available = x != -math.inf
    x, rest = _shifted(x, available, p.temperature, p.row_link, p.over)
    return p._replace(x=x, rest=rest)


def _begin(p: Priced, open_: Array) -> Search:
    xp = namespace(p.x)
    start, low, high = _bracket(p, open_)
    zero = xp.zeros_like(start)
    none = xp.zeros_like(open_)
    return Search(
        at=Place(start, zero),
        low=Place(low, zero),
        high=Place(high, zero),
        last=zero + math.inf,
        active=open_,
        found=none,
        flat=none,
    )


def _bracket(p: Priced, open_: Array) -> tuple[Array, Array, Array]:
    """Return (start, low, high): the least and the greatest (x − T·F⁻¹(q))/c, q = B/Σc.

    The start is the θ of a normal sample of residuals x − θc.
    """
    xp, over = namespace(p.x), p.over
    info = xp.finfo(p.x.dtype)
    eps, largest = float(info.eps), float(info.max)
    total = xp.where(open_, p.total, 1.0)
    share = xp.where(open_, p.budget / total, 0.5)
    rest = xp.where(open_, (p.total - p.budget) / total, 0.5)
    quantile, upper = p.row_link.quantile(share), p.row_link.upper_quantile(rest)
    own = xp.where(share > 0.5, upper, quantile)
    reach = p.temperature * own

    crossing = p.x - over.expand(reach)
    costs = xp.where(p.pays, p.costs, 1.0)
    slack = 8 * eps * (xp.abs(p.x) + xp.abs(over.expand(reach)))
    low = over.min(xp.where(p.pays, (crossing - slack) / costs, math.inf))
    high = over.max(xp.where(p.pays, (crossing + slack) / costs, -math.inf))
    low, high = xp.clip(low, -largest, largest), xp.clip(high, -largest, largest)

    square = xp.where(open_, over.sum(p.costs * p.costs), 1.0)
    middle = over.sum(p.costs * p.x) / square
    away = xp.where(p.pays, p.x - over.expand(middle) * p.costs, 0.0)
    away = away / over.expand(p.temperature)
    variance = over.sum(p.costs * away * away) / total
    wider = widening(own + p.row_link.edge, bell(share) * xp.sqrt(variance))
    start = middle - (own + wider) * p.temperature * (p.total / square)
    halfway = low / 2 + high / 2
    return xp.where(xp.isfinite(start), xp.clip(start, low, high), halfway), low, high


def _balance(p: Priced, z: Array) -> Newton:
    """Return a Newton step on the log-odds of Σ c·F/Σc; see `threshold._balance`."""
    xp, over, c = namespace(z), p.over, p.costs
    eps = float(xp.finfo(z.dtype).eps)
    upper, tail, density = p.link.tails(z)
    upper = upper & p.pays
    tail = xp.where(p.pays & (tail > 0), tail, 0.0)  # a cdf of the user's may round to below 0
    density = xp.where(p.pays, density, 0.0)
    upper, tail, density = barrier(upper, tail, density)
    below, above, first, weight, *bought = sums_of(
        over,
        xp.where(upper, 0.0, c * tail),
        xp.where(upper, c * tail, 0.0),
        c * density,
        c * c * density,
        xp.where(upper, p.coarse[0], 0.0),
        xp.where(upper, p.fine[0], 0.0),
        xp.abs(p.fine[0]),
    )
    missing, doubt = _missing(p, *bought)
    excess = missing + below - above

    short = p.total - p.budget
    total, rest = p.budget + excess, short - excess
    log_odds = xp.log1p(excess / p.budget) - xp.log1p(-excess / short)
    step = log_odds * (total / p.total) * (rest / weight)
    plateau = flat = xp.zeros_like(missing, dtype=xp.bool)
    infinite = p.link.has_infinite_tails(z)
    if infinite is not False:
        plateau = (missing == 0) & (below + above < 1) & infinite
        flat = plateau & (below + above < float(xp.finfo(z.dtype).smallest_normal) / eps)

        def balanced() -> Array:
            weight_below = over.sum(xp.where(upper, 0.0, c * c * density))
            slope = weight_below / below + (weight - weight_below) / above
            usable = plateau & (below > 0) & (above > 0)
            return xp.where(usable, (xp.log(below) - xp.log(above)) / slope, step)

        step = only_if(plateau, balanced, step)

    step = xp.where(weight < math.inf, step, math.nan)
    doubt = xp.where(xp.abs(excess) <= 2 * eps * doubt, doubt, 0.0)
    sums = (4 * (below + above) + doubt) / weight
    # A step moves z by c·step: by one unit, on average over the slopes, if it is this long.
    unit = xp.where(weight > 0, first / weight, 1.0)
    wanted = xp.minimum(p.budget / weight, unit)
    tolerance = xp.where(weight > 0, eps * xp.maximum(wanted, sums), 0.0)
    last = tolerance
    if p.link.smooth:
        near = xp.sqrt(xp.minimum(tolerance, xp.full_like(tolerance, eps))) / 2
        last = xp.where(plateau, tolerance, xp.maximum(tolerance, near))
    if infinite is False:
        last = xp.where(xp.abs(excess) <= 4 * last * weight, last, 0.0)
    order = p.row_link.order
    if order is not None:
        tolerance, last, step = _at_order(
            order, step, tolerance, last, eps * sums, (missing == 0) & (above == 0), 2 * eps * unit
        )
    return Newton(excess, step, tolerance, last, flat)


def _missing(p: Priced, bought: Array, small: Array, sizes: Array) -> tuple[Array, Array]:
    """Return what the entries above ½ cost beyond the budget, and what its rounding error is of.

    Both parts of it are sums; that of multiples of the grid is exact unless it is huge. `sizes` is
    the sum of the sizes of all the small parts.
    """
    xp = namespace(p.x)
    budget, rest = p.coarse[1], p.fine[1]
    missing = (bought - budget) + (small - rest)
    doubt = sizes + xp.abs(rest)
    huge = bought + budget > 1 / float(xp.finfo(p.x.dtype).eps) ** 0.5
    doubt = xp.where(huge, bought + budget, doubt)
    return missing, xp.where(missing == 0, 0.0, doubt)


def _at_order(
    order: Any, step: Array, tolerance: Array, last: Array, least: Array, whole: Array, more: Array
) -> tuple[Array, Array, Array]:
    """Return tolerance, last and step next to the end of a support; see `threshold._balance`."""
    xp = namespace(step)
    steep = order + xp.zeros_like(step) < 1
    tolerance = xp.where(steep, least, tolerance)
    last = xp.where(steep, tolerance, last)
    step = xp.where(steep & (xp.abs(step) <= tolerance), 0.0, step)
    done = whole & (xp.abs(step) <= tolerance)
    step = xp.where(done, (1 + order) * step + more, step)
    return tolerance, xp.where(done, xp.abs(step), last), step


def _between(p: Priced, search: Search) -> Search:
    """Solve on a logarithmic scale between the last entry above ½ and the first below it."""
    xp, over = namespace(p.x), p.over
    upper = p.pays & p.link.above_half(p.z(*search.at))
    zero = xp.zeros_like(p.budget)
    half = over.expand(p.temperature * p.row_link.median(zero))
    crossing = (p.x - half) / xp.where(p.pays, p.costs, 1.0)
    low = Place(over.max(xp.where(p.pays & ~upper, crossing, -math.inf)), zero)
    high = Place(over.min(xp.where(upper, crossing, math.inf)), zero)
    return newton_search(p, anew(search, low, high), _log_balance, _rounds(p.x))


def _log_balance(p: Priced, z: Array) -> Newton:
    """Return a Newton step on log Σ_{F≤½} c·F = log Σ_{F>½} c·(1 − F)."""
    xp = namespace(z)
    upper = p.pays & p.link.above_half(z)
    lower = p.pays & ~upper
    price = xp.log(xp.where(p.pays, p.costs, 1.0))
    log_pdf = p.link.log_pdf(z) + 2 * price
    below, above, slope_below, slope_above = logsumexps(
        p.over,
        (p.link.log_cdf(z) + price, lower),
        (p.link.log_sf(z) + price, upper),
        (log_pdf, lower),
        (log_pdf, upper),
    )
    slope = xp.exp(slope_below - below) + xp.exp(slope_above - above)
    step = (below - above) / slope
    sizes = 1 + xp.abs(below) + xp.abs(above)
    tolerance = float(xp.finfo(z.dtype).eps) * sizes / slope
    flat = xp.zeros_like(below, dtype=xp.bool)
    return Newton(below - above, step, tolerance, tolerance, flat)


def at_end(p: Priced, at: Place, open_: Array) -> Place:
    """Return θ of rows that spend all on entries with F = 1, while the others' F has underflowed.

    Their sum is positive, so the first of the entries with F = 1 is just below it. The link is
    capped; see `plateau.at_end`.
    """
    xp, over = namespace(p.x), p.over
    z = p.z(*at)
    upper = p.pays & p.link.above_half(z)
    end = p.row_link.quantile(xp.ones_like(p.budget))
    crossing = (p.x - over.expand(p.temperature * end)) / xp.where(p.pays, p.costs, 1.0)
    least = over.min(xp.where(upper, crossing, math.inf))
    beyond = over.min(xp.where(upper, z, math.inf)) - end > 4 * float(xp.finfo(z.dtype).eps)
    taken = over.sum(xp.where(upper, p.costs, 0.0))
    least = xp.where(xp.isfinite(least), least, 0.0)
    # One number is not enough: this is how far the first entry is from the end there.
    away = p.distance(least, xp.zeros_like(least)) - over.expand(p.temperature * end)
    away = over.min(xp.where(upper, away / xp.where(p.pays, p.costs, 1.0), math.inf))
    to = Place(least, xp.where(xp.isfinite(away), away, 0.0))
    # If the support ends above the other entries, θ is not determined.
    others = p.link.log_cdf(p.z(*to)) > -math.inf
    some = over.count(others & p.pays & ~upper) > 0
    moves = open_ & (taken == p.budget) & beyond & some
    if p.row_link.capped is not True:  # per row, as its alpha is
        moves = moves & p.row_link.capped
    return to.where(moves, at)
