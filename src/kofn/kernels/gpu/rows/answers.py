"""Answers of rows whose θ is known, each by one launch: S_k, and logarithms and their way back.

Here z counts in temperatures from θ as it is answered, without the units of `distance` elsewhere.
Scores out of play, of +inf, and all of a row without a finite θ have no part in sums of z.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kofn.kernels.gpu.rows import far
from kofn.kernels.gpu.rows.formulas import (
    DELETED,
    EPS,
    INF,
    LINEAR,
    NORMAL,
    POWER,
    TINY,
    by_logs,
    density,
    distance,
    edge,
    has_two_tails,
    is_balanced_by_logs,
    outside,
    unit,
)
from kofn.kernels.gpu.rows.loops import Stretch, Theta, alpha_of_entries, entries, scores
from kofn.kernels.gpu.rows.one_program import Given, alpha_of, load_theta, per_row, row_of
from kofn.kernels.gpu.rows.words import by_kind

NAMED = dict(z="z", rise="rise")
integral = by_kind("integral", "z, rise", **NAMED)
logarithm = by_kind("logarithm", "z, rise", **NAMED)
hazard = by_kind("hazard", "z, rise", **NAMED)
"""(F′/F, F′) where F > 0; zeros elsewhere."""


@triton.jit
def known_rows(given, ROWS: tl.constexpr):
    """Return (rows, which of them there are, their stretch, θ as it was answered, and as passes
    take it, with 0 for an endless one, 0 or NaN like θ).
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = rows < given.count
    hi = tl.load(given.theta_at + rows, mask=here, other=0.0)
    lo = tl.load(given.theta_at + given.count + rows, mask=here, other=0.0)
    endless = tl.abs(hi) == INF
    per_t = 1.0 / per_row(given.temperature, rows, here, 1.0)
    finite = tl.where(endless, 0.0, hi)
    theta = Theta(finite, tl.where(endless, 0.0, lo), per_t, alpha_of(given, rows, here))
    stretch = Stretch(row_of(given.x_at, rows, given), here, 0, given.n)
    return rows, here, stretch, hi, theta, finite * 0.0


@triton.jit
def placed(x, hi, theta):
    """Return (z, whether it counts)."""
    moves = ~((tl.abs(x) == INF) | (x <= DELETED) | (tl.abs(hi) == INF)[:, None])
    return tl.where(moves, distance(x, theta), 0.0), moves


@triton.jit
def put(row, at, values, filled, BLOCK: tl.constexpr):
    tl.store(row[:, None] + (at + tl.arange(0, BLOCK))[None, :], values, mask=filled)


@triton.jit
def logarithms(given: Given, out_at, KIND: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Write log p: 0 or −∞ where θ is endless, a share of k at +inf."""
    rows, here, stretch, hi, theta, known = known_rows(given, ROWS)
    share = known
    if tl.max((hi == INF).to(tl.int32)) > 0:
        tops, _ = far.top_sums(stretch, stretch.x, BLOCK)
        k = per_row(given.k, rows, here, 0.0)
        share = tl.where(hi == INF, tl.log(tl.minimum(k / tl.maximum(tops, 1.0), 1.0)), share)
    out, rise = row_of(out_at, rows, given), alpha_of_entries(theta) - 1.0
    of_all = tl.where(hi < 0.0, 0.0, -INF)[:, None]
    for at in range(stretch.first, stretch.last, BLOCK):
        x, filled = scores(stretch, at, -INF, BLOCK)
        z, _ = placed(x, hi, theta)
        if is_balanced_by_logs(KIND):
            logs, _, _ = by_logs(KIND, z, rise + 1.0)
        else:
            logs = logarithm(KIND, z, rise)
        logs += known[:, None]
        logs = tl.where((tl.abs(hi) == INF)[:, None], of_all, logs)
        logs = tl.where(x == INF, share[:, None], tl.where(x <= DELETED, -INF, logs))
        put(out, at, logs, filled, BLOCK)


@triton.jit
def _pulled(KIND: tl.constexpr, stretch, g_row, at, hi, theta, BLOCK: tl.constexpr):
    """Return (g·F′/F, log F′, z, whether it counts, which entries there are).

    F′/F comes from the smaller tail, and log F′ from log F: neither underflows.
    """
    x, filled = scores(stretch, at, -INF, BLOCK)
    g, _ = entries(g_row, stretch, at, 0.0, BLOCK)
    z, moves = placed(x, hi, theta)
    z = tl.minimum(tl.maximum(z, -1e18), 1e18)
    rise = alpha_of_entries(theta) - 1.0
    if is_balanced_by_logs(KIND):
        _, steep, logs = by_logs(KIND, z, rise + 1.0)
        below = steep
    else:
        steep, _ = hazard(KIND, z, rise)
        lower = z
        if has_two_tails(KIND):
            lower = -tl.abs(z)
        below, _ = hazard(KIND, lower, rise)
        logs = logarithm(KIND, lower, rise) + tl.log(tl.where(moves & (below > 0.0), below, 1.0))
    logs = tl.where(moves & (below > 0.0), logs, -INF)
    # Weights that are exactly 0 are constant, and may carry any cotangent.
    moved = moves & (steep > 0.0)
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
    rows, here, stretch, hi, theta, known = known_rows(given, ROWS)
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
        put(out, at, tl.where(moves, u + known[:, None], 0.0), filled, BLOCK)
    in_t = known - tl.sum(lever, axis=1)
    tl.store(in_rows_at + rows, in_t, mask=here)
    tl.store(in_rows_at + given.count + rows, in_t, mask=here)


@triton.jit
def values(given: Given, answer_at, KIND: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Write S_k = kθ + TΣG(z), its slope in T, Σ(G − zF), and that in k, θ or 0, (3, count).

    Of G = z + rest, far up, z is taken out of the sum, as in cpu/rows/pass_loops.py.
    """
    rows, here, stretch, hi, theta, known = known_rows(given, ROWS)
    rest = tl.zeros((ROWS, BLOCK), tl.float32)
    slope, count, tops, total = rest, rest, rest, rest.to(tl.float64)
    every = hi == -INF
    for at in range(stretch.first, stretch.last, BLOCK):
        x, _ = scores(stretch, at, -INF, BLOCK)
        z, moves = placed(x, hi, theta)
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
    in_k = tl.where(tl.abs(hi) == INF, 0.0, center.to(tl.float32)) + known
    tl.store(answer_at + 2 * given.count + rows, in_k, mask=here)


@triton.jit
def _of_ends(KIND: tl.constexpr, y, alpha):
    """Return F′, 0 where a score is at an end of the support but for rounding, if F′ jumps there:
    else the rounding of θ decided which scores move it.
    """
    if KIND == LINEAR:
        y += (y + edge(KIND, alpha)) * (32.0 * EPS)
    if KIND == POWER:
        y += tl.where(alpha == 2.0, (y + edge(KIND, alpha)) * (32.0 * EPS), 0.0)
    return density(KIND, y, alpha)


@triton.jit
def _far_logs(KIND: tl.constexpr, x, hi, lo, t, alpha):
    """Return (log F′ less a number, z) of scores so far off that F′ underflows, in float64."""
    z = ((x.to(tl.float64) - hi[:, None]) - lo[:, None]) / t[:, None]
    if is_balanced_by_logs(KIND):
        _, _, logs = by_logs(KIND, z.to(tl.float32), alpha)
        logs = logs.to(tl.float64)
    elif KIND == NORMAL:
        logs = z * z * -0.5
    else:
        logs = -tl.abs(z)
    return logs, z


@triton.jit
def threshold_gradients(
    given: Given,
    cotangent_at,
    out_at,
    in_rows_at,
    KIND: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write the cotangents from one of θ: F′/ΣF′, −T/ΣF′ for k and −ΣF′z/ΣF′ for T, as (2, count).

    Where F′ underflows k does not move θ, and log F′ says the shares; without a slope θ is an end
    of a plateau, which moves with T alone.
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = rows < given.count
    t, answered, solved, theta = load_theta(KIND, given, rows, here)
    alpha, out = alpha_of_entries(theta), row_of(out_at, rows, given)
    stretch = Stretch(row_of(given.x_at, rows, given), here, 0, given.n)
    cotangent = tl.load(cotangent_at + rows, mask=here, other=0.0).to(tl.float32)
    known = tl.where(solved, answered, 0.0) * 0.0 + tl.where(answered != answered, answered, 0.0)
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    lever = total
    for at in range(stretch.first, stretch.last, BLOCK):
        x, _ = scores(stretch, at, -INF, BLOCK)
        moves = solved[:, None] & ~((tl.abs(x) == INF) | (x <= DELETED))
        y = distance(x, theta)
        w = tl.where(moves, _of_ends(KIND, y, alpha), 0.0)
        total += w
        z = y / unit(KIND, 1.0) + edge(KIND, alpha)
        lever += tl.where(w > 0.0, w * z, 0.0)
    size = tl.sum(total, axis=1)
    some = size >= TINY / EPS
    each = cotangent / tl.where(some, size, 1.0) + known
    for at in range(stretch.first, stretch.last, BLOCK):
        x, filled = scores(stretch, at, -INF, BLOCK)
        counts = ~((tl.abs(x) == INF) | (x <= DELETED)) & (some | (known != known))[:, None]
        w = _of_ends(KIND, distance(x, theta), alpha)
        put(out, at, tl.where(counts & (tl.abs(answered) != INF)[:, None], w * each[:, None], 0.0),
            filled, BLOCK)  # fmt: skip
    end = edge(KIND, theta.alpha) - outside(KIND, theta.alpha)
    in_k = tl.where(some, -t * each, known)
    in_t = tl.where(some, -tl.sum(lever, axis=1) * each, -cotangent * end) + known
    in_t = tl.where(tl.abs(answered) == INF, 0.0, in_t)
    if has_two_tails(KIND):
        faint = solved & ~some
        if tl.max(faint.to(tl.int32)) > 0:
            hi = tl.where(solved, answered, 0.0).to(tl.float64)
            rest = tl.load(given.theta_at + given.count + rows, mask=here, other=0.0)
            lo, wide = rest.to(tl.float64), t.to(tl.float64)
            most = tl.zeros((ROWS, BLOCK), tl.float64) - INF
            for at in range(stretch.first, stretch.last, BLOCK):
                x, _ = scores(stretch, at, -INF, BLOCK)
                moves = faint[:, None] & ~((tl.abs(x) == INF) | (x <= DELETED))
                logs, _ = _far_logs(KIND, tl.where(moves, x, 0.0), hi, lo, wide, alpha)
                most = tl.maximum(most, tl.where(moves, logs, -INF))
            highest = tl.max(most, axis=1)
            highest = tl.where(highest == -INF, 0.0, highest)
            raised, moment = tl.zeros_like(most), tl.zeros_like(most)
            for at in range(stretch.first, stretch.last, BLOCK):
                x, _ = scores(stretch, at, -INF, BLOCK)
                moves = faint[:, None] & ~((tl.abs(x) == INF) | (x <= DELETED))
                logs, z = _far_logs(KIND, tl.where(moves, x, 0.0), hi, lo, wide, alpha)
                e = tl.where(moves, tl.exp(logs - highest[:, None]), 0.0)
                raised += e
                moment += tl.where(e > 0.0, e * z, 0.0)
            whole = tl.sum(raised, axis=1)
            part = cotangent / tl.where(whole > 0.0, whole, 1.0)
            for at in range(stretch.first, stretch.last, BLOCK):
                x, filled = scores(stretch, at, -INF, BLOCK)
                moves = faint[:, None] & ~((tl.abs(x) == INF) | (x <= DELETED))
                logs, _ = _far_logs(KIND, tl.where(moves, x, 0.0), hi, lo, wide, alpha)
                e = tl.where(moves, tl.exp(logs - highest[:, None]), 0.0) * part[:, None]
                put(out, at, e.to(tl.float32), filled & faint[:, None], BLOCK)
            mean = (tl.sum(moment, axis=1) * part).to(tl.float32)
            in_t = tl.where(faint, -mean - cotangent * end, in_t)
    tl.store(in_rows_at + rows, in_k, mask=here)
    tl.store(in_rows_at + given.count + rows, in_t, mask=here)
