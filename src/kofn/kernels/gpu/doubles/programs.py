"""Rows of float64 on a GPU, some of them by one program: θ, and weights and their slopes.

(Tests: tests/kernels/gpu/interpreted/doubles.py, test_kernels_gpu.py.)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from kofn.kernels.gpu.doubles.search import (
    EPS,
    LEAST,
    Rows,
    counted,
    log_slope,
    place,
    scores,
    solve,
)
from kofn.kernels.gpu.doubles.words import density, tail
from kofn.kernels.gpu.rows.answers import put
from kofn.kernels.gpu.rows.formulas import INF, has_two_tails, is_bounded
from kofn.kernels.gpu.rows.one_program import row_of


class Given(NamedTuple):
    """Where the rows and their numbers are, and α."""

    x_at: Any  # scores, (count, n)
    price_at: Any  # what comes off the scores, (count / per_price, n)
    k_at: Any  # (count,)
    t_at: Any  # (count / per_t,)
    theta_at: Any  # the answer as two numbers, (2, count)
    count: Any
    n: Any
    per_price: Any  # rows that have the same prices
    per_t: Any
    alpha: Any  # its bits: Triton takes a number for float32


@triton.jit
def _rows_of(given, ROWS: tl.constexpr, PRICED: tl.constexpr, BLOCK: tl.constexpr):
    """Return (the rows of this program, which of them there are, their numbers)."""
    each = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = each < given.count
    k = tl.load(given.k_at + each, mask=here, other=0.0)
    t = tl.load(given.t_at + each // given.per_t, mask=here, other=1.0)
    alpha = tl.max(tl.zeros_like(each).to(tl.int64) + given.alpha, axis=0)
    price = row_of(given.price_at, each // given.per_price, given)
    numbers = given.n, k, t, alpha.to(tl.float64, bitcast=True)
    rows = Rows(row_of(given.x_at, each, given), here, price, *numbers, k, k, k, k, here)
    return each, here, counted(rows, PRICED, BLOCK)


@triton.jit
def forward(
    given: Given,
    out_at,
    slope_at,
    KIND: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    PRICED: tl.constexpr,
    WRITE: tl.constexpr,
):
    """Write θ of each row, and where WRITE its weights, and F′ of each entry if PRICED."""
    each, here, rows = _rows_of(given, ROWS, PRICED, BLOCK)
    none = (rows.k <= rows.top) | (rows.live + rows.top == 0.0)
    every = ~none & (rows.k >= rows.live + rows.top)
    closed = none | every | rows.bad
    hi, lo = solve(KIND, rows, closed, PRICED, BLOCK)
    hi = tl.where(closed, tl.where(none, INF, -INF), hi)
    hi, lo = tl.where(rows.bad, float("nan"), hi), tl.where(closed, 0.0, lo)
    tl.store(given.theta_at + each, hi, mask=here)
    tl.store(given.theta_at + given.count + each, lo, mask=here)
    if WRITE:
        share = tl.where(rows.top > 0.0, rows.k / tl.maximum(rows.top, 1.0), 0.0)
        share = tl.where(none, tl.maximum(share, 0.0), 1.0)
        hi = tl.where(closed, 0.0, hi)
        for at in range(0, given.n, BLOCK):
            x, filled = scores(rows, at, PRICED, BLOCK)
            live = tl.abs(x) < INF
            y = place(KIND, tl.where(live, x, 0.0), hi, lo, rows.t, rows.alpha)
            small, upper, slope, _ = tail(KIND, y, rows.alpha)
            p = tl.where(upper, 1.0 - small, small)
            p = tl.where(closed[:, None], tl.where(none[:, None], 0.0, 1.0), p)
            p = tl.where(x == INF, share[:, None], p)
            p = tl.where(rows.bad[:, None], float("nan"), p)
            put(row_of(out_at, each, given), at, tl.where(x == -INF, 0.0, p), filled, BLOCK)
            if PRICED:
                slope = tl.where(closed[:, None] | ~live, 0.0, slope)
                put(row_of(slope_at, each, given), at, slope, filled, BLOCK)


@triton.jit
def _entry(KIND: tl.constexpr, rows, g_row, at, hi, lo, open_, most, BLOCK: tl.constexpr):
    """Return (scores, their cotangents, F′ less `most` of its logarithm, which there are)."""
    x, filled = scores(rows, at, False, BLOCK)
    g = tl.load(g_row[:, None] + (at + tl.arange(0, BLOCK))[None, :], mask=filled, other=0.0)
    live = (tl.abs(x) < INF) & open_[:, None]
    x = tl.where(live, x, 0.0)
    y = place(KIND, x, hi, lo, rows.t, rows.alpha)
    if is_bounded(KIND):
        w = density(KIND, y, rows.alpha)
    else:
        _, _, w, _ = tail(KIND, y, rows.alpha)
    if has_two_tails(KIND):
        raised = tl.exp(tl.minimum(log_slope(KIND, y) - most[:, None], 0.0))
        w = tl.where(most[:, None] < 0.0, raised, w)
    return x, g, tl.where(live, w, 0.0), filled


@triton.jit
def backward(
    given: Given,
    g_at,
    out_at,
    in_rows_at,
    KIND: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write the cotangents of scores, F′(g − ḡ)/T with ḡ = ΣF′g/ΣF′, and of k and T, (2, count)."""
    each, here, rows = _rows_of(given, ROWS, False, BLOCK)
    answered = tl.load(given.theta_at + each, mask=here, other=INF)
    lo = tl.load(given.theta_at + given.count + each, mask=here, other=0.0)
    open_ = tl.abs(answered) < INF
    hi, g_row = tl.where(open_, answered, 0.0), row_of(g_at, each, given)
    nothing, most = tl.zeros((ROWS, BLOCK), tl.float64), hi * 0.0
    total, product, moment, of_top = nothing, nothing, nothing, nothing
    for at in range(0, given.n, BLOCK):
        x, g, w, _ = _entry(KIND, rows, g_row, at, hi, lo, open_, most, BLOCK)
        total += w
        product += tl.where(w > 0.0, w * g, 0.0)
        moment += w * (x - hi[:, None])
        score, _ = scores(rows, at, False, BLOCK)
        of_top += tl.where(score == INF, g, 0.0)
    size, mean, middle = tl.sum(total, axis=1), tl.sum(product, axis=1), tl.sum(moment, axis=1)
    some = open_ & (size >= LEAST / EPS)
    if has_two_tails(KIND):
        # Where all F′ underflow, in parts of the greatest: these tell what k moves.
        faint = open_ & ~some
        if tl.max(faint.to(tl.int32)) > 0:
            greatest = nothing - INF
            for at in range(0, given.n, BLOCK):
                x, _ = scores(rows, at, False, BLOCK)
                live = tl.abs(x) < INF
                y = place(KIND, tl.where(live, x, 0.0), hi, lo, rows.t, rows.alpha)
                greatest = tl.maximum(greatest, tl.where(live, log_slope(KIND, y), -INF))
            most = tl.where(faint, tl.minimum(tl.max(greatest, axis=1), -1.0), 0.0)
            other_total, other = nothing, nothing
            for at in range(0, given.n, BLOCK):
                x, g, w, _ = _entry(KIND, rows, g_row, at, hi, lo, faint, most, BLOCK)
                other_total += w
                other += tl.where(w > 0.0, w * g, 0.0)
            size = tl.where(faint, tl.sum(other_total, axis=1), size)
            mean = tl.where(faint, tl.sum(other, axis=1), mean)
    known = size > 0.0
    per_size = tl.where(known, 1.0 / tl.where(known, size, 1.0), 0.0)
    mean, middle = mean * per_size, hi + middle * per_size
    left, lever = nothing, nothing
    for at in range(0, given.n, BLOCK):
        x, g, w, _ = _entry(KIND, rows, g_row, at, hi, lo, some, hi * 0.0, BLOCK)
        u = tl.where(w > 0.0, w * (g - mean[:, None]), 0.0)
        left += u
        # As Σu = 0, any number may stand for θ: that at which F′ has its mean.
        lever += tl.where(w > 0.0, u * ((x - middle[:, None]) / rows.t[:, None]), 0.0)
    rest = tl.where(some, tl.sum(left, axis=1) * per_size, 0.0)
    lost = tl.where(rows.bad, float("nan"), 0.0).to(tl.float64)
    for at in range(0, given.n, BLOCK):
        _, g, w, filled = _entry(KIND, rows, g_row, at, hi, lo, some, hi * 0.0, BLOCK)
        u = w * ((g - mean[:, None]) - rest[:, None]) / rows.t[:, None]
        x, _ = scores(rows, at, False, BLOCK)
        u = tl.where(w > 0.0, u, 0.0) + tl.where(tl.abs(x) == INF, 0.0, lost[:, None])
        put(row_of(out_at, each, given), at, u, filled, BLOCK)
    shared = (rows.top > 0.0) & (rows.k <= rows.top)
    of_tops = tl.sum(of_top, axis=1) / tl.maximum(rows.top, 1.0)
    in_k = tl.where(open_, mean + rest, tl.where(shared, of_tops, 0.0)) + lost
    in_t = tl.where(some, -tl.sum(lever, axis=1) / rows.t, 0.0) + lost
    tl.store(in_rows_at + each, in_k, mask=here)
    tl.store(in_rows_at + given.count + each, in_t, mask=here)
