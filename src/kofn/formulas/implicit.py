"""Implicit differentiation: make the threshold a function of scores, k, temperature and alpha.

The solver's θ is a constant. In PyTorch two Newton steps from it, whose value is exactly zero,

    δ ← δ + (r − stop(r))/stop(W),     r = Σ F((x − θ)/T − δ) − k,     W = Σ F′,

carry the derivatives of the implicit function: one step gives the first, two give the second (the
third is infinite or NaN). They are plain array code, so every transform that can differentiate a
sum can differentiate them. For JAX, dδ = dr/W is a custom rule that is itself differentiable, to
any order. docs/formulas.md derives this and lists alternatives that silently fail.

With costs c, r = Σ c·F((x − θc)/T − cδ) − k and W = Σ c²F′. Costs and budgets are in units of a
power of two per row, which the solver chooses: c is at most 2.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from kofn.arrays.autodiff import (
    has_gradients,
    nan_where,
    quotient,
    stop_gradient,
    with_gradients_of,
)
from kofn.arrays.flow import only_if, zeros_of
from kofn.arrays.kinds import Array, full_like, namespace, quiet, scalar
from kofn.arrays.operations import in_parts
from kofn.arrays.typing import Number
from kofn.formulas.pivot import pivot_of
from kofn.formulas.root import Equation, Terms, capped, moved, over_argument, root
from kofn.links.link import Link
from kofn.rows.settled import Rows
from kofn.solver.costs import less_product
from kofn.solver.equation import far, split
from kofn.solver.plateau import at_end
from kofn.solver.reductions import DENSE, Reductions, sends


class Placed(NamedTuple):
    """Rows with their threshold: z = (x − θ)/T, or (x − θc)/T, and the special cases."""

    link: Link  # the link with its parameter per entry
    z: Array
    upper: Array  # F > ½
    theta: Array  # differentiable and finite, for the link of mean zero
    none: Array  # rows that choose nothing, or nothing that costs
    every: Array  # rows that choose every available entry, or every one that costs
    has_nan: Array  # rows that contain a NaN
    settled: Array  # all of these
    correction: Number  # value 0, with the part of the gradient in k that z cannot carry
    outside: Array  # entries whose z is a constant
    pivot: Array  # what stands for θ in derivatives in T, a constant, and (θ − pivot)/T
    shift: Array
    over: Reductions
    open: Array  # available entries; with costs, those whose weight is not settled
    k: Array  # in the units of the costs
    costs: Array | None

    def closed(self, flags: Array, live: Array) -> Array:
        """Return the entries whose weight is settled where `flags` of rows, `none` or `every`, are.

        What costs nothing is not settled.
        """
        flags = self.over.expand(flags)
        return flags if self.costs is None else flags & live & ~self.open


def place(
    rows: Rows,
    over: Reductions,
    theta: tuple[Array, ...],
    pivoted: bool = False,
    ends_outside: bool = False,
) -> Placed:
    """Attach its derivatives to θ: two numbers per row, or a Price with costs.

    The pivot is θ unless T has a gradient, or `pivoted`. For derivatives of θ, scores at an end of
    the support are outside by `ends_outside`, which rows with costs leave aside.
    """
    xp, expand, hi = namespace(rows.scores), over.expand, theta[0]
    x, t, link = rows.scores, rows.temperature, rows.link.map_alpha(over.expand)
    none, every, has_nan = hi == math.inf, hi == -math.inf, xp.isnan(hi)
    flags = none, every, has_nan, none | every | has_nan
    parts = rows, over, theta, flags, pivoted or has_gradients(t)
    z, distance, whole, pivot, shift, outside, open_, k, costs = (
        _dense(*parts, ends_outside) if rows.costs is None else _costed(*parts)
    )
    # z may overflow where x does not (finfo.min/0.5).
    limit = far(xp.finfo(x.dtype))
    beyond = xp.where(z > 0, scalar(z, limit), -limit)
    z = xp.where(outside, 0.0, z)
    delta = zeros_of(whole)
    correction = 0.0
    # A number for alpha is part of the function; an array is an argument.
    number, alpha = link.static_and_array_alpha()
    lever = None if costs is None else shift
    if has_gradients(x, k, t, alpha, costs):
        equation = Equation(link.id, number)
        constants = outside, beyond, open_, stop_gradient(x), over_argument(over)
        terms = Terms(z, distance, t, nan_where(k, has_nan), alpha, *constants, costs, lever)
        delta = nan_where(root(equation, delta, terms), has_nan)
        correction = with_gradients_of(equation.correction, *terms)
    z = capped(z, distance, expand(t), moved(expand(delta), costs, lever, over), outside, beyond)
    upper, _, _ = split(link, stop_gradient(z), rows.live)
    whole = whole + (t - stop_gradient(t)) * shift
    edge = rows.link.edge
    whole = whole + t * (delta - edge) if costs is None else (whole + t * delta) / theta[-1]
    rest: tuple[Any, ...] = outside, pivot, shift, over, open_, k, costs
    return Placed(link, z, upper, whole, *flags, correction, *rest)


def with_ends_outside(link: Link, z: Array) -> Array:
    """Return z a few ulps farther from −edge where F′ jumps from 1 to 0 at the support's ends.

    Scores at an end, to rounding, are outside then, as they are for scores next to them. Else the
    rounding of θ decided which of them move it: in the row 0, 1 with k = 1 and T = 1, the 1 alone.
    """
    order = link.order
    if order is None or (isinstance(order, float) and order != 1):
        return z
    farther = z + 32 * float(namespace(z).finfo(z.dtype).eps) * (z + link.edge)
    return farther if isinstance(order, float) else namespace(z).where(order == 1, farther, z)


def _dense(
    rows: Rows,
    over: Reductions,
    theta: tuple[Array, ...],
    flags: tuple[Array, ...],
    pivoted: bool,
    ends_outside: bool,
) -> tuple[Any, ...]:
    """Return z, x less the pivot, θ, the pivot and its shift, `outside`, `open`, k and the costs.

    All but the second and k are constants.
    """
    xp, expand = namespace(rows.scores), over.expand
    x, k, t = map(stop_gradient, (rows.scores, rows.k, rows.temperature))
    (none, every, has_nan, settled), link = flags, rows.link.map_alpha(stop_gradient)
    hi, lo = xp.where(settled, 0.0, theta[0]), theta[1]
    if link.capped is not False and not sends(over):  # the search by messages has moved θ
        hi, lo = at_end(x, k, t, link, hi, xp.where(settled, 0.0, lo), over)
    z = ((x - expand(hi)) - expand(lo)) / expand(t)
    # A row with a NaN is left to move, so that its derivatives are NaN, as for softmax.
    link = link.map_alpha(expand)
    z = with_ends_outside(link, z) if ends_outside else z
    outside = ~rows.live | _constant_tail(link, z, expand(t)) | expand(none | every)
    pivot, shift = hi, xp.zeros_like(lo)
    if pivoted:
        pivot, shift = pivot_of(link, z, ~outside, hi, lo, t, over)
        outside = outside | xp.isinf(x - expand(pivot))
    at = expand(pivot)
    distance = nan_where(xp.where(outside, at, rows.scores) - at, expand(has_nan))
    return z, distance, hi + lo, pivot, shift, outside, rows.live, rows.k, None


def _costed(
    rows: Rows, over: Reductions, theta: tuple[Array, ...], flags: tuple[Array, ...], pivoted: bool
) -> tuple[Any, ...]:
    """Return the same as `_dense`, with derivatives in the costs, too."""
    xp, expand, live = namespace(rows.scores), over.expand, rows.live
    own: Any = rows.costs
    (*_, has_nan, settled), link = flags, rows.link.map_alpha(stop_gradient).map_alpha(expand)
    t, (hi, lo, away, unit) = stop_gradient(rows.temperature), theta
    hi, lo = xp.where(settled, 0.0, hi), xp.where(settled, 0.0, lo)
    z = xp.where(live, away, 0.0) / expand(t)
    decided = expand(settled) & (stop_gradient(own) > 0)
    # What a row has settled gets no gradient; a budget may be infinite there.
    costs, k = own / expand(unit), xp.where(settled, 0.0, rows.k) / unit
    outside = ~live | _constant_tail(link, z, expand(t)) | decided | expand(has_nan)
    pivot, shift = hi + lo, xp.zeros_like(lo)
    if pivoted:
        pivot, shift = pivot_of(link, z, ~outside, hi, lo, t, over, costs)
    distance = _moving_distance(rows, costs, pivot, outside, over)
    return z, distance, hi + lo, pivot, shift, outside, live & ~decided, k, costs


def _moving_distance(
    rows: Rows, costs: Array, pivot: Array, outside: Array, over: Reductions
) -> Array:
    """Return x less the pivot's cost, with derivatives in all but the pivot; 0 where outside."""
    xp, t = namespace(costs), stop_gradient(rows.temperature)
    x, c = (xp.where(outside, 0.0, stop_gradient(one)) for one in (rows.scores, costs))
    distance = less_product(x, in_parts(c), pivot, over)
    if has_gradients(rows.scores, rows.costs, rows.temperature, rows.link.alpha):
        edge = rows.link.edge
        change = over.expand(pivot) * (costs - stop_gradient(costs))
        change = (xp.where(outside, 0.0, rows.scores) - x) - change
        change = change - over.expand(rows.temperature * (edge - stop_gradient(edge)))
        distance = distance + xp.where(outside, 0.0, change)
    # Where it is no number in units of T, z is a constant.
    most = float(xp.finfo(x.dtype).max) / 4
    near = xp.abs(stop_gradient(distance)) < over.expand(xp.where(t < 1, most * t, most))
    return xp.where(near, distance, 0.0)


def _constant_tail(link: Link, z: Array, t: Array) -> Array:
    """Return where z is capped, and a constant: its derivatives would overflow, or are 0."""
    xp = namespace(z)
    limit = far(xp.finfo(z.dtype))
    cut = xp.abs(z) >= limit
    if link.has_infinite_tails(z) is False:
        return cut
    unit = xp.minimum(t, xp.ones_like(t))
    with quiet(z):
        slope = xp.abs(z) / unit / unit * link.cdf_slope(full_like(z, (), -limit))
    return cut & ~(slope < float(xp.finfo(z.dtype).max) / 1024)  # a margin for sums


def theta(rows: Rows, over: Reductions = DENSE, *, theta: tuple[Array, ...]) -> Array:
    """Return θ per row: ±inf if nothing or everything is chosen, NaN if no entry is available."""
    p = place(rows, over, theta, ends_outside=True)
    xp = namespace(p.z)
    answer = p.theta
    if rows.costs is None and has_gradients(rows.scores):
        number, alpha = p.link.static_and_array_alpha()
        constants = (stop_gradient(part) for part in (p.z, rows.scores, rows.temperature))
        unmoved = (over.count(~p.outside) == 0) & ~p.settled  # T is next to 0
        row = (*constants, rows.live, unmoved, alpha, over_argument(over))
        like = zeros_of(stop_gradient(p.theta))
        answer = answer + with_gradients_of(
            Equation(rows.link.id, number).carried, like, rows.scores, *row
        )
    answer = xp.where(p.none, math.inf, xp.where(p.every, -math.inf, answer))
    playing = rows.number(over) > 0
    return xp.where(playing, nan_where(answer, p.has_nan), math.nan)


def distances(rows: Rows, p: Placed) -> Array:
    """Return (x − θ)/T for links of mean zero, also in the far tails, where p.z is capped."""
    xp = namespace(p.z)
    beyond = rows.live & (xp.abs(stop_gradient(p.z)) >= far(xp.finfo(p.z.dtype)))
    theta, t = p.over.expand(p.theta), p.over.expand(rows.temperature)
    return xp.where(beyond, (xp.where(beyond, rows.scores, theta) - theta) / t, p.z + p.link.edge)


def reached(rows: Rows, p: Placed) -> Array:
    """Return z, and its uncapped value where p.z is capped below, if log F is finite there."""
    xp = namespace(p.z)
    fixed = stop_gradient(p.z)
    cut = rows.live & ~p.over.expand(p.settled) & ~p.upper & (fixed <= -far(xp.finfo(fixed.dtype)))

    def below() -> Array:
        theta, t = p.over.expand(p.theta), p.over.expand(rows.temperature)
        distance = xp.where(cut, stop_gradient(rows.scores - theta), 0.0) / stop_gradient(t)
        known = cut & (p.link.log_cdf(xp.where(cut, distance - p.link.edge, fixed)) > -math.inf)
        distance = xp.where(known, rows.scores, theta) - theta
        return xp.where(known, quotient(distance, t, known) - p.link.edge, p.z)

    return only_if(p.over.any(cut), below, p.z)
