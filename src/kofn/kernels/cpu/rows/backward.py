"""The backward pass: from cotangents of weights to cotangents of scores, k and T."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import carray

from kofn.kernels.contract import BOUNDED, LINEAR, SQUARE
from kofn.kernels.cpu.rows import layout
from kofn.kernels.cpu.rows.formulas import density, distance, side_logs, sloped
from kofn.kernels.cpu.rows.frame import BLOCK, Pass, in_loop
from kofn.kernels.cpu.rows.lanes import (
    CLOSED,
    LEAST_DOUBLE,
    LEAST_SINGLE,
    OPEN,
    SPECIAL,
    copy_all,
    is_deleted,
    load,
    nth,
    pass_over,
    pass_over_all,
    plane,
)
from kofn.kernels.cpu.rows.search_lanes import answer_all, centre_all, count_all, weigh_all
from kofn.kernels.cpu.runtime.intrinsics import call, pointer
from kofn.kernels.cpu.runtime.layout import PART
from kofn.kernels.cpu.runtime.split_row import plain
from kofn.kernels.cpu.runtime.vector_math import multiply_add, where_positive, widest_vectors
from kofn.kernels.cpu.runtime.words import reach


@plain
def cotangents(group, lanes):
    """Write the scores' cotangents, w∘(g − ḡ)/T with ḡ = Σwg/W; leave k's and T's in the lanes.

    ḡ is taken off in two parts: where one entry holds nearly all of W, g − ḡ is smaller than the
    rounding of ḡ. The cotangent of T is −Σu(x − θ)/T² with u = w∘(g − ḡ). As Σu = 0, any other
    number may stand for θ, and what rounding leaves of Σu is multiplied by its distance from the
    mean of x in the weights w. So that mean stands there, the pivot.
    """
    size = group.row.size
    _weigh(group, lanes)
    weigh_all(group.lanes, group.count, size)
    _slope(group, lanes)
    centre_all(group.lanes, size)
    _centre(group, lanes)
    answer_all(group.lanes)
    if count_all(group.lanes, CLOSED):
        for r in range(group.count):
            if lanes.state[r] == CLOSED:
                lanes.in_k[r], lanes.in_t[r] = _close_back(nth(group, r), lanes)


@plain
def in_alphas(group, lanes):
    """Leave the cotangents of α, Σg·∂p/∂α, in the lanes, after the ones of k: `bend` says how.

    ∂p/∂α is ∂F/∂α less the multiple of F′ that keeps Σp, and ΣF′(g − ḡ) = 0.
    """
    if group.entries:
        pass_over_all(group, len(layout.BACKWARD_ABREAST))
    for r in range(group.count):
        hi, lo, per_t = lanes.hi[r], lanes.lo[r], lanes.per_t[r]
        if lanes.state[r] == CLOSED:
            lanes.in_alpha[r] = hi if hi != hi else 0.0
        elif not group.entries:
            alpha, mean = lanes.alpha[r], lanes.mean[r]
            sums = pass_over(nth(group, r), len(layout.BACKWARD_ROWS), hi, lo, per_t, alpha, mean)
            lanes.in_alpha[r] = lanes.rest[r] * sums[1] - sums[0]


@plain
def _weigh(group, lanes):
    row = group.row
    if group.entries:
        copy_all(group, layout.BRING_BACK, row.x, group.entries)
        copy_all(group, layout.BRING_BACK, row.g, plane(group, layout.COTANGENT))
        pass_over_all(group, layout.WEIGH)
        return
    in_parts = row.n > PART
    if not in_parts:
        for r in range(group.count):
            lanes.pivot[r] = lanes.hi[r]
        _pass_over_rows(group, layout.WEIGH_ROWS)
        _pass_over_rows(group, layout.LEVER_ROWS)
    for r in range(group.count):
        hi, lo, per_t = lanes.hi[r], lanes.lo[r], lanes.per_t[r]
        if (in_parts or lanes.strange[r] > 0) and abs(hi) < math.inf:
            sums = pass_over(nth(group, r), layout.WEIGH, hi, lo, per_t, lanes.alpha[r], 0.0)
            lanes.weight[r], lanes.total[r], lanes.moment[r] = sums[0], sums[1], sums[2]


@plain
def _slope(group, lanes):
    if group.entries:
        pass_over_all(group, layout.SLOPE)
        return
    if group.row.n <= PART:
        _pass_over_rows(group, layout.SLOPE_ROWS)
        _pass_over_rows(group, layout.LEVER_ROWS)
        return
    for r in range(group.count):
        if lanes.state[r] == OPEN:
            pivot, per_t, mean = lanes.pivot[r], lanes.per_t[r], lanes.mean[r]
            sums = pass_over(nth(group, r), layout.SLOPE, pivot, per_t, mean, 0.0, 0.0)
            lanes.total[r], lanes.size[r], lanes.slope[r] = sums[0], sums[1], sums[2]


@plain
def _centre(group, lanes):
    """Subtract the rest of the mean in the special lanes."""
    if group.entries:
        if count_all(group.lanes, SPECIAL):
            pass_over_all(group, layout.CENTRE)
        copy_all(group, layout.GIVE_BACK, plane(group, layout.KEPT), group.row.out)
        return
    for r in range(group.count):
        if lanes.state[r] == SPECIAL:
            hi, lo, per_t, rest = lanes.hi[r], lanes.lo[r], lanes.per_t[r], lanes.rest[r]
            pass_over(nth(group, r), layout.CENTRE, hi, lo, per_t, lanes.alpha[r], rest)


@plain
def _pass_over_rows(group, which):
    """Go over all rows of a group, one after another, by one call, if there is such a pass."""
    row, zero = group.row, 0.0
    address = carray(pointer(row.passes), which + 1, np.int64)[which]
    count = np.float64(group.count)
    if address:
        call(address, row.x, row.g, row.out, row.n, group.lanes, count, zero, zero, zero, zero)


@plain
def _close_back(row, lanes):
    """Cotangents of a row that had no equation, or whose slopes have all underflowed."""
    r = row.lane
    hi, k = lanes.hi[r], lanes.k[r]
    sums = pass_over(row, layout.CLOSE_BACK, hi if hi != hi else 0.0, 0.0, 0.0, 0.0, 0.0)
    if abs(hi) < math.inf:
        return _share_of_logs(row, hi, lanes.lo[r], lanes.temperature[r], lanes.alpha[r]), 0.0
    top, total = sums[0], sums[1]
    if hi != hi:
        return hi, hi
    return (total / top if hi > 0 and top > 0 and k <= top else 0.0), 0.0


@plain
def _share_of_logs(row, hi, lo, temperature, alpha):
    """ΣF′g/ΣF′, what k moves where every F′ has underflowed.

    Each is taken relative to the sum of tails on its side of θ: those two sums are equal, while
    e^{−z²/2}, far out, does not know both to a digit.
    """
    below, product = _side_of_logs(row, False, hi, lo, temperature, alpha)
    above, another = _side_of_logs(row, True, hi, lo, temperature, alpha)
    slope = below + above
    return (product + another) / slope if slope > 0 else 0.0


@plain
def _side_of_logs(row, upper, hi, lo, temperature, alpha):
    """(ΣF′, ΣF′g) of the entries on one side of θ, relative to the sum of their tails."""
    kind = row.kind
    peak, nearest = -math.inf, math.nan  # the greatest logarithm of a tail, and its score
    total, slope, product = 0.0, 0.0, 0.0
    for i in range(row.n):
        score = load(row.x, i, row.size)
        if is_deleted(score, row.size):
            continue
        z = ((score - hi) - lo) / temperature
        log_tail, hazard = side_logs(kind, z, upper, alpha)
        if not log_tail > -math.inf:
            continue
        ratio = log_tail - peak
        dz = (score - nearest) / temperature
        # Far from θ, two z may round to one number though the scores differ.
        if abs(dz) <= abs(z) / 64:
            ratio = side_logs(kind, z - dz / 2, upper, alpha)[1] * (-dz if upper else dz)
        if ratio > 0:
            scale = math.exp(-ratio)
            total, slope, product = total * scale, slope * scale, product * scale
            peak, nearest, ratio = log_tail, score, 0.0
        share = math.exp(ratio)
        total += share
        slope += share * hazard
        product += share * hazard * load(row.g, i, row.size)
    return (slope / total, product / total) if total > 0 else (0.0, 0.0)


def weigh_rows(kind: int, number: Any) -> Pass:
    """`weigh` of loops.py for a group of rows but for ΣF′z; those that it is not for are strange.

    These have a cotangent that is not finite, or a θ from which scores out of play may not be far.
    """
    ends, bounded = kind in (LINEAR, SQUARE), kind in BOUNDED
    most = -(LEAST_SINGLE if number is np.float32 else LEAST_DOUBLE)

    @in_loop
    def entry(x, g, hi, lo, per_t, rise):
        # Near the end of a support z keeps all of its digits.
        z = distance(x, hi, lo, per_t) if bounded else multiply_add(x - hi, per_t, -(lo * per_t))
        w = density(kind, z, rise)
        w = w if ends or abs(z) < reach(z) else number(0)
        return w, w * g

    def one_pass(x, g, out, n, lanes, count, b, c, d, e):
        widest_vectors()
        into, zero, beyond = carray(pointer(lanes), 1, layout.LANE)[0], number(0), reach(number(0))
        rows = np.int64(count)
        scores, given = carray(pointer(x), (rows, n), number), carray(pointer(g), (rows, n), number)
        answer = carray(pointer(out), (rows, n), number)
        for r in range(rows):
            hi, lo, per_t = number(into.hi[r]), number(into.lo[r]), number(into.per_t[r])
            rise, weight, total = number(into.alpha[r] - 1), 0.0, 0.0
            for start in range(0, n, BLOCK):
                stop = start + BLOCK
                xs, gs, ws = scores[r][start:stop], given[r][start:stop], answer[r][start:stop]
                first, second = zero, zero
                for i in range(xs.size):
                    w, product = entry(xs[i], gs[i], hi, lo, per_t, rise)
                    ws[i] = w
                    first += w
                    second += product
                weight += first
                total += second
            away = abs(into.hi[r]) + beyond * into.temperature[r]
            usual = away < most and abs(total) < math.inf
            into.weight[r], into.total[r] = weight, total
            into.strange[r] = 0.0 if usual else 1.0

    return one_pass


def slope_rows(kind: int, number: Any) -> Pass:
    """`slope` of loops.py for the open rows of a group but for the last sum."""

    def one_pass(x, g, out, n, lanes, count, b, c, d, e):
        widest_vectors()
        into, zero = carray(pointer(lanes), 1, layout.LANE)[0], number(0)
        rows = np.int64(count)
        given, answer = (
            carray(pointer(g), (rows, n), number),
            carray(pointer(out), (rows, n), number),
        )
        for r in range(rows):
            if into.state[r] != OPEN:
                continue
            per_t, mean, total, size = number(into.per_t[r]), number(into.mean[r]), 0.0, 0.0
            for start in range(0, n, BLOCK):
                stop = start + BLOCK
                gs, ws = given[r][start:stop], answer[r][start:stop]
                first, second = zero, zero
                for i in range(gs.size):
                    u, _ = sloped(zero, gs[i], ws[i], zero, per_t, mean)
                    ws[i] = u * per_t
                    first += u
                    second += abs(u)
                total += first
                size += second
            into.total[r], into.size[r] = total, size

    return one_pass


def lever_rows(kind: int, number: Any) -> Pass:
    """Σv(x − pivot) of what stands in the answers: of F′, and of the slopes."""

    def one_pass(x, g, out, n, lanes, count, b, c, d, e):
        widest_vectors()
        into, rows, zero = carray(pointer(lanes), 1, layout.LANE)[0], np.int64(count), number(0)
        scores, answer = (
            carray(pointer(x), (rows, n), number),
            carray(pointer(out), (rows, n), number),
        )
        for r in range(rows):
            pivot, total = number(into.pivot[r]), 0.0
            for start in range(0, n, BLOCK):
                xs, vs = scores[r][start : start + BLOCK], answer[r][start : start + BLOCK]
                lever = zero
                for i in range(xs.size):
                    lever += where_positive(abs(vs[i]), vs[i] * (xs[i] - pivot))
                total += lever
            into.slope[r], into.moment[r] = total, total * into.per_t[r]

    return one_pass
