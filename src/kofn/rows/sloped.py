"""Losses together with their slopes in T, for constants: by one round of sums, which may be one
message.

Entries are compared with their target as whole·p − t; `whole` is 1 but for cross-entropy.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from kofn.arrays.autodiff import spoil
from kofn.arrays.kinds import Array, cast, namespace
from kofn.rows import answers
from kofn.rows.implicit import Placed, place
from kofn.rows.settled import Rows
from kofn.solver.equation import split
from kofn.solver.reductions import Reductions, wide_sums_of


class Sloped(NamedTuple):
    """Losses per row and what their derivatives need."""

    loss: Array
    slope: Array  # in T
    still: Array  # rows whose loss is infinite, as their target is impossible: it is a constant
    whole: Array  # Σt over the live entries
    log_total: Any = None  # log Σ e^{(x − greatest)/T}


def compared(p: Placed, rows: Rows, target: Array, whole: Array) -> Array:
    """Return whole·p − t, exact next to 1; 0 where the loss is a constant, NaN beside a NaN."""
    xp, expand = namespace(p.z), p.over.expand
    upper, low, high = split(p.link, p.z, rows.live)
    off = xp.where(upper, (whole - target) - whole * high, whole * low - target)
    off = xp.where(rows.live & ~expand(p.every | p.none), off, 0.0)
    return spoil(off, rows.live & expand(p.spoiled))


def gap(rows: Rows, target: Array, over: Reductions, found: Any, near: Array) -> Sloped:
    """Return `answers.gap`; `near` is a number per row next to θ and to the scores.

    The slope is a sum of (x − θ)(p − t), where Σ(p − t) = 0: any number may stand for θ, as in
    pivot.py. `near` does until all sums are known, and with them the mean of x in the weights
    p(1 − p), which are F′ or close to it.
    """
    p = place(rows, over, found)
    xp, expand = namespace(p.z), over.expand
    moves = rows.live & ~expand(p.settled)
    off = xp.where(moves, compared(p, rows, target, xp.ones_like(target)), 0.0)
    _, low, high = split(p.link, p.z, moves)
    w = (low + high) * xp.where(moves, 1 - low - high, 0.0)
    away = (xp.where(moves, rows.scores, expand(near)) - expand(near)) / expand(rows.temperature)
    parts = answers.gaps(rows, target, p), off, w, _times(off, away), _times(w, away)
    loss, rest, weight, tilt, moment, wrong = wide_sums_of(over, *parts, out_of_play(rows, target))
    mean = xp.where(weight > 0, moment / xp.where(weight > 0, weight, 1.0), 0.0)
    tilt = spoil(tilt - xp.where(rest == 0, 0.0, rest * mean), p.spoiled)
    loss = cast(loss, rows.scores.dtype)
    still = impossible(rows, loss, wrong, over)
    slope = cast(-tilt / rows.temperature, loss.dtype)
    return Sloped(loss, slope, still, xp.ones_like(loss))


def likelihood(
    rows: Rows, target: Array, over: Reductions, greatest: Array, idle: Array | None = None
) -> Sloped:
    """Return −Σ t·log softmax; k is 1, and `greatest` the largest score, NaN beside a NaN.

    `idle` are entries whose share of the smoothing has the weight 0; of an infinite loss that is
    NaN, as in PyTorch.
    """
    xp, expand, t = namespace(target), over.expand, rows.temperature
    spoiled = xp.isnan(greatest)
    z = (rows.scores - expand(xp.where(spoiled, 0.0, greatest))) / expand(t)
    z = xp.where(rows.live, z, 0.0)
    raised, own = xp.where(rows.live, xp.exp(z), 0.0), xp.where(rows.live, target, 0.0)
    at_top = xp.where(rows.top, target, 0.0)
    if idle is not None:
        at_top = xp.where(idle & rows.live, math.nan, at_top)
    parts = raised, own, _times(own, z), raised * z, at_top, out_of_play(rows, target)
    total, whole, chosen, lever, at_top, wrong = wide_sums_of(over, *parts)
    total, some = xp.where(total == 0, 1.0, total), rows.number(over, live=False) > 0
    log_total = xp.log(total)
    loss = whole * log_total - chosen
    among = xp.where(some, cast(rows.top_weight, whole.dtype), 1.0)  # they share all the weight
    loss = xp.where(some, -at_top * xp.log(among), loss)
    loss = xp.where((wrong > 0) | (some & (whole > 0)), math.inf, loss)
    # A row without weight has no loss, whatever its scores.
    loss = xp.where(spoiled, xp.where(whole == 0, 0.0, math.nan), loss)
    loss = xp.where(some & xp.isnan(at_top) & ~xp.isnan(whole), math.nan, loss)
    loss = cast(loss, rows.scores.dtype)
    slope = cast(xp.where(some, 0.0, -(whole * lever / total - chosen) / t), loss.dtype)
    return Sloped(loss, slope, impossible(rows, loss, wrong, over), whole, log_total)


def impossible(rows: Rows, loss: Array, wrong: Array, over: Reductions) -> Array:
    """Return the rows whose loss is infinite because of entries that are out of play, or +inf."""
    return ((wrong > 0) | (rows.number(over, live=False) > 0)) & (loss == math.inf)


def out_of_play(rows: Rows, target: Array) -> Array:
    """Return the entries that are excluded and have weight."""
    return ~rows.live & ~rows.top & (target != 0)


def _times(u: Array, away: Array) -> Array:
    return namespace(u).where(u == 0, 0.0, u * away)
