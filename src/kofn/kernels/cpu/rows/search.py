"""The thresholds of a few rows: statistics of each, then evaluations until its θ is found.

The rules are as in `solver/threshold.py` (log-odds Newton, residual split at F > ½, plateau in
logs, stop on the step, always end), but cost much less here: entries are
prepared once, sums are float32 over blocks and float64 across them, and Halley's third order lets a
small step be the last without another evaluation. All numbers here are float64 and every pass over
a row is a call by address (loops.py), so this is compiled once for all links and precisions.

Rows go in groups, each in its lane, and the usual step is computed for all lanes at once by vector
code (search_lanes.py); unusual steps are made here, lane by lane. No lane knows of another.
"""

from __future__ import annotations

import math

import numpy as np
from numba import carray

from kofn.kernels.constants import NEAR_TOP, SPREAD, USUAL
from kofn.kernels.contract import (
    BOUNDED,
    CAPPED,
    LAST_BY_LOGS,
    LAST_CHECKED,
    LAST_DOUBLE,
    LAST_SINGLE,
    LINEAR,
    NORMAL,
    STEPS,
    TWO_TAILS,
)
from kofn.kernels.cpu.rows import layout
from kofn.kernels.cpu.rows.balance import balance, faint_tail
from kofn.kernels.cpu.rows.formulas import edge, halley, quantile, start_below
from kofn.kernels.cpu.rows.lanes import (
    CLOSED,
    FOUND,
    LOST,
    OPEN,
    SPECIAL,
    SUMMED,
    is_deleted,
    load,
    pass_for_extremes,
    pass_over,
    rounded,
)
from kofn.kernels.cpu.runtime.intrinsics import pointer
from kofn.kernels.cpu.runtime.split_row import plain
from kofn.kernels.cpu.runtime.vector_math import inline


@inline
def least_unit(size):
    """The T below which scores of its size may have squares that are subnormal."""
    return 2.0**-50 if size == 4 else 2.0**-480


ANCHORED = 3.0  # |δ| up to which what was prepared at an anchor keeps its digits


@plain
def statistics(row, lanes):
    """The first pass, which starts the search."""
    pivot = load(row.x, row.n // 2, row.size)
    sums, r = pass_over(row, layout.STATISTICS, pivot, 0.0, 0.0, 0.0, 0.0), row.lane
    lanes.pivot[r], lanes.total[r], lanes.squares[r] = pivot, sums[0], sums[1]


@plain
def pass_at(row, lanes, which):
    """An evaluation, or the writing, at θ; return its sums."""
    r = row.lane
    return pass_over(row, which, lanes.base[r], lanes.per_t[r], lanes.by[r], lanes.alpha[r], 0.0)


@plain
def evaluate(row, lanes):
    """Σ_{F≤½} F, Σ_{F>½} 1 − F, ΣF′, #{F>½}, ΣF″; prepares the row where its anchor has moved."""
    r = row.lane
    if lanes.rough[r] > 0:
        sums = pass_at(row, lanes, layout.ROUGH)
        lanes.below[r], lanes.above[r], lanes.weight[r] = sums[0], 0.0, sums[1]
        lanes.count[r], lanes.slope[r] = 0.0, sums[2]
        return
    sums = pass_at(row, lanes, layout.FIRST_EVALUATION if lanes.fresh[r] else layout.EVALUATION)
    lanes.below[r], lanes.above[r], lanes.weight[r] = sums[0] - sums[1], sums[1], sums[2]
    lanes.count[r], lanes.slope[r], lanes.fresh[r] = sums[3], sums[4], 0.0


@plain
def peak(row, lanes):
    """The greatest finite score, how many there are, and how many that are +inf or NaN."""
    sums, r = pass_for_extremes(row, layout.PEAK, 0.0, 0.0, 0.0, 0.0, 0.0), row.lane
    lanes.greatest[r], lanes.live[r], lanes.bad[r] = sums[1], sums[2], sums[3]


@plain
def finite_peak(row, lanes):
    """Both at once; `full_statistics` correct it where not all of the row is finite."""
    pivot, r = load(row.x, row.n // 2, row.size), row.lane
    sums = pass_for_extremes(row, layout.PEAK, pivot, 0.0, 0.0, 0.0, 0.0)
    lanes.greatest[r], lanes.live[r], lanes.bad[r] = sums[1], np.float64(row.n), 0.0
    lanes.pivot[r], lanes.total[r], lanes.squares[r] = pivot, sums[2], sums[3]


@plain
def open_softmax(lanes, r, size):
    """To k ≤ 1 the exponential link cuts no weight to 1, so one evaluation tells θ."""
    temperature = lanes.temperature[r]
    usual = lanes.bad[r] == 0 and lanes.live[r] > 1 and temperature == temperature
    # Evaluations do not tell deleted scores from those next to them; elsewhere θ is far from there.
    usual = usual and not is_deleted(1.125 * lanes.greatest[r], size)
    lanes.state[r] = SUMMED if usual else SPECIAL
    lanes.anchor[r], lanes.delta[r], lanes.fresh[r] = lanes.greatest[r], -1.0, 1.0


@plain
def read(row, lanes):
    """A row whose statistics are not enough: what `full_statistics` finds, and what to search."""
    r = row.lane
    lanes.strange[r] = 1.0
    pivot, temperature, k = load(row.x, row.n // 2, row.size), lanes.temperature[r], lanes.k[r]
    far = 1e6 * temperature
    _full_statistics(row, lanes, pivot if abs(pivot) < USUAL else 0.0, USUAL)
    if lanes.greatest[r] - lanes.least[r] > SPREAD * temperature and lanes.live[r] > 0:
        mean, variance, usual = lanes.mean[r], lanes.variance[r], lanes.usual[r]
        _full_statistics(row, lanes, lanes.greatest[r], rounded(NEAR_TOP * temperature, row.size))
        if not lanes.usual[r] > k - lanes.top[r]:
            lanes.mean[r], lanes.variance[r], lanes.usual[r] = mean, variance, usual
    if temperature < least_unit(row.size):
        _span(lanes, r)
    lanes.wanted[r] = k - lanes.top[r]
    if lanes.live[r] + lanes.top[r] + lanes.bad[r] == 0:
        lanes.state[r], lanes.anchor[r] = CLOSED, math.inf
    elif lanes.bad[r] > 0 or k != k or temperature != temperature:
        lanes.state[r], lanes.anchor[r] = CLOSED, math.nan
    elif k <= lanes.top[r]:
        lanes.state[r], lanes.anchor[r] = CLOSED, math.inf
    elif k >= lanes.top[r] + lanes.live[r]:
        lanes.state[r], lanes.anchor[r] = CLOSED, -math.inf
    elif (
        not abs(lanes.greatest[r]) <= USUAL
        or temperature < 2.0**-480
        or lanes.variance[r] > far * far
        or lanes.usual[r] < lanes.wanted[r]
    ):
        lanes.state[r] = LOST
    else:
        quantiles(row, lanes, lanes.wanted[r], lanes.live[r], lanes.usual[r])
        begin(lanes, r, edge(row.kind, lanes.alpha[r]), row.size)


@plain
def _full_statistics(row, lanes, pivot, most):
    sums, r = pass_for_extremes(row, layout.FULL_STATISTICS, pivot, most, 0.0, 0.0, 0.0), row.lane
    count = max(sums[5], 1.0)
    mean = sums[6] / count
    lanes.least[r], lanes.greatest[r] = sums[0], sums[1]
    lanes.live[r], lanes.top[r], lanes.bad[r], lanes.usual[r] = sums[2], sums[3], sums[4], sums[5]
    lanes.mean[r], lanes.variance[r] = pivot + mean, max(sums[7] / count - mean * mean, 0.0)


@plain
def _span(lanes, r):
    """Mean and variance as far as the ends of a row tell, where squares of its scores underflow."""
    least, greatest = lanes.least[r], lanes.greatest[r]
    lanes.mean[r], lanes.usual[r] = least / 2 + greatest / 2, lanes.live[r]
    quarter = (greatest - least) / 4
    lanes.variance[r] = quarter * quarter


@plain
def quantiles(row, lanes, k, live, usual):
    """Φ⁻¹ and F⁻¹ of the share to choose of the usual scores, F⁻¹ of the share of the live ones,
    and of k where the weight of the greatest cannot be more.
    """
    memo, r = carray(pointer(row.memo), 8, np.float64), row.lane
    alpha, same = lanes.alpha[r], memo[0] == k and memo[1] == live and memo[2] == usual
    if not (same and memo[7] == alpha):
        share = min(k / max(usual, 1.0), 0.5 + 0.5 * k / live)
        bell = memo[3] if same else quantile(NORMAL, share, alpha)
        memo[0], memo[1], memo[2], memo[3], memo[7] = k, live, usual, bell, alpha
        memo[4] = bell if row.kind == NORMAL else quantile(row.kind, share, alpha)
        memo[5] = memo[4] if share == k / live else quantile(row.kind, k / live, alpha)
        ends = row.kind in BOUNDED and is_single(row.kind, k)
        memo[6] = quantile(row.kind, k, alpha) if ends else math.nan
    lanes.bell[r], lanes.own[r], lanes.end[r], lanes.alone[r] = memo[3], memo[4], memo[5], memo[6]


@inline
def is_single(kind, k):
    """Whether F reaches 1 and k is no more: then the greatest score alone bounds θ from below."""
    return (kind in CAPPED or kind in BOUNDED) and (k > 0) & (k <= 1)


@inline
def begin(lanes, r, origin, size):
    """θ to start from, its bracket, and what a log-odd is worth.

    A sum of links at normal scores is close to one wide link, whose quantile is between the two
    quantiles; for the normal link it is exact. A single entry's weight is no more than k.
    """
    temperature, variance = lanes.temperature[r], lanes.variance[r]
    bell, alone = lanes.bell[r], temperature * lanes.alone[r]
    origin = temperature * origin
    own, end = temperature * lanes.own[r] + origin, temperature * lanes.end[r]
    least, greatest = lanes.least[r], lanes.greatest[r]
    slack = 1e-6 * (abs(least) + abs(greatest)) + 1e-3 * (temperature + abs(end))
    low, high = least - end - slack, greatest - end + slack
    start = lanes.mean[r] + origin - start_below(bell * math.sqrt(variance), own)
    start = low if start < low else (high if start > high else start)
    single = alone == alone
    # A little before, so that a θ is found between the greatest and the others where it may be.
    least_start = greatest - alone * (1 + 2.0**-10)
    start = least_start if single and start < least_start else start
    low = greatest - alone - slack if single else low
    per_t = lanes.per_t[r]
    lanes.worth[r] = math.sqrt((variance * per_t * per_t + 2.56) / (2.56 + bell * bell))
    anchor = rounded(start, size)
    lanes.anchor[r], lanes.delta[r] = anchor, 0.0
    lanes.low[r], lanes.high[r] = (low - anchor) * per_t, (high - anchor) * per_t
    lanes.low_odds[r], lanes.high_odds[r] = math.nan, math.nan
    lanes.width[r], lanes.leap[r], lanes.tries[r] = math.inf, 1.0, 0.0
    lanes.state[r], lanes.fresh[r] = OPEN, 1.0


@plain
def last_step(kind, size):
    """The step that may be the last: its cube, or square at a kink, is lost."""
    return LAST_SINGLE[kind] if size == 4 else LAST_DOUBLE[kind]


@plain
def last_checked(kind, size):
    """The same where Σp is held to k afterwards; 0 where nothing is gained by that."""
    return LAST_CHECKED[kind] if size == 4 else 0.0


@inline
def most_change(kind, step, below, weight, others):
    """Bound the change of ΣF by a step.

    Where θ falls and no score below ½ is in the support of the linear link, all of them may be
    next to its end: then they enter together.
    """
    enter = (kind == LINEAR) & (step < 0) & (below == 0)
    return abs(step) * (max(weight, others) if enter else weight)


@inline
def beyond(kind, steps, delta, step, below, above, eps):
    """δ after a last step, where those above ½ are k: with bounded support they may choose hard.

    If they have all their weight and others nearly none, these are taken out of the support: F
    meets 0 like a power of the distance, towards whose end Newton's steps go by parts, so a few
    `steps` of them.
    """
    nudge = 2 * eps if (above == 0) & (below > 0) else 0.0
    steps = steps if above == 0 else 1.0
    return delta + steps * step + (nudge if kind in BOUNDED else 0.0)


@plain
def _fallback(low, high, low_odds, high_odds, tries):
    """Where to evaluate next inside the bracket when Newton's step leaves it.

    First where the straight line between the log-odds at its ends crosses; then in turn by
    exponents from either end, where masks of −1e9 have stretched it, and in the middle.
    """
    width = high - low
    if tries < 3:
        share = low_odds / (low_odds - high_odds)
        return low + width * min(max(share, 0.02), 0.98)
    turn = tries % 3
    if turn == 0 or width < 16:
        return low / 2 + high / 2
    return high - math.sqrt(width) if turn == 1 else low + math.sqrt(width)


@plain
def advance(row, lanes, round_):
    """Move θ of a special row by its last evaluation.

    Its k counts the scores of +inf, where every evaluation has F = 1; 0 < k − #top < #live. Once θ
    is found the answer's memory holds the row as prepared, unless it is `fresh`.
    """
    r, kind = row.lane, row.kind
    if lanes.rough[r] > 0:  # what follows asks for exact sums
        lanes.state[r], lanes.rough[r] = OPEN, 0.0
        return
    lanes.strange[r] = 1.0
    temperature, wanted, delta = lanes.temperature[r], lanes.wanted[r], lanes.delta[r]
    eps = 2.0**-23 if row.size == 4 else 2.0**-52
    faint = faint_tail(row.size)
    two_tails = kind in TWO_TAILS
    below, above, weight, count = lanes.below[r], lanes.above[r], lanes.weight[r], lanes.count[r]

    lanes.state[r] = OPEN
    excess = (count - lanes.k[r]) + below - above
    log_odds, step = halley(kind, wanted, lanes.live[r], excess, weight, lanes.slope[r])
    if excess == 0 and not two_tails:
        last = count == lanes.k[r]
        lanes.delta[r] = beyond(kind, 1.0, delta, 0.0, below, above, eps) if last else delta
        lanes.state[r] = FOUND
        return
    if excess > 0:
        lanes.low[r], lanes.low_odds[r] = delta, log_odds
    else:
        lanes.high[r], lanes.high_odds[r] = delta, log_odds
    enough = last_step(kind, row.size)
    if two_tails and count == lanes.k[r] and below + above < 1:
        # ΣF − k is flat here, but the two tails still balance on a logarithmic scale.
        if below + above < (2 if min(below, above) > faint else 1e3) * faint:
            theta = lanes.anchor[r] + temperature * delta
            theta = balance(row, theta, temperature, eps, lanes.alpha[r])
            lanes.anchor[r] = rounded(theta, row.size)
            lanes.delta[r] = (theta - lanes.anchor[r]) / temperature
            lanes.state[r], lanes.fresh[r] = FOUND, 1.0
            return
        ratio = max(below, faint) / max(above, faint)
        step = math.log(ratio) * (below + above) / (2 * weight)
        lanes.leap[r] = math.inf
        enough = LAST_BY_LOGS[0 if row.size == 4 else 1] if below > 0 and above > 0 else 0.0
    tolerance = eps * max(min(weight, wanted), 4 * (below + above))
    change = most_change(kind, step, below, weight, lanes.live[r] - wanted)
    near = abs(step) <= enough or change <= tolerance
    target = delta + step if near else _held(lanes, r, step, log_odds, excess, round_)
    least = eps / 2 * (min(wanted / (lanes.live[r] - wanted), 1.0) if kind == LINEAR else 1.0)
    stuck = abs(target - delta) <= eps * 1e-3 or not lanes.high[r] - lanes.low[r] > least
    if (near or stuck) and count == lanes.k[r]:
        start, by = (delta, step) if near else (target, 0.0)
        target = beyond(kind, STEPS[kind], start, by, below, above, eps)
    if abs(target) > ANCHORED:
        anchor = rounded(lanes.anchor[r] + temperature * target, row.size)
        shift = (anchor - lanes.anchor[r]) / temperature
        target -= shift
        lanes.low[r] -= shift
        lanes.high[r] -= shift
        lanes.anchor[r], lanes.fresh[r] = anchor, 1.0
        if abs(target) > ANCHORED:
            # Its neighbours in the scores' type are temperatures apart: evaluate it itself, and
            # leave a θ that is really between them to the reference.
            if near or stuck:
                lanes.state[r] = LOST
            target = 0.0
    lanes.delta[r] = target
    if (near or stuck) and lanes.state[r] == OPEN:
        lanes.state[r] = FOUND


@plain
def _held(lanes, r, step, log_odds, excess, round_):
    """δ + step where the bracket and the spread of the scores allow that, else another δ."""
    low, high, target = lanes.low[r], lanes.high[r], lanes.delta[r] + step
    low_odds, high_odds = lanes.low_odds[r], lanes.high_odds[r]
    both = low_odds == low_odds and high_odds == high_odds
    # Twice in three evaluations the bracket may do as it likes; then it must have halved.
    slow = False
    if both and round_ % 3 == 2:
        slow = high - low > lanes.width[r] / 2 and abs(step) > 0.1
        lanes.width[r] = high - low
    if both and -0.1 < (target - low) / (high - low) <= 0:
        target = low + 0.01 * (high - low)
    elif both and 0 <= (target - high) / (high - low) < 0.1:
        target = high - 0.01 * (high - low)
    if both and (slow or not low < target < high):
        target = _fallback(low, high, low_odds, high_odds, lanes.tries[r])
        lanes.tries[r] += 1
    elif not both and not abs(step) <= max(3 * abs(log_odds) * lanes.worth[r], lanes.leap[r]):
        # A step beyond what the spread of the scores suggests; go past the root to hold it.
        stride = max(1.5 * abs(log_odds) * lanes.worth[r], lanes.leap[r])
        target = lanes.delta[r] + (stride if excess > 0 else -stride)
        lanes.worth[r] *= 2
        lanes.leap[r] *= 8
    return target if low < target < high else low / 2 + high / 2


@plain
def is_off(lanes, r):
    """Whether Σp, of float32 numbers, misses k by more than they have to."""
    tails, least = lanes.below[r] + lanes.above[r], min(lanes.weight[r], lanes.k[r])
    tails = 0.0 if lanes.rough[r] > 0 else tails
    return not abs(lanes.total[r] - lanes.k[r]) <= 2 * 2.0**-23 * max(least, tails)
