"""Rows that one program solves by itself, forward and backward.

A program takes ROWS rows, BLOCK entries of each at a time. Rows are solved side by side; one that
is done waits, unchanged, for the others, so that none depends on its neighbours.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from kofn.kernels.gpu.rows import far, loops, mend
from kofn.kernels.gpu.rows.formulas import (
    EPS,
    INF,
    NORMAL,
    TINY,
    has_two_tails,
    is_balanced_by_logs,
    is_bounded,
    is_capped,
    outside,
    unit,
)
from kofn.kernels.gpu.rows.loops import Stretch, Theta
from kofn.kernels.gpu.rows.search import (
    FLAT,
    HARD,
    NEAR_TOP,
    SPREAD,
    USUAL,
    Row,
    Statistics,
    advance,
    between,
    end_of,
    mean_and_variance,
    start,
    step_to,
)


class Given(NamedTuple):
    """The rows as every kernel sees them: where their numbers are, how many there are, and α."""

    x_at: Any  # scores, (count, n)
    k: Any  # one number, or the address of one per row
    temperature: Any  # likewise
    theta_at: Any  # two floats' worth, (2, count): an answer forward, an argument backward
    count: Any
    n: Any
    alpha: Any  # one number, or the address of one per row


@triton.jit
def forward(
    given: Given,
    out_at,
    KIND: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
    WRITE: tl.constexpr,
):
    """Write θ of each row as two floats, (2, count), and its weights where WRITE.

    The first pass waits for memory, so it asks for WIDE entries at a time.
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = rows < given.count
    k, t = per_row(given.k, rows, here, 0.0), per_row(given.temperature, rows, here, 1.0)
    stretch = Stretch(row_of(given.x_at, rows, given), here, 0, given.n)
    seen = _statistics(stretch, k, t, BLOCK, WIDE)
    end = end_of(k, seen.live, seen.top, seen.bad, t)
    row = Row(k, seen.live, seen.top, t)
    alpha = alpha_of(given, rows, here)
    search = start(KIND, row, seen, end.closed, alpha)
    hi, lo = settle(KIND, stretch, row, search, end.closed, alpha, BLOCK)
    if WRITE:
        theta = Theta(hi, lo, unit(KIND, 1.0 / t), alpha)
        loops.write(KIND, stretch, row_of(out_at, rows, given), theta, end, BLOCK)
    store_theta(KIND, given, rows, here, hi, lo, t, end)


@triton.jit
def alpha_of(given, rows, here):
    """α: one number, or one per row."""
    alpha = given.alpha
    if alpha.dtype.is_ptr():
        alpha = tl.load(alpha + rows, mask=here, other=1.5)
    return alpha


@triton.jit
def per_row(given, rows, here, other):
    """Return a number per row: one for all, or the numbers at the address."""
    value = given
    if value.dtype.is_ptr():
        value = tl.load(value + rows, mask=here, other=other)
    else:
        value = tl.zeros_like(rows).to(tl.float32) + value
    return value


@triton.jit
def row_of(at, rows, given):
    """Where the rows of an array like the scores begin."""
    return at + rows.to(tl.int64) * given.n


@triton.jit
def rows_here(given, ROWS: tl.constexpr):
    """Return (the rows of this program, which of them there are, their stretch)."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = rows < given.count
    return rows, here, Stretch(row_of(given.x_at, rows, given), here, 0, given.n)


@triton.jit
def store_theta(KIND: tl.constexpr, given, rows, here, hi, lo, t, end):
    hi, lo = step_to(hi, lo, -t * outside(KIND, alpha_of(given, rows, here)))
    tl.store(given.theta_at + rows, tl.where(end.closed, end.theta, hi), mask=here)
    tl.store(given.theta_at + given.count + rows, tl.where(end.closed, 0.0, lo), mask=here)


@triton.jit
def settle(KIND: tl.constexpr, stretch, row, s, closed, alpha, BLOCK: tl.constexpr):
    """θ of rows, two floats, by as many evaluations as it takes."""
    per_unit = unit(KIND, 1.0 / row.temperature)
    while tl.max((s.state == 1).to(tl.int32)) > 0:
        theta = Theta(s.hi, s.lo, per_unit, alpha)
        s = advance(KIND, row, s, loops.evaluate(KIND, stretch, theta, BLOCK))
    hi, lo, state = s.hi, s.lo, s.state
    doubtful = ~closed & mend.is_doubtful(row, s)
    if tl.max(doubtful.to(tl.int32)) > 0:
        theta = Theta(hi, lo, per_unit, alpha)
        hi, lo, state = _mend(KIND, stretch, row, theta, state, doubtful, BLOCK)
    if is_capped(KIND):
        hard = state == HARD
        if tl.max(hard.to(tl.int32)) > 0:
            # The others have more than 0, so the least of the k is where F comes to its end.
            _, least = far.edges(stretch, hi, lo, BLOCK)
            hi, lo = tl.where(hard, least, hi), tl.where(hard, 0.0, lo)
    if has_two_tails(KIND):
        flat = state == FLAT
        if tl.max(flat.to(tl.int32)) > 0:
            flat_hi, flat_lo = _balance(KIND, stretch, hi, lo, row.temperature, BLOCK)
            hi, lo = tl.where(flat, flat_hi, hi), tl.where(flat, flat_lo, lo)
    return hi, lo


@triton.jit
def _mend(KIND: tl.constexpr, stretch, row, theta, state, open_, BLOCK: tl.constexpr):
    """θ and the state of rows whose sum misses k, by bisection: 64 rounds, whatever the row.

    First in the order of floats, until θ is between two neighbours, then of its distance from the
    nearer one: the part taken off a score is never much more than the rest of it.
    """
    hi, lo = theta.hi, theta.lo
    low, high, anchor, sign = mend.whole_line(hi)
    at = 0
    while tl.max(open_.to(tl.int32)) > 0:
        here = Theta(hi, lo, theta.per_unit, theta.alpha)
        sums = loops.evaluate(KIND, stretch, here, BLOCK, True)
        is_met, flat, hard, excess = mend.judge(KIND, row, at, sums)
        state = tl.where(open_, tl.where(flat, FLAT, tl.where(hard, HARD, 0)), state)
        open_ &= ~is_met & (at < mend.ENOUGH)
        low, high, anchor, sign = mend.halve(at, excess, low, high, anchor, sign)
        at += 1
        next_hi, next_lo = mend.between_ends(at, low, high, anchor, sign)
        hi, lo = tl.where(open_, next_hi, hi), tl.where(open_, next_lo, lo)
    return hi, lo, state


@triton.jit
def _statistics(stretch, k, temperature, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    """Return the `Statistics` of each row.

    Two sums suffice for a row without ±inf, NaN and masks; its least and greatest are only bounds.
    """
    n = stretch.last
    pivot = loops.middle(stretch, n)
    total, square = loops.statistics(stretch, pivot, WIDE)
    live, none = tl.zeros_like(pivot) + n, tl.zeros_like(pivot)
    mean, variance = mean_and_variance(pivot, live, total, square)
    # No score is further from the mean than this, with room for rounding.
    reach = tl.sqrt(live * variance + 1e-5 * square)
    plain = (reach < temperature * SPREAD) & (tl.abs(pivot) < USUAL)
    # Squares of scores are subnormal below this, and say nothing about the reach.
    plain &= temperature >= 2.0**-50
    mean = tl.where(plain, mean, 0.0)
    seen = Statistics(live, none, none, live, mean, variance, mean - reach, mean + reach)
    if tl.max((~plain).to(tl.int32)) > 0:
        pivot = tl.where(tl.abs(pivot) < USUAL, pivot, 0.0)
        full_statistics = loops.full_statistics(stretch, BLOCK)
        near = loops.moments(stretch, pivot, none + USUAL, BLOCK)
        other = statistics_of(stretch, k, temperature, full_statistics, pivot, near, BLOCK)
        seen = Statistics(
            tl.where(plain, live, other.live),
            tl.where(plain, none, other.top),
            tl.where(plain, none, other.bad),
            tl.where(plain, live, other.usual),
            tl.where(plain, mean, other.mean),
            tl.where(plain, variance, other.variance),
            tl.where(plain, seen.least, other.least),
            tl.where(plain, seen.greatest, other.greatest),
        )
    return seen


@triton.jit
def statistics_of(stretch, k, temperature, full_statistics, pivot, near, BLOCK: tl.constexpr):
    """`Statistics` from the full ones and the moments of the scores `near` a pivot."""
    number, total, square = near
    # Where the scores are spread over many temperatures only the greatest matter.
    wide = full_statistics.greatest - full_statistics.least > temperature * SPREAD
    if tl.max(wide.to(tl.int32)) > 0:
        highest = loops.moments(stretch, full_statistics.greatest, temperature * NEAR_TOP, BLOCK)
        enough = wide & (highest[0] > k - full_statistics.top)
        pivot = tl.where(enough, full_statistics.greatest, pivot)
        number, total = tl.where(enough, highest[0], number), tl.where(enough, highest[1], total)
        square = tl.where(enough, highest[2], square)
    mean, variance = mean_and_variance(pivot, number, total, square)
    counts = (full_statistics.live, full_statistics.top, full_statistics.bad, number)
    return Statistics(*counts, mean, variance, full_statistics.least, full_statistics.greatest)


@triton.jit
def _balance(KIND: tl.constexpr, stretch, hi, lo, temperature, BLOCK: tl.constexpr):
    """Find the θ with log Σ_{F≤½} F = log Σ_{F>½} (1 − F), which no underflow reaches."""
    per_t = 1.0 / temperature
    left, right = far.edges(stretch, hi, lo, BLOCK)
    shift = tl.zeros_like(left)
    if KIND == NORMAL:
        width = tl.minimum((right - left) * per_t, 1e30)
        for _ in range(8):
            u, v = 0.5 * width + shift, 0.5 * width - shift
            tails = far.far_normal_tails(stretch, left, right, u, v, per_t, BLOCK)
            shift = far.normal_balance(shift, width, *tails)
    elif is_balanced_by_logs(KIND):
        left, right, shift = far.log_balance(KIND, stretch, left, right, per_t, BLOCK)
    else:
        # So far from θ both tails are pure exponentials.
        below, above = far.far_tails(stretch, left, right, per_t, BLOCK)
        shift = 0.5 * tl.log(below / above)
    hi, lo = between(left, right)
    return step_to(hi, lo, temperature * shift)


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
    """Write the cotangents of scores, w∘(g − ḡ)/T with ḡ = Σwg/W, and of k and T, (2, count).

    ḡ is taken off in two parts: where one entry holds nearly all of W, g − ḡ is smaller than the
    rounding of ḡ.
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = rows < given.count
    t, answered, solved, theta = load_theta(KIND, given, rows, here)
    stretch, g_row = (
        Stretch(row_of(given.x_at, rows, given), here, 0, given.n),
        row_of(g_at, rows, given),
    )
    total, product, moment = loops.weigh(KIND, stretch, g_row, theta, BLOCK)
    some, per_total = slope_of(solved, total)
    mean = product * per_total
    pivot = pivot_of(theta, moment * per_total)
    sums = loops.slope(KIND, stretch, g_row, theta, mean, pivot, BLOCK)
    rest, in_k, in_t = row_cotangents(KIND, mean, sums, per_total, t)
    scale, out_row = scale_of(answered, some, t), row_of(out_at, rows, given)
    loops.write_back(KIND, stretch, g_row, out_row, theta, mean, rest, scale, BLOCK)
    if tl.max((~some).to(tl.int32)) > 0:
        k = per_row(given.k, rows, here, 0.0)
        other_k, other_t = degenerate(KIND, stretch, g_row, theta, answered, k, t, BLOCK)
        in_k, in_t = tl.where(some, in_k, other_k), tl.where(some, in_t, other_t)
    tl.store(in_rows_at + rows, in_k, mask=here)
    tl.store(in_rows_at + given.count + rows, in_t, mask=here)


@triton.jit
def load_theta(KIND: tl.constexpr, given, rows, here):
    """Return (T, θ as it was answered, whether it is finite, θ as passes take it)."""
    t = per_row(given.temperature, rows, here, 1.0)
    answered = tl.load(given.theta_at + rows, mask=here, other=INF)
    rest = tl.load(given.theta_at + given.count + rows, mask=here, other=0.0)
    solved = tl.abs(answered) < INF
    hi, lo = tl.where(solved, answered, 0.0), tl.where(solved, rest, 0.0)
    alpha = alpha_of(given, rows, here)
    hi, lo = step_to(hi, lo, t * outside(KIND, alpha))
    return t, answered, solved, Theta(hi, lo, unit(KIND, 1.0 / t), alpha)


@triton.jit
def slope_of(solved, total):
    """Return (whether a row has a slope, 1/ΣF′)."""
    some = solved & (total >= TINY / EPS)
    return some, 1.0 / tl.where(some, total, 1.0)


@triton.jit
def pivot_of(theta, mean):
    """Return the score whose y is the mean."""
    return theta.hi + (theta.lo + mean / theta.per_unit)


@triton.jit
def row_cotangents(KIND: tl.constexpr, mean, sums, per_total, t):
    """Return (the rounding error of the mean, the cotangents of k and T)."""
    left_over, lever = sums
    rest = left_over * per_total
    per_t = 1.0 / t
    octaves = per_t / unit(KIND, per_t)
    return rest, mean + rest, -lever * octaves * per_t


@triton.jit
def scale_of(theta, some, t):
    """Return the factor of F′(g − ḡ): 0 in a row without slope, NaN in one that holds a NaN."""
    return tl.where(theta != theta, theta, tl.where(some, 1.0 / t, 0.0))


@triton.jit
def degenerate(KIND: tl.constexpr, stretch, g_row, theta, answered, k, t, BLOCK: tl.constexpr):
    """Cotangents of k and T where ΣF′ is 0 by underflow, or there is no θ."""
    shared = tl.zeros_like(t)
    if not is_bounded(KIND):  # those have no such slopes
        shared = far.faint_share(KIND, stretch, g_row, theta.hi, theta.lo, 1.0 / t, BLOCK)
    tops, of_tops = far.top_sums(stretch, g_row, BLOCK)
    # Scores of +inf that are more than k share it.
    taken = tl.where((answered == INF) & (tops > 0.0) & (k <= tops), of_tops, 0.0)
    in_k = tl.where(tl.abs(answered) < INF, shared, taken / tl.maximum(tops, 1.0))
    has_nan = answered != answered
    return tl.where(has_nan, answered, in_k), tl.where(has_nan, answered, 0.0)
