"""Answers of rows in several processes with what their derivatives need, by one round of sums.

For constants. Each function returns the answer, θ as two numbers, and kept numbers per row.
"""

from __future__ import annotations

import math

from kofn.arrays.autodiff import nan_where
from kofn.arrays.kinds import Array, cast, namespace, scalar
from kofn.formulas import answers
from kofn.formulas.implicit import Placed, place
from kofn.rows.settled import Rows
from kofn.solver.equation import split
from kofn.solver.reductions import Reductions, wide_sums_of

Theta = tuple[Array, Array]
Sloped = tuple[Array, Theta, tuple[Array, ...]]


def value(rows: Rows, over: Reductions, theta: Theta) -> Sloped:
    """Return S_k; its slope in T is kept."""
    answer, slope = answers.value_and_slope(rows, over, theta)
    return answer, theta, (slope,)


def softmax(rows: Rows, over: Reductions, theta: None) -> Sloped:
    answer, total = answers.shares(rows, over, _greatest(rows))
    return answer, _theta_of_softmax(rows, namespace(total).log(total)), ()


def _greatest(rows: Rows) -> Array:
    """Return the largest available score, 0 if there is none, NaN if one is NaN."""
    xp, known = namespace(rows.scores), rows.known
    greatest = xp.where(xp.isfinite(known.greatest), known.greatest, 0.0)
    return xp.where(known.has_nan, math.nan, cast(greatest, rows.scores.dtype))


def _theta_of_softmax(rows: Rows, log_total: Array) -> Theta:
    """Return θ with e^{z − 1} = softmax, from log Σe^{(x − greatest)/T}.

    It stays two numbers in float64 too: next to a great score their sum would lose the second.
    """
    xp = namespace(log_total)
    greatest = xp.where(rows.k > 0, _greatest(rows), math.inf)
    greatest = xp.where(rows.known.has_nan, math.nan, greatest)
    offset = cast(rows.temperature, xp.float64) * (log_total - 1)
    offset = xp.where(xp.isfinite(greatest), offset, 0.0)
    return greatest, cast(offset, greatest.dtype)


# Losses keep their slope in T, the rows whose target is impossible and whose loss a constant, and
# the `whole` of the target: entries are compared with it as whole·p − t, where `whole` is 1 but for
# cross-entropy.


def loss(rows: Rows, target: Array, over: Reductions, theta: Theta) -> Sloped:
    """Return `answers.loss`.

    The slope is a sum of (x − θ)(p − t), where Σ(p − t) = 0: any number may stand for θ, as in
    pivot.py. One next to θ and to the scores does until all sums are known, and with them the mean
    of x in the weights p(1 − p), which are F′ or close to it.
    """
    p, near = place(rows, over, theta), _near(rows, theta)
    xp, expand = namespace(p.z), over.expand
    moves = rows.live & ~expand(p.settled)
    off = xp.where(moves, _compared(p, rows, target, xp.ones_like(target)), 0.0)
    _, low, high = split(p.link, p.z, moves)
    w = (low + high) * xp.where(moves, 1 - low - high, 0.0)
    apart = (xp.where(moves, rows.scores, expand(near)) - expand(near)) / expand(rows.temperature)
    parts = answers.loss_terms(rows, target, p), off, w, _times(off, apart), _times(w, apart)
    loss, rest, weight, tilt, moment, wrong = wide_sums_of(over, *parts, _misses(rows, target))
    mean = xp.where(weight > 0, moment / xp.where(weight > 0, weight, 1.0), 0.0)
    tilt = nan_where(tilt - xp.where(rest == 0, 0.0, rest * mean), p.has_nan)
    loss = cast(loss, rows.scores.dtype)
    slope = cast(-tilt / rows.temperature, loss.dtype)
    constant = _is_constant(rows, loss, wrong, over)
    return loss, theta, (xp.where(constant, 0.0, slope), constant, xp.ones_like(loss))


def _near(rows: Rows, theta: Theta) -> Array:
    """Return a number per row next to θ and to the scores."""
    xp, known = namespace(theta[0]), rows.known
    number = xp.where(xp.isfinite(theta[0]), theta[0], 0.0) - rows.temperature * rows.link.edge
    wide = cast(number, known.least.dtype)
    near = xp.minimum(xp.maximum(wide, known.least), known.greatest)
    return cast(xp.where(xp.isfinite(near), near, wide), number.dtype)


def likelihood(
    rows: Rows, target: Array, idle: Array | None = None, *, over: Reductions, theta: None
) -> Sloped:
    """Return `cross_entropy`; k is 1.

    `idle` are entries whose share of the smoothing has the weight 0; of an infinite loss it is
    NaN, as in PyTorch.
    """
    xp, expand, t = namespace(target), over.expand, rows.temperature
    greatest = _greatest(rows)
    has_nan = xp.isnan(greatest)
    z = (rows.scores - expand(xp.where(has_nan, 0.0, greatest))) / expand(t)
    z = xp.where(rows.live, z, 0.0)
    raised, own = xp.where(rows.live, xp.exp(z), 0.0), xp.where(rows.live, target, 0.0)
    at_top = xp.where(rows.top, target, 0.0)
    if idle is not None:
        at_top = xp.where(idle & rows.live, math.nan, at_top)
    parts = raised, own, _times(own, z), raised * z, at_top, _misses(rows, target)
    total, whole, chosen, lever, at_top, wrong = wide_sums_of(over, *parts)
    total, some = xp.where(total == 0, 1.0, total), rows.number(over, live=False) > 0
    log_total = xp.log(total)
    loss = whole * log_total - chosen
    among = xp.where(some, cast(rows.top_weight, whole.dtype), 1.0)  # they share all the weight
    loss = xp.where(some, -at_top * xp.log(among), loss)
    loss = xp.where((wrong > 0) | (some & (whole > 0)), math.inf, loss)
    # A row without weight has no loss, whatever its scores.
    loss = xp.where(has_nan, xp.where(whole == 0, scalar(whole, 0.0), math.nan), loss)
    loss = xp.where(some & xp.isnan(at_top) & ~xp.isnan(whole), math.nan, loss)
    loss = cast(loss, rows.scores.dtype)
    slope = cast(xp.where(some, 0.0, -(whole * lever / total - chosen) / t), loss.dtype)
    constant = _is_constant(rows, loss, wrong, over)
    kept = xp.where(constant, 0.0, slope), constant, whole
    return loss, _theta_of_softmax(rows, log_total), kept


def cross_entropy(
    rows: Rows, target: Array, idle: Array | None = None, *, over: Reductions
) -> Array:
    """Return −Σ t·log softmax."""
    xp, some = namespace(target), target != 0
    logs = xp.where(some, answers.log_softmax(rows, over=over), 0.0)
    return -over.sum(xp.where(some, target * logs, 0.0))


def of_losses(
    v: Array,
    rows: Rows,
    target: Array,
    idle: Array | None = None,
    *,
    over: Reductions,
    theta: Theta,
    slope: Array,
    whole: Array,
) -> tuple[Array, None, Array]:
    """Return the cotangents for (whole·p − t)/T."""
    expand = over.expand
    off = _compared(place(rows, over, theta), rows, target, expand(cast(whole, target.dtype)))
    return off * expand(v / rows.temperature), None, slope * v


def _compared(p: Placed, rows: Rows, target: Array, whole: Array) -> Array:
    """Return whole·p − t, exact next to 1; 0 where the loss is constant, NaN in rows with one."""
    xp, expand = namespace(p.z), p.over.expand
    upper, low, high = split(p.link, p.z, rows.live)
    off = xp.where(upper, (whole - target) - whole * high, whole * low - target)
    off = xp.where(rows.live & ~expand(p.every | p.none), off, 0.0)
    return nan_where(off, rows.live & expand(p.has_nan))


def _is_constant(rows: Rows, loss: Array, wrong: Array, over: Reductions) -> Array:
    """Return the rows whose loss is infinite because of entries that are out of play, or +inf."""
    return ((wrong > 0) | (rows.number(over, live=False) > 0)) & (loss == math.inf)


def _misses(rows: Rows, target: Array) -> Array:
    """Return the entries that are excluded and have weight."""
    return ~rows.live & ~rows.top & (target != 0)


def _times(u: Array, factor: Array) -> Array:
    return namespace(u).where(u == 0, 0.0, u * factor)
