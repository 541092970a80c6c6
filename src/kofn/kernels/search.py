"""One row's threshold: survey the row, then look at it until θ is found.

The rules are those of threshold.py (log-odds Newton, residual split at F > ½, plateau in logs,
stop on the step, always end). What differs is how little is paid for them: entries are prepared
once, sums are float32 over blocks and float64 across them, and Halley's third order lets a small
step be the last without another look.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from kofn.kernels.elementary import inline, ordered, real, unordered, widest_vectors
from kofn.kernels.entries import (
    LAPLACE,
    LOGISTIC,
    NORMAL,
    logs,
    moved,
    prepare,
    quantile,
    tail,
)

summing = njit(forceinline=True, error_model="numpy", fastmath={"contract", "reassoc", "nsz"})
"""For loops that add up: their sums may be taken in any order, so that they become vectors."""

plain = njit(error_model="numpy")
"""For what is rare and long: compiled once, called, not repeated in every kernel."""

BLOCK = 512  # what is summed in the precision of the scores before it joins a float64
ANCHORED = 3.0  # |δ| up to which what was prepared at an anchor keeps its digits


@summing
def _survey_block(x, pivot, most):
    widest_vectors()
    zero, one = real(pivot, 0.0), real(pivot, 1.0)
    infinity = real(pivot, math.inf)
    least, greatest = ordered(infinity), ordered(-infinity)
    live, top, bad, usual, total, squares = zero, zero, zero, zero, zero, zero
    for i in range(x.size):
        v = x[i]
        size = abs(v)
        finite = size < infinity
        key = ordered(v)
        least = min(least, key if finite else ordered(infinity))
        greatest = max(greatest, key if finite else ordered(-infinity))
        live += one if finite else zero
        top += one if v == infinity else zero
        bad += zero if v == v else one
        distance = v - pivot if size < most else zero
        usual += one if size < most else zero
        total += distance
        squares += distance * distance
    return least, greatest, live, top, bad, usual, total, squares


@inline
def _survey_all(x, pivot, most):
    infinity = real(pivot, math.inf)
    least, greatest = ordered(infinity), ordered(-infinity)
    live, top, bad, usual, total, squares = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for start in range(0, x.size, BLOCK):
        block = _survey_block(x[start : start + BLOCK], pivot, most)
        least, greatest = min(least, block[0]), max(greatest, block[1])
        live += block[2]
        top += block[3]
        bad += block[4]
        usual += block[5]
        total += block[6]
        squares += block[7]
    mean = total / max(usual, 1.0)
    variance = max(squares / max(usual, 1.0) - mean * mean, 0.0)
    lowest = np.float64(unordered(least, pivot))
    highest = np.float64(unordered(greatest, pivot))
    return lowest, highest, live, top, bad, pivot + mean, variance, usual


@inline
def survey(x, k, temperature):
    """(least, greatest, live, top, bad, mean, variance, usual): what starts the search in a row.

    live counts finite scores, top those of +inf, bad the NaN. Mean, variance and their count tell
    where most of the scores are; additive masks such as −1e9 have no say in that.
    """
    pivot = x[x.size // 2]
    pivot = pivot if abs(pivot) < real(pivot, 1e15) else real(pivot, 0.0)
    seen = _survey_all(x, pivot, real(pivot, 1e15))
    lowest, highest, live, top, bad, _, _, _ = seen
    if highest - lowest > 1e5 * temperature and live > 0:
        near = _survey_all(x, real(pivot, highest), real(pivot, 1e4 * temperature))
        if near[7] > k - top:
            return lowest, highest, live, top, bad, near[5], near[6], near[7]
    return seen


@summing
def _first_block(kind, x, kept, anchor, per_t, by, inverse, alpha):
    widest_vectors()
    zero, one = real(anchor, 0.0), real(anchor, 1.0)
    tails, above, weight, count, slope = zero, zero, zero, zero, zero
    for i in range(x.size):
        a = prepare(kind, (x[i] - anchor) * per_t)
        kept[i] = a
        t, is_upper, density_, slope_ = tail(kind, a, by, inverse, alpha)
        upper = one if is_upper else zero
        tails += t
        above += t * upper
        weight += density_
        count += upper
        slope += slope_
    return tails, above, weight, count, slope


@summing
def _next_block(kind, kept, by, inverse, alpha):
    widest_vectors()
    zero, one = real(by, 0.0), real(by, 1.0)
    tails, above, weight, count, slope = zero, zero, zero, zero, zero
    for i in range(kept.size):
        t, is_upper, density_, slope_ = tail(kind, kept[i], by, inverse, alpha)
        upper = one if is_upper else zero
        tails += t
        above += t * upper
        weight += density_
        count += upper
        slope += slope_
    return tails, above, weight, count, slope


@inline
def look(kind, fresh, x, kept, anchor, per_t, delta, alpha):
    """(Σ_{F≤½} F, Σ_{F>½} 1 − F, ΣF′, #{F>½}, ΣF″) at anchor + Tδ; prepares where `fresh`."""
    by = real(anchor, moved(kind, delta))
    inverse = real(anchor, 1.0) / by
    tails, above, weight, count, slope = 0.0, 0.0, 0.0, 0.0, 0.0
    for start in range(0, x.size, BLOCK):
        stop = start + BLOCK
        if fresh:
            sums = _first_block(
                kind, x[start:stop], kept[start:stop], anchor, per_t, by, inverse, alpha
            )
        else:
            sums = _next_block(kind, kept[start:stop], by, inverse, alpha)
        tails += sums[0]
        above += sums[1]
        weight += sums[2]
        count += sums[3]
        slope += sums[4]
    return tails - above, above, weight, count, slope


@inline
def halley(k, n, excess, weight, slope):
    """(log-odds of ΣF/n less those of k/n, the step in units of T that would close them)."""
    total, rest = k + excess, (n - k) - excess
    gap = math.log1p(max(excess * n / (k * rest), -0.999999999999))
    odds = 1 / total + 1 / rest
    rate = weight * odds
    newton = gap / rate
    bend = slope * odds + weight * weight * (1 / (rest * rest) - 1 / (total * total))
    damp = 1 - newton * bend / (2 * rate)
    return gap, newton / min(max(damp, 0.5), 2.0)


@inline
def last_step(kind, eps):
    """The step after which no further look is needed: its cube, or square at a kink, is lost."""
    if kind == LOGISTIC or kind == NORMAL:
        return 0.3 * eps ** (1 / 3)
    return 0.3 * eps**0.5 if kind == LAPLACE else 0.0


@inline
def _fallback(low, high, low_gap, high_gap, tries):
    """Where to look next inside the bracket when Newton's step leaves it.

    First where the straight line between the log-odds at its ends crosses; then in turn by
    exponents from either end, where masks of −1e9 have stretched it, and in the middle.
    """
    width = high - low
    if tries < 3:
        share = low_gap / (low_gap - high_gap)
        return low + width * min(max(share, 0.02), 0.98)
    turn = tries % 3
    if turn == 0 or width < 16:
        return low / 2 + high / 2
    return high - math.sqrt(width) if turn == 1 else low + math.sqrt(width)


@inline
def start_of(kind, k, seen, temperature, alpha):
    """(θ to start from, a bracket, what a log-odd is worth in units of T) of a row.

    A sum of links at normal scores is close to one wide link, whose quantile is between those of
    the two; for the normal link it is exact.
    """
    lowest, highest, live, _, _, mean, variance, usual = seen
    share = min(k / max(usual, 1.0), 0.5 + 0.5 * k / live)
    bell = quantile(NORMAL, share, alpha)
    own = bell if kind == NORMAL else quantile(kind, share, alpha)
    reach = temperature * own
    eps = 1e-15
    edge = temperature * quantile(kind, k / live, alpha)
    slack = 1e-6 * (abs(lowest) + abs(highest)) + 1e-3 * (temperature + abs(edge))
    low, high = lowest - edge - slack, highest - edge + slack
    spread = math.sqrt(variance + 2.56 * temperature * temperature)
    away = math.sqrt(variance * bell * bell + reach * reach + eps)
    start = mean - (away if math.sqrt(variance) * bell + reach > 0 else -away)
    worth = spread / (temperature * math.sqrt(2.56 + bell * bell))
    return min(max(start, low), high), low, high, worth


@inline
def solve(kind, x, kept, k, seen, temperature, alpha):
    """(anchor, δ, fresh) with θ = anchor + Tδ; `kept` holds the row as prepared unless fresh.

    k counts the scores of +inf, which every look sees as F = 1; 0 < k − #top < #live. δ is NaN
    where it was not found.
    """
    live, wanted = seen[2], k - seen[3]
    if seen[1] > 1e15 or seen[6] > (1e6 * temperature) ** 2 or seen[7] < 1:
        return x[0], math.nan, True
    eps = 2.0**-23 if x.itemsize == 4 else 2.0**-52
    faint = 1e-31 if x.itemsize == 4 else 1e-250  # tails that underflow may have taken from
    two_tails = kind == LOGISTIC or kind == LAPLACE or kind == NORMAL

    start, low, high, worth = start_of(kind, wanted, seen, temperature, alpha)
    anchor = real(x[0], start)
    low, high = (low - anchor) / temperature, (high - anchor) / temperature
    low_gap, high_gap = math.nan, math.nan

    per_t = real(x[0], 1 / temperature)
    delta, fresh, tries, leap = 0.0, True, 0, 1.0
    width = math.inf
    for round_ in range(16 * x.itemsize):
        below, above, weight, count, slope = look(kind, fresh, x, kept, anchor, per_t, delta, alpha)
        fresh = False
        excess = (count - k) + below - above
        gap, step = halley(wanted, live, excess, weight, slope)
        if excess == 0 and not two_tails:
            return anchor, delta, False
        if excess > 0:
            low, low_gap = delta, gap
        else:
            high, high_gap = delta, gap
        enough = last_step(kind, eps)
        if two_tails and count == k and below + above < 1:
            # ΣF − k is flat here, but the two tails still balance on a logarithmic scale.
            if below + above < (2 if min(below, above) > faint else 1e3) * faint:
                theta = _balance(kind, x, anchor + temperature * delta, temperature, eps)
                anchor = real(anchor, theta)
                return anchor, (theta - anchor) / temperature, True
            ratio = max(below, faint) / max(above, faint)
            step = math.log(ratio) * (below + above) / (2 * weight)
            leap = math.inf
            enough = 0.3 * eps**0.5 if below > 0 and above > 0 else 0.0
        tolerance = eps * max(min(1.0, wanted / weight), 4 * (below + above) / weight)
        near = abs(step) <= max(tolerance, enough)
        target = delta + step
        if not near:
            both = low_gap == low_gap and high_gap == high_gap
            # Twice in three looks the bracket may do as it likes; then it must have halved.
            slow = False
            if both and round_ % 3 == 2:
                slow = high - low > width / 2 and abs(step) > 0.1
                width = high - low
            if both and -0.1 < (target - low) / (high - low) <= 0:
                target = low + 0.01 * (high - low)
            elif both and 0 <= (target - high) / (high - low) < 0.1:
                target = high - 0.01 * (high - low)
            if both and (slow or not low < target < high):
                target = _fallback(low, high, low_gap, high_gap, tries)
                tries += 1
            elif not both and not abs(step) <= max(3 * abs(gap) * worth, leap):
                # A step beyond what the spread of the scores suggests; go past the root to hold it.
                stride = max(1.5 * abs(gap) * worth, leap)
                target = delta + (stride if excess > 0 else -stride)
                worth, leap = 2 * worth, 8 * leap
            if not low < target < high:
                target = low / 2 + high / 2
        stuck = abs(target - delta) <= eps * 1e-3 or not high - low > eps / 2
        delta = target
        if abs(delta) > ANCHORED:
            moved_to = real(anchor, anchor + temperature * delta)
            shift = (np.float64(moved_to) - anchor) / temperature
            delta, low, high = delta - shift, low - shift, high - shift
            anchor, fresh = moved_to, True
        if near or stuck:
            return anchor, delta, fresh
    return anchor, math.nan, True


@plain
def _balance(kind, x, theta, temperature, eps):
    """θ with log Σ_{F≤½} F = log Σ_{F>½} (1 − F), which no underflow reaches."""
    left, right = -math.inf, math.inf  # the scores next to θ
    for i in range(x.size):
        v = np.float64(x[i])
        if v > theta:
            right = min(right, v)
        elif v > -math.inf:
            left = max(left, v)
    low, high = left, right
    theta = left / 2 + right / 2
    for _ in range(200):
        first, _ = logs(kind, (left - theta) / temperature)
        second, _ = logs(kind, (theta - right) / temperature)
        below, above, below_slope, above_slope = 0.0, 0.0, 0.0, 0.0
        for i in range(x.size):
            v = np.float64(x[i])
            if -math.inf < v <= left:
                log_tail, log_density = logs(kind, (v - theta) / temperature)
                below += math.exp(log_tail - first)
                below_slope += math.exp(log_density - first)
            elif right <= v < math.inf:
                log_tail, log_density = logs(kind, (theta - v) / temperature)
                above += math.exp(log_tail - second)
                above_slope += math.exp(log_density - second)
        gap = (first - second) + math.log(below / above)
        if gap > 0:
            low = theta
        else:
            high = theta
        step = temperature * gap / (below_slope / below + above_slope / above)
        near = abs(step) <= eps * temperature
        target = theta + step
        if not (near or low < target < high):
            target = low / 2 + high / 2
        if near or target == theta:
            return target
        theta = target
    return theta
