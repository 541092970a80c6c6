"""The usual steps of the search, for all lanes of a group at once, as vector code.

Each function does what search.py does lane by lane, where nothing unusual is in the way, and calls
a lane special where something is. Lanes without a row hold old numbers; nobody reads their answer.
"""

from __future__ import annotations

import math

import numpy as np
from numba import carray

from kofn.kernels.constants import SPREAD, USUAL
from kofn.kernels.contract import BOUNDED, CAPPED, STEPS, TWO_TAILS
from kofn.kernels.cpu.rows.formulas import edge_beside, edge_of, halley, shifted
from kofn.kernels.cpu.rows.lanes import (
    CLOSED,
    FOUND,
    LOST,
    OPEN,
    SPECIAL,
    SUMMED,
    rounded,
    two_floats,
)
from kofn.kernels.cpu.rows.layout import LANE, LANES
from kofn.kernels.cpu.rows.search import (
    ANCHORED,
    begin,
    beyond,
    is_single,
    last_step,
    least_unit,
    most_change,
)
from kofn.kernels.cpu.runtime.intrinsics import never_unroll, pointer
from kofn.kernels.cpu.runtime.split_row import plain
from kofn.kernels.cpu.runtime.vector_math import inline, log, widest_vectors

FEW_KINKS = 0.125
"""Of a bounded link, the entries that a step may be expected to take in or out of the support, for
it to be the last. Where the ones with a weight lie about as densely beyond its end, they are the
step times ΣF′ of the linear link, times ΣF″ of the square.
"""


ROUNDED = 2.0**-16
"""Of a sum in float32 of up to 512 numbers, more than its rounding: docs/behaviour.md."""


@plain
def begin_all(address, alpha, each):
    """1/T, and α unless there is one of `each` row; lanes are idle until more is known."""
    widest_vectors()
    lanes = carray(pointer(address), 1, LANE)[0]
    for r in range(LANES):
        lanes.per_t[r] = 1 / lanes.temperature[r]
        lanes.alpha[r] = lanes.alpha[r] if each else alpha
        lanes.state[r], lanes.strange[r] = LOST, 0.0
        lanes.few[r], lanes.approached[r], lanes.compared[r] = 0.0, 0.0, 0.0
    never_unroll()


@plain
def count_all(address, state):
    """Count the lanes in a state."""
    widest_vectors()
    lanes, count = carray(pointer(address), 1, LANE)[0], 0
    for r in range(LANES):
        count += 1 if lanes.state[r] == state else 0
    never_unroll()
    return count


@plain
def alike_all(address):
    """Whether k and α of all lanes are those of the first."""
    widest_vectors()
    lanes, others = carray(pointer(address), 1, LANE)[0], 0
    k, alpha = lanes.k[0], lanes.alpha[0]
    for r in range(LANES):
        others += 0 if (lanes.k[r] == k) & (lanes.alpha[r] == alpha) else 1
    never_unroll()
    return others == 0


@plain
def spread_all(address):
    """Give all lanes the quantiles of the first."""
    widest_vectors()
    lanes = carray(pointer(address), 1, LANE)[0]
    bell, own, end, alone = lanes.bell[0], lanes.own[0], lanes.end[0], lanes.alone[0]
    for r in range(LANES):
        lanes.bell[r], lanes.own[r], lanes.end[r], lanes.alone[r] = bell, own, end, alone
    never_unroll()


@plain
def strange_all(address, count):
    """Count the rows that had something unusual."""
    widest_vectors()
    lanes, strange = carray(pointer(address), 1, LANE)[0], 0
    for r in range(LANES):
        strange += 1 if (lanes.strange[r] > 0) & (r < count) else 0
    never_unroll()
    return strange


@plain
def fresh_all(address):
    """Count the lanes with an anchor that their row is not prepared for."""
    widest_vectors()
    lanes, count = carray(pointer(address), 1, LANE)[0], 0
    for r in range(LANES):
        count += 1 if lanes.fresh[r] > 0 else 0
    never_unroll()
    return count


@plain
def open_all(address, count, n, kind, size):
    """Begin the search in the rows whose statistics are plain and whose k is between 0 and n."""
    widest_vectors()
    lanes = carray(pointer(address), 1, LANE)[0]
    per_n, edge_of_kind = 1 / n, edge_of(kind, lanes.alpha[0])
    for r in range(LANES):
        k, temperature, pivot = lanes.k[r], lanes.temperature[r], lanes.pivot[r]
        mean, square = lanes.total[r] * per_n, lanes.squares[r] * per_n
        variance = square - mean * mean
        variance = variance if variance > 0 else 0.0
        # No score is further from the mean than this, which rounding is given its part in.
        reach = math.sqrt(n * (variance + 1e-5 * square))
        mean += pivot
        # The pass for a peak has found the greatest score.
        single = is_single(kind, k)
        lanes.wanted[r], lanes.live[r], lanes.top[r] = k, lanes.live[r] if single else n, 0.0
        lanes.mean[r], lanes.variance[r] = mean, variance
        lanes.least[r] = mean - reach
        lanes.greatest[r] = lanes.greatest[r] if single else mean + reach
        begin(lanes, r, edge_beside(kind, edge_of_kind, lanes.alpha[r]), size)
        # None of it is true of a NaN.
        plain_row = (reach < SPREAD * temperature) & (abs(pivot) < USUAL)
        plain_row = plain_row & (temperature >= least_unit(size))
        state = OPEN if plain_row & (k > 0) & (k < n) else SPECIAL
        lanes.state[r] = state if r < count else LOST
    never_unroll()


@plain
def advance_all(address, kind, size, round_, checked, few):
    """Take Halley's step in the open lanes where the bracket and the spread of the scores allow it.

    One up to `checked` may be the last, where nothing was unusual and more than a `few` entries are
    evaluated. The answer is how many lanes are special.
    """
    widest_vectors()
    lanes, specials = carray(pointer(address), 1, LANE)[0], 0
    eps = 2.0**-23 if size == 4 else 2.0**-52
    one_tail, kinkless = kind not in TWO_TAILS, kind not in BOUNDED and kind not in CAPPED
    enough, steps = last_step(kind, size), STEPS[kind]
    freely = round_ % 3 != 2
    is_found, is_open, is_special = np.float64(FOUND), np.float64(OPEN), np.float64(SPECIAL)
    for r in range(LANES):
        delta, k = lanes.delta[r], lanes.k[r]
        low, high, state = lanes.low[r], lanes.high[r], lanes.state[r]
        low_odds, high_odds = lanes.low_odds[r], lanes.high_odds[r]
        below, above, weight = lanes.below[r], lanes.above[r], lanes.weight[r]
        wanted, count, leap = lanes.wanted[r], lanes.count[r], lanes.leap[r]
        tails = below + above
        excess = (count - k) + below - above
        log_odds, step = halley(kind, wanted, lanes.live[r], excess, weight, lanes.slope[r])
        # Links with an end may meet k exactly, where no slope may be left.
        met = one_tail & (excess == 0)
        step = 0.0 if met else step
        size_of_step, target = abs(step), delta + step
        # What the evaluation has shown, which is kept if the step is a usual one, unless rounding
        # may have the sign of a rough one.
        exact = lanes.rough[r] == 0
        shown = exact | (abs(excess) > ROUNDED * below)
        more, less = shown & (excess > 0), shown & (excess <= 0)
        new_low, new_high = delta if more else low, delta if less else high
        odds_low, odds_high = log_odds if more else low_odds, log_odds if less else high_odds
        half_open = (odds_low != odds_low) | (odds_high != odds_high)
        known = 3 * abs(log_odds) * lanes.worth[r]
        known = leap if leap > known else known
        least = weight if weight < wanted else wanted
        tolerance = eps * (least if least > 4 * tails else 4 * tails)
        change = most_change(kind, step, below, weight, lanes.live[r] - wanted)
        near = (size_of_step <= enough) | (change <= tolerance)
        # Not where F meets its end at every score above ½: that takes more than one step.
        soft = (above > 0) | (count != k)
        few_kinks = (change <= FEW_KINKS) & (size_of_step * lanes.slope[r] <= FEW_KINKS)
        few_kinks = few_kinks | kinkless
        brief = (size_of_step <= checked) & soft & few_kinks
        # One more evaluation of a few entries costs less than weights of all that are wrong.
        costly = (lanes.few[r] == 0) | (lanes.few[r] > few)
        near = near | (brief & costly & (lanes.strange[r] == 0))
        # Next to 1, F is rounded: a few slopes would make much of that.
        steep = exact | (2 * weight >= below)
        near = near & steep
        last = near & (count == k)
        target = beyond(kind, steps, delta, step, below, above, eps) if last else target
        held = (new_low < target) & (target < new_high) & ((size_of_step <= known) | ~half_open)
        moves = (size_of_step > eps * 1e-3) & (new_high - new_low > eps / 2)
        curved = (count != k) | (tails >= 1) | one_tail
        usual = near | (held & moves & (half_open | freely))
        usual = usual & (abs(target) <= ANCHORED) & curved & (met | (excess != 0))
        after = is_found if near else is_open
        after = after if usual else is_special
        searching = state == OPEN
        go = usual & searching
        lanes.low[r], lanes.high[r] = new_low if go else low, new_high if go else high
        lanes.low_odds[r] = odds_low if go else low_odds
        lanes.high_odds[r] = odds_high if go else high_odds
        lanes.delta[r] = target if go else delta
        state = after if searching else state
        lanes.state[r] = state
        # A special lane keeps it for `advance`, which then evaluates once more.
        lanes.rough[r] = lanes.rough[r] if steep | (state == is_special) else 0.0
        specials += 1 if state == is_special else 0
    never_unroll()
    return specials


@plain
def aim_all(address, kind, size):
    """Tell the next passes where θ is."""
    widest_vectors()
    lanes = carray(pointer(address), 1, LANE)[0]
    bounded = kind in BOUNDED
    for r in range(LANES):
        anchor, delta = lanes.anchor[r], lanes.delta[r]
        if bounded:
            base, by = two_floats(anchor, lanes.temperature[r] * delta, size)
        else:
            base, by = anchor, shifted(kind, delta)
        lanes.base[r], lanes.by[r] = base, by
    never_unroll()


@plain
def sum_up_all(address):
    """θ of the lanes that one sum is enough for."""
    widest_vectors()
    lanes, found = carray(pointer(address), 1, LANE)[0], np.float64(FOUND)
    for r in range(LANES):
        total, k, state = lanes.total[r], lanes.k[r], lanes.state[r]
        delta, weight, below = lanes.delta[r], lanes.weight[r], lanes.below[r]
        summed = state == SUMMED
        theta = log(total / k if summed else 1.0) - 1
        lanes.delta[r], lanes.weight[r] = theta if summed else delta, k if summed else weight
        lanes.below[r], lanes.above[r] = total if summed else below, 0.0
        lanes.state[r] = found if summed else state
    never_unroll()


MISSED_SINGLE, MISSED_DOUBLE = 2.5 * 2.0**-23, 5e-14
"""The part of k by which Σp may miss it: docs/behaviour.md has the bound that follows."""


@plain
def off_all(address, count, size, written):
    """Count the rows whose weights' sum misses k by too much, with a slope to mend them by.

    Of rows whose weights nobody wants, those with something unusual.
    """
    widest_vectors()
    lanes, off = carray(pointer(address), 1, LANE)[0], 0
    for r in range(LANES):
        off += 1 if _misses(lanes, r, size, written) & (r < count) else 0
    never_unroll()
    return off


@plain
def move_all(address, size, written):
    """Move their θ by Newton's step, to be taken by the weights, too; leave it as `rest`.

    `hi` and `lo` are θ before, where the slopes are taken.
    """
    widest_vectors()
    lanes = carray(pointer(address), 1, LANE)[0]
    for r in range(LANES):
        off = _misses(lanes, r, size, written)
        hi, lo = two_floats(lanes.anchor[r], lanes.temperature[r] * lanes.delta[r], size)
        lanes.hi[r], lanes.lo[r] = hi, lo
        rest = (lanes.k[r] - lanes.total[r]) / (lanes.weight[r] if off else 1.0)
        lanes.rest[r] = rest if off else 0.0
        lanes.delta[r] -= rest if off else 0.0
    never_unroll()


@inline
def _misses(lanes, r, size, written):
    missing, k, weight = abs(lanes.k[r] - lanes.total[r]), lanes.k[r], lanes.weight[r]
    most = MISSED_SINGLE if size == 4 else MISSED_DOUBLE
    # A longer step is none for weights: their slopes change on its way.
    seen = written | (lanes.strange[r] > 0)
    return seen & (lanes.state[r] == FOUND) & (missing > most * k) & (missing <= weight * 2.0**-7)


@plain
def settle_all(address, count, size, written):
    """θ as two numbers, (0, NaN) where it was not found or the weights do not add up to k.

    How many of those there are. F grows with the score: weights whose sum is off by so much are
    off by no more, each of them.
    """
    widest_vectors()
    lanes, wrong = carray(pointer(address), 1, LANE)[0], 0
    most = MISSED_SINGLE if size == 4 else MISSED_DOUBLE
    for r in range(LANES):
        k, total = lanes.k[r], lanes.total[r]
        hi, lo = two_floats(lanes.anchor[r], lanes.temperature[r] * lanes.delta[r], size)
        unseen = (not written) & (lanes.strange[r] == 0)
        right = (lanes.state[r] == FOUND) & (unseen | (abs(total - k) <= most * k))
        lanes.hi[r], lanes.lo[r] = hi if right else 0.0, lo if right else math.nan
        wrong += 0 if right | (r >= count) else 1
    never_unroll()
    return wrong


@plain
def solved_all(address, count):
    """Count the rows that were solved before the search."""
    widest_vectors()
    lanes, solved = carray(pointer(address), 1, LANE)[0], 0
    for r in range(LANES):
        solved += 1 if (lanes.solved[r] > 0) & (r < count) else 0
    never_unroll()
    return solved


@plain
def take_all(address):
    """Take θ of these rows from there."""
    widest_vectors()
    lanes = carray(pointer(address), 1, LANE)[0]
    for r in range(LANES):
        hi, lo, state, is_solved = lanes.hi[r], lanes.lo[r], lanes.state[r], lanes.solved[r] > 0
        high, low = lanes.solved_hi[r], lanes.solved_lo[r]
        lanes.hi[r], lanes.lo[r] = high if is_solved else hi, low if is_solved else lo
        lanes.state[r] = FOUND if is_solved else state
    never_unroll()


@plain
def weigh_all(address, count, size):
    """Way back: the mean of the cotangents; a row without a slope is closed."""
    widest_vectors()
    lanes = carray(pointer(address), 1, LANE)[0]
    least = 2.0**-126 if size == 4 else 2.0**-1022
    for r in range(LANES):
        weight, hi = lanes.weight[r], lanes.hi[r]
        usual = (abs(hi) < math.inf) & (weight >= least)
        mean = rounded(lanes.total[r] / weight, size)
        lanes.mean[r] = mean if usual else 0.0
        pivot = hi + lanes.lo[r] + lanes.temperature[r] * (lanes.moment[r] / weight)
        lanes.pivot[r] = rounded(pivot, size) if usual else 0.0
        state = OPEN if usual else CLOSED
        lanes.state[r] = state if r < count else LOST
    never_unroll()


@plain
def centre_all(address, size):
    """Way back: what rounding has left of the mean; lanes it matters in are special."""
    widest_vectors()
    lanes = carray(pointer(address), 1, LANE)[0]
    eps = 2.0**-23 if size == 4 else 2.0**-52
    for r in range(LANES):
        total, usual = lanes.total[r], lanes.state[r] == OPEN
        matters = usual & (abs(total) > 4 * eps * lanes.size[r])
        lanes.rest[r] = total / lanes.weight[r]
        lanes.state[r] = SPECIAL if matters else lanes.state[r]
    never_unroll()


@plain
def answer_all(address):
    """Way back: the cotangents of k and T."""
    widest_vectors()
    lanes = carray(pointer(address), 1, LANE)[0]
    for r in range(LANES):
        lanes.in_k[r] = lanes.mean[r] + lanes.rest[r]
        lanes.in_t[r] = -lanes.slope[r] / lanes.temperature[r]
    never_unroll()
