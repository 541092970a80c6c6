"""Cotangents of scores and temperatures from cotangents of z = (x − θ)/T, in closed form."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from kofn.arrays.autodiff import nan_where, values_and_slopes
from kofn.arrays.flow import only_if
from kofn.arrays.kinds import Array, cast, is_numpy, namespace
from kofn.formulas import answers, implicit
from kofn.formulas.pivot import pivot_at
from kofn.formulas.root import slope_shares
from kofn.rows.given import Given
from kofn.rows.settled import Rows
from kofn.solver.equation import far, least_weight
from kofn.solver.plateau import Entries, balance
from kofn.solver.reductions import DENSE, Reductions, sends, sums_of, wide_sums_of


def in_rows(
    cotangent: Array,
    rows: Rows,
    theta: Any,
    in_z: Callable[..., Any],
    constants: Sequence[Array] = (),
    over: Reductions = DENSE,
) -> tuple[Array, Array]:
    """Return the cotangents of the scores and the temperature.

    in_z(cotangent, placed, rows, *constants) is z's cotangent, which sums to 0 in a row: so
    pivot.py's mean stands for θ.
    """
    p, expand, t = implicit.place(rows, over, theta, pivoted=True), over.expand, rows.temperature
    in_x = in_z(cotangent, p, rows, *constants) / expand(t)
    xp, constant, pivot = namespace(in_x), in_x == 0, expand(p.pivot)
    distance = (xp.where(constant, pivot, rows.scores) - pivot) / expand(t)
    lever, total, size = sums_of(over, xp.where(constant, 0.0, in_x * distance), in_x, abs(in_x))
    # Where a target is out of play, and a loss infinite, the total is not 0 up to rounding.
    rest = xp.where(abs(total) > size / 1024, total * (rows.link.edge - p.shift), 0.0)
    return in_x, -(lever + rest)


def of_weights(
    v: Array, rows: Rows, theta: tuple[Array, Array], over: Reductions
) -> tuple[Array, Callable[[], Array], Array]:
    """Return the cotangents of scores, k and T from one of the weights, by two rounds of sums.

    ∂p/∂x = [diag(w) − w wᵀ/Σw]/T, ∂p/∂k = w/Σw. The mean of v by w is improved once: where one
    entry has nearly all of Σw, its rounding would be as large as the others' derivatives. `theta`
    is θ as it is used, at the end of a support if it was moved there. The cotangent of k may take
    further sums: a function returns it.
    """
    x, live, top, left, _, t, link, known, _ = rows
    xp, expand = namespace(x), over.expand
    (hi, lo), link = theta, link.map_alpha(expand)
    open_, has_nan = xp.isfinite(hi), xp.isnan(hi)
    limit = far(xp.finfo(x.dtype))
    z = ((x - expand(xp.where(open_, hi, 0.0))) - expand(lo)) / expand(t)
    moves = live & expand(open_)
    z = xp.where(moves, xp.clip(z, -limit, limit), 0.0)
    w = xp.where(moves, link.pdf(z), 0.0)
    v = xp.where(live | top, v, 0.0)

    constant = w == 0
    weighed, of_top = xp.where(constant, 0.0, w * v), xp.where(top, v, 0.0)
    counted = (cast(top, x.dtype),) if known is None else ()
    total, mean, moment, of_top, *count = wide_sums_of(over, w, weighed, w * z, of_top, *counted)
    if known is None:
        tops, left = count[0], left - count[0]
    else:
        tops = known.top
    solvable = open_ & (total >= least_weight(w))
    divisor = xp.where(solvable, total, 1.0)
    mean = xp.where(solvable, mean / divisor, 0.0)
    pivot, _ = pivot_at(moment / divisor, xp.where(open_, hi, 0.0), lo, t)
    pivot = expand(cast(pivot, x.dtype))
    u = xp.where(constant, 0.0, w * (v - expand(cast(mean, x.dtype))))
    rest, lever = wide_sums_of(over, u, u * ((xp.where(constant, pivot, x) - pivot) / expand(t)))
    change = xp.where(solvable, rest / divisor, 0.0)
    u = u - w * expand(cast(change, x.dtype))
    hard = open_ & ~solvable

    def in_hard_rows() -> Array:
        row = Entries(z, xp.where(live, x, -math.inf), t, live, over)
        return mean + change + over.sum(slope_shares(link, row, hard) * v)

    def in_k() -> Array:
        slope = only_if(hard, in_hard_rows, mean + change)
        shared = (tops > 0) & (left <= 0)
        return nan_where(
            slope + xp.where(shared, of_top / xp.where(shared, tops, 1.0), 0.0), has_nan
        )

    in_x = nan_where(u / expand(t), live & expand(has_nan))
    return in_x, in_k, nan_where(-lever / t, has_nan)


def through_weights(v: Array, given: Given, p: Array, q: Array, lone: Array) -> Array:
    """Return the cotangent of the scores for one of the weights, from p and q = 1 − p alone.

    It is w(v − v̄)/T, where w = F′ is a function of p and v̄ the mean of v by w, as `of_weights` has
    it. Differentiable to any order. In rows that are `lone`, whose k is at most 1, no weight is
    capped at 1, but it may be rounded to it.
    """
    xp, over, t = namespace(p), given.over, given.temperature
    moves = ~((p <= 0) | ((q <= 0) & ~lone))
    link: Any = given.link  # one with this function
    w = xp.where(moves, link.slope_at(xp.where(moves, p, 0.5), xp.where(moves, q, 0.5)), 0.0)
    total = over.sum(w)
    share = w / over.expand(xp.where(total > 0, total, 1.0))
    u = w * (v - over.expand(over.sum(share * v)))
    u = u - share * over.expand(over.sum(u))
    return u / (t if type(t) is float else over.expand(t))


def log_cotangents(v: Array, rows: Rows, theta: Any) -> tuple[Array, Array]:
    """Return the cotangents of the scores and the temperature from one of log p."""
    return in_rows(v, rows, theta, of_logarithms)


def of_logarithms(v: Array, p: implicit.Placed, rows: Rows) -> Array:
    """Return the cotangent of z for one of log p."""
    xp = namespace(v)
    moves = _moving(p, rows)
    slope = xp.where(moves, p.link.pdf(p.z), 0.0)
    z = implicit.reached(rows, p)
    if is_numpy(z):
        pulled = v * _log_slopes(p, z)
    else:
        pulled = v * values_and_slopes(lambda z: answers.log_of(p, z, rows.live), z)[1]
    pulled = xp.where(moves, pulled, 0.0)
    total = p.over.sum(slope)
    solvable = total >= least_weight(total)
    hard = ~(solvable | p.settled)
    share = slope / p.over.expand(xp.where(solvable, total, math.inf))

    def shares() -> Array:
        row = Entries(p.z, rows.scores, rows.temperature, rows.live, p.over)
        return share + slope_shares(p.link, row, hard)

    pulled = pulled - only_if(hard, shares, share) * p.over.expand(p.over.sum(pulled))
    # A link that is constant outside its support would hide a NaN in the row.
    return xp.where(moves, nan_where(pulled, p.over.expand(p.has_nan)), 0.0)


def _log_slopes(p: implicit.Placed, z: Array) -> Array:
    """Return F′/F, which NumPy has no other way to find; 0 where F is 0."""
    xp, half = namespace(z), p.link.median(z)
    below = xp.where(p.upper, half, z)
    below = xp.where(p.link.log_cdf(below) > -math.inf, p.link.cdf_slope(below), 0.0)
    above = xp.where(p.upper, z, half)
    return xp.where(p.upper, p.link.pdf(above) / (1 - p.link.sf(above)), below)


def of_losses(v: Array, p: implicit.Placed, rows: Rows, target: Array) -> Array:
    """Return the cotangent of z for one of Fenchel–Young losses."""
    xp = namespace(v)
    chosen = xp.where(p.upper, 1 - p.link.sf(p.z), p.link.cdf(p.z))
    chosen = xp.where(p.over.expand(p.has_nan), math.nan, chosen)
    return xp.where(_moving(p, rows), p.over.expand(v) * (chosen - target), 0.0)


def of_thresholds(
    cotangent: Array, rows: Rows, theta: Any, over: Reductions = DENSE
) -> tuple[Array, Array, Array]:
    """Return the cotangents of the scores, k and the temperature from one of θ."""
    p = implicit.place(rows, over, theta, ends_outside=True)
    xp, expand = namespace(p.z), over.expand
    slope = xp.where(_moving(p, rows), p.link.pdf(p.z), 0.0)
    # The temperature's goes with the message of the total.
    levers = () if not sends(over) else (xp.where(slope == 0, 0.0, slope * p.z),)
    total, *moment = wide_sums_of(over, slope, *levers)
    solvable = ~p.settled & (total >= least_weight(slope))
    divisor = xp.where(solvable, total, math.inf)
    share = slope / expand(cast(divisor, slope.dtype))
    hard, edge = ~(solvable | p.settled), xp.zeros_like(total) + rows.link.edge

    def balanced() -> tuple[Array, Array]:
        flat = balance(p.link, Entries(p.z, rows.scores, rows.temperature, rows.live, over), hard)
        some = hard & flat.usable
        return xp.where(expand(some), flat.slopes / expand(flat.slope), share), some

    usable = xp.zeros_like(hard)
    if p.link.has_infinite_tails(p.z) is not False:
        share, usable = only_if(hard, balanced, (share, usable))
    share = nan_where(share, rows.live & expand(p.has_nan))
    in_x = expand(cotangent) * share
    lever = xp.where(solvable, -rows.temperature / xp.where(solvable, total, 1.0), 0.0)
    in_k = cotangent * nan_where(lever, p.has_nan)
    # On a plateau θ is an end of it, which moves with no score, and with the temperature by `edge`.
    if not moment:
        drift = xp.where(p.settled | solvable | usable, 0.0, edge)
        tilt = over.sum(in_x * xp.where(in_x == 0, 0.0, implicit.distances(rows, p)))
        return in_x, in_k, -tilt - cotangent * drift

    def in_balance() -> Array:
        (balanced_mean,) = wide_sums_of(over, xp.where(share == 0, 0.0, share * p.z))
        return xp.where(usable, balanced_mean, mean)

    mean = moment[0] / divisor
    mean = only_if(usable, in_balance, mean) + edge
    return in_x, in_k, nan_where(xp.where(p.settled, 0.0, -cotangent * mean), p.has_nan)


def of_values(
    cotangent: Array, rows: Rows, theta: Any, over: Reductions, slope: Array | float = 0.0
) -> tuple[Array, Array, Array]:
    """Return the cotangents of the scores, k and the temperature from one of S_k.

    ∂S/∂x = p and ∂S/∂k = θ; the slope in T is a sum that was made with S, if it is wanted.
    """
    number = theta[0] + theta[1] - rows.temperature * rows.link.edge
    in_k = namespace(number).where(abs(number) == math.inf, 0.0, number)
    in_x = over.expand(cotangent) * answers.weights(rows, over, theta=theta)
    return in_x, cotangent * in_k, cotangent * slope


def of_usual_thresholds(
    cotangent: Array, given: Given, theta: Any
) -> tuple[Array, Array, Array | None] | None:
    """Return `of_thresholds` in a few operations; None if a row has no F′ to share.

    ∂θ/∂x = F′/ΣF′, ∂θ/∂k = −T/ΣF′ and ∂θ/∂T = −Σ F′z/ΣF′ (None if T is a number), for z of the
    link of mean zero.
    """
    x, _, temperature, link = given.wide()[:4]
    hi, lo = (each[..., None] for each in theta)
    t = temperature if type(temperature) is float else temperature[..., None]
    z = implicit.with_ends_outside(link, ((x - hi) - lo) / t)
    share = link.pdf(z)
    total = share.sum(-1)
    if not (total >= least_weight(total)).all():  # also if NaN
        return None
    each = cotangent / total
    in_x, in_k = share * each[..., None], -temperature * each
    if type(temperature) is float:
        return in_x, in_k, None
    levers = namespace(z).where(in_x == 0, 0.0, in_x * (z + link.edge))
    return in_x, in_k, -levers.sum(-1)


def _moving(p: implicit.Placed, rows: Rows) -> Array:
    """Return the entries whose weights change with the scores."""
    return rows.live & ~p.over.expand(p.every | p.none)
