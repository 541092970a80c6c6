"""Logarithms of a group of rows whose weights and thresholds are known, and the way back."""

from __future__ import annotations

import math

from kofn.kernels.cpu.rows.backward import pivot_of
from kofn.kernels.cpu.rows.lanes import is_deleted, load, nth, store, visit
from kofn.kernels.cpu.rows.layout import LOG, LOG_BEND, LOG_LEVER, LOG_SLOPE, LOG_WEIGH
from kofn.kernels.cpu.runtime.split_row import plain

# As rows/implicit.least_weight: the terms of a smaller ΣF′ may be no normal numbers.
LEAST_SINGLE, LEAST_DOUBLE = 2.0**-103, 2.0**-970


@plain
def logarithms(group, lanes):
    """Write log p over the weights."""
    for r in range(group.count):
        row, hi = nth(group, r), lanes.hi[r]
        if abs(hi) < math.inf:
            visit(row, LOG, hi, lanes.lo[r], 1 / lanes.temperature[r], lanes.alpha[r], 0.0)
            continue
        for i in range(row.n):
            p = load(row.out, i, row.size)
            store(row.out, i, row.size, math.log(p))


@plain
def log_cotangents(group, lanes, of_alpha):
    """Write the cotangents of the scores; leave that of T, or NaN in a row left to the reference.

    And that of α if it is wanted, as backward.py does.

    The answer is whether there are any such rows: all slopes of their weights have underflowed.
    """
    least = LEAST_SINGLE if group.row.size == 4 else LEAST_DOUBLE
    lost = False
    for r in range(group.count):
        row, hi, lo = nth(group, r), lanes.hi[r], lanes.lo[r]
        temperature, alpha = lanes.temperature[r], lanes.alpha[r]
        lanes.in_k[r], lanes.in_t[r], lanes.in_alpha[r] = 0.0, 0.0, 0.0
        if not abs(hi) < math.inf:
            _constant(row, hi if hi != hi else 0.0)
            lanes.in_t[r] = lanes.in_alpha[r] = hi if hi != hi else 0.0
            continue
        sums = visit(row, LOG_WEIGH, hi, lo, 1 / temperature, alpha, 0.0)
        weight, product, moment = sums[0], sums[1], sums[2]
        if weight < least:
            lanes.in_k[r], lost = math.nan, True
            continue
        visit(row, LOG_SLOPE, hi, lo, 1 / temperature, alpha, product / weight)
        pivot = pivot_of(hi, lo, temperature, weight, moment)
        sums = visit(row, LOG_LEVER, pivot, 1 / temperature, 0.0, 0.0, 0.0)
        lanes.in_t[r] = -sums[0]
        if of_alpha:
            mean = product / weight
            sums = visit(row, LOG_BEND, hi, lo, 1 / temperature, alpha, mean)
            lanes.in_alpha[r] = -sums[0]
    return lost


@plain
def _constant(row, slope):
    for i in range(row.n):
        x = load(row.x, i, row.size)
        fixed = x == math.inf or is_deleted(x, row.size)
        store(row.out, i, row.size, 0.0 if fixed else slope)
