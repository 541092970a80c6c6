"""From a threshold without gradients to answers with all of them. Differentiation lives here.

The solver's θ is a constant. In PyTorch two Newton steps from it, whose value is exactly zero,

    δ ← δ + (r − stop(r))/stop(W),     r = Σ F((x − θ)/T − δ) − k,     W = Σ F′,

carry the derivatives of the implicit function: one step the first, two the second (a third comes
out infinite or NaN). They are plain array code, so every transform that can differentiate a sum can
differentiate them. JAX takes dδ = dr/W as a rule, and what the rule is made of follows it again:
derivatives of any order. docs/gradients.md derives this and lists what silently fails instead.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from kofn._dispatch import integral_ends, threshold
from kofn._rows import Rows
from kofn.arrays.autodiff import (
    excess_by_slopes,
    gradient,
    has_gradients,
    quotient,
    reciprocal,
    root_with_rule,
    stop_gradient,
    with_gradients_of,
)
from kofn.arrays.flow import only_if, zeros_of
from kofn.arrays.kinds import Array, is_jax, namespace, quiet, scalar
from kofn.links.link import Link, by_id
from kofn.solver.equation import far, split
from kofn.solver.plateau import at_end, balance
from kofn.solver.reductions import DENSE, Reductions
from kofn.solver.threshold import solve


class Placed(NamedTuple):
    """Rows with their threshold: z = (x − θ)/T and what is left to say about each entry."""

    link: Link  # with its parameter per entry
    z: Array
    upper: Array  # F > ½
    theta: Array  # differentiable; finite; of the link of mean zero
    none: Array  # rows that choose nothing
    every: Array  # rows that choose every entry in play
    spoiled: Array  # rows with a NaN
    correction: Any  # value 0; the gradient in k that z cannot carry
    over: Reductions


def place(rows: Rows, over: Reductions = DENSE, found: tuple[Array, Array] | None = None) -> Placed:
    """Solve for θ, unless it is `found`, and make it a function of scores, k, temperature and α."""
    xp = namespace(rows.scores)
    expand = over.expand
    x, live, k, t = rows.scores, rows.live, rows.k, rows.temperature
    link, frozen = rows.link.map_alpha(expand), rows.link.map_alpha(stop_gradient)
    fixed, count, scale = map(stop_gradient, (x, k, t))
    if found is not None:
        hi, lo = found
    elif over is DENSE:
        hi, lo = threshold(fixed, count, scale, frozen)
    else:  # the opaque operators serve dense rows only
        hi, lo = solve(fixed, count, scale, frozen, over)
    none, every = hi == math.inf, hi == -math.inf
    spoiled = xp.isnan(hi)
    settled = none | every | spoiled
    hi = xp.where(settled, 0.0, hi)
    if frozen.capped is not False:
        hi, lo = at_end(fixed, count, scale, frozen, hi, xp.where(settled, 0.0, lo), over)

    limit = far(xp.finfo(x.dtype))
    z = ((fixed - expand(hi)) - expand(lo)) / expand(scale)
    # Beyond every link's reach, z is a constant: z, not x, is what overflows (finfo.min/0.5).
    outside = ~live | (xp.abs(z) >= limit) | expand(settled)
    beyond = xp.where(z > 0, scalar(z, limit), -limit)
    distance = (xp.where(outside, expand(hi), x) - expand(hi)) - expand(lo)

    delta = zeros_of(lo)
    correction: Any = 0.0
    # A number for alpha is part of the function, an array an argument.
    number, alpha = link.parted()
    if has_gradients(x, k, t, alpha):
        equation = _Equation(link.id, number, over)
        terms = _Terms(distance, t, k, alpha, outside, beyond, live)
        delta = _root(equation, delta, terms)
        correction = with_gradients_of(equation.correction, *terms)
    z = xp.where(outside, beyond, quotient(distance, expand(t), ~outside) - expand(delta))
    upper, _, _ = split(link, stop_gradient(z), live)
    theta = hi + lo + t * (delta - rows.link.edge)
    return Placed(link, z, upper, theta, none, every, spoiled, correction, over)


class _Terms(NamedTuple):
    """What the equation is made of, each with its gradient if it has one."""

    distance: Array  # x − θ
    t: Array
    k: Array
    alpha: Any
    outside: Array
    beyond: Array
    live: Array


class _Equation(NamedTuple):
    """Σ F((x − θ)/T − δ) = k, whose root is δ = 0.

    δ is in units of T: a row with one entry in its support then has a derivative of exactly 0 in T.
    """

    link_id: str
    number: float | None
    over: Reductions

    def residual(self, delta: Array, terms: _Terms) -> Array:
        """ΣF − k; where ΣF′ has underflowed, without k, the balance of the logarithms."""
        link, z = self._at(delta, terms)
        if link.has_infinite_tails(stop_gradient(z)) is False:
            return self._excess(link, z, terms.live) - terms.k
        _, solvable = self._weight(*self._at(stop_gradient(delta), _constant(terms)), terms.live)

        def excess(z: Array, k: Array) -> Array:
            plain = self._excess(link, z, terms.live) - k

            def balanced() -> Array:
                return namespace(z).where(
                    solvable, plain, self._balance(link, z, terms.live, ~solvable)
                )

            return only_if(~solvable, balanced, plain)

        def slopes(z: Array) -> Any:
            plain = namespace(z).where(terms.live, link.pdf(z), 0.0)

            def balanced() -> Array:
                found = gradient(lambda z: self._balance(link, z, terms.live, ~solvable), z)
                return namespace(z).where(self.over.expand(solvable), plain, found)

            return only_if(~solvable, balanced, plain), solvable

        if is_jax(z):
            return excess_by_slopes(excess, slopes, z, terms.k)
        return excess(z, terms.k)

    def _excess(self, link: Link, z: Array, live: Array) -> Array:
        _, low, high = split(link, z, live)
        return self.over.sum(low - high)

    def _balance(self, link: Link, z: Array, live: Array, where: Array) -> Array:
        return balance(link, z, live, where, self.over).excess

    def gain(self, delta: Array, terms: _Terms) -> Array:
        """1 over the slope of `residual`; 0 where there is none, and so the gradient."""
        link, z = self._at(delta, terms)
        weight, solvable = self._weight(link, z, terms.live)
        steep = namespace(weight).where(solvable, reciprocal(weight), 0.0)
        if link.has_infinite_tails(stop_gradient(z)) is False:
            return steep

        def balanced() -> Array:
            flat = balance(link, z, terms.live, ~solvable, self.over)
            return namespace(z).where(flat.usable, reciprocal(flat.slope), steep)

        return only_if(~solvable, balanced, steep)

    def correction(self, *parts: Any) -> Array:
        """dp/dk = F′/ΣF′ where ΣF′ has underflowed: their ratios have not.

        So a hard choice still learns k.
        """
        k, terms = _Terms(*parts).k, _constant(_Terms(*parts))
        link, z = self._at(terms.k * 0, terms)
        _, solvable = self._weight(link, z, terms.live)
        zeros = namespace(z).zeros_like(z)

        def moved() -> Array:
            return shares(link, z, terms.live, ~solvable, self.over)

        return only_if(~solvable, moved, zeros) * self.over.expand(k - terms.k)

    def remainder(self, z: Array, k: Array, live: Array, alpha: Any) -> Array:
        """k − ΣF, which is 0, shared as a change of k is.

        Derivatives of weights sum to that of k but for rounding, which this takes out of them.
        Where one entry has nearly all of ΣF′ it is as large as what the others move.
        """
        link = by_id(self.link_id, self.number if alpha is None else alpha)
        _, low, high = split(link, z, live)
        rest = k - self.over.sum(low - high)
        fixed = by_id(self.link_id, self.number if alpha is None else stop_gradient(alpha))
        weight, solvable = self._weight(fixed, stop_gradient(z), live)
        slope = namespace(z).where(
            live & self.over.expand(solvable), fixed.pdf(stop_gradient(z)), 0.0
        )
        return slope / self.over.expand(weight) * self.over.expand(rest - stop_gradient(rest))

    def _at(self, delta: Array, terms: _Terms) -> tuple[Link, Array]:
        expand = self.over.expand
        z = quotient(terms.distance, expand(terms.t), ~terms.outside) - expand(delta)
        z = namespace(z).where(terms.outside, terms.beyond, z)
        return by_id(self.link_id, self.number if terms.alpha is None else terms.alpha), z

    def _weight(self, link: Link, z: Array, live: Array) -> tuple[Array, Array]:
        """(ΣF′ or 1, whether it is ΣF′): not where its terms may have underflowed."""
        xp = namespace(z)
        weight = self.over.sum(xp.where(live, link.pdf(z), 0.0))
        solvable = weight >= least_weight(z)
        return xp.where(solvable, weight, 1.0), solvable


def least_weight(like: Array) -> float:
    """A ΣF′ of which no term that counts is below the smallest normal number."""
    info = namespace(like).finfo(like.dtype)
    return float(info.smallest_normal) / float(info.eps)


def shares(link: Link, z: Array, live: Array, where: Array, over: Reductions) -> Array:
    """F′/ΣF′ in the rows `where`, in which all of them have underflowed; a constant."""
    xp = namespace(z)
    alone = _softmax(link.log_pdf(z), live & over.expand(where), over)
    if link.has_infinite_tails(z) is False:
        return alone
    # Far out F′ is e^{−z²/2}, say, which knows both tails to no digit; they balance.
    flat = balance(link, z, live, where, over)
    return xp.where(over.expand(flat.usable), flat.slopes / over.expand(flat.slope), alone)


def _constant(terms: _Terms) -> _Terms:
    return _Terms(*(part if part is None else stop_gradient(part) for part in terms))


def _root(equation: _Equation, delta: Array, terms: _Terms) -> Array:
    """δ, which is 0, with the derivatives that θ and p need."""
    if is_jax(delta):  # knows how to differentiate by a rule, to any order
        return root_with_rule(equation.residual, equation.gain, delta, terms)
    gain = equation.gain(delta, _constant(terms))
    for step in range(2):
        residual = equation.residual(delta, terms)
        change = residual - stop_gradient(residual)
        # A third derivative would be wrong and nobody told: that of c^2.5 is infinite at c = 0.
        delta = delta + gain * (change if step == 0 else change + change**2.5)
    return delta


def weights(
    rows: Rows, over: Reductions = DENSE, found: tuple[Array, Array] | None = None
) -> Array:
    """p = F(z), and what the equation leaves open: 0, 1, and the scores of +inf."""
    p = place(rows, over, found)
    xp = namespace(p.z)
    upper, low, high = split(p.link, p.z, rows.live)
    chosen = xp.where(upper, 1 - high, low) + p.correction
    if has_gradients(p.z, rows.k):
        number, alpha = p.link.parted()
        equation = _Equation(p.link.id, number, p.over)
        chosen = chosen + with_gradients_of(equation.remainder, p.z, rows.k, rows.live, alpha)
    chosen = xp.where(p.over.expand(p.every), 1.0, xp.where(p.over.expand(p.none), 0.0, chosen))
    # By hand: a link that is constant outside its support would hide the NaN.
    chosen = xp.where(p.over.expand(p.spoiled), math.nan, chosen)
    others = xp.where(rows.top, p.over.expand(rows.top_weight), 0.0)
    return xp.where(rows.live, chosen, others)


def log_weights(rows: Rows, placed: Placed | None = None) -> Array:
    """log p, from log F below ½ and log(1 − (1 − F)) above, so that no p is too small for it.

    Where a link's p is exactly 0 it is −∞ with gradient 0, as of any constant.
    """
    p = placed or place(rows)
    xp = namespace(p.z)
    answer = log_of(p, reached(rows, p), rows.live)
    answer = answer + xp.where(p.upper, p.correction, 0.0)  # p is 1 there
    answer = xp.where(p.over.expand(p.every), 0.0, answer)
    answer = xp.where(p.over.expand(p.none), -math.inf, answer)
    answer = xp.where(p.over.expand(p.spoiled), math.nan, answer)
    # The weights of scores of +inf depend on k alone.
    some = rows.top & p.over.expand(rows.top_weight > 0)
    share = xp.log(xp.where(some, p.over.expand(rows.top_weight), 1.0))
    return xp.where(rows.live, answer, xp.where(some, share, -math.inf))


def log_of(p: Placed, z: Array, live: Array) -> Array:
    """log F per entry, differentiable in z."""
    xp = namespace(z)
    low = live & ~p.upper
    # A z at which log F is harmless, where it is 0 or not wanted.
    half = p.link.median(z)
    none = low & (p.link.log_cdf(xp.where(low, stop_gradient(z), half)) == -math.inf)
    low = low & ~none
    log_low = xp.where(low, p.link.log_cdf(xp.where(low, z, half)), 0.0)
    high = xp.where(p.upper, p.link.sf(xp.where(p.upper, z, half)), 0.0)
    return xp.where(none, -math.inf, log_low + xp.log1p(-high))


def slopes(rows: Rows) -> Array:
    """w = F′(z) per entry, of which ∂p/∂(x/T) = diag(w) − wwᵀ/Σw; 0 where p is settled."""
    p = place(rows)
    xp = namespace(p.z)
    moving = rows.live & ~p.over.expand(p.none | p.every)
    slope = xp.where(moving, p.link.pdf(xp.where(moving, p.z, 0.0)), 0.0)
    return xp.where(p.over.expand(p.spoiled), math.nan, slope)


def theta(rows: Rows, over: Reductions = DENSE) -> Array:
    """θ per row, ±inf where nothing or everything is chosen, NaN where nothing could be."""
    p = place(rows, over)
    xp = namespace(p.z)
    answer = xp.where(p.none, math.inf, xp.where(p.every, -math.inf, p.theta))
    playing = over.count(rows.live | rows.top) > 0
    return xp.where(p.spoiled | ~playing, math.nan, answer)


def value(rows: Rows, over: Reductions = DENSE) -> Array:
    """S_k = kθ + T Σ G(z), as (k − #upper)θ + Σ_upper x + T Σ (∫ of the smaller tail)."""
    p = place(rows, over)
    xp = namespace(p.z)
    tails = xp.where(p.upper, p.link.upper_integral(p.z), p.link.integral(p.z))
    above = p.over.sum(xp.where(p.upper, rows.scores, 0.0))
    everything = p.over.sum(xp.where(rows.live, rows.scores, 0.0))
    missing = rows.k - xp.astype(p.over.count(p.upper), p.z.dtype)
    inside = xp.where(rows.live, tails, 0.0)
    answer = missing * p.theta + above + rows.temperature * p.over.sum(inside)
    answer = xp.where(p.every, everything, xp.where(p.none, 0.0, answer))
    answer = xp.where(p.spoiled, math.nan, answer)
    answer = xp.where(over.count(rows.live) > 0, answer, 0.0)
    infinite = (over.count(rows.top) > 0) & (rows.top_weight > 0)
    return answer + xp.where(infinite, scalar(answer, math.inf), 0.0)


def distances(rows: Rows, p: Placed) -> Array:
    """(x − θ)/T, for links of mean zero: of what lies beyond every link's reach, too, where p.z,
    which only says which end, is cut off.
    """
    xp = namespace(p.z)
    beyond = rows.live & (xp.abs(stop_gradient(p.z)) >= far(xp.finfo(p.z.dtype)))
    theta, t = p.over.expand(p.theta), p.over.expand(rows.temperature)
    return xp.where(beyond, (xp.where(beyond, rows.scores, theta) - theta) / t, p.z + p.link.edge)


def reached(rows: Rows, p: Placed) -> Array:
    """z, and where p.z is cut off below, what it would be, if log F of that is a number."""
    xp = namespace(p.z)
    fixed = stop_gradient(p.z)
    settled = p.over.expand(p.every | p.none | p.spoiled)
    cut = rows.live & ~settled & ~p.upper & (fixed <= -far(xp.finfo(fixed.dtype)))

    def below() -> Array:
        theta, t = p.over.expand(p.theta), p.over.expand(rows.temperature)
        away = xp.where(cut, stop_gradient(rows.scores - theta), 0.0) / stop_gradient(t)
        known = cut & (p.link.log_cdf(xp.where(cut, away - p.link.edge, fixed)) > -math.inf)
        away = xp.where(known, rows.scores, theta) - theta
        return xp.where(known, quotient(away, t, known) - p.link.edge, p.z)

    return only_if(cut, below, p.z)


def gap(rows: Rows, target: Array, placed: Placed | None = None) -> Array:
    """Σ [G(z) + Ω(t) − t·z] per row: every term of the Fenchel–Young loss is at least 0."""
    p = placed or place(rows)
    xp = namespace(p.z)
    missed = xp.where(p.upper, 1 - target, -target)
    straight = xp.where(missed == 0, 0.0, missed * distances(rows, p))
    tails = xp.where(p.upper, p.link.upper_integral(p.z), p.link.integral(p.z)) + straight
    closed = p.over.expand(p.every | p.none)
    terms = xp.where(closed, 0.0, tails) + p.link.omega(target)
    terms = xp.where(p.over.expand(p.spoiled), math.nan, terms)
    possible = target == xp.where(rows.top, scalar(target, 1.0), 0.0)
    impossible = xp.where(possible, scalar(target, 0.0), math.inf)
    return p.over.sum(xp.where(rows.live, terms, impossible))


def softmax(rows: Rows, over: Reductions = DENSE) -> Array:
    """Softmax needs no threshold: it is normalised directly, by the same rules at the edges."""
    xp = namespace(rows.scores)
    x, t = rows.scores, over.expand(rows.temperature)
    greatest = over.expand(stop_gradient(over.max(x)))
    far_below = ~rows.live | ((stop_gradient(x) - greatest) / t < -far(xp.finfo(x.dtype)))
    raised = xp.exp(quotient(xp.where(far_below, 0.0, x - greatest), t, ~far_below))
    # Where scores of +inf take all, a NaN still says so.
    raised = xp.where((far_below | over.expand(rows.k <= 0)) & ~xp.isnan(x), 0.0, raised)
    total = over.sum(raised)
    share = raised / over.expand(xp.where(total == 0, 1.0, total))
    share = xp.where(rows.live, share, 0.0)  # beside a NaN, too
    return xp.where(rows.top, over.expand(rows.top_weight), share)


def log_softmax(rows: Rows, kept: Array | None = None, over: Reductions = DENSE) -> Array:
    """log of `softmax`, by the same rules; −∞ for what is out of play.

    With `kept`, how much of each entry counts, in [0, 1]: x/T − log Σ kept·e^{x/T}, of the others
    too. The largest entry must be among them.
    """
    xp = namespace(rows.scores)
    greatest = stop_gradient(over.max(rows.scores))
    some = rows.live & over.expand(rows.k > 0)
    z = xp.where(some, rows.scores, over.expand(greatest)) - over.expand(greatest)
    # An infinity less itself; a NaN of a score stays.
    z = quotient(xp.where(some, z, 0.0), over.expand(rows.temperature), some)
    raised = xp.exp(z) if kept is None else kept * xp.exp(z)
    total = over.sum(xp.where(some, raised, 0.0))
    if kept is not None:  # rounding of what counts by halves may leave less than the largest's 1
        total = total + stop_gradient(xp.where((total > 0) & (total < 1), 1 - total, 0.0))
    log_total = xp.log(xp.where(total == 0, 1.0, total))
    share = xp.log(xp.where(rows.top, over.expand(rows.top_weight), 1.0))
    answer = xp.where(some, z - over.expand(log_total), xp.where(rows.top, share, -math.inf))
    return xp.where(rows.live & xp.isnan(rows.scores), math.nan, answer)


def require_integral(link: Link, like: Array) -> None:
    """Refuse the value and the loss of a link whose integral is missing or is not ∫F."""
    if link.integral_is_known:
        return
    z, lower, upper = integral_ends(link, like)
    # Rounding of G(z) − z, and room for tails as heavy as a mean allows.
    if not max(abs(lower), abs(upper)) <= 1 / math.sqrt(z):
        raise ValueError(
            f"the integral of {link!r} is not the one of a distribution with mean zero: "
            f"G(−z) = {lower:.3g} and G(z) − z = {upper:.3g} at z = {z:.3g}, both must go to 0; "
            "give G = ∫F from −∞ and shift cdf, pdf and integral so that the mean is 0"
        )


def _softmax(values: Array, where: Array, over: Reductions) -> Array:
    """Softmax over the entries that `where` keeps; 0 where it keeps none of finite value."""
    xp = namespace(values)
    with quiet(values):
        values = xp.where(where, values, -math.inf)
        greatest = over.max(values)
        some = greatest > -math.inf
        shifted = values - over.expand(xp.where(some, greatest, 0.0))
        raised = xp.where(over.expand(some), xp.exp(shifted), 0.0)
        return raised / over.expand(xp.where(some, over.sum(raised), 1.0))
