"""One row's threshold: survey the row, then look at it until θ is found.

The rules are those of threshold.py (log-odds Newton, residual split at F > ½, plateau in logs,
stop on the step, always end). What differs is how little is paid for them: entries are prepared
once, sums are float32 over blocks and float64 across them, and Halley's third order lets a small
step be the last without another look. All numbers here are float64 and every visit to the row is a
call by address (passes.py), so this is compiled once for all links and precisions.
"""

from __future__ import annotations

import math
from collections import namedtuple

import numpy as np
from numba import carray

from kofn.kernels import team
from kofn.kernels.entries import (
    BOUNDED,
    LAPLACE,
    LOGISTIC,
    NORMAL,
    edge,
    logs,
    moved,
    quantile,
)
from kofn.kernels.native import pointer
from kofn.kernels.passes import CENSUS, FIRST_LOOK, LOOK, SURVEY
from kofn.kernels.team import plain

ANCHORED = 3.0  # |δ| up to which what was prepared at an anchor keeps its digits

Row = namedtuple("Row", "visits kind size x g out n team memo alpha")
"""Addresses of what visits it (passes.py), of its scores, cotangents and answer, of the team that
does, and of what `_quantiles` keeps from one row to the next; the link's kind; bytes per number; n.
"""

Seen = namedtuple("Seen", "least greatest live top bad mean variance usual")
"""live counts finite scores, top those of +inf, bad the NaN. Mean, variance and their count tell
where most of the scores are; additive masks such as −1e9 have no say in that. Without ±inf, NaN
and masks, least and greatest are only bounds."""


@plain
def visit(row, which, a, b, c, d, e):
    """Go over the row once; return its sums."""
    address = carray(pointer(row.visits), which + 1, np.int64)[which]
    return team.visit(
        row.team, address, row.x, row.g, row.out, row.n, row.size, which == CENSUS, a, b, c, d, e
    )


@plain
def load(address, i, size):
    """The i-th number at `address`."""
    if size == 4:
        return np.float64(carray(pointer(address), i + 1, np.float32)[i])
    return carray(pointer(address), i + 1, np.float64)[i]


@plain
def store(address, i, size, value):
    if size == 4:
        carray(pointer(address), i + 1, np.float32)[i] = value
    else:
        carray(pointer(address), i + 1, np.float64)[i] = value


@plain
def rounded(value, size):
    """`value` as the scores' type holds it."""
    return np.float64(np.float32(value)) if size == 4 else value


@plain
def survey(row, k, temperature):
    """What starts the search in a row."""
    pivot = load(row.x, row.n // 2, row.size)
    sums = visit(row, SURVEY, pivot, 0.0, 0.0, 0.0, 0.0)
    mean, square = sums[0] / row.n, sums[1] / row.n
    variance = max(square - mean * mean, 0.0)
    # No score is further from the mean than this, which rounding is given its part in.
    reach = math.sqrt(row.n * (variance + 1e-5 * square))
    if reach < 1e5 * temperature and abs(pivot) < 1e15:
        mean += pivot
        live = np.float64(row.n)
        return Seen(mean - reach, mean + reach, live, 0.0, 0.0, mean, variance, live)
    seen = _census(row, pivot if abs(pivot) < 1e15 else 0.0, 1e15)
    if seen.greatest - seen.least > 1e5 * temperature and seen.live > 0:
        near = _census(row, seen.greatest, rounded(1e4 * temperature, row.size))
        if near.usual > k - seen.top:
            return near
    return seen


@plain
def _census(row, pivot, most):
    sums = visit(row, CENSUS, pivot, most, 0.0, 0.0, 0.0)
    count = max(sums[5], 1.0)
    mean = sums[6] / count
    variance = max(sums[7] / count - mean * mean, 0.0)
    return Seen(sums[0], sums[1], sums[2], sums[3], sums[4], pivot + mean, variance, sums[5])


@plain
def two_floats(anchor, offset, size):
    """anchor + offset as a number of the scores' type and what it cannot hold (two-sum)."""
    total = anchor + offset
    part = total - anchor
    rest = (anchor - (total - part)) + (offset - part)
    high = rounded(total, size)
    return high, (total - high) + rest


@plain
def visit_at(row, which, anchor, temperature, delta):
    """A look, or the writing, at the threshold anchor + Tδ."""
    by = 0.0
    if row.kind in BOUNDED:
        anchor, by = two_floats(anchor, temperature * delta, row.size)
    else:
        by = moved(row.kind, delta)
    return visit(row, which, anchor, 1 / temperature, by, row.alpha, 0.0)


@plain
def look(row, fresh, anchor, temperature, delta):
    """(Σ_{F≤½} F, Σ_{F>½} 1 − F, ΣF′, #{F>½}, ΣF″) at anchor + Tδ; prepares where `fresh`."""
    sums = visit_at(row, FIRST_LOOK if fresh else LOOK, anchor, temperature, delta)
    return sums[0] - sums[1], sums[1], sums[2], sums[3], sums[4]


@plain
def halley(k, n, excess, weight, slope):
    """(log-odds of ΣF/n less those of k/n, the step in units of T that would close them)."""
    total, rest = k + excess, (n - k) - excess
    each = 1 / (k * total * rest)  # few divisions: each is waited for
    per_weight = 1 / weight
    ratio = max(excess * n * total * each, -0.999999999999)
    if abs(ratio) < 1:  # log(1 + r) by Padé's quotient, to 3e-4
        gap = ratio * (30 + ratio * (21 + ratio)) / (30 + ratio * (36 + 9 * ratio))
    else:
        gap = math.log1p(ratio)
    newton = gap * total * rest * per_weight / n
    bend = slope * per_weight + weight * (total - rest) * k * each
    return gap, newton / min(max(1 - newton * bend / 2, 0.5), 2.0)


@plain
def last_step(kind, size):
    """The step after which no further look is needed: its cube, or square at a kink, is lost."""
    if kind == LOGISTIC or kind == NORMAL:
        return 1.5e-3 if size == 4 else 1.8e-6
    if kind == LAPLACE:
        return 1e-4 if size == 4 else 4.5e-9
    return 0.0


@plain
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


@plain
def _quantiles(row, k, seen):
    """(Φ⁻¹ and F⁻¹ of the share to choose of the usual scores, F⁻¹ of that of the live ones)."""
    memo = carray(pointer(row.memo), 6, np.float64)
    if not (memo[0] == k and memo[1] == seen.live and memo[2] == seen.usual):
        share = min(k / max(seen.usual, 1.0), 0.5 + 0.5 * k / seen.live)
        bell = quantile(NORMAL, share, row.alpha)
        memo[0], memo[1], memo[2], memo[3] = k, seen.live, seen.usual, bell
        memo[4] = bell if row.kind == NORMAL else quantile(row.kind, share, row.alpha)
        memo[5] = quantile(row.kind, k / seen.live, row.alpha)
    return memo[3], memo[4], memo[5]


@plain
def start_of(row, k, seen, temperature):
    """(θ to start from, a bracket, what a log-odd is worth in units of T) of a row.

    A sum of links at normal scores is close to one wide link, whose quantile is between those of
    the two; for the normal link it is exact.
    """
    bell, own, end = _quantiles(row, k, seen)
    origin = temperature * edge(row.kind, row.alpha)
    own, end = temperature * own + origin, temperature * end
    slack = 1e-6 * (abs(seen.least) + abs(seen.greatest)) + 1e-3 * (temperature + abs(end))
    low, high = seen.least - end - slack, seen.greatest - end + slack
    far = bell * math.sqrt(seen.variance)
    away = math.sqrt(far * far + own * own)
    start = seen.mean + origin - (away if far + own > 0 else -away)
    spread = seen.variance / (temperature * temperature) + 2.56
    worth = math.sqrt(spread / (2.56 + bell * bell))
    return min(max(start, low), high), low, high, worth


@plain
def solve(row, k, seen, temperature):
    """(anchor, δ, fresh) with θ = anchor + Tδ; the answer's memory holds the row as prepared
    unless fresh.

    k counts the scores of +inf, which every look sees as F = 1; 0 < k − #top < #live. δ is NaN
    where it was not found.
    """
    kind, live, wanted = row.kind, seen.live, k - seen.top
    if seen.greatest > 1e15 or seen.variance > (1e6 * temperature) ** 2 or seen.usual < wanted:
        return 0.0, math.nan, True
    eps = 2.0**-23 if row.size == 4 else 2.0**-52
    faint = 1e-31 if row.size == 4 else 1e-250  # tails that underflow may have taken from
    two_tails = kind == LOGISTIC or kind == LAPLACE or kind == NORMAL

    start, low, high, worth = start_of(row, wanted, seen, temperature)
    anchor, per_t = rounded(start, row.size), 1 / temperature
    low, high = (low - anchor) * per_t, (high - anchor) * per_t
    low_gap, high_gap = math.nan, math.nan

    delta, fresh, tries, leap = 0.0, True, 0, 1.0
    width = math.inf
    for round_ in range(16 * row.size):
        below, above, weight, count, slope = look(row, fresh, anchor, temperature, delta)
        fresh = False
        excess = (count - k) + below - above
        gap, step = halley(wanted, live, excess, weight, slope)
        if excess == 0 and not two_tails:
            return anchor, delta, False
        if excess > 0:
            low, low_gap = delta, gap
        else:
            high, high_gap = delta, gap
        enough = last_step(kind, row.size)
        if two_tails and count == k and below + above < 1:
            # ΣF − k is flat here, but the two tails still balance on a logarithmic scale.
            if below + above < (2 if min(below, above) > faint else 1e3) * faint:
                theta = _balance(row, anchor + temperature * delta, temperature, eps)
                anchor = rounded(theta, row.size)
                return anchor, (theta - anchor) / temperature, True
            ratio = max(below, faint) / max(above, faint)
            step = math.log(ratio) * (below + above) / (2 * weight)
            leap = math.inf
            enough = last_step(LAPLACE, row.size) if below > 0 and above > 0 else 0.0
        tolerance = eps * max(min(weight, wanted), 4 * (below + above))
        near = abs(step) <= enough or abs(step) * weight <= tolerance
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
            moved_to = rounded(anchor + temperature * delta, row.size)
            shift = (moved_to - anchor) / temperature
            delta, low, high = delta - shift, low - shift, high - shift
            anchor, fresh = moved_to, True
            if abs(delta) > ANCHORED:
                # Its neighbours in the scores' type are temperatures apart: look at it itself, and
                # leave a θ that is really between them to the reference.
                if near or stuck:
                    return anchor, math.nan, True
                delta = 0.0
        if near or stuck:
            return anchor, delta, fresh
    return anchor, math.nan, True


@plain
def _balance(row, theta, temperature, eps):
    """θ with log Σ_{F≤½} F = log Σ_{F>½} (1 − F), which no underflow reaches."""
    kind = row.kind
    left, right = -math.inf, math.inf  # the scores next to θ
    for i in range(row.n):
        v = load(row.x, i, row.size)
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
        for i in range(row.n):
            v = load(row.x, i, row.size)
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
