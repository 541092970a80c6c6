"""Solve Σ F((x − θ)/T) = k for θ, for all rows at once and without a sort.

The solver accesses a row only through the reductions `over`: min, max, sum, count, and expand (one
number per row back to its entries). Ragged or sharded rows need other reductions, nothing else. It
computes no gradients (see `formulas/implicit.py`) and works in the dtype of its input, float32 or
float64. docs/solver.md derives each rule below and names a row that fails without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from kofn.arrays.flow import barrier, only_if, while_loop
from kofn.arrays.kinds import Array, cast, namespace, quiet, scalar
from kofn.links.link import Link
from kofn.solver.bracket import bracket
from kofn.solver.equation import Balanced, Problem, Searched, split
from kofn.solver.neighbours import Place, between_neighbours
from kofn.solver.reductions import DENSE, Reductions, is_in_parts, maxima_of, sums_of


class Search(NamedTuple):
    """The state of the search: θ and its bracket, whose ends are two floats each, as θ is."""

    at: Place
    low: Place
    high: Place
    last: Array
    active: Array
    converged: Array  # rows whose last step shows that θ has converged
    flat: Array


class Newton(NamedTuple):
    """The result of one evaluation of the rows, in units of T."""

    excess: Array  # its sign tells on which side of the root θ is
    step: Array
    tolerance: Array  # the possible error of θ
    last: Array  # a step this small ends the search without another evaluation
    flat: Array  # the sums are flat: both tails have underflowed


def solve(
    x: Array, k: Array, temperature: Array, link: Link, over: Reductions = DENSE
) -> tuple[Array, Array]:
    """Return θ of every row as an unevaluated sum of two floats.

    Args:
        x: scores (…, n), −inf where an entry is excluded, no +inf.
        k: how many entries to choose, per row.
        temperature: per row, in score units.
        link: an inner link (θ is in its convention); its parameter is a number or per row.
        over: the reductions over a row.

    Returns:
        (hi, lo) per row. hi is +inf if k ≤ 0, −inf if k is at least the number of entries that may
        be chosen, and NaN if the row, k, temperature or alpha contains a NaN; lo is 0 then.
    """
    xp = namespace(x)
    with quiet(x):
        live = x != -math.inf
        n = cast(over.count(live), x.dtype)
        entry_link = link.map_alpha(over.expand)
        problem = Problem(x, live, k, n, temperature, entry_link, link, over)
        open_ = (k > 0) & (k < n)
        start, low, high = bracket(problem, open_)
        unknown = (n > 0) & (xp.isnan(temperature) | xp.isnan(low))
        has_nan = xp.isnan(k) | unknown
        at = searched(problem, (start, low, high), open_ & ~has_nan)
        hi, lo = answered(problem, at, open_, has_nan)
        return hi, lo


ROUNDS = 24
"""Looks (evaluations of the sums of all rows) after which Newton's steps are given up.

A row that is not far out takes a handful.
"""


def searched(p: Problem, ends: tuple[Array, Array, Array], open_: Array) -> Place:
    """Return θ of the rows that are open, from where to start and a bracket."""
    most = ROUNDS if p.costs is None else bisections(p.x)
    has_plateau = p.row_link.has_infinite_tails(p.x) is not False  # a bounded link has none
    search = newton_search(p, begun(*ends, open_), balance, most)
    if p.costs is None:
        lost = open_ & ~search.converged
        search = only_if(lost, lambda: _beside(p, search, lost), search)
    if has_plateau:
        search = only_if(search.flat, lambda: between(p, search), search)
    return search.at


def answered(p: Problem, at: Place, open_: Array, has_nan: Array) -> Place:
    """Return θ of all rows: ±∞ where nothing or everything is chosen, NaN where one has a NaN."""
    xp = namespace(p.x)
    every = xp.where(p.k >= p.n, scalar(p.x, -math.inf), math.nan)
    closed = xp.where(p.k <= 0, math.inf, every)
    hi = xp.where(has_nan, math.nan, xp.where(open_, at.anchor, closed))
    return Place(hi, xp.where(open_ & ~has_nan, at.offset, 0.0))


def begun(start: Array, low: Array, high: Array, active: Array) -> Search:
    """Return a search at its starting point."""
    zero, none = (namespace(start).zeros_like(one) for one in (start, active))
    ends = Place(start, zero), Place(low, zero), Place(high, zero)
    return Search(*ends, last=zero + math.inf, active=active, converged=none, flat=none)


def newton_search(
    p: Searched, search: Search, look: Callable[[Any, Array], Newton], most: int
) -> Search:
    """Take Newton steps; bisect if a step leaves the bracket or exceeds half of the last one."""
    xp = namespace(p.x)

    def unfinished(s: Search) -> Array:
        return xp.any(s.active)

    def advance(s: Search) -> Search:
        return stepped(p, s, look(p, p.z(*s.at)))

    return while_loop(p.x, unfinished, advance, search, most)


def stepped(p: Searched, s: Search, seen: Newton) -> Search:
    """Take Newton's step of the last look, or half of the bracket."""
    xp = namespace(p.x)
    eps, largest = float(xp.finfo(p.x.dtype).eps), float(xp.finfo(p.x.dtype).max)
    low = s.at.where(s.active & (seen.excess > 0), s.low)
    high = s.at.where(s.active & (seen.excess < 0), s.high)
    below, above = (xp.clip(s.at.to(end), -largest, largest) for end in (low, high))
    step = seen.step * p.temperature
    near = xp.abs(step) <= seen.last * p.temperature
    halved = (step > below) & (step < above) & (xp.abs(step) <= s.last / 2)
    # The size of the step decides when to stop; a small residual says little if W is small.
    stay = (seen.excess == 0) | seen.flat
    step = xp.where(near | halved, step, below / 2 + above / 2)
    step = xp.where(stay, 0.0, step)
    at = s.at.stepped(step).where(s.active, s.at)
    narrow = xp.where(seen.tolerance < eps, seen.tolerance, eps) / 2 * p.temperature
    stuck = (s.at.to(at) == 0) | ~(above - below > narrow)
    return Search(
        at=at,
        low=low,
        high=high,
        last=xp.where(s.active, xp.abs(step), s.last),
        active=s.active & ~(near | stay | stuck),
        converged=xp.where(s.active, near | stay, s.converged),
        flat=xp.where(s.active, seen.flat, s.flat),
    )


def _beside(p: Problem, search: Search, lost: Array) -> Search:
    """Solve rows on which Newton's method did not converge by the search from a score."""
    at = between_neighbours(p, lost)
    flat = balance(p, p.z(*at)).flat
    return search._replace(
        at=at.where(lost, search.at), flat=namespace(lost).where(lost, flat, search.flat)
    )


def between(p: Problem, search: Search) -> Search:
    """Solve on a logarithmic scale between the last entry above ½ and the first below it."""
    return newton_search(p, around_gap(p, search), log_balance, bisections(p.x))


def around_gap(p: Problem, search: Search) -> Search:
    """Return the start of that search."""
    xp = namespace(p.x)
    upper, _, _ = split(p.link, p.z(*search.at), p.live)
    zero = xp.zeros_like(p.k)
    half = -p.temperature * p.row_link.median(zero)
    at = p.x if p.costs is None else p.costs.crossing(p.x + p.over.expand(half))
    low = Place(p.over.max(xp.where(p.live & ~upper, at, -math.inf)), zero)
    high = Place(p.over.min(xp.where(upper, at, math.inf)), zero)
    if p.costs is None:
        low, high = low.stepped(half), high.stepped(half)
    return _anew(search, low, high)


def bisections(x: Array) -> int:
    """Return a bound on the looks of bisection alone, from a bracket of any size."""
    return 4 * int(namespace(x).finfo(x.dtype).bits)


def _anew(search: Search, low: Place, high: Place) -> Search:
    """Return a search of the flat rows, from the middle of a bracket."""
    xp = namespace(search.last)
    zero, largest = xp.zeros_like(search.last), float(xp.finfo(search.last.dtype).max)
    middle = low.stepped(xp.clip(low.to(high), -largest, largest) / 2)
    return search._replace(
        at=middle.where(search.flat, search.at),
        low=low,
        high=high,
        last=zero + math.inf,
        active=search.flat,
    )


def balance(p: Problem, z: Array) -> Newton:
    """Return a Newton step on the log-odds of ΣF/n, nearly linear in θ if ΣF is exponential."""
    xp = namespace(z)
    upper, tail, density = p.link.tails(z)
    upper = upper & p.live
    # A cdf of the user's may round to just below 0.
    tail = xp.where(p.live & (tail > 0), tail, 0.0)
    density = xp.where(p.live, density, 0.0)
    upper, tail, density = barrier(upper, tail, density)
    costs = p.costs
    if costs is not None:
        sums = Sums(*costs.sums(upper, tail, density, p.over))
        return newton_of(p, z, sums, lambda: costs.weight(upper, density, p.over))
    parts = upper, xp.where(upper, 0.0, tail), xp.where(upper, tail, 0.0), density
    if is_in_parts(p.over):  # one message has all
        count, *others, of_lower = sums_of(p.over, *parts, xp.where(upper, 0.0, density))
        return newton_of(p, z, Sums(count - p.k, *others), of_lower)
    count, *others = sums_of(p.over, *parts)
    sums = Sums(cast(count, z.dtype) - p.k, *others)
    return newton_of(p, z, sums, lambda: p.over.sum(xp.where(upper, 0.0, density)))


class Sums(NamedTuple):
    """The sums of a row, by which a Newton step is decided."""

    missing: Array  # #{F > ½} − k
    below: Array  # Σ F where F ≤ ½
    above: Array  # Σ (1 − F) where F > ½
    weight: Array  # Σ F′
    doubt: Array | None = None  # what rounding of `missing` is of, if it is no whole number
    unit: Array | None = None  # the length of a step by which z moves by 1, if that is not T


def newton_of(p: Balanced, z: Array, sums: Sums, of_lower: Callable[[], Array] | Array) -> Newton:
    """Return the Newton step on the log-odds of ΣF/n; `of_lower` is Σ F′ where F ≤ ½."""
    xp = namespace(z)
    eps = float(xp.finfo(z.dtype).eps)
    missing, below, above, weight, doubt, unit = sums
    excess = missing + below - above

    total, rest = p.k + excess, (p.n - p.k) - excess
    log_odds = xp.log1p(excess / p.k) - xp.log1p(-excess / (p.n - p.k))
    step = log_odds * (total / p.n) * (rest / weight)
    plateau = flat = xp.zeros_like(missing, dtype=xp.bool)

    infinite = p.link.has_infinite_tails(z)
    if infinite is not False:
        # If exactly k entries are above ½ with a gap around θ, ΣF − k is flat; the logarithms of
        # the two tails still determine θ.
        plateau = (missing == 0) & (below + above < 1) & infinite
        flat = plateau & (below + above < float(xp.finfo(z.dtype).smallest_normal) / eps)

        def balanced() -> Array:
            weight_below = of_lower() if callable(of_lower) else of_lower
            slope = weight_below / below + (weight - weight_below) / above
            usable = plateau & (below > 0) & (above > 0)
            return xp.where(usable, (xp.log(below) - xp.log(above)) / slope, step)

        step = only_if(plateau, balanced, step) if callable(of_lower) else balanced()

    # An infinite slope, as at the end of entmax's support for α > 2, gives no Newton step.
    step = xp.where(weight < math.inf, step, math.nan)
    rounding = 4 * (below + above)
    if doubt is not None:
        rounding = rounding + xp.where(xp.abs(excess) <= 2 * eps * doubt, doubt, 0.0)
    rounding = rounding / weight  # the effect of the sums' rounding on the step
    wanted = xp.minimum(p.k / weight, xp.ones_like(weight) if unit is None else unit)
    # If no entry is inside the support, θ may be at any distance from the next one.
    tolerance = xp.where(weight > 0, eps * xp.maximum(wanted, rounding), 0.0)
    last = tolerance
    if p.link.smooth:  # the error after a step is of the order of the step's square
        near = tolerance if unit is None else xp.minimum(tolerance, xp.full_like(tolerance, eps))
        near = xp.sqrt(near) / 2
        near = near if unit is None else xp.maximum(tolerance, near)
        last = xp.where(plateau, tolerance, near)
    if infinite is False:
        # Near the end where F is 1, log-odds are curved: a short step may leave most of the excess.
        last = xp.where(xp.abs(excess) <= 4 * last * weight, last, 0.0)
    order = p.row_link.order
    if order is not None:
        # If the slope is infinite at the end, a short step may give another entry a large weight.
        steep = order + xp.zeros_like(step) < 1
        tolerance = xp.where(steep, eps * rounding, tolerance)
        last = xp.where(steep, tolerance, last)
        step = xp.where(steep & (xp.abs(step) <= tolerance), 0.0, step)
        # k entries have weight 1 and the others nearly 0. F approaches 0 like a power of the
        # distance, and each Newton step covers a part of it; a longer last step covers the rest.
        done = (missing == 0) & (above == 0) & (xp.abs(step) <= tolerance)
        more = 2 * eps if unit is None else 2 * eps * unit
        step = xp.where(done, (1 + order) * step + more, step)
        last = xp.where(done, xp.abs(step), last)
    return Newton(excess, step, tolerance, last, flat)


def log_balance(p: Problem, z: Array) -> Newton:
    """Return a Newton step on log Σ_{F≤½} F = log Σ_{F>½} (1 − F), which does not underflow."""
    xp = namespace(z)
    upper = p.live & p.link.above_half(z)
    lower = p.live & ~upper
    log_tail, log_pdf = p.link.log_tail(z), p.link.log_pdf(z)
    if p.costs is not None:
        price = xp.log(xp.where(p.live, p.costs.each, 1.0))
        log_tail, log_pdf = log_tail + price, log_pdf + 2 * price
    below, above, slope_below, slope_above = logsumexps(p.over, (lower, upper), log_tail, log_pdf)
    slope = xp.exp(slope_below - below) + xp.exp(slope_above - above)
    tolerance = xp.full_like(below, float(xp.finfo(z.dtype).eps))
    if p.costs is not None:
        tolerance = tolerance * (1 + xp.abs(below) + xp.abs(above)) / slope
    step = (below - above) / slope
    flat = xp.zeros_like(below, dtype=xp.bool)
    return Newton(below - above, step, tolerance, tolerance, flat)


def logsumexps(over: Reductions, sides: tuple[Array, Array], *values: Array) -> tuple[Array, ...]:
    """Return log Σ e^values over each of two sets of entries, which are disjoint."""
    xp, (_, second) = namespace(values[0]), sides
    greatest = maxima_of(over, *(xp.where(one, v, -math.inf) for v in values for one in sides))
    parts = []
    for v, *ends in zip(values, greatest[::2], greatest[1::2], strict=True):
        one, other = map(over.expand, ends)
        raised = xp.exp(v - xp.where(second, other, one))
        parts += [xp.where(side, raised, 0.0) for side in sides]
    totals = sums_of(over, *parts)
    return tuple(end + xp.log(total) for end, total in zip(greatest, totals, strict=True))
