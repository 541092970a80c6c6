"""θ of rows of float64 on a GPU: evaluations until it is found, however long that takes.

The rules are those of solver/threshold.py: Newton on the log-odds of ΣF/n in a bracket, and where
both tails underflow on their logarithms. θ and the ends of the bracket are pairs of numbers.
(Tests: tests/kernels/gpu/interpreted/doubles.py.)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from kofn.kernels import contract
from kofn.kernels.gpu.doubles.words import FARTHEST, log_above, log_below, mills, quantile, tail
from kofn.kernels.gpu.knapsack.search import midway
from kofn.kernels.gpu.rows.formulas import (
    INF,
    LINEAR,
    NORMAL,
    SQUARE,
    edge,
    has_two_tails,
    is_balanced_by_logs,
    is_bounded,
    is_capped,
    outside,
)
from kofn.kernels.gpu.rows.search import two_sum
from kofn.kernels.gpu.rows.words import PER_ROOT_2_PI, log1p
from kofn.links.table import TABLE

EPS = tl.constexpr(2.0**-52)
LEAST = tl.constexpr(2.0**-1022)
MOST = tl.constexpr(float((2.0 - 2.0**-52) * 2.0**1023))
ROUNDS = tl.constexpr(256)  # evaluations, of each of the two kinds
FLAT = tl.constexpr(2)
SMOOTH = tl.constexpr(
    tuple(each.kind.number for each in contract.KINDS if TABLE[each.link].inner.smooth)
)


@triton.constexpr_function
def is_smooth(kind):
    """Return whether F′ is continuous, and |F″| no more than F′, roughly."""
    return kind in SMOOTH.value


class Rows(NamedTuple):
    """Some rows and their numbers."""

    x: Any  # the addresses of their first scores
    here: Any  # which there are
    price: Any  # the addresses of the first prices that come off the scores
    n: Any  # entries of a row
    k: Any
    t: Any
    alpha: Any
    live: Any  # entries in play, but those of +inf
    top: Any  # entries of +inf
    least: Any
    greatest: Any
    bad: Any  # there is a NaN


class Sums(NamedTuple):
    """The sums of one evaluation."""

    below: Any  # ΣF of the entries with F ≤ ½
    above: Any  # Σ(1 − F) of the others
    count: Any  # how many these are
    weight: Any  # ΣF′
    lower: Any  # the same of entries with F ≤ ½


@triton.jit
def scores(rows, at, PRICED: tl.constexpr, BLOCK: tl.constexpr):
    """Return (BLOCK scores of each row less prices, which of them there are); −inf for others."""
    columns = at + tl.arange(0, BLOCK)
    filled = rows.here[:, None] & (columns < rows.n)[None, :]
    x = tl.load(rows.x[:, None] + columns[None, :], mask=filled, other=-INF)
    if PRICED:
        x -= tl.load(rows.price[:, None] + columns[None, :], mask=filled, other=0.0)
    return x, filled


@triton.jit
def counted(rows, PRICED: tl.constexpr, BLOCK: tl.constexpr):
    """Return the same rows with what is counted in one pass."""
    nothing = tl.zeros((rows.here.shape[0], BLOCK), tl.float64)
    least, greatest, live, top, wrong = nothing + INF, nothing - INF, nothing, nothing, nothing
    for at in range(0, rows.n, BLOCK):
        x, _ = scores(rows, at, PRICED, BLOCK)
        inside = tl.abs(x) < INF
        least = tl.minimum(least, tl.where(inside, x, INF))
        greatest = tl.maximum(greatest, tl.where(inside, x, -INF))
        live += tl.where(inside, 1.0, 0.0)
        top += tl.where(x == INF, 1.0, 0.0)
        wrong += tl.where(x != x, 1.0, 0.0)
    number, tops, wrongs = tl.sum(live, axis=1), tl.sum(top, axis=1), tl.sum(wrong, axis=1)
    good = (rows.t > 0.0) & (rows.t < INF)
    bad = (rows.k != rows.k) | (wrongs > 0.0) | ((number > 0.0) & ~good)
    ends = tl.min(least, axis=1), tl.max(greatest, axis=1)
    given = rows.x, rows.here, rows.price, rows.n, rows.k, rows.t, rows.alpha
    return Rows(*given, number, tops, *ends, bad)


@triton.jit
def place(KIND: tl.constexpr, x, hi, lo, t, alpha):
    """y as formulas take it, where its square is finite."""
    z = ((x - hi[:, None]) - lo[:, None]) / t[:, None]
    return tl.minimum(tl.maximum(z, -FARTHEST), FARTHEST) - outside(KIND, alpha)


@triton.jit
def _evaluate(KIND: tl.constexpr, rows, hi, lo, PRICED: tl.constexpr, BLOCK: tl.constexpr):
    nothing = tl.zeros((rows.here.shape[0], BLOCK), tl.float64)
    below, above, count, weight, lower = nothing, nothing, nothing, nothing, nothing
    for at in range(0, rows.n, BLOCK):
        x, _ = scores(rows, at, PRICED, BLOCK)
        live = tl.abs(x) < INF
        y = place(KIND, tl.where(live, x, 0.0), hi, lo, rows.t, rows.alpha)
        t, upper, slope, _ = tail(KIND, y, rows.alpha)
        t, slope, upper = tl.where(live, t, 0.0), tl.where(live, slope, 0.0), upper & live
        below += tl.where(upper, 0.0, t)
        above += tl.where(upper, t, 0.0)
        count += tl.where(upper, 1.0, 0.0)
        weight += slope
        lower += tl.where(upper, 0.0, slope)
    tails = tl.sum(below, axis=1), tl.sum(above, axis=1), tl.sum(count, axis=1)
    return Sums(*tails, tl.sum(weight, axis=1), tl.sum(lower, axis=1))


@triton.jit
def _start(KIND: tl.constexpr, rows, k, n, PRICED: tl.constexpr, BLOCK: tl.constexpr):
    """Return (a guess of θ, the least and the greatest that it may be)."""
    share, rest = k / n, (n - k) / n
    own = quantile(KIND, tl.maximum(share, LEAST), tl.maximum(rest, LEAST), rows.alpha)
    reach = rows.t * own
    slack = 1e-3 * (tl.abs(reach) + rows.t)
    slack += 4.0 * EPS * tl.maximum(tl.abs(rows.least), tl.abs(rows.greatest))
    low = tl.minimum(tl.maximum(rows.least - reach - slack, -MOST), MOST)
    high = tl.minimum(tl.maximum(rows.greatest - reach + slack, -MOST), MOST)
    nothing = tl.zeros((rows.here.shape[0], BLOCK), tl.float64)
    total, square = nothing, nothing
    for at in range(0, rows.n, BLOCK):
        x, _ = scores(rows, at, PRICED, BLOCK)
        total += tl.where(tl.abs(x) < INF, x, 0.0)
    mean = tl.sum(total, axis=1) / n
    for at in range(0, rows.n, BLOCK):
        x, _ = scores(rows, at, PRICED, BLOCK)
        away = tl.where(tl.abs(x) < INF, x - mean[:, None], 0.0)
        square += away * away
    # Normally distributed scores widen the link.
    middle = own + edge(KIND, rows.alpha) - outside(KIND, rows.alpha)
    near, far = rows.t * middle, quantile(NORMAL, share, rest, rows.alpha)
    far *= tl.sqrt(tl.sum(square, axis=1) / n)
    depth = tl.sqrt(far * far + near * near)
    guess = mean - reach + near - tl.where(far + near > 0.0, depth, -depth)
    half = 0.5 * low + 0.5 * high
    return tl.where((guess > low) & (guess < high), guess, half), low, high


@triton.jit
def _newton(KIND: tl.constexpr, k, n, missing, s, alpha):
    """Return (ΣF − k, a step in units of T, how long the last may be, whether tails underflow)."""
    excess, tails = missing + s.below - s.above, s.below + s.above
    some = s.weight > 0.0
    per_weight = 1.0 / tl.where(some, s.weight, 1.0)
    odds = log1p(tl.maximum(excess / k, -1.0)) - log1p(tl.maximum(-excess / (n - k), -1.0))
    step = odds * ((k + excess) / n) * (((n - k) - excess) * per_weight)
    tolerance = tl.maximum(tl.minimum(k * per_weight, 1.0), 4.0 * tails * per_weight) * EPS
    last, flat = tolerance, missing != missing
    if is_smooth(KIND):
        last = 0.5 * tl.sqrt(tolerance)
    if has_two_tails(KIND):
        plateau = (missing == 0.0) & (tails < 1.0)
        flat = plateau & (tails < LEAST / EPS)
        usable = plateau & (s.below > 0.0) & (s.above > 0.0)
        below, above = tl.where(usable, s.below, 1.0), tl.where(usable, s.above, 1.0)
        slope = s.lower / below + (s.weight - s.lower) / above
        step = tl.where(usable, (tl.log(below) - tl.log(above)) / slope, step)
        last = tl.where(plateau, tolerance, last)
    else:
        last = tl.where(tl.abs(excess) <= 4.0 * last * s.weight, last, 0.0)
    if is_bounded(KIND):
        # k entries have weight 1; F approaches 0 like a power of the distance.
        order = alpha * 0.0 + 1.0
        if KIND == SQUARE:
            order += 1.0
        elif KIND != LINEAR:
            order = 1.0 / (alpha - 1.0)
        done = (missing == 0.0) & (s.above == 0.0) & (tl.abs(step) <= tolerance)
        step = tl.where(done, (order + 1.0) * step + 2.0 * EPS, step)
        last = tl.where(done, tl.abs(step), last)
    # Without a slope there is no step; inside of a bracket, none is as long as this.
    side = tl.where(excess > 0.0, INF, -INF)
    return excess, tl.where(some, step, side), tl.where(some, last, 0.0), flat


@triton.jit
def solve(KIND: tl.constexpr, rows, closed, PRICED: tl.constexpr, BLOCK: tl.constexpr):
    """Return θ as two numbers; of no use in rows that are closed."""
    n = tl.where(closed, 2.0, rows.live)
    k = tl.where(closed, 1.0, rows.k - rows.top)
    hi, low, high = _start(KIND, rows, k, n, PRICED, BLOCK)
    lo, low_lo, high_lo, width = hi * 0.0, hi * 0.0, hi * 0.0, hi * 0.0 + INF
    state, rounds = tl.where(closed, 0, 1), 0
    while tl.max((state == 1).to(tl.int32)) > 0:
        active = state == 1
        s = _evaluate(KIND, rows, hi, lo, PRICED, BLOCK)
        excess, step, last, flat = _newton(KIND, k, n, s.count - k, s, rows.alpha)
        up, down = active & (excess > 0.0), active & ~(excess > 0.0)
        low, low_lo = tl.where(up, hi, low), tl.where(up, lo, low_lo)
        high, high_lo = tl.where(down, hi, high), tl.where(down, lo, high_lo)
        off_low, off_high = (low - hi) + (low_lo - lo), (high - hi) + (high_lo - lo)
        by, span = step * rows.t, off_high - off_low
        inside = (by >= off_low) & (by <= off_high)
        near = inside & (tl.abs(step) <= last)
        # What does not halve in three evaluations is halved, in the order of floats.
        slow = (rounds % 3 == 2) & (span > 0.5 * width)
        width = tl.where((rounds % 3 == 2), span, width)
        middle, across = 0.5 * off_low + 0.5 * off_high, (midway(low, high) - hi) - lo
        ends = tl.maximum(tl.abs(low), tl.abs(high)), tl.minimum(tl.abs(low), tl.abs(high))
        apart = (ends[0] > 4.0 * ends[1]) | ((low < 0.0) & (high > 0.0))
        apart &= (across > off_low) & (across < off_high)
        middle = tl.where(apart, across, middle)
        stay = (excess == 0.0) | flat
        by = tl.where(near | (inside & ~slow), by, middle)
        next_hi, next_lo = two_sum(hi, lo + by)
        stuck = ((next_hi == hi) & (next_lo == lo)) | ~(span > 0.0)
        move = active & ~stay & ~(stuck & ~near)
        hi, lo = tl.where(move, next_hi, hi), tl.where(move, next_lo, lo)
        rounds += 1
        over = near | stay | stuck | (rounds >= ROUNDS)
        state = tl.where(active & over, tl.where(flat, FLAT, 0), state)
    if is_capped(KIND):
        hi, lo = _at_end(KIND, rows, k, hi, lo, PRICED, BLOCK)
    if has_two_tails(KIND):
        flat = state == FLAT
        if tl.max(flat.to(tl.int32)) > 0:
            hi, lo = _balance(KIND, rows, hi, lo, flat, PRICED, BLOCK)
    return hi, lo


@triton.jit
def _at_end(KIND: tl.constexpr, rows, k, hi, lo, PRICED: tl.constexpr, BLOCK: tl.constexpr):
    """Return θ so that the least of k entries with F = 1 is where F comes to that: the others' sum
    has underflowed, but is positive.
    """
    nothing = tl.zeros((rows.here.shape[0], BLOCK), tl.float64)
    count, least, nearest = nothing, nothing + INF, nothing + INF
    for at in range(0, rows.n, BLOCK):
        x, _ = scores(rows, at, PRICED, BLOCK)
        live = tl.abs(x) < INF
        y = place(KIND, tl.where(live, x, 0.0), hi, lo, rows.t, rows.alpha)
        _, upper, _, _ = tail(KIND, y, rows.alpha)
        upper &= live
        count += tl.where(upper, 1.0, 0.0)
        least = tl.minimum(least, tl.where(upper, x, INF))
        nearest = tl.minimum(nearest, tl.where(upper, y, INF))
    moves = (tl.sum(count, axis=1) == k) & (tl.min(nearest, axis=1) > 4.0 * EPS)
    rest = -rows.t * outside(KIND, rows.alpha)
    return tl.where(moves, tl.min(least, axis=1), hi), tl.where(moves, rest, lo)


@triton.jit
def _balance(KIND: tl.constexpr, rows, hi, lo, flat, PRICED: tl.constexpr, BLOCK: tl.constexpr):
    """Return the θ at which ΣF of those below and Σ(1 − F) of those above have one logarithm, in
    flat rows.
    """
    nothing = tl.zeros((rows.here.shape[0], BLOCK), tl.float64)
    left, right = nothing - INF, nothing + INF
    for at in range(0, rows.n, BLOCK):
        x, _ = scores(rows, at, PRICED, BLOCK)
        live = tl.abs(x) < INF
        y = place(KIND, tl.where(live, x, 0.0), hi, lo, rows.t, rows.alpha)
        _, upper, _, _ = tail(KIND, y, rows.alpha)
        left = tl.maximum(left, tl.where(live & ~upper, x, -INF))
        right = tl.minimum(right, tl.where(live & upper, x, INF))
    last, first = tl.max(left, axis=1), tl.min(right, axis=1)  # of those below, and above
    low, high = tl.where(flat, last, -1.0), tl.where(flat, first, 1.0)
    hi, lo = tl.where(flat, 0.5 * low + 0.5 * high, hi), tl.where(flat, 0.0, lo)
    going, rounds, low_lo, high_lo = flat, 0, lo * 0.0, lo * 0.0
    while tl.max(going.to(tl.int32)) > 0:
        most_low, most_high = nothing - INF, nothing - INF
        for at in range(0, rows.n, BLOCK):
            x, _ = scores(rows, at, PRICED, BLOCK)
            is_low, is_high, logs, _ = _logs(KIND, x, last, first, hi, lo, rows)
            most_low = tl.maximum(most_low, tl.where(is_low, logs, -INF))
            most_high = tl.maximum(most_high, tl.where(is_high, logs, -INF))
        tops = tl.max(most_low, axis=1), tl.max(most_high, axis=1)
        top_low, top_high = tl.maximum(tops[0], -1e307), tl.maximum(tops[1], -1e307)
        below, above, fall, rise = nothing, nothing, nothing, nothing
        for at in range(0, rows.n, BLOCK):
            x, _ = scores(rows, at, PRICED, BLOCK)
            is_low, is_high, logs, steep = _logs(KIND, x, last, first, hi, lo, rows)
            most = tl.where(is_high, top_high[:, None], top_low[:, None])
            raised = tl.exp(tl.minimum(tl.maximum(logs - most, -745.0), 0.0))
            below += tl.where(is_low, raised, 0.0)
            above += tl.where(is_high, raised, 0.0)
            fall += tl.where(is_low, raised * steep, 0.0)
            rise += tl.where(is_high, raised * steep, 0.0)
        sums = tl.maximum(tl.sum(below, axis=1), 1.0), tl.maximum(tl.sum(above, axis=1), 1.0)
        excess = (top_low - top_high) + (tl.log(sums[0]) - tl.log(sums[1]))
        slope = tl.sum(fall, axis=1) / sums[0] + tl.sum(rise, axis=1) / sums[1]
        up, down = going & (excess > 0.0), going & (excess <= 0.0)
        low, low_lo = tl.where(up, hi, low), tl.where(up, lo, low_lo)
        high, high_lo = tl.where(down, hi, high), tl.where(down, lo, high_lo)
        off_low, off_high = (low - hi) + (low_lo - lo), (high - hi) + (high_lo - lo)
        step = excess / tl.maximum(slope, LEAST)
        by = step * rows.t
        is_inside = (by > off_low) & (by < off_high)
        by = tl.where(is_inside | (excess == 0.0), by, 0.5 * off_low + 0.5 * off_high)
        rounds += 1
        next_hi, next_lo = two_sum(hi, lo + by)
        same = (next_hi == hi) & (next_lo == lo)
        hi, lo = tl.where(going, next_hi, hi), tl.where(going, next_lo, lo)
        going &= ~same & ~(is_inside & (tl.abs(step) <= EPS)) & (rounds < ROUNDS)
    return hi, lo


@triton.jit
def _logs(KIND: tl.constexpr, x, last, first, hi, lo, rows):
    """Return (whether an entry is below, whether it is above, the logarithm of its tail, and the
    slope of that).
    """
    is_low, is_high = (x <= last[:, None]) & (x > -INF), (x >= first[:, None]) & (x < INF)
    z = ((tl.where(is_low | is_high, x, 0.0) - hi[:, None]) - lo[:, None]) / rows.t[:, None]
    z = tl.minimum(tl.maximum(z, -FARTHEST), FARTHEST)
    low, fall, high, rise = _log_tails(KIND, z)
    logs, steep = tl.where(is_high, high, low), tl.where(is_high, rise, fall)
    return is_low, is_high, logs, steep


@triton.jit
def _log_tails(KIND: tl.constexpr, z):
    """Return (log F, F′/F, log(1 − F), F′/(1 − F)), each where it is of use."""
    if is_balanced_by_logs(KIND):
        low, fall = log_below(KIND, z)
        high, rise = log_above(KIND, z)
    elif KIND == NORMAL:
        ratio = mills(tl.abs(z))
        low, fall = z * z * -0.5 + tl.log(ratio), (1.0 / ratio) * PER_ROOT_2_PI
        high, rise = low, fall
    else:  # so far from θ both tails are pure exponentials
        low, fall = -tl.abs(z), tl.abs(z) * 0.0 + 1.0
        high, rise = low, fall
    return low, fall, high, rise


@triton.jit
def log_slope(KIND: tl.constexpr, z):
    """log F′, but for a constant, where F′ underflows."""
    low, fall, high, rise = _log_tails(KIND, z)
    return tl.where(z > 0.0, high + tl.log(rise), low + tl.log(fall))
