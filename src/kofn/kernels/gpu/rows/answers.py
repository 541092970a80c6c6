"""Answers of rows whose θ is known, each by one launch: S_k, losses, and logarithms and their way
back.

Here z counts in temperatures from θ as it is answered, without the units of `distance` elsewhere.
Scores out of play, of +inf, and all of a row without a finite θ have no part in sums of z.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from kofn.kernels import contract
from kofn.kernels.gpu.rows import far
from kofn.kernels.gpu.rows.formulas import (
    DELETED,
    INF,
    SERVED,
    distance,
    edge,
    has_two_tails,
    outside,
    tail,
    unit,
)
from kofn.kernels.gpu.rows.loops import Stretch, Theta, alpha_of_entries, entries, scores
from kofn.kernels.gpu.rows.one_program import Given, alpha_of, per_row, row_of
from kofn.kernels.gpu.rows.words import by_kind, log1p

_NAMED = dict(z="z", rise="rise")
integral = by_kind("integral", "z, rise", **_NAMED)
above = by_kind("above", "z, part, rise, edge", **_NAMED)
"""G(z) − z where ½ < F < 1 and `part` is G(z), of a link with an end."""
omega_of = by_kind("omega", "q, rise", **_NAMED)
logarithm = by_kind("logarithm", "z, rise", **_NAMED)
hazard = by_kind("hazard", "z, rise", **_NAMED)
"""(F′/F, F′) where F > 0; zeros elsewhere."""

_WITH_LOGARITHMS = contract.with_formula("logarithm", "hazard")
_SKEW = contract.with_formula("log_above")
LOGARITHMS = tuple(each for each in SERVED if each in _WITH_LOGARITHMS and each not in _SKEW)
"""The links whose log F′ far above θ is that far below it."""
WITH_OMEGA = contract.with_formula("omega")


@triton.jit
def _known(given, ROWS: tl.constexpr):
    """Return (rows, which of them there are, their stretch, θ as it was answered, and as passes
    take it, with 0 for an endless one, 0 or NaN like θ).
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = rows < given.count
    hi = tl.load(given.theta_at + rows, mask=here, other=0.0)
    lo = tl.load(given.theta_at + given.count + rows, mask=here, other=0.0)
    endless = tl.abs(hi) == INF
    per_t = 1.0 / per_row(given.temperature, rows, here, 1.0)
    found = tl.where(endless, 0.0, hi)
    theta = Theta(found, tl.where(endless, 0.0, lo), per_t, alpha_of(given, rows, here))
    stretch = Stretch(row_of(given.x_at, rows, given), here, 0, given.n)
    return rows, here, stretch, hi, theta, found * 0.0


@triton.jit
def _placed(x, hi, theta):
    """Return (z, whether it counts)."""
    moves = ~((tl.abs(x) == INF) | (x <= DELETED) | (tl.abs(hi) == INF)[:, None])
    return tl.where(moves, distance(x, theta), 0.0), moves


@triton.jit
def _put(row, at, values, filled, BLOCK: tl.constexpr):
    tl.store(row[:, None] + (at + tl.arange(0, BLOCK))[None, :], values, mask=filled)


@triton.jit
def logarithms(given: Given, out_at, KIND: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Write log p: 0 or −∞ where θ is endless, a share of k at +inf."""
    rows, here, stretch, hi, theta, known = _known(given, ROWS)
    share = known
    if tl.max((hi == INF).to(tl.int32)) > 0:
        tops, _ = far.top_sums(stretch, stretch.x, BLOCK)
        k = per_row(given.k, rows, here, 0.0)
        share = tl.where(hi == INF, tl.log(tl.minimum(k / tl.maximum(tops, 1.0), 1.0)), share)
    out, rise = row_of(out_at, rows, given), alpha_of_entries(theta) - 1.0
    of_all = tl.where(hi < 0.0, 0.0, -INF)[:, None]
    for at in range(stretch.first, stretch.last, BLOCK):
        x, filled = scores(stretch, at, -INF, BLOCK)
        z, _ = _placed(x, hi, theta)
        logs = logarithm(KIND, z, rise) + known[:, None]
        logs = tl.where((tl.abs(hi) == INF)[:, None], of_all, logs)
        logs = tl.where(x == INF, share[:, None], tl.where(x <= DELETED, -INF, logs))
        _put(out, at, logs, filled, BLOCK)


@triton.jit
def _pulled(KIND: tl.constexpr, stretch, g_row, at, hi, theta, BLOCK: tl.constexpr):
    """Return (g·F′/F, log F′, z, whether it counts, which entries there are).

    F′/F comes from the smaller tail, and log F′ from log F: neither underflows.
    """
    x, filled = scores(stretch, at, -INF, BLOCK)
    g, _ = entries(g_row, stretch, at, 0.0, BLOCK)
    z, moves = _placed(x, hi, theta)
    z = tl.minimum(tl.maximum(z, -1e18), 1e18)
    rise = alpha_of_entries(theta) - 1.0
    steep, _ = hazard(KIND, z, rise)
    moved = moves & (steep > 0.0)
    lower = z
    if has_two_tails(KIND):
        lower = -tl.abs(z)
    below, _ = hazard(KIND, lower, rise)
    logs = logarithm(KIND, lower, rise) + tl.log(tl.where(moves & (below > 0.0), below, 1.0))
    logs = tl.where(moves & (below > 0.0), logs, -INF)
    # Weights that are exactly 0 are constant, and may carry any cotangent.
    return tl.where(moved, g * steep, 0.0), logs, z, moves, filled


@triton.jit
def log_gradients(
    given: Given,
    g_at,
    out_at,
    in_rows_at,
    KIND: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write u/T with u = g·F′/F − F′·Σ(gF′/F)/ΣF′, and −Σuz/T for T, as both of (2, count).

    As Σu is 0, any number may be taken off z: it is the mean of z by F′.
    """
    rows, here, stretch, hi, theta, known = _known(given, ROWS)
    g_row, out = row_of(g_at, rows, given), row_of(out_at, rows, given)
    nothing = tl.zeros((ROWS, BLOCK), tl.float32)
    most = nothing - INF
    for at in range(stretch.first, stretch.last, BLOCK):
        _, logs, _, _, _ = _pulled(KIND, stretch, g_row, at, hi, theta, BLOCK)
        most = tl.maximum(most, logs)
    highest = tl.max(most, axis=1)
    highest = tl.where(highest == -INF, 0.0, highest)
    total, size, moment = nothing, nothing, nothing
    for at in range(stretch.first, stretch.last, BLOCK):
        pulled, logs, z, _, _ = _pulled(KIND, stretch, g_row, at, hi, theta, BLOCK)
        raised = tl.exp(logs - highest[:, None])
        total += pulled
        size += raised
        moment += tl.where(raised > 0.0, raised * z, 0.0)
    sizes = tl.sum(size, axis=1)
    per_size = 1.0 / tl.where(sizes == 0.0, 1.0, sizes)
    mean, pivot = tl.sum(total, axis=1) * per_size, tl.sum(moment, axis=1) * per_size
    lever, left = nothing, nothing
    for at in range(stretch.first, stretch.last, BLOCK):
        pulled, logs, _, _, _ = _pulled(KIND, stretch, g_row, at, hi, theta, BLOCK)
        left += pulled - tl.exp(logs - highest[:, None]) * mean[:, None]
    # What rounding has left of Σu would be divided by a small T.
    rest = tl.sum(left, axis=1) * per_size
    for at in range(stretch.first, stretch.last, BLOCK):
        pulled, logs, z, moves, filled = _pulled(KIND, stretch, g_row, at, hi, theta, BLOCK)
        raised = tl.exp(logs - highest[:, None])
        u = ((pulled - raised * mean[:, None]) - raised * rest[:, None]) * theta.per_unit[:, None]
        lever += tl.where(u != 0.0, u * (z - pivot[:, None]), 0.0)
        # A link with an end would hide a NaN.
        _put(out, at, tl.where(moves, u + known[:, None], 0.0), filled, BLOCK)
    in_t = known - tl.sum(lever, axis=1)
    tl.store(in_rows_at + rows, in_t, mask=here)
    tl.store(in_rows_at + given.count + rows, in_t, mask=here)


@triton.jit
def values(given: Given, answer_at, KIND: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Write S_k = kθ + TΣG(z) and its slope in T, Σ(G − zF), (2, count).

    Of G = z + rest, far up, z is taken out of the sum, as in cpu/rows/pass_loops.py.
    """
    rows, here, stretch, hi, theta, known = _known(given, ROWS)
    rest = tl.zeros((ROWS, BLOCK), tl.float32)
    slope, count, tops, total = rest, rest, rest, rest.to(tl.float64)
    every = hi == -INF
    for at in range(stretch.first, stretch.last, BLOCK):
        x, _ = scores(stretch, at, -INF, BLOCK)
        z, moves = _placed(x, hi, theta)
        part, up, change = integral(KIND, z, alpha_of_entries(theta) - 1.0)
        up = (moves & up) | (every[:, None] & (tl.abs(x) < INF) & ~(x <= DELETED))
        rest += tl.where(moves, part, 0.0)
        slope += tl.where(moves, change, 0.0)
        count += tl.where(up | (x == INF), 1.0, 0.0)
        tops += tl.where(x == INF, 1.0, 0.0)
        total += tl.where(up, x, 0.0).to(tl.float64)
    t, k = per_row(given.temperature, rows, here, 1.0), per_row(given.k, rows, here, 0.0)
    end = edge(KIND, theta.alpha) - outside(KIND, theta.alpha)
    center = theta.hi.to(tl.float64) + (theta.lo - t * end).to(tl.float64)
    left = tl.where(tl.abs(hi) == INF, 0.0, k - tl.sum(count, axis=1))
    value = left.to(tl.float64) * center + tl.sum(total, axis=1) + t * tl.sum(rest, axis=1)
    infinite = (tl.sum(tops, axis=1) > 0.0) & (k > 0.0)
    value = tl.where(infinite, INF, value.to(tl.float32))
    tl.store(answer_at + rows, value + known, mask=here)
    tl.store(answer_at + given.count + rows, tl.sum(slope, axis=1) + known, mask=here)


class Compared(NamedTuple):
    """What scores are compared with, and where the answers go."""

    target_at: Any  # a label per row, or flags or weights like the scores
    residual_at: Any  # p − t
    answer_at: Any  # numbers per row: loss and Σ(p − t)z; if RATED the weight in the mean of losses
    by_class_at: Any  # a weight for each entry, if RATED
    ignored: Any  # the label of rows that do not count, if RATED

    # The fourth number, if RATED, is what the cotangent of a loss is multiplied by.


@triton.jit
def _label_of(given, to, rows, here):
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
    rows, here, stretch, hi, theta, known = _known(given, ROWS)
    alpha = alpha_of_entries(theta)
    end = edge(KIND, alpha) - outside(KIND, alpha)
    own, used, wrong = rows, here, rows < 0
    if LABELS:
        own, used, wrong = _label_of(given, to, rows, here)
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
        z, moves = _placed(x, hi, theta)
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
            _put(row_of(to.residual_at, rows, given), at, residual, filled, BLOCK)
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
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = rows < given.count
    stretch = Stretch(row_of(given.x_at, rows, given), here, 0, given.n)
    per_t = 1.0 / per_row(given.temperature, rows, here, 1.0)
    label, used, wrong = _label_of(given, to, rows, here)
    nothing = tl.zeros((ROWS, BLOCK), tl.float32)
    most, tops, bad, own = nothing - INF, nothing, nothing, nothing - INF
    for at in range(stretch.first, stretch.last, BLOCK):
        x, _ = scores(stretch, at, -INF, BLOCK)
        x = tl.where(x <= DELETED, -INF, x)
        most = tl.maximum(most, tl.where(x == INF, -INF, x))
        tops += tl.where(x == INF, 1.0, 0.0)
        bad += tl.where(x != x, 1.0, 0.0)
        own = tl.maximum(own, tl.where(_is_label(at, label, BLOCK), x, -INF))
    highest, at_label = tl.max(most, axis=1), tl.max(own, axis=1)
    highest = tl.where(highest == -INF, 0.0, highest)
    number = tl.sum(tops, axis=1)
    total = nothing
    for at in range(stretch.first, stretch.last, BLOCK):
        x, _ = scores(stretch, at, -INF, BLOCK)
        raised = _raised(x, highest, per_t)
        total += tl.where(_is_label(at, label, BLOCK), 0.0, raised)
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
            residual = tl.where(_is_label(at, label, BLOCK), at_own, share)
            residual = tl.where(moves[:, None], residual, 0.0)
            apart = (x - at_label[:, None]) * per_t[:, None]
            lever += tl.where(residual != 0.0, residual * apart, 0.0)
            playing = ~(x <= DELETED) & ~(x == INF)
            residual = tl.where(playing & is_bad[:, None], float("nan"), residual)
            _put(row_of(to.residual_at, rows, given), at, residual, filled, BLOCK)
    weight = rows * 0.0 + 1.0
    if BY_CLASS:
        weight = tl.load(to.by_class_at + label, mask=here & used, other=1.0).to(tl.float32)
    bars = (number > 0.0) | (at_label == -INF)
    live = (tl.max(most, axis=1) > -INF) | (number + tl.sum(bad, axis=1) > 0.0)
    of_row = tl.where(is_bad, float("nan"), tl.sum(lever, axis=1))
    _keep(given, to, rows, here, loss, of_row, weight, bars, used & live, wrong, RATED)


@triton.jit
def _is_label(at, label, BLOCK: tl.constexpr):
    return (at + tl.arange(0, BLOCK))[None, :] == label[:, None]


@triton.jit
def _raised(x, highest, per_t):
    """e^{(x − the highest)/T} of scores in play."""
    distance_ = (x - highest[:, None]) * per_t[:, None]
    return tl.where((x <= DELETED) | (x == INF), 0.0, tl.exp(tl.minimum(distance_, 0.0)))
