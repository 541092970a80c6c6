"""Implicit differentiation with costs: θ as a function of scores, costs, budget, T and alpha.

As in `rows/implicit.py`, δ = 0 carries the derivatives of the root of

    Σ c·F((x − θc)/T − cδ) = B,     with slope −Σ c²F′ in δ.

Costs and budgets are in units of a power of two per row, which the solver chooses: c is at most 2.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from kofn.arrays.autodiff import (
    has_gradients,
    reciprocal,
    stop_gradient,
    with_gradients_of,
)
from kofn.arrays.flow import only_if, zeros_of
from kofn.arrays.kinds import Array, namespace, scalar
from kofn.arrays.operations import in_parts
from kofn.links.link import Link, by_id
from kofn.rows.implicit import (
    _capped,
    _constant_tail,
    _reductions,
    argument,
    least_weight,
    root,
)
from kofn.rows.pivot import pivot_at
from kofn.rows.price_route import price
from kofn.rows.priced_given import PricedRows
from kofn.solver.costs import less_product
from kofn.solver.equation import far, split
from kofn.solver.price import Price
from kofn.solver.reductions import DENSE, Reductions, sums_of


class Placed(NamedTuple):
    """Rows with their price: z = (x − θc)/T, and the special cases of rows and entries."""

    link: Link  # the link with its parameter per entry
    z: Array
    upper: Array  # F > ½
    theta: Array  # differentiable and finite, in the caller's units
    none: Array  # rows that take no entry of positive cost
    every: Array  # rows that take every available entry of positive cost
    spoiled: Array  # rows that contain a NaN
    correction: Any  # value 0, with the part of the gradient in B that z cannot carry
    closed: Array  # entries whose weight is 0 or 1, as their row takes none or every one
    equation: PricedEquation
    terms: Terms


class Terms(NamedTuple):
    """The terms of the equation, each with its gradient if it has one."""

    z: Array  # at δ = 0, as a constant
    distance: Array  # x less a constant per row times c, and −T·edge of what moves of the edge
    t: Array
    shift: Array  # (θ − that constant)/T
    costs: Array
    budget: Array
    alpha: Any
    outside: Array
    beyond: Array
    open: Array  # available entries whose weight is not settled
    over: Any  # None for DENSE

    @property
    def pays(self) -> Array:
        return self.open & (stop_gradient(self.costs) > 0)

    @property
    def reductions(self) -> Reductions:
        return _reductions(self.over)

    def constant(self) -> Terms:
        arrays = self._replace(over=None)
        fixed = (part if part is None else stop_gradient(part) for part in arrays)
        return Terms(*fixed)._replace(over=self.over)


def place(rows: PricedRows, over: Reductions = DENSE, found: Price | None = None) -> Placed:
    """Solve for θ unless it is `found`, and attach its derivatives."""
    xp = namespace(rows.scores)
    expand = over.expand
    x, t, link = rows.scores, rows.temperature, rows.link
    frozen = link.map_alpha(stop_gradient)
    fixed = [stop_gradient(a) for a in (x, rows.costs, rows.budget, t)]
    found = found or price(fixed[0], fixed[1], fixed[2], fixed[3], frozen, over)
    none, every = found.high == math.inf, found.high == -math.inf
    spoiled = xp.isnan(found.high)
    settled = none | every | spoiled
    high, low = xp.where(settled, 0.0, found.high), xp.where(settled, 0.0, found.low)

    scale, live = found.scale, rows.live
    # What a row has settled gets no gradient; a budget may be infinite there.
    costs = rows.costs / expand(scale)
    budget = xp.where(settled, 0.0, rows.budget) / scale
    closed = live & (fixed[1] > 0) & expand(settled)
    limit = far(xp.finfo(x.dtype))
    z = xp.where(live, found.distance, 0.0) / expand(fixed[3])
    frozen_entries = frozen.map_alpha(expand)
    bounds = _constant_tail(frozen_entries, z, expand(fixed[3]))
    outside = ~live | bounds | closed | expand(spoiled)
    beyond = xp.where(z > 0, scalar(z, limit), -limit)
    pivot, shift = high + low, xp.zeros_like(low)
    pays = ~outside & (fixed[1] > 0)
    if has_gradients(t):
        pivot, shift = _pivot(
            frozen_entries, z, xp.where(pays, stop_gradient(costs), 0.0), high, low, fixed[3], over
        )
    distance = _moving_distance(rows, costs, pivot, outside, over)
    # As for the pivot: z is a constant there.
    most = float(xp.finfo(x.dtype).max) / 4
    near = xp.abs(stop_gradient(distance)) < expand(xp.where(fixed[3] < 1, most * fixed[3], most))
    distance = xp.where(near, distance, 0.0)
    z = xp.where(outside, 0.0, z)

    delta = zeros_of(low)
    number, alpha = link.static_and_array_alpha()
    equation = PricedEquation(link.id, number)
    open_ = live & ~closed
    still = outside, beyond, open_, argument(over)
    terms = Terms(z, distance, t, shift, costs, budget, alpha, *still)
    correction: Any = 0.0
    if has_gradients(x, rows.costs, rows.budget, t, alpha):
        delta = root(equation, delta, terms, Terms.constant)
        correction = with_gradients_of(equation.correction, *terms)
    _, z = equation.at(delta, terms)
    entry_link = link.map_alpha(expand)
    upper, _, _ = split(entry_link, stop_gradient(z), live)
    theta = ((high + low) + (t - fixed[3]) * shift + t * delta) / scale
    return Placed(
        entry_link, z, upper, theta, none, every, spoiled, correction, closed, equation, terms
    )


def _pivot(
    link: Link, z: Array, costs: Array, high: Array, low: Array, t: Array, over: Reductions
) -> tuple[Array, Array]:
    """Return what stands for θ in derivatives in T, as pivot.py, and (θ − pivot)/T.

    x less the pivot's cost sums to 0 with the weights cF′.
    """
    xp = namespace(z)
    some = costs > 0
    slope = costs * xp.where(some, link.pdf(xp.where(some, z, 0.0)), 0.0)
    moment = xp.where(slope == 0, 0.0, slope * (z + link.edge))
    weight, moment = sums_of(over, costs * slope, moment)
    known = weight >= least_weight(weight)
    return pivot_at(xp.where(known, moment / xp.where(known, weight, 1.0), 0.0), high, low, t)


def _moving_distance(
    rows: PricedRows, costs: Array, pivot: Array, outside: Array, over: Reductions
) -> Array:
    """Return x less the pivot's cost, with derivatives in all but the pivot; 0 where outside."""
    xp = namespace(costs)
    x, c = (xp.where(outside, 0.0, stop_gradient(one)) for one in (rows.scores, costs))
    distance = less_product(x, in_parts(c), pivot, over)
    if not has_gradients(rows.scores, rows.costs, rows.temperature, rows.link.alpha):
        return distance
    moved = (xp.where(outside, 0.0, rows.scores) - x) - over.expand(pivot) * (
        costs - stop_gradient(costs)
    )
    edge = rows.link.edge
    moved = moved - over.expand(rows.temperature * (edge - stop_gradient(edge)))
    return distance + xp.where(outside, 0.0, moved)


class PricedEquation(NamedTuple):
    """The equation Σ c·F((x − θc)/T − cδ) = B, whose root is δ = 0."""

    link_id: str
    number: float | None

    def residual(self, delta: Array, terms: Terms) -> Array:
        """Return Σ c·F − B, or the balance of logarithms where Σ c²F′ has underflowed."""
        link, z = self.at(delta, terms)
        plain = _spent(link, z, terms) - terms.budget
        if link.has_infinite_tails(stop_gradient(z)) is False:
            return plain
        _, solvable = _weight(*self.at(stop_gradient(delta), terms.constant()), terms.constant())

        def balanced() -> Array:
            flat = _balance(link, z, terms, ~solvable)
            return namespace(z).where(solvable, plain, flat.excess)

        return only_if(~solvable, balanced, plain)

    def gain(self, delta: Array, terms: Terms) -> Array:
        """Return 1/slope of `residual`; 0 where the slope, and so the gradient, is 0."""
        link, z = self.at(delta, terms)
        weight, solvable = _weight(link, z, terms)
        steep = namespace(weight).where(solvable, reciprocal(weight), 0.0)
        if link.has_infinite_tails(stop_gradient(z)) is False:
            return steep

        def balanced() -> Array:
            flat = _balance(link, z, terms, ~solvable)
            return namespace(z).where(flat.usable, reciprocal(flat.slope), steep)

        return only_if(~solvable, balanced, steep)

    def correction(self, *parts: Any) -> Array:
        """Return dp/dB·dB where Σ c²F′ has underflowed; what a cost takes off the budget counts."""
        moving, terms = Terms(*parts), Terms(*parts).constant()
        over = terms.reductions
        link, z = self.at(terms.budget * 0, terms)
        _, solvable = _weight(link, z, terms)

        def moved() -> Array:
            return _shares(link, z, terms, ~solvable)

        share = only_if(~solvable, moved, namespace(z).zeros_like(z))
        p = _weights(link, z, terms)
        dearer = over.sum(p * (moving.costs - terms.costs))
        return share * over.expand((moving.budget - terms.budget) - dearer)

    def remainder(self, z: Array, *parts: Any) -> Array:
        """Return B − Σ c·F, which is 0, distributed over the entries like a change of B.

        As in `rows/implicit.py`: it removes rounding errors from derivatives.
        """
        terms = Terms(*parts)
        over = terms.reductions
        alpha, fixed = terms.alpha, terms.constant()
        link = by_id(self.link_id, self.number if alpha is None else over.expand(alpha))
        rest = terms.budget - _spent(link, z, terms)
        frozen, still = link.map_alpha(stop_gradient), stop_gradient(z)
        weight, solvable = _weight(frozen, still, fixed)
        use = terms.pays & over.expand(solvable)
        slope = namespace(z).where(use, fixed.costs * frozen.pdf(still), 0.0)
        return slope / over.expand(weight) * over.expand(rest - stop_gradient(rest))

    def at(self, delta: Array, terms: Terms) -> tuple[Link, Array]:
        """Return the link per entry, and z at δ."""
        expand = terms.reductions.expand
        moved = (terms.costs - stop_gradient(terms.costs)) * expand(terms.shift)
        moved, t = moved + terms.costs * expand(delta), expand(terms.t)
        z = _capped(terms.z, terms.distance, t, moved, terms.outside, terms.beyond)
        alpha = terms.alpha
        return by_id(self.link_id, self.number if alpha is None else expand(alpha)), z


def _weights(link: Link, z: Array, terms: Terms) -> Array:
    upper, low, high = split(link, z, terms.open)
    return namespace(z).where(upper, 1 - high, low)


def _spent(link: Link, z: Array, terms: Terms) -> Array:
    return terms.reductions.sum(terms.costs * _weights(link, z, terms))


def _weight(link: Link, z: Array, terms: Terms) -> tuple[Array, Array]:
    """(Σ c²F′ or 1, whether it is that): not where its terms may have underflowed."""
    xp, c = namespace(z), terms.costs
    weight = terms.reductions.sum(xp.where(terms.pays, c * (c * link.pdf(z)), 0.0))
    solvable = weight >= least_weight(z)
    return xp.where(solvable, weight, 1.0), solvable


class _Balance(NamedTuple):
    """The equation on a logarithmic scale in selected rows; 0 in the others."""

    excess: Array  # log Σ_{F≤½} c·F − log Σ_{F>½} c·(1 − F)
    slopes: Array  # its derivative in z of each entry, as a constant
    slope: Array  # Σ c·slopes; 1 where they are not usable
    usable: Array  # rows with both tails


def _balance(link: Link, z: Array, terms: Terms, where: Array) -> _Balance:
    xp, over = namespace(z), terms.reductions
    asked = terms.pays & over.expand(where)
    upper = asked & link.above_half(stop_gradient(z))
    lower = asked & ~upper
    below, slopes_below = _log_sum(link.log_cdf, link.cdf_slope, link, z, terms, lower)
    above, slopes_above = _log_sum(link.log_sf, link.sf_slope, link, z, terms, upper)
    usable = where & (stop_gradient(below) > -math.inf) & (stop_gradient(above) > -math.inf)
    slopes = xp.where(over.expand(usable), slopes_below + slopes_above, 0.0)
    excess = xp.where(usable, below, 0.0) - xp.where(usable, above, 0.0)
    slope = xp.where(usable, over.sum(terms.costs * slopes), 1.0)
    return _Balance(excess, slopes, slope, usable)


def _log_sum(
    log_tail: Any, slope: Any, link: Link, z: Array, terms: Terms, where: Array
) -> tuple[Array, Array]:
    """Return log Σ c·tail, and its absolute derivative in each z as a constant."""
    xp, over = namespace(z), terms.reductions
    half = link.median(z)
    # The logarithm of a tail of 0 has no derivative.
    some = where & (log_tail(xp.where(where, stop_gradient(z), half)) > -math.inf)
    z = xp.where(some, z, half)
    logs = log_tail(z) + xp.log(xp.where(some, terms.costs, 1.0))
    greatest = over.max(xp.where(some, stop_gradient(logs), -math.inf))
    found = greatest > -math.inf
    ratio = logs - over.expand(xp.where(found, greatest, 0.0))
    raised = xp.exp(xp.where(some, ratio, -math.inf))
    total = xp.where(found, over.sum(raised), 1.0)
    fixed = stop_gradient(z)
    slopes = xp.where(some, stop_gradient(raised) * slope(fixed), 0.0)
    return greatest + xp.log(total), slopes / over.expand(stop_gradient(total))


def _shares(link: Link, z: Array, terms: Terms, where: Array) -> Array:
    """Return c·F′/Σ c²F′, as a constant, in the rows `where`, in which it has underflowed."""
    xp, over, c = namespace(z), terms.reductions, terms.costs
    asked = terms.pays & over.expand(where)
    log_pdf = xp.where(asked, link.log_pdf(xp.where(asked, z, link.median(z))), -math.inf)
    logs = log_pdf + 2 * xp.log(xp.where(asked, c, 1.0))
    greatest = over.max(logs)
    some = over.expand(greatest > -math.inf)
    ratio = logs - over.expand(xp.where(greatest > -math.inf, greatest, 0.0))
    raised = xp.where(some & asked, xp.exp(ratio), 0.0)
    total = over.sum(raised)
    alone = raised / xp.where(asked, c, 1.0) / over.expand(xp.where(total > 0, total, 1.0))
    if link.has_infinite_tails(z) is False:
        return alone
    flat = _balance(link, z, terms, where)
    return xp.where(over.expand(flat.usable), flat.slopes / over.expand(flat.slope), alone)
