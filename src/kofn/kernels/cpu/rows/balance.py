"""The threshold on a plateau: between two scores so far apart that both tails have underflowed."""

from __future__ import annotations

import math

from kofn.kernels.constants import FAINT_DOUBLE, FAINT_SINGLE
from kofn.kernels.cpu.rows.formulas import logs
from kofn.kernels.cpu.rows.lanes import is_deleted, load
from kofn.kernels.cpu.runtime.shares import plain

FREELY = 20
"""Newton steps that are taken as they come; from then on, every second one halves the bracket."""
ROUNDS = FREELY + 2 * 90
"""So many halve a plateau of 2⁴⁰ temperatures down to rounding; on a wider one, where weights are
0 and 1 wherever θ is, the last θ is as good as any.
"""


@plain
def faint_tail(size):
    """The least tail whose digits are known, of entries of so many bytes."""
    return FAINT_SINGLE if size == 4 else FAINT_DOUBLE


@plain
def balance(row, theta, temperature, eps, alpha):
    """Find the θ with log Σ_{F≤½} F = log Σ_{F>½} (1 − F), which no underflow reaches."""
    kind = row.kind
    left, right = -math.inf, math.inf  # the scores next to θ
    for i in range(row.n):
        v = load(row.x, i, row.size)
        if v > theta:
            right = min(right, v)
        elif not is_deleted(v, row.size):
            left = max(left, v)
    low, high = left, right
    theta = left / 2 + right / 2
    for round_ in range(ROUNDS):
        first, _ = logs(kind, (left - theta) / temperature, False, alpha)
        second, _ = logs(kind, (right - theta) / temperature, True, alpha)
        below, above, below_slope, above_slope = 0.0, 0.0, 0.0, 0.0
        for i in range(row.n):
            v = load(row.x, i, row.size)
            if v <= left and not is_deleted(v, row.size):
                log_tail, slope = logs(kind, (v - theta) / temperature, False, alpha)
                below += math.exp(log_tail - first)
                below_slope += math.exp(log_tail - first) * slope
            elif right <= v < math.inf:
                log_tail, slope = logs(kind, (v - theta) / temperature, True, alpha)
                above += math.exp(log_tail - second)
                above_slope += math.exp(log_tail - second) * slope
        log_ratio = (first - second) + math.log(below / above)
        if log_ratio > 0:
            low = theta
        else:
            high = theta
        step = temperature * log_ratio / (below_slope / below + above_slope / above)
        near = abs(step) <= eps * temperature
        target = theta + step
        # A tail that falls faster than any e^−z^n may hold Newton to a temperature a step.
        slow = round_ >= FREELY and round_ % 2 == 0
        if not near and (slow or not low < target < high):
            target = low / 2 + high / 2
        if near or target == theta:
            return target
        theta = target
    return theta


@plain
def to_end(row, lanes):
    """k entries have F = 1 and what the others have has underflowed, by the exponential link.

    It is not 0, so θ is where the least of the k comes to its end: kofn/solver/plateau.py.
    """
    r = row.lane
    theta = lanes.anchor[r] + lanes.temperature[r] * (lanes.delta[r] + 0.5)
    least = math.inf
    for i in range(row.n):
        v = load(row.x, i, row.size)
        least = v if theta < v < least else least
    if least < math.inf:
        lanes.anchor[r], lanes.delta[r], lanes.fresh[r] = least, -1.0, 1.0
