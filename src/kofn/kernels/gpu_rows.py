"""Rows that one program holds in registers: read once, solved, written once; and the way back.

A program takes ROWS rows of up to BLOCK entries. Rows are solved side by side; one that is done
waits, unchanged, for the others, so that none depends on its neighbours.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kofn.kernels.gpu_entries import (
    INF,
    LOG2_E,
    NORMAL,
    TINY,
    density,
    distance,
    log_density,
    mills,
    outside,
    tail,
    unit,
    weight,
)
from kofn.kernels.gpu_search import (
    ROUNDS,
    USUAL,
    advance,
    between,
    end_of,
    normal_balance,
    start,
    step_to,
)


@triton.jit
def forward(
    x_at,
    out_at,
    theta_at,
    k_at,
    temperature_at,
    count,
    n,
    alpha,
    KIND: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    WRITE: tl.constexpr,
):
    """Write θ of each row as two floats, (2, count), and its weights where WRITE."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = rows < count
    k = tl.load(k_at + rows, mask=here, other=0.0)
    temperature = tl.load(temperature_at + rows, mask=here, other=1.0)
    columns = tl.arange(0, BLOCK)
    at = rows.to(tl.int64)[:, None] * n + columns[None, :]
    filled = here[:, None] & (columns < n)[None, :]
    x = tl.load(x_at + at, mask=filled, other=-INF).to(tl.float32)
    pivot = tl.load(x_at + rows.to(tl.int64) * n + n // 2, mask=here, other=0.0).to(tl.float32)

    seen = survey(x, filled, pivot, k, temperature, n)
    least, greatest, live, top, bad, mean, variance, usual = seen
    closed, closed_weight, closed_theta, share = end_of(k, live, top, bad, temperature)
    # A row that needs no equation is given one that has an answer.
    hi, lo, low_hi, low_lo, high_hi, high_lo, worth = start(
        KIND,
        tl.where(closed, 0.5, k - top),
        tl.where(closed, 1.0, live),
        tl.where(closed, 1.0, usual),
        mean,
        variance,
        least,
        greatest,
        temperature,
        alpha,
    )
    per_t = 1.0 / temperature
    per_unit = unit(KIND, per_t)
    low_gap, high_gap = tl.zeros_like(k), tl.zeros_like(k) + 1.0
    width, leap, tries = tl.zeros_like(k) + INF, tl.zeros_like(k) + 1.0, rows * 0
    state = tl.where(closed, 0, 1)
    round_ = 0
    while tl.max((state == 1).to(tl.int32)) > 0:
        t, upper, first, second = tail(KIND, distance(x, hi, lo, per_unit), alpha)
        above = tl.sum(tl.where(upper, t, 0.0), axis=1)
        below = tl.sum(tl.where(upper, 0.0, t), axis=1)
        many = tl.sum(tl.where(upper, 1.0, 0.0), axis=1)
        slope, bend = tl.sum(first, axis=1), tl.sum(second, axis=1)
        (
            hi,
            lo,
            low_hi,
            low_lo,
            high_hi,
            high_lo,
            low_gap,
            high_gap,
            width,
            worth,
            leap,
            tries,
            state,
        ) = advance(
            KIND,
            k,
            live,
            top,
            temperature,
            hi,
            lo,
            low_hi,
            low_lo,
            high_hi,
            high_lo,
            low_gap,
            high_gap,
            width,
            worth,
            leap,
            tries,
            state,
            round_,
            below,
            above,
            slope,
            many,
            bend,
        )
        round_ += 1
    if KIND <= NORMAL:  # two tails
        if tl.max(state) > 1:
            flat_hi, flat_lo = balance(KIND, x, hi, lo, temperature, per_t)
            hi, lo = tl.where(state == 2, flat_hi, hi), tl.where(state == 2, flat_lo, lo)

    if WRITE:
        p = weight(KIND, distance(x, hi, lo, per_unit), alpha)
        if tl.max(closed.to(tl.int32)) > 0:
            other = tl.where(x == INF, share[:, None], closed_weight[:, None])
            p = tl.where(closed[:, None], tl.where(x == -INF, 0.0, other), p)
        tl.store(out_at + at, p, mask=filled)
    hi, lo = step_to(hi, lo, -temperature * outside(KIND, alpha))
    tl.store(theta_at + rows, tl.where(closed, closed_theta, hi), mask=here)
    tl.store(theta_at + count + rows, tl.where(closed, 0.0, lo), mask=here)


@triton.jit
def survey(x, filled, pivot, k, temperature, n):
    """(least, greatest, #finite, #(+inf), #NaN, mean, variance and their number) of each row.

    Mean and variance tell where most of the scores are; additive masks such as −1e9 have no say in
    that. A row without ±inf, NaN and masks shows it in two sums; there least and greatest are only
    bounds.
    """
    away = tl.where(filled, x - pivot[:, None], 0.0)
    mean, square = tl.sum(away, axis=1) / n, tl.sum(away * away, axis=1) / n
    variance = tl.maximum(square - mean * mean, 0.0)
    # No score is further from the mean than this, which rounding is given its part in.
    reach = tl.sqrt(n * (variance + 1e-5 * square))
    plain = (reach < 1e5 * temperature) & (tl.abs(pivot) < USUAL)
    mean = tl.where(plain, pivot + mean, 0.0)
    variance = tl.where(plain, variance, 0.0)
    least, greatest = mean - reach, mean + reach
    live = tl.zeros_like(mean) + n
    usual, top, bad = live, tl.zeros_like(mean), tl.zeros_like(mean)
    if tl.max((~plain).to(tl.int32)) > 0:
        finite = tl.abs(x) < INF
        true_least = tl.min(tl.where(finite, x, INF), axis=1)
        true_greatest = tl.max(tl.where(finite, x, -INF), axis=1)
        true_live = tl.sum(finite.to(tl.float32), axis=1)
        true_top = tl.sum((x == INF).to(tl.float32), axis=1)
        bad = tl.sum(((x != x) & filled).to(tl.float32), axis=1)
        around = tl.where(tl.abs(pivot) < USUAL, pivot, 0.0)
        number, middle, spread = moments(x, around, tl.zeros_like(pivot) + USUAL)
        # Where the scores are spread over many temperatures only the greatest matter.
        wide = true_greatest - true_least > 1e5 * temperature
        if tl.max(wide.to(tl.int32)) > 0:
            near = moments(x, tl.where(true_live > 0.0, true_greatest, 0.0), 1e4 * temperature)
            enough = wide & (near[0] > k - true_top)
            number = tl.where(enough, near[0], number)
            middle = tl.where(enough, near[1], middle)
            spread = tl.where(enough, near[2], spread)
        live, top = tl.where(plain, live, true_live), tl.where(plain, top, true_top)
        least = tl.where(plain, least, true_least)
        greatest = tl.where(plain, greatest, true_greatest)
        usual = tl.where(plain, usual, number)
        mean, variance = tl.where(plain, mean, middle), tl.where(plain, variance, spread)
    return least, greatest, live, top, bad, mean, variance, usual


@triton.jit
def moments(x, pivot, most):
    """(number, mean, variance) of the scores nearer than `most` to the pivot."""
    away = x - pivot[:, None]
    near = tl.abs(away) < most[:, None]
    away = tl.where(near, away, 0.0)
    number = tl.sum(near.to(tl.float32), axis=1)
    mean = tl.sum(away, axis=1) / tl.maximum(number, 1.0)
    square = tl.sum(away * away, axis=1) / tl.maximum(number, 1.0)
    return number, pivot + mean, tl.maximum(square - mean * mean, 0.0)


@triton.jit
def balance(KIND: tl.constexpr, x, hi, lo, temperature, per_t):
    """θ with log Σ_{F≤½} F = log Σ_{F>½} (1 − F), which no underflow reaches."""
    upper = distance(x, hi, lo, per_t) > 0.0
    left = tl.max(tl.where(upper, -INF, x), axis=1)
    right = tl.min(tl.where(upper, x, INF), axis=1)
    # Temperatures from an entry to the edge of the plateau on its side.
    deep = tl.where(upper, x - right[:, None], left[:, None] - x) * per_t[:, None]
    if KIND == NORMAL:
        gap = tl.minimum((right - left) * per_t, 1e30)
        shift = tl.zeros_like(gap)
        for _ in range(8):
            near = tl.where(upper, (gap * 0.5 - shift)[:, None], (gap * 0.5 + shift)[:, None])
            slope = tl.exp2(deep * (2.0 * near + deep) * (-0.5 * LOG2_E))
            t = tl.where(slope > 0.0, slope * mills(near + deep), 0.0)
            below = tl.sum(tl.where(upper, 0.0, t), axis=1)
            above = tl.sum(tl.where(upper, t, 0.0), axis=1)
            below_slope = tl.sum(tl.where(upper, 0.0, slope), axis=1)
            above_slope = tl.sum(tl.where(upper, slope, 0.0), axis=1)
            shift = normal_balance(shift, gap, below, above, below_slope, above_slope)
    else:
        t = tl.exp2(deep * -LOG2_E)  # so deep both tails are pure exponentials
        below = tl.sum(tl.where(upper, 0.0, t), axis=1)
        above = tl.sum(tl.where(upper, t, 0.0), axis=1)
        shift = 0.5 * tl.log(below / above)
    hi, lo = between(left, right)
    return step_to(hi, lo, temperature * shift)


@triton.jit
def backward(
    x_at,
    g_at,
    theta_at,
    k_at,
    temperature_at,
    out_at,
    in_rows_at,
    count,
    n,
    alpha,
    KIND: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write the cotangents of scores, w∘(g − ḡ)/T with ḡ = Σwg/W, and of k and T, (2, count).

    ḡ is taken off in two parts: where one entry holds nearly all of W, g − ḡ is smaller than the
    rounding of ḡ.
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = rows < count
    temperature = tl.load(temperature_at + rows, mask=here, other=1.0)
    theta = tl.load(theta_at + rows, mask=here, other=INF)
    rest = tl.load(theta_at + count + rows, mask=here, other=0.0)
    columns = tl.arange(0, BLOCK)
    at = rows.to(tl.int64)[:, None] * n + columns[None, :]
    filled = here[:, None] & (columns < n)[None, :]
    x = tl.load(x_at + at, mask=filled, other=-INF).to(tl.float32)
    g = tl.load(g_at + at, mask=filled, other=0.0).to(tl.float32)

    solved = tl.abs(theta) < INF
    hi, lo = step_to(
        tl.where(solved, theta, 0.0), tl.where(solved, rest, 0.0), temperature * outside(KIND, alpha)
    )
    per_t = 1.0 / temperature
    y = distance(x, hi, lo, unit(KIND, per_t))
    w = tl.where(solved[:, None], density(KIND, y, alpha), 0.0)
    # What is not chosen may carry any cotangent, NaN included.
    chosen = w > 0.0
    total = tl.sum(w, axis=1)
    some = total >= TINY
    per_total = 1.0 / tl.where(some, total, 1.0)
    mean = tl.sum(tl.where(chosen, w * g, 0.0), axis=1) * per_total
    u = tl.where(chosen, w * (g - mean[:, None]), 0.0)
    left_over = tl.sum(u, axis=1) * per_total
    u = tl.where(chosen & some[:, None], w * ((g - mean[:, None]) - left_over[:, None]), 0.0)
    # y may be in octaves
    in_t = -tl.sum(tl.where(chosen, u * y, 0.0), axis=1) * (per_t / unit(KIND, per_t))
    in_k = mean + left_over
    u = u * per_t[:, None]
    if tl.max((~some).to(tl.int32)) > 0:
        k = tl.load(k_at + rows, mask=here, other=0.0)
        shared = share_of_logs(KIND, y, x, g)
        # Scores of +inf that are more than k share it.
        top = x == INF
        tops = tl.sum(top.to(tl.float32), axis=1)
        of_tops = tl.sum(tl.where(top, g, 0.0), axis=1) / tl.maximum(tops, 1.0)
        taken = tl.where((theta == INF) & (tops > 0.0) & (k <= tops), of_tops, 0.0)
        in_k = tl.where(some, in_k, tl.where(solved, shared, taken))
        in_t = tl.where(some, in_t, 0.0)
        spoiled = theta != theta
        in_k, in_t = tl.where(spoiled, theta, in_k), tl.where(spoiled, theta, in_t)
        u = tl.where(spoiled[:, None] & (x != -INF), theta[:, None], u)
    tl.store(out_at + at, u, mask=filled)
    tl.store(in_rows_at + rows, in_k, mask=here)
    tl.store(in_rows_at + count + rows, in_t * per_t, mask=here)


@triton.jit
def share_of_logs(KIND: tl.constexpr, y, x, g):
    """Σ softmax(log F′)·g: what k moves where every F′ has underflowed."""
    log = tl.where(tl.abs(x) < INF, log_density(KIND, y), -INF)
    peak = tl.max(log, axis=1)
    peak = tl.where(peak > -INF, peak, 0.0)
    share = tl.exp2(log - peak[:, None])
    product = tl.sum(tl.where(share > 0.0, share * g, 0.0), axis=1)
    total = tl.sum(share, axis=1)
    return tl.where(total > 0.0, product / tl.where(total > 0.0, total, 1.0), 0.0)
