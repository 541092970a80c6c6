"""The price of a row: its statistics, then evaluations until θ is found.

It steps as rows/search.py does, on weighted sums: Halley's on the log-odds of Σc·F/Σc, the
last one without another evaluation where its cube is lost. It leaves rare rows to the array code:
NaN, scores of +inf, costs that are none, budgets that differ from Σc by rounding errors, and gaps
between scores in which every tail underflows. All numbers are float64.
"""

from __future__ import annotations

import math
from collections import namedtuple

import numpy as np
from numba import carray

from kofn.kernels.contract import CAPPED, LAST_BY_LOGS, NORMAL, TWO_TAILS
from kofn.kernels.cpu.knapsack.layout import (
    CLOSE,
    ENDS,
    EVALUATION,
    ROUGH,
    STATE,
    STATISTICS,
    WRITE,
)
from kofn.kernels.cpu.rows import lanes
from kofn.kernels.cpu.rows.balance import faint_tail
from kofn.kernels.cpu.rows.formulas import halley, quantile, start_below
from kofn.kernels.cpu.rows.search import last_step
from kofn.kernels.cpu.runtime.intrinsics import pointer
from kofn.kernels.cpu.runtime.split_row import plain

Row = namedtuple("Row", "passes kind size x g out n state sums team")
"""As in rows/lanes.py, where `g` are the costs; and the address of the row's STATE."""

LEAST, MOST = 1e-90, 1e90
"""Costs whose cubes are no subnormal numbers, and whose sums of cubes are finite."""
ROUNDS = 16
"""Evaluations per byte of a number, after which the array code has a row: as rows/forward.py."""
ALMOST = 1.0
"""A step, times the greatest cost, after which the next one is likely to be the last."""
LOST, FOUND, CLOSED = range(3)


@plain
def state_of(row):
    return carray(pointer(row.state), 1, STATE)[0]


@plain
def pass_over(row, which):
    """Go over the row once; return its sums."""
    return lanes.pass_over(row, which, np.float64(row.state), 0.0, 0.0, 0.0, 0.0)


@plain
def pass_for_extremes(row, which):
    return lanes.pass_for_extremes(row, which, np.float64(row.state), 0.0, 0.0, 0.0, 0.0)


@plain
def solve(row, wanted):
    """Leave θ as `hi` and `lo`, and write the weights if wanted; whether the row is not given up.

    (0, NaN) says that it is.
    """
    state = state_of(row)
    outcome = _start(row, state)
    if outcome == FOUND:
        outcome = _search(row, state)
    if outcome == FOUND and not _settle(row, state, wanted):
        outcome = LOST
    if outcome == CLOSED and wanted:
        state.mean = 1.0 if state.hi < 0 else 0.0
        pass_over(row, CLOSE)
    if outcome == LOST:
        state.hi, state.lo = 0.0, math.nan
    return outcome != LOST


@plain
def _start(row, state):
    """Gather statistics, and guess θ; whether there is one to find."""
    sums = pass_for_extremes(row, STATISTICS)
    least, state.costliest, state.total = sums[0], sums[1], sums[2]
    squares, cubes, in_x, in_c, square_x = sums[3], sums[4], sums[5], sums[6], sums[7]
    temperature, budget, total = state.temperature, state.budget, state.total
    state.lo, state.tries = 0.0, 0.0
    state.low, state.high, state.known, state.width = -math.inf, math.inf, 0.0, math.inf
    usual = (abs(in_x) + abs(in_c) + square_x < math.inf) & (cubes < math.inf) & (least >= 0)
    if not (usual and temperature < math.inf and budget >= 0):
        return LOST
    if budget == 0 or total == 0 or budget > total * (1 + 1e-12):
        state.hi = math.inf if budget == 0 else -math.inf
        return CLOSED
    if total < LEAST or total > MOST or budget > total * (1 - 1e-12) or budget < 1e-290:
        return LOST
    # Adding it rounds to multiples of its last digit, so few that sums of a block are exact.
    state.magic = (2.0**12 if row.size == 4 else 2.0**26) * state.costliest
    state.unit = 1 / state.costliest
    grid = 2.0**26 * state.costliest
    state.coarse = (budget + grid) - grid
    state.fine = budget - state.coarse
    # If scores are normal, θ·c is so many temperatures below them.
    middle, share = in_x / squares, budget / total
    variance = max((square_x - middle * (2 * in_c - middle * cubes)) / total, 0.0)
    state.quantile = quantile(row.kind, share, state.alpha)
    bell = quantile(NORMAL, share, state.alpha) * math.sqrt(variance) * state.per_t
    depth = start_below(bell, state.quantile + state.edge)
    state.hi = middle - depth * temperature * (total / squares)
    return FOUND if abs(state.hi) < math.inf else LOST


@plain
def _search(row, state):
    size, kind = row.size, row.kind
    eps = 2.0**-25 if size == 4 else 2.0**-52
    enough, exact = last_step(kind, size), size == 8
    for round_ in range(ROUNDS * size):
        sums = pass_over(row, EVALUATION if exact else ROUGH)
        above, below, costliest = sums[1], sums[0] - sums[1], state.costliest
        square = costliest * costliest
        density, weight = sums[4] * costliest, sums[5] * square
        missing = _missing(state, sums[2], sums[3], size)
        excess = missing + below - above
        if not abs(excess) < math.inf:
            return LOST
        log_odds, step = halley(
            kind, state.budget, state.total, excess, weight, sums[7] * (square * costliest)
        )
        last = enough
        if missing == 0 and below + above < costliest:
            faint = 1e3 * faint_tail(size) * costliest
            if kind in CAPPED and above == 0 and below < faint:
                return LOST
            if kind in TWO_TAILS:
                if not min(below, above) > faint:
                    return LOST
                steep = sums[6] * square
                slope = (weight - steep) / below + steep / above
                step = math.log(below / above) / slope
                last = LAST_BY_LOGS[0 if size == 4 else 1]
        if excess == 0 and exact:
            return FOUND
        if exact or abs(excess) > 1e-5 * state.budget:
            _narrow(state, excess, log_odds)
        tolerance = eps * max(min(density, state.budget), 4 * (below + above))
        by, change = step * state.temperature, abs(step) * weight
        near = abs(step) * costliest <= last or change <= tolerance
        if near and exact:
            _move(state, by)
            return FOUND
        has_moved = _step(row, state, by, round_)
        if exact and not has_moved:
            return FOUND if abs(excess) <= 16 * tolerance else LOST
        exact = exact or near or not has_moved or abs(step) * costliest < ALMOST
    return LOST


@plain
def _narrow(state, excess, log_odds):
    """Make the θ that has been evaluated an end of the bracket."""
    theta = state.hi + state.lo
    if excess > 0:
        state.low, state.low_odds = theta, log_odds
    else:
        state.high, state.high_odds = theta, log_odds


@plain
def _step(row, state, by, round_):
    """Move θ to where it is evaluated next; whether there is a number left between its bounds."""
    theta = state.hi + state.lo
    target, little = theta + by, abs(by) <= 2.0**-50 * abs(theta)
    if (little or state.low < target < state.high) and not _slow(state, round_):
        _move(state, by)
        return True
    target = _fallback(row, state)
    if target == theta or not state.low < target < state.high:
        return False
    state.hi, state.lo = target, 0.0
    return True


@plain
def _missing(state, coarse, fine, size):
    """The cost of the entries above ½ beyond the budget; exact on a grid."""
    if size == 4:
        return (coarse - state.budget) + fine
    return (coarse - state.coarse) + (fine - state.fine)


@plain
def _move(state, by):
    """θ + by, as a sum of two numbers."""
    state.hi, state.lo = lanes.two_floats(state.hi, state.lo + by, 8)


@plain
def _slow(state, round_):
    """Whether three steps have not halved the bracket."""
    if round_ % 3 != 2 or not state.high - state.low < math.inf:
        return False
    width = state.high - state.low
    slow, state.width = width > state.width / 2, width
    return slow


@plain
def _fallback(row, state):
    """Where to evaluate next inside the bracket: where the line between the log-odds at its ends
    crosses, and in turn in the middle.
    """
    if state.known == 0:
        _bracket(row, state)
    low, high, low_odds, high_odds = state.low, state.high, state.low_odds, state.high_odds
    state.tries += 1
    if state.tries < 4 and low_odds == low_odds and high_odds == high_odds:
        share = low_odds / (low_odds - high_odds)
        return low + (high - low) * min(max(share, 0.02), 0.98)
    if state.tries % 3 == 0:
        width = math.sqrt((high - low) * state.temperature / state.costliest)
        return low + width if low_odds == low_odds else high - width
    return low / 2 + high / 2


@plain
def _bracket(row, state):
    """The ends of all entries; see `solver/price.py`."""
    sums = pass_for_extremes(row, ENDS)
    low, high = sums[0], sums[1]
    slack = 1e-9 * (abs(low) + abs(high)) + 1e-3 * state.temperature / state.costliest
    state.known = 1.0
    if not state.low > low - slack:
        state.low, state.low_odds = low - slack, math.nan
    if not state.high < high + slack:
        state.high, state.high_odds = high + slack, math.nan


@plain
def _settle(row, state, wanted):
    """Write the weights, or evaluate once more; whether they cost the budget.

    F grows with the score, so all weights are off to the same side.
    """
    most = 1e-6 if row.size == 4 else 2e-14
    if wanted:
        excess = pass_over(row, WRITE)[0] - state.budget
    else:
        sums = pass_over(row, EVALUATION)
        excess = _missing(state, sums[2], sums[3], row.size) + (sums[0] - 2 * sums[1])
    finite = row.size == 8 or abs(state.hi) < 3e38
    return finite and abs(excess) <= most * state.budget
