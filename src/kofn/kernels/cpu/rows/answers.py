"""Losses and logarithms of a group of rows whose weights and thresholds are known."""

from __future__ import annotations

import math

import numpy as np
from numba import carray

from kofn.kernels.contract import EXPONENTIAL, OCTAVES
from kofn.kernels.cpu.rows import layout
from kofn.kernels.cpu.rows.formulas import edge, shifted
from kofn.kernels.cpu.rows.lanes import (
    FOUND,
    Row,
    is_deleted,
    load,
    nth,
    pass_over,
    pivot_of,
    rounded,
    store,
    two_floats,
)
from kofn.kernels.cpu.rows.search import is_off, is_single, pass_at
from kofn.kernels.cpu.rows.search_lanes import MISSED_DOUBLE, MISSED_SINGLE
from kofn.kernels.cpu.runtime.intrinsics import pointer
from kofn.kernels.cpu.runtime.split_row import plain
from kofn.kernels.cpu.short.few import part

# As solver/equation.least_weight: the terms of a smaller ΣF′ may be no normal numbers.
LEAST_SINGLE, LEAST_DOUBLE = 2.0**-103, 2.0**-970

_AFTER, _AFTER_ABREAST = len(layout.FORWARD_ROWS), len(layout.FORWARD_ABREAST)


@plain
def _of_target(group, which):
    """Return the place of a pass of TARGETS or LABELLED."""
    return (_AFTER_ABREAST if group.entries else _AFTER) + which


@plain
def count(group, bytes_at, into):
    """Write Σt of each row to the numbers at `into`, and targets that are bytes to their place."""
    for r in range(group.count):
        row = nth(group, r)
        if bytes_at:
            first, source = np.float64(row.g), np.float64(bytes_at + r * row.n)
            which = _of_target(group, layout.FROM_BYTES)
            sums = pass_over(row, which, first, source, 0.0, 0.0, 0.0)
        else:
            sums = pass_over(row, _of_target(group, layout.TALLY), 0.0, 0.0, 0.0, 0.0, 0.0)
        store(into, r, row.size, sums[0])


@plain
def compare(group, lanes, checked, labels):
    """Write p − t at θ, with what a loss needs; return the rows left to others, by their bits.

    The sum of p − t shows how far Σp is from k, the sum of t. Targets that are soft lack their Ω.
    """
    row, left = group.row, 0
    most = MISSED_SINGLE if row.size == 4 else MISSED_DOUBLE
    which = layout.WRITTEN_LABEL_LOSS if labels else layout.WRITTEN_LOSS
    for r in range(group.count):
        each, pivot = nth(group, r), rounded(lanes.mean[r], row.size)
        label = carray(pointer(labels), r + 1, np.int64)[r] if labels else 0
        usual = lanes.state[r] == FOUND and not lanes.strange[r] > 0 and 0 <= label < row.n
        if not usual or is_close(lanes, r):
            left |= 1 << r
            continue
        if lanes.fresh[r]:
            pass_at(each, lanes, layout.FIRST_EVALUATION)
        hi, lo = two_floats(lanes.anchor[r], lanes.temperature[r] * lanes.delta[r], row.size)
        per_t, rest = lanes.per_t[r], pivot
        if labels:
            pivot, rest = load(each.x, label, row.size), np.float64(each.x + label * row.size)
        sums = pass_over(each, which, hi, lo, per_t, lanes.by[r], rest)
        lanes.total[r] = lanes.k[r] + sums[0]
        off = abs(sums[0]) > most * lanes.k[r] or (checked > 0 and is_off(lanes, r))
        if off:
            lanes.fresh[r] = 1.0
            left |= 1 << r
            continue
        apart = pivot_of(hi, lo, lanes.temperature[r], sums[3], sums[4]) - pivot
        # Scores that are all alike are the pivot; the rest is the rounding of their distance to θ.
        known = sums[3] > 0 and abs(apart) > most * abs((hi - pivot) + lo)
        lanes.compared[r], lanes.size[r] = 1.0, sums[2]
        lanes.in_k[r] = sums[1]
        lanes.in_t[r] = sums[5] - (sums[0] * (apart * per_t) if known else 0.0)
    return left


MOST_APART = 40.0
"""Temperatures between scores and θ up to which e^z of both, and their quotient, are normal."""


@plain
def is_close(lanes, r):
    """Whether scores are far closer to one another than to θ, and not too far from it."""
    mean, temperature = lanes.mean[r], lanes.temperature[r]
    apart = abs(lanes.anchor[r] + temperature * lanes.delta[r] - mean)
    reach = max(lanes.greatest[r] - mean, mean - lanes.least[r])
    return 2 * reach <= apart and temperature < apart < MOST_APART * temperature


@plain
def losses(group, lanes, labels, searched, of_alpha):
    """Leave the loss of each row as `in_k`, Σ(p − t)z as `in_t`, and p − t in place of weights p.

    Σ(p − t) = 0 up to rounding, so backward.py's pivot stands for θ in the second, but with weights
    p(1 − p), which are F′ or close to it.

    The target of a row is in its cotangent's place, or a label, the index of the one 1. The answer
    is whether rows are left to the reference, with a loss of NaN: their soft target's Ω is unknown.
    A label out of range has a loss of NaN.

    Lanes that have `searched` for θ know more of the rows. `in_alpha` becomes the derivative in α,
    if that is wanted.
    """
    lost = False
    tilt = _of_target(group, len(layout.TARGETS) if group.row.g else len(layout.LABELLED))
    for r in range(group.count):
        row, alpha = part(group, lanes, r, False), lanes.alpha[r]
        label = carray(pointer(labels), r + 1, np.int64)[r] if labels else 0
        hi, lo, per_t = lanes.hi[r], lanes.lo[r], 1 / lanes.temperature[r]
        if not 0 <= label < group.row.n:
            lanes.in_k[r] = lanes.in_t[r] = lanes.in_alpha[r] = math.nan
            continue
        label = 0 if lanes.few[r] > 0 else label
        if not abs(hi) < math.inf:
            lanes.in_k[r] = _closed(row, hi, labels != 0, label)
            lanes.in_t[r] = hi if hi != hi else 0.0
            lost = lost or (hi == hi and lanes.in_k[r] != lanes.in_k[r])
            lanes.in_alpha[r] = lanes.in_t[r]
            if of_alpha and row.g:
                lanes.in_alpha[r] += pass_over(row, tilt + 1, 0.0, 0.0, 0.0, alpha, 0.0)[0]
            continue
        compared = lanes.compared[r] > 0
        if searched and row.kind in OCTAVES and not group.entries and not compared:
            _write_closely(group, row, lanes)
        lanes.in_alpha[r] = 0.0
        if of_alpha:
            lanes.in_alpha[r] -= pass_over(row, tilt, 0.0, 0.0, 0.0, alpha, 0.0)[0]
        address = np.float64(row.x + label * row.size)
        if compared:
            total, soft, weight, moment = lanes.in_k[r], lanes.size[r], 0.0, 0.0
        else:
            sums = pass_over(row, _of_target(group, layout.LOSS), hi, lo, per_t, alpha, address)
            total, soft, weight, moment = sums[0], sums[1], sums[2], sums[3]
        possible = total < math.inf
        if soft > 0 and row.kind in layout.KNOWS_OMEGA:
            which = _of_target(group, layout.SOFT_LOSS)
            total = pass_over(row, which, hi, lo, per_t, alpha, address)[0]
            if of_alpha:
                lanes.in_alpha[r] += pass_over(row, tilt + 1, 0.0, 0.0, 0.0, alpha, 0.0)[0]
        elif soft > 0:
            total = math.nan
            lost = True
        lanes.in_k[r] = total
        if compared:
            continue
        # Σ(p − t) = 0 is not so where a target is out of play, and the loss infinite.
        if possible:
            pivot = pivot_of(hi, lo, lanes.temperature[r], weight, moment)
        else:
            pivot = hi + lo - lanes.temperature[r] * edge(row.kind, alpha)
        sums = pass_over(row, _of_target(group, layout.LEVER), pivot, per_t, 0.0, 0.0, 0.0)
        lanes.in_t[r] = sums[0]
    return lost


@plain
def _write_closely(group, row, lanes):
    """Write the weights again where scores are far closer to one another than to θ.

    Their distance from θ has a greater rounding error than their distance from their mean. It
    hardly changes one weight, but Σ(p − t)z adds up its effects on all weights of scores alike.
    """
    r = row.lane
    hi, lo, mean, temperature = lanes.hi[r], lanes.lo[r], lanes.mean[r], lanes.temperature[r]
    alpha = lanes.alpha[r]
    if row.kind == EXPONENTIAL and is_single(row.kind, lanes.k[r]):
        return  # from the greatest score on, without a mean
    if not is_close(lanes, r):
        return
    base, per_t = rounded(mean, row.size), 1 / temperature
    by = shifted(row.kind, ((hi - base) + lo) * per_t)
    sums = pass_over(row, _of_target(group, layout.CLOSELY), base, per_t, by, alpha, 0.0)
    if sums[1] > 0:
        pass_over(row, layout.MEND, hi, lo, per_t, alpha, (lanes.k[r] - sums[0]) / sums[1])


@plain
def likelihoods(group, lanes, labels, weighed):
    """Leave −log p of each row's label as `in_k`, and p − t in place of p = softmax if `weighed`.

    Where the loss does not change with the scores, or is ∞, the weights become 0. Without weights,
    such a row is left with a loss of NaN; the answer is whether there are any.
    """
    lost = False
    for r in range(group.count):
        row = nth(group, r)
        label, size = carray(pointer(labels), r + 1, np.int64)[r], row.size
        x, hi, lo = load(row.x, label, size), lanes.hi[r], lanes.lo[r]
        lanes.in_k[r], lanes.in_t[r] = math.nan, 0.0
        if abs(hi) < math.inf and abs(x) < math.inf and not is_deleted(x, size):
            lanes.in_k[r] = 1 - ((x - hi) - lo) / lanes.temperature[r]
            if weighed:
                store(row.out, label, size, load(row.out, label, size) - 1)
        elif not weighed:
            lost = True
        elif hi == hi:
            lanes.in_k[r] = -math.log(load(row.out, label, size))
            for i in range(row.n):
                store(row.out, i, size, 0.0)
    return lost


@plain
def _closed(row, hi, labelled, label):
    """Return the loss of a row without an equation: 0, ∞ if its target cannot be, NaN if soft.

    The weights become cotangents: of 0, or NaN.
    """
    total = 0.0
    for i in range(row.n):
        x = load(row.x, i, row.size)
        t = (1.0 if i == label else 0.0) if labelled else load(row.g, i, row.size)
        out = is_deleted(x, row.size)
        if x == math.inf or out:
            total += 0.0 if t == (0.0 if out else 1.0) else math.inf
        elif t != 0 and t != 1:
            total = math.nan
        store(row.out, i, row.size, hi if hi != hi and not (out or x == math.inf) else 0.0)
    return hi if hi != hi else total


@plain
def log_cotangents(group, lanes, of_alpha):
    """Write the cotangents of the scores; leave T's, or NaN in a row left to the reference.

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
        sums = pass_over(row, layout.LOG_WEIGH, hi, lo, 1 / temperature, alpha, 0.0)
        weight, product, moment = sums[0], sums[1], sums[2]
        if weight < least:
            lanes.in_k[r], lost = math.nan, True
            continue
        pass_over(row, layout.LOG_SLOPE, hi, lo, 1 / temperature, alpha, product / weight)
        pivot = pivot_of(hi, lo, temperature, weight, moment)
        sums = pass_over(row, layout.LOG_LEVER, pivot, 1 / temperature, 0.0, 0.0, 0.0)
        lanes.in_t[r] = -sums[0]
        if of_alpha:
            mean = product / weight
            sums = pass_over(row, layout.LOG_BEND, hi, lo, 1 / temperature, alpha, mean)
            lanes.in_alpha[r] = -sums[0]
    return lost


@plain
def label_cotangents(group, lanes, labels):
    """Write the cotangents of the scores for that of the logarithm of each row's label, its `k`.

    The answer is whether rows are left to others: not all of their numbers are normal.
    """
    least = LEAST_SINGLE if group.row.size == 4 else LEAST_DOUBLE
    lost = False
    for r in range(group.count):
        row, label = nth(group, r), carray(pointer(labels), r + 1, np.int64)[r]
        hi, lo, per_t, alpha = lanes.hi[r], lanes.lo[r], 1 / lanes.temperature[r], lanes.alpha[r]
        if not (abs(hi) < math.inf and 0 <= label < row.n):
            lost = True
            continue
        at, size = label * row.size, row.size
        store(row.out, label, size, 1.0)
        own, out = row.x + at, row.out + at
        one = Row(r, row.passes, row.kind, size, own, out, out, 1, row.sums, row.team, row.memo)
        steep = pass_over(one, layout.LABEL_HAZARD, hi, lo, per_t, alpha, 0.0)[1]
        # Their cotangents are nobody's: any numbers.
        whole = Row(
            r,
            row.passes,
            row.kind,
            size,
            row.x,
            row.x,
            row.out,
            row.n,
            row.sums,
            row.team,
            row.memo,
        )
        weight = pass_over(whole, layout.LABEL_WEIGH, hi, lo, per_t, alpha, 0.0)[0]
        if not (weight >= least and steep > 0):
            lost = True
            continue
        store(row.out, label, size, 0.0)
        by = -lanes.k[r] * steep * per_t / weight
        # The cotangents of a row add up to 0.
        others = pass_over(row, layout.LABEL_SCALE, by, 0.0, 0.0, 0.0, 0.0)[0]
        store(row.out, label, size, -others)
    return lost


@plain
def _constant(row, slope):
    for i in range(row.n):
        x = load(row.x, i, row.size)
        fixed = x == math.inf or is_deleted(x, row.size)
        store(row.out, i, row.size, 0.0 if fixed else slope)
