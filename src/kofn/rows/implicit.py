"""Implicit differentiation: make the threshold a function of scores, k, temperature and alpha.

The solver's θ is a constant. In PyTorch two Newton steps from it, whose value is exactly zero,

    δ ← δ + (r − stop(r))/stop(W),     r = Σ F((x − θ)/T − δ) − k,     W = Σ F′,

carry the derivatives of the implicit function: one step gives the first, two give the second (the
third is infinite or NaN). They are plain array code, so every transform that can differentiate a
sum can differentiate them. For JAX, dδ = dr/W is a custom rule that is itself differentiable, to
any order. docs/rows.md derives this and lists alternatives that silently fail.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from kofn.arrays.autodiff import (
    function_by_slopes,
    gradient,
    has_gradients,
    quotient,
    reciprocal,
    root_with_rule,
    spoil,
    stop_gradient,
    with_gradients_of,
)
from kofn.arrays.flow import only_if, zeros_of
from kofn.arrays.kinds import Array, full_like, is_jax, namespace, quiet, scalar
from kofn.links.link import Link, by_id
from kofn.rows.pivot import pivot_of
from kofn.rows.settled import Rows
from kofn.rows.threshold_route import threshold
from kofn.solver.equation import far, split
from kofn.solver.plateau import Entries, at_end, balance
from kofn.solver.reductions import DENSE, Reductions, sends


class Placed(NamedTuple):
    """Rows with their threshold: z = (x − θ)/T, and the special cases of rows and entries."""

    link: Link  # the link with its parameter per entry
    z: Array
    upper: Array  # F > ½
    theta: Array  # differentiable and finite, for the link of mean zero
    none: Array  # rows that choose nothing
    every: Array  # rows that choose every available entry
    spoiled: Array  # rows that contain a NaN
    settled: Array  # all of these
    correction: Any  # value 0, with the part of the gradient in k that z cannot carry
    outside: Array  # entries whose z is a constant
    pivot: Array  # what stands for θ in derivatives in T, a constant, and (θ − pivot)/T
    shift: Array
    over: Reductions


def place(
    rows: Rows,
    over: Reductions = DENSE,
    found: tuple[Array, Array] | None = None,
    pivoted: bool = False,
) -> Placed:
    """Solve for θ unless it is given as `found`, and attach its derivatives.

    The pivot is θ unless T has a gradient, or `pivoted`.
    """
    xp = namespace(rows.scores)
    expand = over.expand
    x, live, k, t = rows.scores, rows.live, rows.k, rows.temperature
    link, frozen = rows.link.map_alpha(expand), rows.link.map_alpha(stop_gradient)
    fixed, count, scale = map(stop_gradient, (x, k, t))
    hi, lo = found or threshold(fixed, count, scale, frozen, over)
    none, every = hi == math.inf, hi == -math.inf
    spoiled = xp.isnan(hi)
    settled = none | every | spoiled
    hi = xp.where(settled, 0.0, hi)
    if frozen.capped is not False and not sends(over):  # the search by messages has moved θ
        hi, lo = at_end(fixed, count, scale, frozen, hi, xp.where(settled, 0.0, lo), over)

    limit = far(xp.finfo(x.dtype))
    z = ((fixed - expand(hi)) - expand(lo)) / expand(scale)
    # z may overflow where x does not (finfo.min/0.5).
    # A row with a NaN is left to move, so that its derivatives are NaN, as those of softmax.
    still = expand(none | every)
    outside = ~live | _constant_tail(frozen.map_alpha(expand), z, expand(scale)) | still
    beyond = xp.where(z > 0, scalar(z, limit), -limit)
    pivot, shift = hi, xp.zeros_like(lo)
    if pivoted or has_gradients(t):
        pivot, shift = pivot_of(frozen.map_alpha(expand), z, ~outside, hi, lo, scale, over)
        outside = outside | xp.isinf(fixed - expand(pivot))
    distance = spoil(xp.where(outside, expand(pivot), x) - expand(pivot), expand(spoiled))
    z = xp.where(outside, 0.0, z)

    delta = zeros_of(lo)
    correction: Any = 0.0
    # A number for alpha is part of the function; an array is an argument.
    number, alpha = link.static_and_array_alpha()
    if has_gradients(x, k, t, alpha):
        equation = _Equation(link.id, number)
        moving = spoil(k, spoiled)
        still = outside, beyond, live, fixed, argument(over)
        terms = _Terms(z, distance, t, moving, alpha, *still)
        delta = spoil(root(equation, delta, terms, _constant), spoiled)
        correction = with_gradients_of(equation.correction, *terms)
    z = _capped(z, distance, expand(t), expand(delta), outside, beyond)
    upper, _, _ = split(link, stop_gradient(z), live)
    theta = hi + lo + (t - scale) * shift + t * (delta - rows.link.edge)
    flags = none, every, spoiled, settled
    return Placed(link, z, upper, theta, *flags, correction, outside, pivot, shift, over)


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


def _capped(
    z: Array, distance: Array, t: Array, delta: Array, outside: Array, beyond: Array
) -> Array:
    """Return z − δ with the derivatives of distance/T − δ, or `beyond`: a constant if `outside`."""
    ratio = quotient(distance, t, ~outside)
    z = (z + (ratio - stop_gradient(ratio))) - delta
    fixed, xp = stop_gradient(z), namespace(z)
    # Beyond the cap, a constant for the value, and what moves for the derivatives.
    z = xp.where(xp.abs(fixed) >= far(xp.finfo(z.dtype)), beyond + (z - fixed), z)
    return xp.where(outside, beyond, z)


class _Terms(NamedTuple):
    """The terms of the equation, each with its gradient if it has one."""

    z: Array  # at δ = 0, as a constant
    distance: Array  # x less a constant per row
    t: Array
    k: Array
    alpha: Any
    outside: Array
    beyond: Array
    live: Array
    scores: Array  # as constants
    over: Any  # None for DENSE


def argument(over: Reductions) -> Any:
    """`over` as an argument of a rule, which on JAX may close over no array; None for DENSE."""
    return None if over is DENSE else over


def _reductions(given: Any) -> Reductions:
    return DENSE if given is None else given


class _Equation(NamedTuple):
    """The equation Σ F((x − θ)/T − δ) = k, whose root is δ = 0.

    δ is in units of T, so that the derivative in T is exactly 0 for one entry in the support.
    """

    link_id: str
    number: float | None

    def residual(self, delta: Array, terms: _Terms) -> Array:
        """Return ΣF − k, or the balance of logarithms (without k) where ΣF′ has underflowed."""
        over = _reductions(terms.over)
        link, z = self._at(delta, terms)
        if link.has_infinite_tails(stop_gradient(z)) is False:
            return _excess(link, z, terms.live, over) - terms.k
        fixed = self._at(stop_gradient(delta), _constant(terms))
        _, solvable = _weight(*fixed, terms.live, over)
        row = _Settled(terms.scores, stop_gradient(terms.t), terms.live, solvable, terms.over)
        if is_jax(z):
            return function_by_slopes(
                partial(_residual, link), partial(_residual_change, link), z, terms.k, row
            )
        return _residual(link, z, terms.k, row)

    def gain(self, delta: Array, terms: _Terms) -> Array:
        """Return 1/slope of `residual`; 0 where the slope, and so the gradient, is 0."""
        link, z = self._at(delta, terms)
        over = _reductions(terms.over)
        weight, solvable = _weight(link, z, terms.live, over)
        steep = namespace(weight).where(solvable, reciprocal(weight), 0.0)
        if link.has_infinite_tails(stop_gradient(z)) is False:
            return steep

        def balanced() -> Array:
            flat = balance(link, _entries(z, terms), ~solvable)
            return namespace(z).where(flat.usable, reciprocal(flat.slope), steep)

        return only_if(~solvable, balanced, steep)

    def correction(self, *parts: Any) -> Array:
        """Return dp/dk = F′/ΣF′ where ΣF′ has underflowed and the ratios have not.

        k then has a gradient even through a hard choice.
        """
        k, terms = _Terms(*parts).k, _constant(_Terms(*parts))
        over = _reductions(terms.over)
        link, z = self._at(terms.k * 0, terms)
        _, solvable = _weight(link, z, terms.live, over)
        zeros = namespace(z).zeros_like(z)

        def moved() -> Array:
            return shares(link, _entries(z, terms), ~solvable)

        return only_if(~solvable, moved, zeros) * over.expand(k - terms.k)

    def carried(self, zeros: Array, x: Array, *row: Any) -> Array:
        """Return 0, with dθ = Σ dx·F′/ΣF′ in rows in which z is a constant."""
        *varying, live, fixed, alpha, over = row
        z, scores, t = map(stop_gradient, varying)  # JAX gives each a tangent, of zeros
        over, xp = _reductions(over), namespace(x)
        link = by_id(self.link_id, self.number if alpha is None else stop_gradient(alpha))

        def moved() -> Array:
            moving = live & over.expand(fixed)
            change = xp.where(moving, x, 0.0) - xp.where(moving, scores, 0.0)
            return over.sum(shares(link, Entries(z, scores, t, live, over), fixed) * change)

        return only_if(fixed, moved, zeros)

    def remainder(self, z: Array, k: Array, live: Array, alpha: Any, over: Any) -> Array:
        """Return k − ΣF, which is 0, distributed over the entries like a change of k.

        The derivatives of the weights sum to that of k up to rounding errors; this removes them.
        If one entry has nearly all of ΣF′, they are as large as the other entries' derivatives.
        """
        link = by_id(self.link_id, self.number if alpha is None else alpha)
        over = _reductions(over)
        rest = k - _excess(link, z, live, over)
        fixed = by_id(self.link_id, self.number if alpha is None else stop_gradient(alpha))
        weight, solvable = _weight(fixed, stop_gradient(z), live, over)
        slope = namespace(z).where(live & over.expand(solvable), fixed.pdf(stop_gradient(z)), 0.0)
        return slope / over.expand(weight) * over.expand(rest - stop_gradient(rest))

    def _at(self, delta: Array, terms: _Terms) -> tuple[Link, Array]:
        expand = _reductions(terms.over).expand
        outside, beyond = terms.outside, terms.beyond
        t, delta = expand(terms.t), expand(delta)
        z = _capped(terms.z, terms.distance, t, delta, outside, beyond)
        return by_id(self.link_id, self.number if terms.alpha is None else terms.alpha), z


def _excess(link: Link, z: Array, live: Array, over: Reductions) -> Array:
    _, low, high = split(link, z, live)
    return over.sum(low - high)


def _weight(link: Link, z: Array, live: Array, over: Reductions) -> tuple[Array, Array]:
    """(ΣF′ or 1, whether it is ΣF′): not where its terms may have underflowed."""
    xp = namespace(z)
    weight = over.sum(xp.where(live, link.pdf(z), 0.0))
    solvable = weight >= least_weight(z)
    return xp.where(solvable, weight, 1.0), solvable


def least_weight(like: Array) -> float:
    """Return the least ΣF′ whose relevant terms are all normal numbers."""
    info = namespace(like).finfo(like.dtype)
    return float(info.smallest_normal) / float(info.eps)


class _Settled(NamedTuple):
    """The constants of a row while z and k move; on JAX, arguments of the rule that uses them."""

    scores: Array
    temperature: Array
    live: Array
    solvable: Array  # rows whose ΣF′ has not underflowed
    over: Any

    def balance(self, link: Link, z: Array) -> Array:
        """Return the balance of logarithms in the rows that are not solvable."""
        row = Entries(z, self.scores, self.temperature, self.live, _reductions(self.over))
        return balance(link, row, ~self.solvable).excess


def _residual(link: Link, z: Array, k: Array, row: _Settled) -> Array:
    plain = _excess(link, z, row.live, _reductions(row.over)) - k

    def balanced() -> Array:
        return namespace(z).where(row.solvable, plain, row.balance(link, z))

    return only_if(~row.solvable, balanced, plain)


def _residual_change(link: Link, z: Array, row: _Settled, dz: Array, dk: Array) -> Array:
    """Return the change of `_residual` with z and k. For JAX."""
    xp, over = namespace(z), _reductions(row.over)
    plain = xp.where(row.live, link.pdf(z), 0.0)

    def balanced() -> Array:
        found = gradient(lambda z: row.balance(link, z), z)
        # In shards, JAX may hold the balance to be another number on each device, and sum.
        found = found / getattr(over, "copies", 1)
        return xp.where(over.expand(row.solvable), plain, found)

    slopes = only_if(~row.solvable, balanced, plain)
    return over.sum(slopes * dz) - xp.where(row.solvable, dk, 0.0)


def _entries(z: Array, terms: _Terms) -> Entries:
    return Entries(z, terms.scores, stop_gradient(terms.t), terms.live, _reductions(terms.over))


def shares(link: Link, row: Entries, where: Array) -> Array:
    """Return F′/ΣF′, as a constant, in the rows `where`, in which every F′ has underflowed."""
    xp, over = namespace(row.z), row.over
    alone = _softmax(link.log_pdf(row.z), row.live & over.expand(where), over)
    if link.has_infinite_tails(row.z) is False:
        return alone
    # Far out, F′ is e^{−z²/2}, say: the two tails have no accurate digits, but they balance.
    flat = balance(link, row, where)
    return xp.where(over.expand(flat.usable), flat.slopes / over.expand(flat.slope), alone)


def _constant(terms: _Terms) -> _Terms:
    arrays = terms._replace(over=None)
    fixed = _Terms(*(part if part is None else stop_gradient(part) for part in arrays))
    return fixed._replace(over=terms.over)


def root(equation: Any, delta: Array, terms: Any, constant: Callable[[Any], Any]) -> Array:
    """Return δ, which is 0, with the derivatives that θ and p need."""
    if is_jax(delta):  # has a custom rule, differentiable to any order
        return root_with_rule(equation.residual, equation.gain, delta, terms)
    gain = equation.gain(delta, constant(terms))
    for step in range(2):
        residual = equation.residual(delta, terms)
        change = residual - stop_gradient(residual)
        # A third derivative would be silently wrong; c^2.5 makes it infinite at c = 0.
        delta = delta + gain * (change if step == 0 else change + change**2.5)
    return delta


def theta(rows: Rows, over: Reductions = DENSE, found: tuple[Array, Array] | None = None) -> Array:
    """Return θ per row: ±inf if nothing or everything is chosen, NaN if no entry is available."""
    p = place(rows, over, found)
    xp = namespace(p.z)
    moved = p.theta
    if has_gradients(rows.scores):
        number, alpha = p.link.static_and_array_alpha()
        constants = (stop_gradient(part) for part in (p.z, rows.scores, rows.temperature))
        still = (over.count(~p.outside) == 0) & ~p.settled  # T is next to 0
        row = (*constants, rows.live, still, alpha, argument(over))
        like = zeros_of(stop_gradient(p.theta))
        moved = moved + with_gradients_of(
            _Equation(rows.link.id, number).carried, like, rows.scores, *row
        )
    answer = xp.where(p.none, math.inf, xp.where(p.every, -math.inf, moved))
    playing = rows.number(over) > 0
    return xp.where(playing, spoil(answer, p.spoiled), math.nan)


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
        away = xp.where(cut, stop_gradient(rows.scores - theta), 0.0) / stop_gradient(t)
        known = cut & (p.link.log_cdf(xp.where(cut, away - p.link.edge, fixed)) > -math.inf)
        away = xp.where(known, rows.scores, theta) - theta
        return xp.where(known, quotient(away, t, known) - p.link.edge, p.z)

    return only_if(p.over.any(cut), below, p.z)


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
