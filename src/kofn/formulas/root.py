"""The equation whose root δ = 0 carries the derivatives of θ: see `formulas/implicit.py`."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from kofn.arrays.autodiff import (
    function_by_slopes,
    gradient,
    moving,
    quotient,
    reciprocal,
    root_with_rule,
    stop_gradient,
    values_and_slopes,
)
from kofn.arrays.flow import only_if
from kofn.arrays.kinds import Array, is_jax, namespace, quiet
from kofn.arrays.tracing import is_at_hand
from kofn.arrays.typing import Number
from kofn.links.link import Link, by_id
from kofn.solver.equation import far, least_weight, split
from kofn.solver.plateau import Entries, balance
from kofn.solver.reductions import DENSE, Reductions


class Terms(NamedTuple):
    """The terms of the equation, each with its gradient if it has one."""

    z: Array  # at δ = 0, as a constant
    distance: Array  # x less a constant per row, times c; with costs, −T·edge of what moves of it
    t: Array
    k: Array
    alpha: Number | None
    outside: Array
    beyond: Array
    live: Array
    scores: Array  # as constants
    over: Any  # None for DENSE
    costs: Array | None  # per entry, or None
    shift: Array | None  # with costs, (θ − that constant)/T


def over_argument(over: Reductions) -> Any:
    """Return `over` as an argument of a rule, which on JAX may close over no array: None for DENSE.

    `_reductions` makes `over` of it again.
    """
    return None if over is DENSE else over


def _reductions(given: Any) -> Reductions:
    return DENSE if given is None else given


class Equation(NamedTuple):
    """The equation Σ F((x − θ)/T − δ) = k, or Σ c·F((x − θc)/T − cδ) = k, whose root is δ = 0.

    δ is in units of T, so that the derivative in T is exactly 0 for one entry in the support.
    """

    link_id: str
    number: float | None

    def residual(self, delta: Array, terms: Terms) -> Array:
        """Return ΣF − k, or the balance of logarithms (without k) where ΣF′ has underflowed."""
        over, costs = _reductions(terms.over), terms.costs
        link, z = self._at(delta, terms)
        if link.has_infinite_tails(stop_gradient(z)) is False:
            return _excess(link, z, terms.live, over, costs) - terms.k
        fixed = _constant(terms)
        weight, solvable = _weight(*self._at(stop_gradient(delta), fixed), fixed, over)
        t, steep = stop_gradient(terms.t), weight < _least_square(weight)
        row = _RowConstants(terms.scores, t, terms.live, solvable, steep, terms.over, costs)
        if is_jax(z) and costs is None:
            return function_by_slopes(
                partial(_residual, link), partial(_residual_change, link), z, terms.k, row
            )
        return _residual(link, z, terms.k, row)

    def gain(self, delta: Array, terms: Terms) -> Array:
        """Return 1/slope of `residual`; 0 where the slope, and so the gradient, is 0."""
        link, z = self._at(delta, terms)
        weight, solvable = _weight(link, z, terms, _reductions(terms.over))
        two_tails = link.has_infinite_tails(stop_gradient(z)) is not False
        if (
            is_jax(z) and terms.costs is None and two_tails
        ):  # `_residual_change` has the slope in it
            fixed = stop_gradient(weight)
            weight = namespace(weight).where(fixed < _least_square(fixed), 1.0, weight)
        steep = namespace(weight).where(solvable, reciprocal(weight), 0.0)
        if not two_tails:
            return steep

        def balanced() -> Array:
            flat = balance(link, _entries(z, terms), ~solvable)
            return namespace(z).where(flat.usable, reciprocal(flat.slope), steep)

        return only_if(~solvable, balanced, steep)

    def series(self, terms: Terms, gain: Array) -> Callable[[Array], Array]:
        """Return the function of δ that is gain·(residual − stop(residual)), to second order.

        The way back through F′ multiplies by the gain twice before it meets F′, which is as small
        as 1/gain. Here, F′ and F″ are constants with the gain in them. For PyTorch.
        """
        link, z = self._at(terms.k * 0, _constant(terms))
        over, xp = _reductions(terms.over), namespace(z)
        moves = over.expand(gain > 0) & _pays(terms.live, terms.costs)
        fixed = link.map_alpha(stop_gradient)
        share = xp.where(moves, fixed.pdf(z) * over.expand(gain), 0.0)
        moves = share > 0
        inside = xp.where(moves, z, link.median(z))
        bend = xp.where(moves, values_and_slopes(fixed.log_pdf, inside)[1], 0.0)  # F″/F′
        change = terms.k
        if terms.alpha is not None or terms.costs is not None:
            moving_link = by_id(self.link_id, self.number if terms.alpha is None else terms.alpha)
            share = share * (1 + moving(moving_link.log_pdf(inside)))
            change = change - _excess(moving_link, z, terms.live, over, terms.costs)
        change = gain * (change - stop_gradient(change))
        weight = share if terms.costs is None else terms.costs * share

        def at(delta: Array) -> Array:
            step = self._at(delta, terms)[1] - z
            return over.sum(weight * (step + bend / 2 * step**2)) - change

        return at

    def correction(self, *parts: Any) -> Array:
        """Return dp/dk = F′/ΣF′ where ΣF′ has underflowed and the ratios have not.

        k then has a gradient even through a hard choice. What a cost takes off the budget counts.
        """
        moving, terms = Terms(*parts), _constant(Terms(*parts))
        over = _reductions(terms.over)
        link, z = self._at(terms.k * 0, terms)
        _, solvable = _weight(link, z, terms, over)
        zeros = namespace(z).zeros_like(z)

        def shares() -> Array:
            return slope_shares(link, _entries(z, terms), ~solvable)

        change = moving.k - terms.k
        if terms.costs is not None:
            dearer = _weights(link, z, terms.live) * (moving.costs - terms.costs)
            change = change - over.sum(dearer)
        share = only_if(~solvable, shares, zeros)
        return _shared(share, over.expand(change))

    def carried(self, zeros: Array, x: Array, *row: Any) -> Array:
        """Return 0, with dθ = Σ dx·F′/ΣF′ in rows in which z is a constant.

        `zeros` are not read: they give the answer its form on JAX (see `with_gradients_of`).
        """
        *varying, live, fixed, alpha, over = row
        z, scores, t = map(stop_gradient, varying)  # JAX gives each a tangent, of zeros
        over, xp = _reductions(over), namespace(x)
        link = by_id(self.link_id, self.number if alpha is None else stop_gradient(alpha))

        def change_of_theta() -> Array:
            moving = live & over.expand(fixed)
            change = xp.where(moving, x, 0.0) - xp.where(moving, scores, 0.0)
            return over.sum(slope_shares(link, Entries(z, scores, t, live, over), fixed) * change)

        return only_if(fixed, change_of_theta, zeros)

    def remainder(
        self, z: Array, k: Array, live: Array, alpha: Any, over: Any, costs: Array | None
    ) -> Array:
        """Return k − ΣF, which is 0, distributed over the entries like a change of k.

        The derivatives of the weights sum to k's up to rounding errors; this removes them.
        If one entry has nearly all of ΣF′, they are as large as the other entries' derivatives.
        """
        link = by_id(self.link_id, self.number if alpha is None else alpha)
        over = _reductions(over)
        rest = k - _excess(link, z, live, over, costs)
        fixed = by_id(self.link_id, self.number if alpha is None else stop_gradient(alpha))
        costs = None if costs is None else stop_gradient(costs)
        live = _pays(live, costs)
        weight, solvable = _total_slope(fixed, stop_gradient(z), live, over, costs)
        slope = fixed.pdf(stop_gradient(z))
        slope = slope if costs is None else costs * slope
        slope = namespace(z).where(live & over.expand(solvable), slope, 0.0)
        return _shared(slope / over.expand(weight), over.expand(rest - stop_gradient(rest)))

    def _at(self, delta: Array, terms: Terms) -> tuple[Link, Array]:
        expand = _reductions(terms.over).expand
        outside, beyond = terms.outside, terms.beyond
        delta = moved(expand(delta), terms.costs, terms.shift, _reductions(terms.over))
        z = capped(terms.z, terms.distance, expand(terms.t), delta, outside, beyond)
        return by_id(self.link_id, self.number if terms.alpha is None else terms.alpha), z


def _shared(share: Array, change: Array) -> Array:
    """Return share·change; what has no share may carry any cotangent, infinity and NaN included."""
    return namespace(share).where(share != 0, share * change, 0.0)


def moved(delta: Array, costs: Array | None, shift: Array | None, over: Reductions) -> Array:
    """Return the drop of z = (x − θ)/T by δ, or by δ and costs: (c − stop(c))·shift + cδ."""
    if costs is None:
        return delta
    return (costs - stop_gradient(costs)) * over.expand(shift) + costs * delta


def _pays(live: Array, costs: Array | None) -> Array:
    """Return the entries that θ moves."""
    return live if costs is None else live & (stop_gradient(costs) > 0)


def _excess(link: Link, z: Array, live: Array, over: Reductions, costs: Array | None) -> Array:
    """Return ΣF up to a constant, or Σ c·F."""
    if costs is not None:
        return over.sum(costs * _weights(link, z, live))
    _, low, high = split(link, z, live)
    return over.sum(low - high)


def _least_square(like: Array) -> float:
    """Return the least ΣF′ by which derivatives are divided twice."""
    return math.sqrt(least_weight(like))


def _weights(link: Link, z: Array, live: Array) -> Array:
    """Return F(z), 0 where not live."""
    upper, low, high = split(link, z, live)
    return namespace(z).where(upper, 1 - high, low)


def _weight(link: Link, z: Array, terms: Terms, over: Reductions) -> tuple[Array, Array]:
    """Return `_total_slope` of terms, which docs/formulas.md calls W."""
    return _total_slope(link, z, _pays(terms.live, terms.costs), over, terms.costs)


def _total_slope(
    link: Link, z: Array, live: Array, over: Reductions, costs: Array | None
) -> tuple[Array, Array]:
    """Return ΣF′, or Σ c²F′, and the rows in which no term that counts has underflowed; else 1."""
    xp, slope = namespace(z), link.pdf(z)
    slope = slope if costs is None else costs * (costs * slope)
    weight = over.sum(xp.where(live, slope, 0.0))
    solvable = weight >= least_weight(z)
    return xp.where(solvable, weight, 1.0), solvable


class _RowConstants(NamedTuple):
    """The constants of a row while z and k move; on JAX, arguments of the rule that uses them."""

    scores: Array
    temperature: Array
    live: Array
    solvable: Array  # rows whose ΣF′ has not underflowed
    steep: Array  # rows in which the square of ΣF′ has
    over: Any
    costs: Array | None  # None, or what has derivatives

    def balance(self, link: Link, z: Array) -> Array:
        """Return the balance of logarithms in the rows that are not solvable."""
        live, over = _pays(self.live, self.costs), _reductions(self.over)
        row = Entries(z, self.scores, self.temperature, live, over, self.costs)
        return balance(link, row, ~self.solvable).excess


def _residual(link: Link, z: Array, k: Array, row: _RowConstants) -> Array:
    """Return ΣF − k where that is solvable, else the balance of logarithms."""
    plain = _excess(link, z, row.live, _reductions(row.over), row.costs) - k

    def balanced() -> Array:
        return namespace(z).where(row.solvable, plain, row.balance(link, z))

    return only_if(~row.solvable, balanced, plain)


def _residual_change(link: Link, z: Array, row: _RowConstants, dz: Array, dk: Array) -> Array:
    """Return the change of `_residual` with z and k. For JAX."""
    xp, over = namespace(z), _reductions(row.over)
    plain = xp.where(row.live, link.pdf(z), 0.0)

    def balanced() -> Array:
        slope = gradient(lambda z: row.balance(link, z), z)
        # In shards, JAX may hold the balance to be another number on each device, and sum.
        slope = slope / getattr(over, "copies", 1)
        return xp.where(over.expand(row.solvable), plain, slope)

    def scaled() -> tuple[Array, Array]:
        """Return F′/ΣF′ and 1/ΣF′, by logarithms: their derivatives have no (ΣF′)²."""
        inside = row.live & over.expand(row.steep)
        logs = xp.where(inside, link.log_pdf(z), -math.inf)
        greatest = xp.where(row.steep, over.max(stop_gradient(logs)), 0.0)
        raised = xp.exp(logs - over.expand(greatest))
        total = xp.where(row.steep, over.sum(raised), 1.0)
        share = xp.where(over.expand(row.steep), raised / over.expand(total), slopes)
        return share, xp.exp(-greatest) / total

    slopes = only_if(~row.solvable, balanced, plain)
    slopes, gain = only_if(row.steep, scaled, (slopes, xp.ones_like(dk)))
    return over.sum(slopes * dz) - xp.where(row.solvable, gain * dk, 0.0)


def _entries(z: Array, terms: Terms) -> Entries:
    live, over = _pays(terms.live, terms.costs), _reductions(terms.over)
    return Entries(z, terms.scores, stop_gradient(terms.t), live, over, terms.costs)


def slope_shares(link: Link, row: Entries, where: Array) -> Array:
    """Return F′/ΣF′, or c·F′/Σ c²F′, in the rows `where`, in which every F′ has underflowed.

    It is a constant.
    """
    if link.has_infinite_tails(row.z) is True:
        return _balanced(link, row, where)[0]
    xp, over, logs = namespace(row.z), row.over, link.log_pdf(row.z)
    costs = None if row.costs is None else xp.where(row.live, row.costs, 1.0)
    logs = logs if costs is None else logs + 2 * xp.log(costs)
    alone = _softmax(logs, row.live & over.expand(where), over)
    alone = alone if costs is None else alone / costs
    if link.has_infinite_tails(row.z) is False:
        return alone
    share, usable = _balanced(link, row, where)
    return xp.where(over.expand(usable), share, alone)


def balanced_shares(link: Link, row: Entries, where: Array) -> Array:
    """Return the same for θ, which nothing moves in a row without both tails."""
    if link.has_infinite_tails(row.z) is False:
        return namespace(row.z).zeros_like(row.z)
    share, usable = _balanced(link, row, where)
    return namespace(row.z).where(row.over.expand(usable), share, 0.0)


def _balanced(link: Link, row: Entries, where: Array) -> tuple[Array, Array]:
    """Return F′/ΣF′ where F′ is e^{−z²/2}, say, of which the two tails have no accurate digits, but
    they balance; and the rows that have both tails.
    """
    flat = balance(link, row, where)
    return flat.slopes / row.over.expand(flat.slope), flat.usable


def _constant(terms: Terms) -> Terms:
    arrays: Any = terms._replace(over=None)
    fixed: Any = (part if part is None else stop_gradient(part) for part in arrays)
    return Terms(*fixed)._replace(over=terms.over)


def root(equation: Equation, delta: Array, terms: Terms) -> Array:
    """Return δ, which is 0, with the derivatives that θ and p need."""
    if is_jax(delta):  # has a custom rule, differentiable to any order
        return root_with_rule(equation.residual, equation.gain, delta, terms)
    gain = equation.gain(delta, _constant(terms))
    steep, series = gain > 1 / _least_square(gain), None
    # Programs that are compiled or exported, and GPUs, would compute this for every row.
    if is_at_hand(steep) and steep.any():
        xp = namespace(gain)
        series = equation.series(terms, xp.where(steep, gain, 0.0))
        gain = xp.where(steep, 0.0, gain)
    for step in range(2):
        residual = equation.residual(delta, terms)
        change = residual - stop_gradient(residual)
        # A third derivative would be silently wrong; c^2.5 makes it infinite at c = 0.
        moves = gain * (change if step == 0 else change + change**2.5)
        if series is not None:
            change = series(delta)
            moves = moves + (change if step == 0 else change + change**2.5)
        delta = delta + moves
    return delta


def capped(
    z: Array, distance: Array, t: Array, delta: Array, outside: Array, beyond: Array
) -> Array:
    """Return z − δ with the derivatives of distance/T − δ, or `beyond`: a constant if `outside`."""
    ratio = quotient(distance, t, ~outside)
    z = (z + (ratio - stop_gradient(ratio))) - delta
    fixed, xp = stop_gradient(z), namespace(z)
    # Beyond the cap, a constant for the value, and what moves for the derivatives.
    z = xp.where(xp.abs(fixed) >= far(xp.finfo(z.dtype)), beyond + (z - fixed), z)
    return xp.where(outside, beyond, z)


def _softmax(values: Array, where: Array, over: Reductions) -> Array:
    """Return softmax over the entries where `where` is set; 0 if none of them is finite."""
    xp = namespace(values)
    with quiet(values):
        values = xp.where(where, values, -math.inf)
        greatest = over.max(values)
        some = greatest > -math.inf
        shifted = values - over.expand(xp.where(some, greatest, 0.0))
        raised = xp.where(over.expand(some), xp.exp(shifted), 0.0)
        return raised / over.expand(xp.where(some, over.sum(raised), 1.0))
