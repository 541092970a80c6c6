"""The price of rows with costs on a GPU: their statistics, then evaluations until θ is found.

It steps as cpu/knapsack/search.py does, by Halley's on the log-odds of Σc·F/Σc in a bracket, and
gives up no row: where all tails underflow it goes on by logarithms, and a bracket that was wrong is
replaced by all floats. z, sums and θ are of float64, θ of two; F is of float32.
(Tests: tests/kernels/gpu/interpreted/knapsacks.py.)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from kofn.kernels.gpu.knapsack.entries import distance, on_grid, paying, place, price
from kofn.kernels.gpu.rows.formulas import (
    INF,
    NORMAL,
    edge,
    has_two_tails,
    is_balanced_by_logs,
    is_capped,
    log_tail,
    quantile,
    tail,
)
from kofn.kernels.gpu.rows.search import FAINT, LAST_BY_LOGS, last_step, two_sum
from kofn.kernels.gpu.rows.words import FARTHEST, PER_ROOT_2_PI, mills

ROUNDS = tl.constexpr(256)  # evaluations, however wrong the bracket was
BALANCE = tl.constexpr(64)  # and of logarithms
WHOLE = tl.constexpr(1e300)
FLAT = tl.constexpr(2)
HARD = tl.constexpr(3)


@triton.jit
def _start(KIND: tl.constexpr, given, stretch, c_row, row, closed, alpha, BLOCK: tl.constexpr):
    """Return (a guess of θ, the least and the greatest θ at which an entry has the row's share)."""
    nothing = tl.zeros((stretch.here.shape[0], BLOCK), tl.float64)
    square, cube, in_x, in_cx, in_xx = nothing, nothing, nothing, nothing, nothing
    budget = tl.where(closed, 0.5, row.coarse + row.fine)
    total = tl.where(closed, 1.0, row.total)
    share, rest = (budget / total).to(tl.float32), ((total - budget) / total).to(tl.float32)
    own = quantile(KIND, share, rest, alpha).to(tl.float64) + edge(KIND, alpha.to(tl.float64))
    least, greatest = nothing + WHOLE, nothing - WHOLE
    for at in range(0, given.n, BLOCK):
        x, c, pays = paying(stretch, c_row, at, row.scale, BLOCK)
        square += c * c
        cube += c * c * c
        in_x += c * x
        in_cx += c * c * x
        in_xx += c * x * x
        per_c = 1.0 / tl.where(pays, c, 1.0)
        crossing = (x - (row.t * own)[:, None]) * per_c
        slack = tl.abs(crossing) * 1e-12
        slack += (1e-3 * row.t * (1.0 + tl.abs(own)))[:, None] * per_c
        least = tl.minimum(least, tl.where(pays, crossing - slack, WHOLE))
        greatest = tl.maximum(greatest, tl.where(pays, crossing + slack, -WHOLE))
    squares = tl.sum(square, axis=1)
    squares = tl.where(squares > 0.0, squares, 1.0)
    middle = tl.sum(in_x, axis=1) / squares
    variance = tl.sum(in_xx, axis=1)
    variance -= middle * (2.0 * tl.sum(in_cx, axis=1) - middle * tl.sum(cube, axis=1))
    deviation = tl.sqrt(tl.maximum(variance / total, 0.0))
    normal = quantile(NORMAL, share, rest, alpha).to(tl.float64)
    far, near = normal * deviation, own * row.t
    depth = tl.sqrt(far * far + near * near)
    depth = tl.where(far + near > 0.0, depth, -depth)
    low = tl.maximum(tl.min(least, axis=1), -WHOLE)
    high = tl.minimum(tl.max(greatest, axis=1), WHOLE)
    low, high = tl.where(closed, -1.0, low), tl.where(closed, 1.0, high)
    guess = middle - depth * (total / squares)
    guess = tl.where((guess > low) & (guess < high), guess, 0.5 * low + 0.5 * high)
    return guess, low, high


class Sums(NamedTuple):
    below: Any  # Σc·F of entries with F ≤ ½
    above: Any  # Σc·(1 − F) of the others
    missing: Any  # what these cost, less the budget
    flat: Any  # ΣcF′, Σc²F′, Σc²F′ where F > ½, Σc³F″
    steep: Any
    above_steep: Any
    bend: Any


@triton.jit
def _evaluate(KIND: tl.constexpr, given, stretch, c_row, row, theta, alpha, BLOCK: tl.constexpr):
    nothing = tl.zeros((stretch.here.shape[0], BLOCK), tl.float64)
    below, above, coarse, fine = nothing, nothing, nothing, nothing
    flat, steep, above_steep, bend = nothing, nothing, nothing, nothing
    for at in range(0, given.n, BLOCK):
        x, c, _ = paying(stretch, c_row, at, row.scale, BLOCK)
        t, upper, one, two = tail(KIND, place(KIND, x, c, theta), alpha)
        part, large = c * t.to(tl.float64), on_grid(c)
        below += tl.where(upper, 0.0, part)
        above += tl.where(upper, part, 0.0)
        coarse += tl.where(upper, large, 0.0)
        fine += tl.where(upper, c - large, 0.0)
        first = c * one.to(tl.float64)
        flat += first
        first *= c
        steep += first
        above_steep += tl.where(upper, first, 0.0)
        bend += c * c * c * two.to(tl.float64)
    missing = (tl.sum(coarse, axis=1) - row.coarse) + (tl.sum(fine, axis=1) - row.fine)
    tails = tl.sum(below, axis=1), tl.sum(above, axis=1)
    slopes = tl.sum(flat, axis=1), tl.sum(steep, axis=1), tl.sum(above_steep, axis=1)
    return Sums(*tails, missing, *slopes, tl.sum(bend, axis=1))


@triton.jit
def _halley(budget, total, excess, s):
    """Return the step, in units of T, by which the log-odds of Σc·F/Σc become the budget's."""
    spent = tl.maximum(budget + excess, 1e-300)
    rest = tl.maximum(total - (budget + excess), 1e-300)
    ratio = excess / budget * (total / rest)
    near = ratio * (1.0 + ratio * (-0.5 + ratio * (1.0 / 3.0 - 0.25 * ratio)))
    odds = tl.minimum(tl.maximum((spent / budget) * ((total - budget) / rest), 1e-37), 1e37)
    log_odds = tl.where(tl.abs(ratio) < 1e-3, near, tl.log(odds.to(tl.float32)).to(tl.float64))
    known = s.steep > 1e-60
    per_steep = 1.0 / tl.where(known, s.steep, 1.0)
    newton = log_odds * ((spent * per_steep) * (rest / total))
    bend = s.bend * per_steep + s.steep * (1.0 / rest - 1.0 / spent)
    step = newton / tl.minimum(tl.maximum(1.0 - newton * bend * 0.5, 0.5), 2.0)
    side = tl.where(excess > 0.0, INF, -INF).to(tl.float64)
    return tl.where(excess == 0.0, 0.0, tl.where(known, step, side))


@triton.jit
def midway(low, high):
    """Return the number midway between two in the order of floats."""
    a, b = low.to(tl.int64, bitcast=True), high.to(tl.int64, bitcast=True)
    a = tl.where(a < 0, a ^ 0x7FFFFFFFFFFFFFFF, a)
    b = tl.where(b < 0, b ^ 0x7FFFFFFFFFFFFFFF, b)
    middle = (a & b) + ((a ^ b) >> 1)
    middle = tl.where(middle < 0, middle ^ 0x7FFFFFFFFFFFFFFF, middle)
    return middle.to(tl.float64, bitcast=True)


@triton.jit
def solve(KIND: tl.constexpr, given, stretch, c_row, row, alpha, BLOCK: tl.constexpr):
    """Return θ as two numbers; of no use in rows that need none."""
    closed = row.none | row.every | row.bad | ~row.playing
    hi, low, high = _start(KIND, given, stretch, c_row, row, closed, alpha, BLOCK)
    budget = tl.where(closed, 0.5, row.coarse + row.fine)
    total = tl.where(closed, 1.0, row.total)
    lo, low_lo, high_lo, width = hi * 0.0, hi * 0.0, hi * 0.0, hi * 0.0 + INF
    state, rounds, again = tl.where(closed, 0, 1), 0, row.none & row.every
    low_seen, high_seen = again, again
    while tl.max((state == 1).to(tl.int32)) > 0:
        theta, active = price(KIND, hi, lo, row.t, alpha), state == 1
        s = _evaluate(KIND, given, stretch, c_row, row, theta, alpha, BLOCK)
        excess = s.missing + s.below - s.above
        step = _halley(budget, total, excess, s)
        last = hi * 0.0 + last_step(KIND)
        tails, stay = s.below + s.above, excess == 0.0
        balanced = (s.missing == 0.0) & (tails < 1.0)
        if has_two_tails(KIND):
            faint = tl.minimum(s.below, s.above) <= 1e3 * FAINT
            state = tl.where(active & balanced & faint, FLAT, state)
            below, above = tl.where(faint, 1.0, s.below), tl.where(faint, 1.0, s.above)
            slope = tl.maximum((s.steep - s.above_steep) / below + s.above_steep / above, 1e-60)
            logs = tl.log((below / above).to(tl.float32)).to(tl.float64)
            step = tl.where(balanced & ~faint, logs / slope, step)
            last = tl.where(balanced, LAST_BY_LOGS, last)
            stay = balanced & faint
        elif is_capped(KIND):
            is_hard = balanced & (s.above == 0.0) & (s.below < 1e3 * FAINT)
            state = tl.where(active & is_hard, HARD, state)
            stay |= is_hard
        up, down = active & (excess > 0.0), active & ~(excess > 0.0)
        low, low_lo = tl.where(up, hi, low), tl.where(up, lo, low_lo)
        high, high_lo = tl.where(down, hi, high), tl.where(down, lo, high_lo)
        off_low, off_high = (low - hi) + (low_lo - lo), (high - hi) + (high_lo - lo)
        by, span = step * row.t, off_high - off_low
        tolerance = 2.0**-26 * tl.maximum(tl.minimum(s.flat, budget), 4.0 * tails)
        inside = (by >= off_low) & (by <= off_high)
        near = inside & ((tl.abs(step) <= last) | (tl.abs(step) * s.steep <= tolerance))
        slow = (rounds % 3 == 2) & (span > 0.5 * width)
        width = tl.where((rounds % 3 == 2), span, width)
        middle, by_place = 0.5 * off_low + 0.5 * off_high, midway(low, high)
        across = (by_place - hi) - lo
        ends = tl.maximum(tl.abs(low), tl.abs(high)), tl.minimum(tl.abs(low), tl.abs(high))
        apart = (ends[0] > 4.0 * ends[1]) | ((low < 0.0) & (high > 0.0))
        apart &= (across > off_low) & (across < off_high)
        middle = tl.where(apart, across, middle)
        by = tl.where(near | (inside & ~slow), by, middle)
        next_hi, next_lo = two_sum(hi, lo + by)
        stuck = ~near & ((next_hi == hi) & (next_lo == lo) | ~(span > 0.0))
        low_seen, high_seen = low_seen | up, high_seen | down
        wrong = stuck & ~again & ~(low_seen & high_seen) & ~(tl.abs(excess) <= budget * 1e-6)
        again |= active & wrong
        low, high = tl.where(active & wrong, -WHOLE, low), tl.where(active & wrong, WHOLE, high)
        low_lo, high_lo = tl.where(wrong, 0.0, low_lo), tl.where(wrong, 0.0, high_lo)
        rounds += 1
        move = active & ~stay & ~stuck
        hi, lo = tl.where(move, next_hi, hi), tl.where(move, next_lo, lo)
        over = near | stay | (stuck & ~wrong) | (rounds >= ROUNDS)
        hi, lo = tl.where(active & wrong, 0.0, hi), tl.where(active & wrong, 0.0, lo)
        state = tl.where((state == 1) & over, 0, state)
    if is_capped(KIND):
        hard = state == HARD
        if tl.max(hard.to(tl.int32)) > 0:
            end, rest = _end(KIND, given, stretch, c_row, row, hi, lo, alpha, BLOCK)
            hi, lo = tl.where(hard, end, hi), tl.where(hard, rest, lo)
    if has_two_tails(KIND):
        flat = state == FLAT
        if tl.max(flat.to(tl.int32)) > 0:
            hi, lo = _balance(KIND, given, stretch, c_row, row, hi, lo, flat, alpha, BLOCK)
    return hi, lo


@triton.jit
def _end(KIND: tl.constexpr, given, stretch, c_row, row, hi, lo, alpha, BLOCK: tl.constexpr):
    """Return the θ, in two numbers, from which on the first of the entries bought is not whole."""
    old, end, rest = price(KIND, hi, lo, row.t, alpha), hi * 0.0, hi * 0.0
    for _i in tl.static_range(2):
        theta = price(KIND, end, rest, row.t, alpha)
        least = tl.zeros((stretch.here.shape[0], BLOCK), tl.float64) + WHOLE
        for at in range(0, given.n, BLOCK):
            x, c, pays = paying(stretch, c_row, at, row.scale, BLOCK)
            _, upper, _, _ = tail(KIND, place(KIND, x, c, old), alpha)
            gap = (distance(x, c, theta) - theta.end[:, None]) / tl.where(pays, c, 1.0)
            least = tl.minimum(least, tl.where(pays & upper, gap, WHOLE))
        end, rest = two_sum(end, tl.min(least, axis=1))
    return end, rest


@triton.jit
def _balance(
    KIND: tl.constexpr, given, stretch, c_row, row, hi, lo, flat, alpha, BLOCK: tl.constexpr
):
    """Return the θ at which Σc·F of those below and Σc·(1 − F) of those above have one logarithm,
    in flat rows.
    """
    start, going, rounds = price(KIND, hi, lo, row.t, alpha), flat, 0
    nothing = tl.zeros((stretch.here.shape[0], BLOCK), tl.float64)
    left, right = nothing - WHOLE, nothing + WHOLE
    for at in range(0, given.n, BLOCK):
        x, c, pays = paying(stretch, c_row, at, row.scale, BLOCK)
        upper, crossing = distance(x, c, start) > 0.0, x / tl.where(pays, c, 1.0)
        left = tl.maximum(left, tl.where(pays & ~upper, crossing, -WHOLE))
        right = tl.minimum(right, tl.where(pays & upper, crossing, WHOLE))
    low, high = tl.max(left, axis=1), tl.min(right, axis=1)
    inside = flat & (high > low)
    hi, lo = tl.where(inside, 0.5 * low + 0.5 * high, hi), tl.where(inside, 0.0, lo)
    low_lo, high_lo = hi * 0.0, hi * 0.0
    while tl.max(going.to(tl.int32)) > 0:
        theta = price(KIND, hi, lo, row.t, alpha)
        most_low, most_high = nothing - 1e300, nothing - 1e300
        for at in range(0, given.n, BLOCK):
            x, c, pays = paying(stretch, c_row, at, row.scale, BLOCK)
            upper, logs, _ = _logs(KIND, x, c, pays, start, theta)
            most_low = tl.maximum(most_low, tl.where(pays & ~upper, logs, -1e300))
            most_high = tl.maximum(most_high, tl.where(pays & upper, logs, -1e300))
        top_low, top_high = tl.max(most_low, axis=1), tl.max(most_high, axis=1)
        below, above, fall, rise = nothing, nothing, nothing, nothing
        for at in range(0, given.n, BLOCK):
            x, c, pays = paying(stretch, c_row, at, row.scale, BLOCK)
            upper, logs, steep = _logs(KIND, x, c, pays, start, theta)
            most = tl.where(upper, top_high[:, None], top_low[:, None])
            raised = tl.where(pays, tl.exp(tl.minimum(logs - most, 0.0)), 0.0)
            below += tl.where(upper, 0.0, raised)
            above += tl.where(upper, raised, 0.0)
            fall += tl.where(upper, 0.0, raised * steep)
            rise += tl.where(upper, raised * steep, 0.0)
        low_sum, high_sum = tl.sum(below, axis=1), tl.sum(above, axis=1)
        low_sum = tl.where(low_sum > 0.0, low_sum, 1.0)
        high_sum = tl.where(high_sum > 0.0, high_sum, 1.0)
        excess = (top_low - top_high) + (tl.log(low_sum) - tl.log(high_sum))
        slope = tl.sum(fall, axis=1) / low_sum + tl.sum(rise, axis=1) / high_sum
        up, down = going & (excess > 0.0), going & (excess <= 0.0)
        low, low_lo = tl.where(up, hi, low), tl.where(up, lo, low_lo)
        high, high_lo = tl.where(down, hi, high), tl.where(down, lo, high_lo)
        off_low, off_high = (low - hi) + (low_lo - lo), (high - hi) + (high_lo - lo)
        by = excess / tl.maximum(slope, 1e-60) * row.t
        is_inside = (by > off_low) & (by < off_high)
        by = tl.where(is_inside | (excess == 0.0), by, 0.5 * off_low + 0.5 * off_high)
        rounds += 1
        next_hi, next_lo = two_sum(hi, lo + by)
        hi, lo = tl.where(going, next_hi, hi), tl.where(going, next_lo, lo)
        small = tl.abs(by) <= tl.maximum(1e-9 * row.t, 1e-15 * tl.abs(hi))
        going &= ~small & (rounds < BALANCE)
    return hi, lo


@triton.jit
def _logs(KIND: tl.constexpr, x, c, pays, start, theta):
    """Return (whether an entry was above θ, the logarithm of c times its tail, c·F′/tail)."""
    upper = distance(x, c, start) > 0.0
    z = distance(x, c, theta) * theta.per_t[:, None]
    narrow = tl.minimum(tl.maximum(z, -FARTHEST), FARTHEST).to(tl.float32)
    if is_balanced_by_logs(KIND):
        low, fall = log_tail(KIND, False, narrow)
        high, rise = log_tail(KIND, True, narrow)
        logs = tl.where(upper, high, low).to(tl.float64)
        steep = tl.where(upper, rise, fall).to(tl.float64)
    elif KIND == NORMAL:
        ratio = mills(tl.abs(narrow)).to(tl.float64)
        logs, steep = z * z * -0.5 + tl.log(ratio), (1.0 / ratio) * PER_ROOT_2_PI
    else:  # so far from θ both tails are pure exponentials
        logs, steep = -tl.abs(z), tl.abs(z) * 0.0 + 1.0
    own = tl.log(tl.where(pays, c, 1.0))
    return upper, logs + own, c * steep
