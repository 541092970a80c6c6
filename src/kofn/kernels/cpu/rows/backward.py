"""The backward pass: from cotangents of weights to cotangents of scores, k and T."""

from __future__ import annotations

import math

from kofn.kernels.cpu.rows import layout
from kofn.kernels.cpu.rows.formulas import side_logs
from kofn.kernels.cpu.rows.lanes import (
    CLOSED,
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
from kofn.kernels.cpu.runtime.split_row import plain


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
            sums = pass_over(nth(group, r), len(layout.BACKWARD), hi, lo, per_t, alpha, mean)
            lanes.in_alpha[r] = lanes.rest[r] * sums[1] - sums[0]


@plain
def _weigh(group, lanes):
    row = group.row
    if group.entries:
        copy_all(group, layout.BRING_BACK, row.x, group.entries)
        copy_all(group, layout.BRING_BACK, row.g, plane(group, layout.COTANGENT))
        pass_over_all(group, layout.WEIGH)
        return
    for r in range(group.count):
        hi, lo, per_t = lanes.hi[r], lanes.lo[r], lanes.per_t[r]
        if abs(hi) < math.inf:
            sums = pass_over(nth(group, r), layout.WEIGH, hi, lo, per_t, lanes.alpha[r], 0.0)
            lanes.weight[r], lanes.total[r], lanes.moment[r] = sums[0], sums[1], sums[2]


@plain
def _slope(group, lanes):
    if group.entries:
        pass_over_all(group, layout.SLOPE)
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
