"""The array code that defines weights, logarithms, values and losses, with all derivatives.

Each takes settled rows, what reduces them (`over`), and `theta`: two numbers per row, or a
Price of rows with costs. `implicit.place` attaches the derivatives of θ; z, θ and the special cases
are then in `p`, a `Placed`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from kofn.arrays.autodiff import (
    has_gradients,
    nan_where,
    quotient,
    stop_gradient,
    with_gradients_of,
)
from kofn.arrays.kinds import Array, cast, namespace, scalar
from kofn.formulas.implicit import Placed, distances, place, reached
from kofn.formulas.root import Equation, over_argument
from kofn.formulas.total import mended
from kofn.rows.settled import Rows
from kofn.solver.equation import far, split
from kofn.solver.reductions import DENSE, Reductions, is_in_parts, wide_sums_of


def weights(rows: Rows, over: Reductions = DENSE, *, theta: tuple[Array, ...]) -> Array:
    """Return p = F(z), with 0, 1 and the scores of +inf filled in."""
    p = place(rows, over, theta)
    xp = namespace(p.z)
    chosen = _chosen(p, rows.live)
    if has_gradients(p.z, p.k, p.costs):
        number, alpha = p.link.static_and_array_alpha()
        arguments = p.z, p.k, p.open, alpha, over_argument(p.over), p.costs
        # A constant may carry any cotangent, infinity and NaN included: an entropy's.
        slope = p.link.map_alpha(stop_gradient).pdf(stop_gradient(p.z))
        chosen = xp.where(p.outside | (slope == 0), stop_gradient(chosen), chosen)
        chosen = chosen + with_gradients_of(Equation(p.link.id, number).remainder, *arguments)
        chosen = chosen + p.correction
    if rows.costs is None and not is_in_parts(over):
        chosen = mended(chosen, p, rows)
    none, every = p.closed(p.none, rows.live), p.closed(p.every, rows.live)
    chosen = xp.where(every, 1.0, xp.where(none, 0.0, chosen))
    # Set explicitly: a link that is constant outside its support would hide the NaN.
    chosen = nan_where(chosen, p.over.expand(p.has_nan))
    share = rows.top_weight if rows.costs is not None else p.over.expand(rows.top_weight)
    others = xp.where(rows.top, share, 0.0)
    return xp.where(rows.live, chosen, others)


def _chosen(p: Placed, live: Array) -> Array:
    upper, low, high = split(p.link, p.z, live)
    return namespace(p.z).where(upper, 1 - high, low)


def log_weights(rows: Rows, over: Reductions = DENSE, *, theta: tuple[Array, Array]) -> Array:
    """Return log p, from log F below ½ and log(1 − (1 − F)) above, finite where p underflows.

    Where p is exactly 0, log p is −∞ with gradient 0.
    """
    p = place(rows, over, theta)
    xp = namespace(p.z)
    answer = log_of(p, reached(rows, p), rows.live)
    answer = answer + xp.where(p.upper, p.correction, scalar(answer, 0.0))  # p is 1 there
    answer = xp.where(p.over.expand(p.every), 0.0, answer)
    answer = xp.where(p.over.expand(p.none), -math.inf, answer)
    answer = nan_where(answer, p.over.expand(p.has_nan))
    # The weights of scores of +inf depend on k alone.
    some = rows.top & p.over.expand(rows.top_weight > 0)
    share = xp.log(xp.where(some, p.over.expand(rows.top_weight), 1.0))
    return xp.where(rows.live, answer, xp.where(some, share, -math.inf))


def log_of(p: Placed, z: Array, live: Array) -> Array:
    """Return log F per entry, differentiable in z."""
    xp = namespace(z)
    low = live & ~p.upper
    # Where log F is −∞ or not needed, use a z at which it is finite.
    half = p.link.median(z)
    none = low & (p.link.log_cdf(xp.where(low, stop_gradient(z), half)) == -math.inf)
    low = low & ~none
    log_low = xp.where(low, p.link.log_cdf(xp.where(low, z, half)), 0.0)
    high = xp.where(p.upper, p.link.sf(xp.where(p.upper, z, half)), 0.0)
    return xp.where(none, -math.inf, log_low + xp.log1p(-high))


def slopes(rows: Rows, over: Reductions = DENSE, *, theta: tuple[Array, ...]) -> Array:
    """Return w = F′(z), for ∂p/∂(x/T) = diag(w) − wwᵀ/Σw; 0 where p is constant."""
    p = place(rows, over, theta)
    xp = namespace(p.z)
    moving = rows.live & ~p.over.expand(p.none | p.every)
    slope = xp.where(moving, p.link.pdf(xp.where(moving, p.z, 0.0)), 0.0)
    return nan_where(slope, p.over.expand(p.has_nan))


def value(rows: Rows, over: Reductions = DENSE, *, theta: tuple[Array, ...]) -> Array:
    """Return S_k = kθ + T Σ G(z), as (k − #upper)θ + Σ_upper x + T Σ (∫ of the smaller tail).

    With costs, the costs of these entries stand in the place of #upper.
    """
    p = place(rows, over, theta)
    return _value(rows, p, wide_sums_of(over, *_parts(rows, p)))


def value_and_slope(
    rows: Rows, over: Reductions, theta: tuple[Array, Array]
) -> tuple[Array, Array]:
    """Return S_k and its slope in T, −ΣΩ(p), by one round of sums. For constants."""
    p = place(rows, over, theta)
    moves = rows.live & ~over.expand(p.none | p.every)
    inner = namespace(p.z).where(moves, p.link.omega(_chosen(p, moves)), 0.0)
    *sums, inner = wide_sums_of(over, *_parts(rows, p), nan_where(inner, over.expand(p.has_nan)))
    return _value(rows, p, sums), -inner


def _parts(rows: Rows, p: Placed) -> tuple[Array, ...]:
    """Return what S_k sums over its entries."""
    xp = namespace(p.z)
    tails = xp.where(p.upper, p.link.upper_integral(p.z), p.link.integral(p.z))
    upper, everything = p.upper, rows.live
    if rows.costs is not None:
        upper, everything = p.upper & p.open, p.closed(p.every, rows.live)
    number = upper if rows.costs is None else xp.where(upper, rows.costs, 0.0)
    above, everything = (xp.where(flags, rows.scores, 0.0) for flags in (upper, everything))
    return number, above, everything, xp.where(p.open, tails, 0.0)


def _value(rows: Rows, p: Placed, sums: Sequence[Array]) -> Array:
    number, above, everything, tails = sums
    xp = namespace(p.z)
    missing = rows.k - cast(number, above.dtype)
    if rows.costs is None:
        answer = missing * p.theta + above + rows.temperature * tails
        answer = xp.where(p.every, everything, xp.where(p.none, 0.0, answer))
        infinite = (rows.number(p.over, live=False) > 0) & (rows.top_weight > 0)
    else:  # what costs nothing counts in rows that are settled, too
        missing = xp.where(p.settled, 0.0, missing)
        answer = above + everything + rows.temperature * tails + missing * p.theta
        infinite = p.over.count(rows.top & (rows.top_weight > 0)) > 0
    answer = cast(nan_where(answer, p.has_nan), p.z.dtype)
    answer = xp.where(rows.number(p.over, top=False) > 0, answer, 0.0)
    return answer + xp.where(infinite, scalar(answer, math.inf), 0.0)


def loss(
    rows: Rows,
    target: Array,
    over: Reductions = DENSE,
    *,
    theta: tuple[Array, Array],
) -> Array:
    """Return Σ [G(z) + Ω(t) − t·z] per row, the Fenchel–Young loss; every term is ≥ 0."""
    return over.sum(loss_terms(rows, target, place(rows, over, theta)))


def loss_terms(rows: Rows, target: Array, p: Placed) -> Array:
    """Return the terms of `loss`."""
    xp = namespace(p.z)
    missed = xp.where(p.upper, 1 - target, -target)
    straight = xp.where(missed == 0, 0.0, missed * distances(rows, p))
    tails = xp.where(p.upper, p.link.upper_integral(p.z), p.link.integral(p.z)) + straight
    closed = p.over.expand(p.every | p.none)
    terms = xp.where(closed, 0.0, tails) + p.link.omega(target)
    terms = nan_where(terms, p.over.expand(p.has_nan))
    possible = target == xp.where(rows.top, scalar(target, 1.0), 0.0)
    impossible = xp.where(possible, scalar(target, 0.0), math.inf)
    return xp.where(rows.live, terms, impossible)


def softmax(rows: Rows, over: Reductions = DENSE) -> Array:
    """Return softmax, normalised directly, with the same rules for ±inf, masks and NaN."""
    return shares(rows, over, over.max(stop_gradient(rows.scores)))[0]


def shares(rows: Rows, over: Reductions, greatest: Array) -> tuple[Array, Array]:
    """Return softmax, and Σ e^{(x − greatest)/T} over the entries that share the weight."""
    xp = namespace(rows.scores)
    x, t, greatest = rows.scores, over.expand(rows.temperature), over.expand(greatest)
    far_below = ~rows.live | ((stop_gradient(x) - greatest) / t < -far(xp.finfo(x.dtype)))
    raised = xp.exp(quotient(xp.where(far_below, 0.0, x - greatest), t, ~far_below))
    # A NaN in the row gives NaN even if scores of +inf take all the weight.
    raised = xp.where((far_below | over.expand(rows.k <= 0)) & ~xp.isnan(x), 0.0, raised)
    (total,) = wide_sums_of(over, raised)
    divisor = cast(xp.where(total == 0, 1.0, total), x.dtype)
    # Also in a row with a NaN. A share of 0 is constant, and may carry any cotangent.
    constant = ~rows.live | ((raised == 0) & over.expand(total == total))
    share = xp.where(constant, 0.0, raised / over.expand(divisor))
    return xp.where(rows.top, over.expand(rows.top_weight), share), total


def log_softmax(
    rows: Rows,
    kept: Array | None = None,
    over: Reductions = DENSE,
    greatest: Array | None = None,
) -> Array:
    """Return log of `softmax`, by the same rules; −∞ for excluded entries.

    With `kept`, the share in [0, 1] of each entry that counts: x/T − log Σ kept·e^{x/T} for all
    entries. The largest entry must be kept. `greatest` is the largest score, if it is known.
    """
    xp = namespace(rows.scores)
    greatest = over.max(stop_gradient(rows.scores)) if greatest is None else greatest
    # A NaN in the row gives NaN even if scores of +inf take all the weight.
    some = rows.live & over.expand((rows.k > 0) | xp.isnan(greatest))
    z = xp.where(some, rows.scores, over.expand(greatest)) - over.expand(greatest)
    # ∞ − ∞ is set to 0.
    z = quotient(xp.where(some, z, 0.0), over.expand(rows.temperature), some)
    raised = xp.exp(z) if kept is None else kept * xp.exp(z)
    total = over.sum(xp.where(some, raised, 0.0))
    if kept is not None:  # rounding of partly kept entries may give less than the largest entry's 1
        total = total + stop_gradient(xp.where((total > 0) & (total < 1), 1 - total, 0.0))
    log_total = xp.log(xp.where(total == 0, 1.0, total))
    share = xp.log(xp.where(rows.top, over.expand(rows.top_weight), 1.0))
    return xp.where(some, z - over.expand(log_total), xp.where(rows.top, share, -math.inf))
