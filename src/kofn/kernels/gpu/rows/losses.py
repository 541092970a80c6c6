"""Losses of rows, each by one launch: of a target where θ is known, of softmax, and of values at
labels.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from kofn.kernels import contract
from kofn.kernels.gpu.rows.answers import NAMED, integral, known_rows, placed, put
from kofn.kernels.gpu.rows.formulas import (
    DELETED,
    INF,
    distance,
    edge,
    has_two_tails,
    outside,
    tail,
    unit,
)
from kofn.kernels.gpu.rows.loops import Theta, alpha_of_entries, entries, scores
from kofn.kernels.gpu.rows.one_program import Given, per_row, row_of, rows_here
from kofn.kernels.gpu.rows.words import by_kind, log1p

above = by_kind("above", "z, part, rise, edge", **NAMED)
"""G(z) − z where ½ < F < 1 and `part` is G(z), of a link with an end."""
omega_of = by_kind("omega", "q, rise", **NAMED)
WITH_OMEGA = contract.with_formula("omega")


class Compared(NamedTuple):
    """What scores are compared with, and where the answers go."""

    target_at: Any  # a label per row, or flags or weights like the scores
    residual_at: Any  # p − t
    answer_at: Any  # numbers per row: loss and Σ(p − t)z; if RATED the weight in the mean of losses
    by_class_at: Any  # a weight for each entry, if RATED
    ignored: Any  # the label of rows that do not count, if RATED

    # The fourth number, if RATED, is what the cotangent of a loss is multiplied by.


@triton.jit
def label_of(given, to, rows, here):
    """Return (the label of each row, 0 where it is not in range; whether it counts; whether it is
    out of range).
    """
    label = tl.load(to.target_at + rows, mask=here, other=0)
    used, inside = label != to.ignored, (label >= 0) & (label < given.n)
    return tl.where(used & inside, label, 0).to(tl.int32), used, used & ~inside


@triton.jit
def _keep(given, to, rows, here, loss, lever, weight, bars, live, wrong, RATED: tl.constexpr):
    """Write a row's loss and lever; if RATED, what losses/reduced.py makes of rows before it sums.

    A row counts with its weight if it is `live`. A loss that is ∞ where `bars` has no gradient.
    """
    at, count = to.answer_at + rows, given.count
    if RATED:
        loss = tl.where(wrong, float("nan"), loss)
        loss = tl.where(live, tl.where(weight == 0.0, 0.0, loss) * weight, 0.0)
        weight = tl.where(live, weight, 0.0)
        tl.store(at + 2 * count, weight, mask=here)
        tl.store(at + 3 * count, tl.where(bars & (loss == INF), 0.0, weight), mask=here)
    tl.store(at, loss, mask=here)
    tl.store(at + count, lever, mask=here)


@triton.jit
def losses(
    given: Given,
    to: Compared,
    KIND: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    LABELS: tl.constexpr,
    OMEGA: tl.constexpr,
    WANTED: tl.constexpr,
    RATED: tl.constexpr,
    BY_CLASS: tl.constexpr,
):
    """Write Σ G(z) − tz + Ω(t), each term from the smaller tail, and Σ(p − t)z; and p − t, if it is
    WANTED.

    The target is a label per row, or flags, or weights, whose Ω is 0 here without OMEGA.
    """
    rows, here, stretch, hi, theta, known = known_rows(given, ROWS)
    alpha = alpha_of_entries(theta)
    end = edge(KIND, alpha) - outside(KIND, alpha)
    own, used, wrong = rows, here, rows < 0
    if LABELS:
        own, used, wrong = label_of(given, to, rows, here)
    target_at = to.target_at
    step = outside(KIND, theta.alpha) / theta.per_unit
    of_tail = Theta(theta.hi, theta.lo + step, unit(KIND, theta.per_unit), theta.alpha)
    loss = tl.zeros((ROWS, BLOCK), tl.float32)
    total, lever, size, moment = loss, loss, loss, loss
    bars, live, chosen, rated = loss, loss, loss, loss
    for at in range(stretch.first, stretch.last, BLOCK):
        x, filled = scores(stretch, at, -INF, BLOCK)
        if LABELS:
            t = tl.where((at + tl.arange(0, BLOCK))[None, :] == own[:, None], 1.0, 0.0)
        else:
            t, _ = entries(row_of(target_at, rows, given), stretch, at, 0.0, BLOCK)
            if not target_at.dtype.element_ty.is_floating():
                t = tl.where(t != 0.0, 1.0, 0.0)
        z, moves = placed(x, hi, theta)
        smaller, upper, _, _ = tail(KIND, distance(tl.where(moves, x, 0.0), of_tail), alpha)
        residual = tl.where(upper, (1.0 - t) - smaller, smaller - t)
        part, up, _ = integral(KIND, z, alpha - 1.0)
        side = up
        if not has_two_tails(KIND):
            side = upper
            higher = tl.where(upper, above(KIND, z, part, alpha - 1.0, end), part)
            part = tl.where(up, 0.0, higher)
        missed = tl.where(side, 1.0 - t, -t)
        term = part + tl.where(missed != 0.0, missed * (z + end), 0.0)
        term = tl.where(moves, term, 0.0)
        if OMEGA:
            inside = (t > 0.0) & (t < 1.0)
            bent = omega_of(KIND, tl.where(inside, t, 0.5), alpha - 1.0)
            term += tl.where(inside, bent, tl.where((t == 0.0) | (t == 1.0), 0.0, float("nan")))
        # What is out of play, or +inf, costs ∞ unless its target is 0, or 1.
        barred = filled & (((x <= DELETED) & (t != 0.0)) | ((x == INF) & (t != 1.0)))
        loss += tl.where(barred, INF, tl.where(filled, term, 0.0))
        if RATED:
            out = x <= DELETED
            bars += tl.where(filled & ((x == INF) | (out & (t != 0.0))), 1.0, 0.0)
            live += tl.where(out, 0.0, 1.0)
            if BY_CLASS:
                columns = at + tl.arange(0, BLOCK)
                each = tl.load(to.by_class_at + columns, mask=columns < given.n, other=0.0)
                rated += tl.where(filled, t * each[None, :].to(tl.float32), 0.0)
                chosen += tl.where(filled, t, 0.0)
        residual = tl.where(moves, residual, 0.0)
        spread = tl.where(moves, smaller * (1.0 - smaller), 0.0)
        total += residual
        lever += tl.where(residual != 0.0, residual * z, 0.0)
        size += spread
        moment += tl.where(spread > 0.0, spread * z, 0.0)
        if WANTED:
            # A link with an end would hide a NaN.
            residual += tl.where((tl.abs(x) == INF) | (x <= DELETED), 0.0, known[:, None])
            put(row_of(to.residual_at, rows, given), at, residual, filled, BLOCK)
    sizes = tl.sum(size, axis=1)
    pivot = tl.sum(moment, axis=1) / tl.where(sizes > 0.0, sizes, 1.0)
    lever_of_row = tl.sum(lever, axis=1) - pivot * tl.sum(total, axis=1) + known
    cost, some = tl.sum(loss, axis=1) + known, tl.sum(chosen, axis=1)
    weight = tl.where(some > 0.0, tl.sum(rated, axis=1) / tl.where(some > 0.0, some, 1.0), 1.0)
    barred, playing = tl.sum(bars, axis=1) > 0.0, used & (tl.sum(live, axis=1) > 0.0)
    _keep(given, to, rows, here, cost, lever_of_row, weight, barred, playing, wrong, RATED)


@triton.jit
def likelihoods(
    given: Given,
    to: Compared,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    WANTED: tl.constexpr,
    RATED: tl.constexpr,
    BY_CLASS: tl.constexpr,
):
    """Write −log p of each row's label, p = softmax, and Σ(p − t)z; and p − t, if WANTED.

    It needs no θ. Where the loss does not move with the scores, p − t is 0.
    """
    rows, here, stretch = rows_here(given, ROWS)
    per_t = 1.0 / per_row(given.temperature, rows, here, 1.0)
    label, used, wrong = label_of(given, to, rows, here)
    nothing = tl.zeros((ROWS, BLOCK), tl.float32)
    most, tops, bad, own = nothing - INF, nothing, nothing, nothing - INF
    for at in range(stretch.first, stretch.last, BLOCK):
        x, _ = scores(stretch, at, -INF, BLOCK)
        x = tl.where(x <= DELETED, -INF, x)
        most = tl.maximum(most, tl.where(x == INF, -INF, x))
        tops += tl.where(x == INF, 1.0, 0.0)
        bad += tl.where(x != x, 1.0, 0.0)
        own = tl.maximum(own, tl.where(is_label(at, label, BLOCK), x, -INF))
    highest, at_label = tl.max(most, axis=1), tl.max(own, axis=1)
    highest = tl.where(highest == -INF, 0.0, highest)
    number = tl.sum(tops, axis=1)
    total = nothing
    for at in range(stretch.first, stretch.last, BLOCK):
        x, _ = scores(stretch, at, -INF, BLOCK)
        raised = _raised(x, highest, per_t)
        total += tl.where(is_label(at, label, BLOCK), 0.0, raised)
    others = tl.sum(total, axis=1)
    behind = (highest - at_label) * per_t
    mine = tl.where(at_label == -INF, 0.0, tl.exp(-behind))
    whole = others + mine
    small = log1p(tl.minimum(others, 1.0))
    loss = tl.where((behind == 0.0) & (others <= 1.0), small, behind + tl.log(whole))
    loss = tl.where(at_label == -INF, INF, loss)
    loss = tl.where(number > 0.0, tl.where(at_label == INF, tl.log(number), INF), loss)
    is_bad = (tl.sum(bad, axis=1) > 0.0) | (per_t != per_t)
    loss = tl.where(is_bad, float("nan"), loss)
    lever = nothing
    if WANTED:
        per_whole = 1.0 / tl.where(whole > 0.0, whole, 1.0)
        moves = (number == 0.0) & (at_label > -INF)
        for at in range(stretch.first, stretch.last, BLOCK):
            x, filled = scores(stretch, at, -INF, BLOCK)
            share = _raised(x, highest, per_t) * per_whole[:, None]
            at_own = (-others * per_whole)[:, None]
            residual = tl.where(is_label(at, label, BLOCK), at_own, share)
            residual = tl.where(moves[:, None], residual, 0.0)
            apart = (x - at_label[:, None]) * per_t[:, None]
            lever += tl.where(residual != 0.0, residual * apart, 0.0)
            playing = ~(x <= DELETED) & ~(x == INF)
            residual = tl.where(playing & is_bad[:, None], float("nan"), residual)
            put(row_of(to.residual_at, rows, given), at, residual, filled, BLOCK)
    weight = rows * 0.0 + 1.0
    if BY_CLASS:
        weight = tl.load(to.by_class_at + label, mask=here & used, other=1.0).to(tl.float32)
    bars = (number > 0.0) | (at_label == -INF)
    live = (tl.max(most, axis=1) > -INF) | (number + tl.sum(bad, axis=1) > 0.0)
    of_row = tl.where(is_bad, float("nan"), tl.sum(lever, axis=1))
    _keep(given, to, rows, here, loss, of_row, weight, bars, used & live, wrong, RATED)


@triton.jit
def missed(
    given: Given,
    to: Compared,
    labels_at,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    BY_CLASS: tl.constexpr,
    LOGS: tl.constexpr,
    KNOWN: tl.constexpr,
):
    """Write minus the value at each row's label, RATED, and the label, 0 where it is not in range.

    The values are where p − t is elsewhere; a cotangent of them is minus the one of the loss. LOGS
    says that the loss is log(1 + nε) − log(value + ε), with n entries in play and ε for T; KNOWN
    that the losses of rows stand in the place of the values.
    """
    rows, here, stretch = rows_here(given, ROWS)
    label, used, wrong = label_of(given, to, rows, here)
    bars = tl.zeros((ROWS, BLOCK), tl.float32)
    live = bars
    for at in range(stretch.first, stretch.last, BLOCK):
        x, _ = scores(stretch, at, -INF, BLOCK)
        barred = (x == INF) | ((x <= DELETED) & is_label(at, label, BLOCK))
        bars += tl.where(barred, 1.0, 0.0)
        live += tl.where(x <= DELETED, 0.0, 1.0)
    weight = rows * 0.0 + 1.0
    if BY_CLASS:
        weight = tl.load(to.by_class_at + label, mask=here & used, other=1.0).to(tl.float32)
    if KNOWN:
        loss = tl.load(to.residual_at + rows, mask=here, other=0.0)
    else:
        value = tl.load(row_of(to.residual_at, rows, given) + label, mask=here, other=0.0)
        loss = -value.to(tl.float32)
    playing = tl.sum(live, axis=1)
    is_barred, counts = tl.sum(bars, axis=1) > 0.0, used & (playing > 0.0)
    if LOGS:
        epsilon = per_row(given.temperature, rows, here, 1.0)
        per_slope = epsilon - loss
        loss = log1p(playing * epsilon) - tl.log(per_slope)
    loss = tl.where(used, loss, 0.0)
    _keep(given, to, rows, here, loss, loss, weight, is_barred, counts, wrong, True)
    if LOGS:
        slope = tl.where(counts, weight, 0.0) / per_slope
        tl.store(to.answer_at + rows + 3 * given.count, slope, mask=here)
    tl.store(labels_at + rows, label.to(tl.int64), mask=here)


@triton.jit
def is_label(at, label, BLOCK: tl.constexpr):
    return (at + tl.arange(0, BLOCK))[None, :] == label[:, None]


@triton.jit
def _raised(x, highest, per_t):
    """e^{(x − the highest)/T} of scores in play."""
    distance_ = (x - highest[:, None]) * per_t[:, None]
    return tl.where((x <= DELETED) | (x == INF), 0.0, tl.exp(tl.minimum(distance_, 0.0)))
