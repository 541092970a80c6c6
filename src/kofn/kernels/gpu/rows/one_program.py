"""Rows that one program solves by itself, forward and backward.

A program takes ROWS rows, BLOCK entries of each at a time. Rows are solved side by side; one that
is done waits, unchanged, for the others, so that none depends on its neighbours.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kofn.kernels.gpu.rows.far import edges, faint_share, far_normal_tails, far_tails, top_sums
from kofn.kernels.gpu.rows.formulas import (
    EPS,
    INF,
    NORMAL,
    TINY,
    has_two_tails,
    is_bounded,
    is_capped,
    outside,
    unit,
)
from kofn.kernels.gpu.rows.loops import (
    census,
    look,
    moments,
    slope,
    survey,
    weigh,
    write,
    write_back,
)
from kofn.kernels.gpu.rows.mend import ENOUGH, between_ends, halve, is_doubtful, judge, whole_line
from kofn.kernels.gpu.rows.search import (
    FLAT,
    HARD,
    NEAR_TOP,
    SPREAD,
    USUAL,
    Row,
    advance,
    between,
    end_of,
    mean_and_variance,
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
    WIDE: tl.constexpr,
    WRITE: tl.constexpr,
):
    """Write θ of each row as two floats, (2, count), and its weights where WRITE.

    The first visit waits for memory, so it asks for WIDE entries at a time.
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = rows < count
    k = tl.load(k_at + rows, mask=here, other=0.0)
    t = tl.load(temperature_at + rows, mask=here, other=1.0)
    x_row = x_at + rows.to(tl.int64) * n
    live, top, bad, usual, mean, variance, least, greatest = _survey(
        x_row, here, n, k, t, BLOCK, WIDE
    )
    closed, live_weight, theta, top_weight = end_of(k, live, top, bad, t)
    row = Row(k, live, top, t)
    s = start(KIND, row, closed, usual, mean, variance, least, greatest, alpha)
    hi, lo = settle(KIND, x_row, here, n, row, s, closed, alpha, BLOCK)
    if WRITE:
        write(
            KIND,
            x_row,
            out_at + rows.to(tl.int64) * n,
            here,
            0,
            n,
            hi,
            lo,
            unit(KIND, 1.0 / t),
            alpha,
            closed,
            live_weight,
            top_weight,
            BLOCK,
        )
    hi, lo = step_to(hi, lo, -t * outside(KIND, alpha))
    tl.store(theta_at + rows, tl.where(closed, theta, hi), mask=here)
    tl.store(theta_at + count + rows, tl.where(closed, 0.0, lo), mask=here)


@triton.jit
def settle(KIND: tl.constexpr, x_row, here, n, row, s, closed, alpha, BLOCK: tl.constexpr):
    """θ of rows, two floats, by as many looks as it takes."""
    per_t = 1.0 / row.temperature
    per_unit = unit(KIND, per_t)
    while tl.max((s.state == 1).to(tl.int32)) > 0:
        below, above, weight, count, bend = look(
            KIND, x_row, here, 0, n, s.hi, s.lo, per_unit, alpha, BLOCK
        )
        s = advance(KIND, row, s, below, above, weight, count, bend)
    hi, lo, state = s.hi, s.lo, s.state
    doubtful = ~closed & is_doubtful(row, s)
    if tl.max(doubtful.to(tl.int32)) > 0:
        hi, lo, state = _mend(KIND, x_row, here, n, row, hi, lo, state, doubtful, alpha, BLOCK)
    if is_capped(KIND):
        hard = state == HARD
        if tl.max(hard.to(tl.int32)) > 0:
            # What the others have is not 0, so the least of the k is where F comes to its end.
            _, least = edges(x_row, here, 0, n, hi, lo, BLOCK)
            hi, lo = tl.where(hard, least, hi), tl.where(hard, 0.0, lo)
    if has_two_tails(KIND):
        flat = state == FLAT
        if tl.max(flat.to(tl.int32)) > 0:
            flat_hi, flat_lo = _balance(KIND, x_row, here, n, hi, lo, row.temperature, BLOCK)
            hi, lo = tl.where(flat, flat_hi, hi), tl.where(flat, flat_lo, lo)
    return hi, lo


@triton.jit
def _mend(
    KIND: tl.constexpr, x_row, here, n, row, hi, lo, state, open_, alpha, BLOCK: tl.constexpr
):
    """θ and the state of rows whose sum misses k, by bisection: 64 looks, whatever the row.

    First in the order of floats, until θ is between two neighbours, then of its distance from the
    nearer one: what was taken off a score is never much more than what is left of it.
    """
    per_unit = unit(KIND, 1.0 / row.temperature)
    low, high, anchor, sign = whole_line(hi)
    at = 0
    while tl.max(open_.to(tl.int32)) > 0:
        below, above, weight, count, _ = look(
            KIND, x_row, here, 0, n, hi, lo, per_unit, alpha, BLOCK, True
        )
        found, flat, hard, excess = judge(KIND, row, at, below, above, weight, count)
        state = tl.where(open_, tl.where(flat, FLAT, tl.where(hard, HARD, 0)), state)
        open_ &= ~found & (at < ENOUGH)
        low, high, anchor, sign = halve(at, excess, low, high, anchor, sign)
        at += 1
        next_hi, next_lo = between_ends(at, low, high, anchor, sign)
        hi, lo = tl.where(open_, next_hi, hi), tl.where(open_, next_lo, lo)
    return hi, lo, state


@triton.jit
def _survey(x_row, here, n, k, temperature, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    """(#finite, #(+inf), #NaN, the number of usual scores, their mean and variance, least and
    greatest) of each row.

    Mean and variance tell where most of the scores are; additive masks such as −1e9 have no say in
    that. A row without ±inf, NaN and masks shows it in two sums; there least and greatest are only
    bounds.
    """
    pivot = tl.load(x_row + n // 2, mask=here, other=0.0).to(tl.float32)
    total, square = survey(x_row, here, 0, n, pivot, WIDE)
    live = tl.zeros_like(pivot) + n
    mean, variance = mean_and_variance(pivot, live, total, square)
    # No score is further from the mean than this, which rounding is given its part in.
    reach = tl.sqrt(live * variance + 1e-5 * square)
    plain = (reach < temperature * SPREAD) & (tl.abs(pivot) < USUAL)
    # Below that squares of scores are subnormal, and tell of no reach.
    plain &= temperature >= 2.0**-50
    mean = tl.where(plain, mean, 0.0)
    usual, top, bad = live, tl.zeros_like(pivot), tl.zeros_like(pivot)
    least, greatest = mean - reach, mean + reach
    if tl.max((~plain).to(tl.int32)) > 0:
        low, high, finite, tops, bads = census(x_row, here, 0, n, BLOCK)
        pivot = tl.where(tl.abs(pivot) < USUAL, pivot, 0.0)
        most = tl.zeros_like(pivot) + USUAL
        number, total, square = moments(x_row, here, 0, n, pivot, most, BLOCK)
        # Where the scores are spread over many temperatures only the greatest matter.
        wide = high - low > temperature * SPREAD
        if tl.max(wide.to(tl.int32)) > 0:
            near = moments(x_row, here, 0, n, high, temperature * NEAR_TOP, BLOCK)
            enough = wide & (near[0] > k - tops)
            pivot, number = tl.where(enough, high, pivot), tl.where(enough, near[0], number)
            total, square = tl.where(enough, near[1], total), tl.where(enough, near[2], square)
        middle, spread = mean_and_variance(pivot, number, total, square)
        live, usual = tl.where(plain, live, finite), tl.where(plain, usual, number)
        top, bad = tl.where(plain, top, tops), tl.where(plain, bad, bads)
        least, greatest = tl.where(plain, least, low), tl.where(plain, greatest, high)
        mean, variance = tl.where(plain, mean, middle), tl.where(plain, variance, spread)
    return live, top, bad, usual, mean, variance, least, greatest


@triton.jit
def _balance(KIND: tl.constexpr, x_row, here, n, hi, lo, temperature, BLOCK: tl.constexpr):
    """θ with log Σ_{F≤½} F = log Σ_{F>½} (1 − F), which no underflow reaches."""
    per_t = 1.0 / temperature
    left, right = edges(x_row, here, 0, n, hi, lo, BLOCK)
    shift = tl.zeros_like(left)
    if KIND == NORMAL:
        gap = tl.minimum((right - left) * per_t, 1e30)
        for _ in range(8):
            below, above, below_slope, above_slope = far_normal_tails(
                x_row, here, 0, n, left, right, 0.5 * gap + shift, 0.5 * gap - shift, per_t, BLOCK
            )
            shift = normal_balance(shift, gap, below, above, below_slope, above_slope)
    else:
        # So far from θ both tails are pure exponentials.
        below, above = far_tails(x_row, here, 0, n, left, right, per_t, BLOCK)
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
    t = tl.load(temperature_at + rows, mask=here, other=1.0)
    theta = tl.load(theta_at + rows, mask=here, other=INF)
    rest = tl.load(theta_at + count + rows, mask=here, other=0.0)
    x_row, g_row = x_at + rows.to(tl.int64) * n, g_at + rows.to(tl.int64) * n
    hi, lo, solved = inner(KIND, theta, rest, t, alpha)
    per_unit = unit(KIND, 1.0 / t)
    total, product = weigh(KIND, x_row, g_row, here, 0, n, hi, lo, per_unit, alpha, BLOCK)
    some, per_total = slope_of(solved, total)
    mean = product * per_total
    left_over, moment, lever = slope(
        KIND, x_row, g_row, here, 0, n, hi, lo, per_unit, mean, alpha, BLOCK
    )
    rest, in_k, in_t = row_cotangents(KIND, mean, left_over, moment, lever, per_total, t)
    write_back(
        KIND,
        x_row,
        g_row,
        out_at + rows.to(tl.int64) * n,
        here,
        0,
        n,
        hi,
        lo,
        per_unit,
        mean,
        rest,
        scale_of(theta, some, t),
        alpha,
        BLOCK,
    )
    if tl.max((~some).to(tl.int32)) > 0:
        k = tl.load(k_at + rows, mask=here, other=0.0)
        other_k, other_t = degenerate(KIND, x_row, g_row, here, n, hi, lo, theta, k, t, BLOCK)
        in_k, in_t = tl.where(some, in_k, other_k), tl.where(some, in_t, other_t)
    tl.store(in_rows_at + rows, in_k, mask=here)
    tl.store(in_rows_at + count + rows, in_t, mask=here)


@triton.jit
def inner(KIND: tl.constexpr, theta, rest, t, alpha):
    """(θ in two floats as the passes want it, whether there is one)."""
    solved = tl.abs(theta) < INF
    hi, lo = tl.where(solved, theta, 0.0), tl.where(solved, rest, 0.0)
    hi, lo = step_to(hi, lo, t * outside(KIND, alpha))
    return hi, lo, solved


@triton.jit
def slope_of(solved, total):
    """(whether a row has a slope, 1/ΣF′)."""
    some = solved & (total >= TINY / EPS)
    return some, 1.0 / tl.where(some, total, 1.0)


@triton.jit
def row_cotangents(KIND: tl.constexpr, mean, left_over, moment, lever, per_total, t):
    """(what the mean lacks, the cotangents of k and T)."""
    rest = left_over * per_total
    per_t = 1.0 / t
    octaves = per_t / unit(KIND, per_t)
    return rest, mean + rest, -(moment - rest * lever) * octaves * per_t


@triton.jit
def scale_of(theta, some, t):
    """What F′(g − ḡ) is multiplied by: 0 in a row without slope, NaN in one that holds a NaN."""
    return tl.where(theta != theta, theta, tl.where(some, 1.0 / t, 0.0))


@triton.jit
def degenerate(KIND: tl.constexpr, x_row, g_row, here, n, hi, lo, theta, k, t, BLOCK: tl.constexpr):
    """Cotangents of k and T where ΣF′ is no number, or there is no θ."""
    shared = tl.zeros_like(t)
    if not is_bounded(KIND):  # those have no such slopes
        shared = faint_share(KIND, x_row, g_row, here, 0, n, hi, lo, 1.0 / t, BLOCK)
    tops, of_tops = top_sums(x_row, g_row, here, 0, n, BLOCK)
    # Scores of +inf that are more than k share it.
    taken = tl.where((theta == INF) & (tops > 0.0) & (k <= tops), of_tops, 0.0)
    in_k = tl.where(tl.abs(theta) < INF, shared, taken / tl.maximum(tops, 1.0))
    spoiled = theta != theta
    return tl.where(spoiled, theta, in_k), tl.where(spoiled, theta, 0.0)
