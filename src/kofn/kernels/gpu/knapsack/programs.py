"""Rows with costs, each by one program: weights and θ, the value, and the ways back.

(Tests: tests/kernels/gpu/interpreted/knapsacks.py, test_kernels_gpu.py.)
"""

from __future__ import annotations

import math

import triton
import triton.language as tl

from kofn.kernels.gpu.knapsack.entries import cost_of, distance, numbers_of, place, price
from kofn.kernels.gpu.knapsack.given import Given
from kofn.kernels.gpu.knapsack.search import solve
from kofn.kernels.gpu.rows.answers import integral, put
from kofn.kernels.gpu.rows.formulas import (
    DELETED,
    INF,
    LAPLACE,
    NORMAL,
    by_logs,
    density,
    edge,
    has_two_tails,
    is_balanced_by_logs,
    log_tail,
    outside,
    weight,
)
from kofn.kernels.gpu.rows.loops import entries, scores
from kofn.kernels.gpu.rows.one_program import row_of, rows_here
from kofn.kernels.gpu.rows.search import two_sum
from kofn.kernels.gpu.rows.words import FARTHEST, mills

MOST = tl.constexpr(float((2.0 - 2.0**-23) * 2.0**127))
LARGEST = tl.constexpr(2.0**26)  # θc in units of T, of which two float32 leave an error of 2⁻²²
LOG_2, HALF_LOG_2_PI = tl.constexpr(math.log(2)), tl.constexpr(math.log(2 * math.pi) / 2)
FLAT = tl.constexpr(1e-30)  # a Σc²F′ that has underflowed, or nearly


@triton.jit
def _rows_of(given, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Return (rows, which there are, their stretch, where their costs begin, their numbers)."""
    rows, here, stretch = rows_here(given, ROWS)
    c_row = row_of(given.costs_at, rows, given)
    return rows, here, stretch, c_row, numbers_of(given, rows, here, stretch, c_row, BLOCK)


@triton.jit
def _narrow(x):
    return tl.minimum(tl.maximum(x, -MOST), MOST).to(tl.float32)


@triton.jit
def _top_weight(row):
    """The weight of scores of +inf that cost something: they share the budget if they cost more."""
    share = row.budget / tl.where(row.tops > row.budget, row.tops, 1.0)
    weight = tl.where(row.tops > row.budget, share, 1.0).to(tl.float32)
    return tl.where(row.unknown, float("nan"), weight)


@triton.jit
def forward(
    given: Given,
    out_at,
    answer_at,
    KIND: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    WRITE: tl.constexpr,
):
    """Write θ as two floats, and weights where WRITE, else θ as it is answered."""
    alpha = given.alpha
    rows, here, stretch, c_row, row = _rows_of(given, ROWS, BLOCK)
    hi, lo = solve(KIND, given, stretch, c_row, row, alpha, BLOCK)
    closed = row.none | row.every
    endless = tl.where(row.none, INF, -INF)
    hi, lo = tl.where(closed, 0.0, hi), tl.where(closed, 0.0, lo)
    if WRITE:
        theta = price(KIND, hi, lo, row.t, alpha)
        out_row, top = row_of(out_at, rows, given), _top_weight(row)
        for at in range(0, given.n, BLOCK):
            x, filled = scores(stretch, at, -INF, BLOCK)
            c = cost_of(c_row, stretch, at, x, row.scale, BLOCK)
            z = place(KIND, tl.where(tl.abs(x) < INF, x, 0.0).to(tl.float64), c, theta)
            p = weight(KIND, z, alpha)
            p = tl.where((row.every[:, None] & (c > 0.0)), 1.0, p)
            p = tl.where((row.none[:, None] & (c > 0.0)), 0.0, p)
            p = tl.where(row.bad[:, None], float("nan"), p)
            shared = (c > 0.0) | row.unknown[:, None]
            p = tl.where(x == INF, tl.where(shared, top[:, None], 1.0), p)
            put(out_row, at, tl.where(x <= DELETED, 0.0, p), filled, BLOCK)
    hi, lo = hi * row.scale, lo * row.scale
    first = _narrow(hi)
    rest = _narrow((hi - first.to(tl.float64)) + lo)
    first = tl.where(row.bad, float("nan"), tl.where(closed, endless, first))
    rest = tl.where(row.bad | closed, 0.0, rest)
    tl.store(given.theta_at + rows, first, mask=here)
    tl.store(given.theta_at + given.count + rows, rest, mask=here)
    if not WRITE:
        tl.store(answer_at + rows, tl.where(row.playing, first, float("nan")), mask=here)


@triton.jit
def _known(KIND: tl.constexpr, given, rows, here, stretch, c_row, row, alpha, BLOCK: tl.constexpr):
    """Return θ as two numbers, 0 where it is endless: found again where two float32 do not tell."""
    hi = tl.load(given.theta_at + rows, mask=here, other=0.0).to(tl.float64)
    lo = tl.load(given.theta_at + given.count + rows, mask=here, other=0.0).to(tl.float64)
    usual = (tl.abs(hi) < INF) & ~row.bad
    hi, lo = tl.where(usual, hi, 0.0) / row.scale, tl.where(usual, lo, 0.0) / row.scale
    hi, lo = two_sum(hi, lo)
    far = usual & (tl.abs(hi) > row.t * LARGEST)
    if tl.max(far.to(tl.int32)) > 0:
        again, rest = solve(KIND, given, stretch, c_row, row, alpha, BLOCK)
        hi, lo = tl.where(far, again, hi), tl.where(far, rest, lo)
    return hi, lo


@triton.jit
def values(given: Given, out_at, KIND: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Write S = θB + TΣG(z) and its slope in T, Σ(G − zF), (2, count), without differences of
    large numbers. What costs nothing has a choice in all rows.
    """
    alpha = given.alpha
    rows, here, stretch, c_row, row = _rows_of(given, ROWS, BLOCK)
    hi, lo = _known(KIND, given, rows, here, stretch, c_row, row, alpha, BLOCK)
    closed, theta = row.none | row.every, price(KIND, hi, lo, row.t, alpha)
    nothing = tl.zeros((ROWS, BLOCK), tl.float64)
    rest, slope, chosen, coarse, infinite = nothing, nothing, nothing, nothing, nothing
    top = _top_weight(row)
    for at in range(0, given.n, BLOCK):
        x, _ = scores(stretch, at, -INF, BLOCK)
        c = cost_of(c_row, stretch, at, x, row.scale, BLOCK)
        plays = ~(x <= DELETED) & (tl.abs(x) < INF)
        wide = tl.where(plays, x, 0.0).to(tl.float64)
        settled = closed[:, None] & (c > 0.0)
        z = distance(wide, c, theta) * theta.per_t[:, None]
        z -= edge(KIND, alpha.to(tl.float64)) - outside(KIND, alpha.to(tl.float64))
        narrow = tl.minimum(tl.maximum(z, -FARTHEST), FARTHEST).to(tl.float32)
        part, up, change = integral(KIND, narrow, alpha - 1.0)
        inside = plays & ~settled
        rest += tl.where(inside, part.to(tl.float64), 0.0)
        slope += tl.where(inside, change.to(tl.float64), 0.0)
        bought = (inside & up) | (plays & settled & row.every[:, None])
        chosen += tl.where(bought, wide, 0.0)
        coarse += tl.where(bought & inside, c, 0.0)
        infinite += tl.where((x == INF) & ((c == 0.0) | (top[:, None] > 0.0)), 1.0, 0.0)
    left = (row.coarse + row.fine) - tl.sum(coarse, axis=1)
    value = tl.sum(chosen, axis=1) + row.t * tl.sum(rest, axis=1)
    value += tl.where(closed, 0.0, left * (hi + lo))
    value = tl.where(row.bad, float("nan"), tl.where(row.playing, value, 0.0)).to(tl.float32)
    value = tl.where((tl.sum(infinite, axis=1) > 0.0), value + INF, value)
    change = tl.where(row.bad, float("nan"), tl.where(row.playing, tl.sum(slope, axis=1), 0.0))
    tl.store(out_at + rows, value, mask=here)
    tl.store(out_at + given.count + rows, change.to(tl.float32), mask=here)


@triton.jit
def _entry(KIND: tl.constexpr, stretch, c_row, at, row, theta, alpha, BLOCK: tl.constexpr):
    """Return (scores, costs, which entries move, F′, y, which entries there are)."""
    x, filled = scores(stretch, at, -INF, BLOCK)
    c = cost_of(c_row, stretch, at, x, row.scale, BLOCK)
    settled = (row.none | row.every)[:, None] & (c > 0.0)
    moves = ~(x <= DELETED) & (x != INF) & ~settled
    x = tl.where(tl.abs(x) < INF, x, 0.0).to(tl.float64)
    y = place(KIND, x, c, theta)
    w = density(KIND, y, alpha)
    w = tl.where(moves & (tl.abs(y) < 1e18), w, 0.0).to(tl.float64)
    return x, c, moves, w, y, filled


@triton.jit
def _of_costs(stretch, c_row, at, row, in_costs, of_top, over, BLOCK: tl.constexpr):
    """Return the cotangents of costs; the costs of scores of +inf come off the budget."""
    x, _ = scores(stretch, at, -INF, BLOCK)
    c, _ = entries(c_row, stretch, at, 0.0, BLOCK)
    is_top = (x == INF) & ((c > 0.0) | ~over[:, None])
    return tl.where((c >= 0.0) & (c < INF), tl.where(is_top, of_top[:, None], in_costs), 0.0)


@triton.jit
def _logs(KIND: tl.constexpr, x, c, theta, alpha):
    """log F′ of entries so far off that F′ underflows."""
    z = distance(x, c, theta) * theta.per_t[:, None]
    if is_balanced_by_logs(KIND):
        narrow = tl.minimum(tl.maximum(z, -FARTHEST), FARTHEST).to(tl.float32)
        _, _, logs = by_logs(KIND, narrow, alpha)
        log_slope = logs.to(tl.float64)
    elif KIND == NORMAL:
        log_slope = z * z * -0.5 - HALF_LOG_2_PI
    else:
        log_slope = -tl.abs(z) - (LOG_2 if KIND == LAPLACE else 0.0)
    return log_slope


@triton.jit
def backward(
    given: Given,
    g_at,
    out_at,
    in_costs_at,
    in_rows_at,
    KIND: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    OF_COSTS: tl.constexpr,
    OF_PRICE: tl.constexpr,
):
    """Write the cotangents of scores, u/T with u = F′(g − ḡc), ḡ = ΣcF′g/Σc²F′, where OF_COSTS of
    costs, −θu/T − ḡF, and of budget and T, (2, count).

    OF_PRICE they are those from one of θ: g/Σc²F′ times cF′, TF − θcF′, −T and −ΣcF′(x − θc)/T.
    """
    alpha = given.alpha
    rows, here, stretch, c_row, row = _rows_of(given, ROWS, BLOCK)
    hi, lo = _known(KIND, given, rows, here, stretch, c_row, row, alpha, BLOCK)
    theta, full, per_t = price(KIND, hi, lo, row.t, alpha), (hi + lo) * row.scale, 1.0 / row.t
    nothing = tl.zeros((ROWS, BLOCK), tl.float64)
    g_row = row_of(g_at, rows, given)
    steep, product, moment, of_tops = nothing, nothing, nothing, nothing
    for at in range(0, given.n, BLOCK):
        x, c, moves, w, y, _ = _entry(KIND, stretch, c_row, at, row, theta, alpha, BLOCK)
        steep += c * c * w
        moment += c * w * distance(x, c, theta)
        if not OF_PRICE:
            g, _ = entries(g_row, stretch, at, 0.0, BLOCK)
            product += tl.where((w > 0.0) & (c > 0.0), c * w * g, 0.0)
            score, _ = scores(stretch, at, -INF, BLOCK)
            of_tops += tl.where((score == INF) & (c > 0.0), g, 0.0)
    size = tl.sum(steep, axis=1)
    some = size > FLAT
    # Scaled by the greatest, where all F′ underflow.
    log_most = size * 0.0
    if has_two_tails(KIND):
        faint = ~(some | row.none | row.every | row.bad | ~row.playing)
        if tl.max(faint.to(tl.int32)) > 0:
            most = nothing - INF
            for at in range(0, given.n, BLOCK):
                x, c, moves, _, _, _ = _entry(KIND, stretch, c_row, at, row, theta, alpha, BLOCK)
                logs = _logs(KIND, x, c, theta, alpha)
                most = tl.maximum(most, tl.where(moves & (c > 0.0), logs, -INF))
            highest = tl.max(most, axis=1)
            highest = tl.where(tl.abs(highest) < INF, highest, 0.0)
            other_steep, other_product, other_moment = nothing, nothing, nothing
            for at in range(0, given.n, BLOCK):
                x, c, moves, _, _, _ = _entry(KIND, stretch, c_row, at, row, theta, alpha, BLOCK)
                logs = tl.minimum(_logs(KIND, x, c, theta, alpha) - highest[:, None], 0.0)
                w = tl.where(moves & (c > 0.0), tl.exp(logs), 0.0)
                other_steep += c * c * w
                other_moment += c * w * distance(x, c, theta)
                if not OF_PRICE:
                    g, _ = entries(g_row, stretch, at, 0.0, BLOCK)
                    other_product += tl.where(w > 0.0, c * w * g, 0.0)
            size = tl.where(faint, tl.sum(other_steep, axis=1), size)
            product = tl.where(faint[:, None], other_product, product)
            moment = tl.where(faint[:, None], other_moment, moment)
            log_most = tl.where(faint, highest, 0.0)
    per_size = tl.where(size > 0.0, 1.0 / tl.where(size > 0.0, size, 1.0), 0.0)
    known = tl.where(row.bad, float("nan"), 0.0).to(tl.float64)
    out_row, in_costs_row = row_of(out_at, rows, given), row_of(in_costs_at, rows, given)
    over = (row.tops > row.budget) & ~row.unknown
    if OF_PRICE:
        cotangent = tl.load(g_at + rows, mask=here, other=0.0).to(tl.float64)
        open_ = ~(row.none | row.every | row.bad)
        each = tl.where(open_, cotangent * per_size, 0.0) + known
        # Where F′ underflows in float64, too, the budget does not move θ.
        whole = tl.where(log_most > -700.0, each * tl.exp(-log_most), known)
        in_budget = -row.t * whole * row.scale * row.scale
        for at in range(0, given.n, BLOCK):
            x, c, moves, w, y, filled = _entry(KIND, stretch, c_row, at, row, theta, alpha, BLOCK)
            if has_two_tails(KIND):
                logs = tl.minimum(_logs(KIND, x, c, theta, alpha) - log_most[:, None], 0.0)
                w = tl.where((log_most != 0.0)[:, None] & moves, tl.exp(logs), w)
            in_x = tl.where(moves, c * w * (each * row.scale)[:, None] + known[:, None], 0.0)
            put(out_row, at, in_x.to(tl.float32), filled, BLOCK)
            if OF_COSTS:
                p = weight(KIND, y, alpha).to(tl.float64)
                of_all = p * whole[:, None]
                if has_two_tails(KIND):
                    z = distance(x, c, theta) * theta.per_t[:, None]
                    z = tl.minimum(tl.maximum(z, -FARTHEST), FARTHEST).to(tl.float32)
                    if KIND == NORMAL:
                        log_p = z * z * -0.5 + tl.log(mills(tl.abs(z)))
                    else:
                        log_p, _ = log_tail(KIND, False, z)
                    logs = tl.minimum(log_p.to(tl.float64) - log_most[:, None], 700.0)
                    below = ((log_most != 0.0) & (log_most > -700.0))[:, None] & (z < 0.0)
                    of_all = tl.where(below, tl.exp(logs) * each[:, None], of_all)
                of_all *= (row.t * row.scale * row.scale)[:, None]
                in_c = tl.where(moves, of_all - full[:, None] * in_x, 0.0)
                of_top = tl.where(over, 0.0, -in_budget)
                in_c = _of_costs(stretch, c_row, at, row, in_c, of_top, over, BLOCK)
                put(in_costs_row, at, in_c.to(tl.float32), filled, BLOCK)
        in_t = -tl.sum(moment, axis=1) * per_t * each * row.scale
    else:
        mean = tl.sum(product, axis=1) * per_size
        middle, left, lever = tl.sum(moment, axis=1) * per_size, nothing, nothing
        for at in range(0, given.n, BLOCK):
            x, c, moves, w, y, _ = _entry(KIND, stretch, c_row, at, row, theta, alpha, BLOCK)
            g, _ = entries(g_row, stretch, at, 0.0, BLOCK)
            u = tl.where(w > 0.0, w * (g - mean[:, None] * c), 0.0)
            left += c * u
            # As Σcu = 0, any number may stand for θ: that with which c(x − θc) has the mean 0.
            lever += tl.where(u != 0.0, u * (distance(x, c, theta) - middle[:, None] * c), 0.0)
        rest = tl.where(some, tl.sum(left, axis=1) * per_size, 0.0)
        of_cost = (mean + rest) * row.scale
        shared = tl.sum(of_tops, axis=1) * row.scale / tl.where(over, row.tops, 1.0)
        for at in range(0, given.n, BLOCK):
            x, c, moves, w, y, filled = _entry(KIND, stretch, c_row, at, row, theta, alpha, BLOCK)
            g, _ = entries(g_row, stretch, at, 0.0, BLOCK)
            u = w * ((g - mean[:, None] * c) - rest[:, None] * c) * per_t[:, None]
            u = tl.where(moves, tl.where(w > 0.0, u, 0.0) + known[:, None], 0.0)
            put(out_row, at, u.to(tl.float32), filled, BLOCK)
            if OF_COSTS:
                p = weight(KIND, y, alpha).to(tl.float64)
                in_c = tl.where(moves, -full[:, None] * u - p * of_cost[:, None], 0.0)
                of_share = -shared * row.budget / tl.where(over, row.tops, 1.0)
                of_top = tl.where(over, tl.where(row.tops > 0.0, of_share, 0.0), -of_cost)
                in_c = _of_costs(stretch, c_row, at, row, in_c, of_top, over, BLOCK)
                put(in_costs_row, at, in_c.to(tl.float32), filled, BLOCK)
        in_budget = tl.where(over, shared, of_cost) + known
        in_t = -tl.sum(lever, axis=1) * per_t * per_t + known
    in_budget = tl.where(row.unpriced, 0.0, in_budget)
    tl.store(in_rows_at + rows, in_budget.to(tl.float32), mask=here)
    tl.store(in_rows_at + given.count + rows, in_t.to(tl.float32), mask=here)


@triton.jit
def values_back(
    given: Given,
    g_at,
    p_at,
    slope_at,
    out_at,
    in_costs_at,
    in_rows_at,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write the cotangents from one of the value: p, −θp, and θ and the slope, (2, count).

    Where θ is endless, neither the budget nor costs move the value.
    """
    rows, here, stretch = rows_here(given, ROWS)
    p_row, c_row = row_of(p_at, rows, given), row_of(given.costs_at, rows, given)
    theta = tl.load(given.theta_at + rows, mask=here, other=0.0)
    theta = tl.where(tl.abs(theta) == INF, 0.0, theta)
    g, unpriced = tl.load(g_at + rows, mask=here, other=0.0), tl.zeros((ROWS, BLOCK), tl.float32)
    for at in range(0, given.n, BLOCK):
        x, filled = scores(stretch, at, -INF, BLOCK)
        p, _ = entries(p_row, stretch, at, 0.0, BLOCK)
        c, _ = entries(c_row, stretch, at, 0.0, BLOCK)
        is_cost, in_x = (c >= 0.0) & (c < INF), g[:, None] * p
        in_costs = tl.where((p != 0.0) & is_cost, -theta[:, None] * in_x, 0.0)
        put(row_of(out_at, rows, given), at, tl.where(x == INF, 0.0, in_x), filled, BLOCK)
        put(row_of(in_costs_at, rows, given), at, in_costs, filled, BLOCK)
        unpriced += tl.where(~(x <= DELETED) & ~is_cost, 1.0, 0.0)
    in_budget = tl.where(tl.sum(unpriced, axis=1) > 0.0, 0.0, g * theta)
    tl.store(in_rows_at + rows, in_budget, mask=here)
    slope = tl.load(slope_at + rows, mask=here, other=0.0)
    tl.store(in_rows_at + given.count + rows, g * slope, mask=here)
