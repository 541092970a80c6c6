"""Weights of a group of rows, from their statistics to the last pass, and their thresholds."""

from __future__ import annotations

import math

import numpy as np

from kofn.kernels.contract import BOUNDED, CAPPED, EXPONENTIAL
from kofn.kernels.cpu.rows import layout
from kofn.kernels.cpu.rows.answers import compare
from kofn.kernels.cpu.rows.balance import to_end
from kofn.kernels.cpu.rows.lanes import (
    CLOSED,
    FOUND,
    OPEN,
    SPECIAL,
    SUMMED,
    copy_all,
    nth,
    pass_over,
    pass_over_all,
    plane,
)
from kofn.kernels.cpu.rows.search import (
    advance,
    evaluate,
    finite_peak,
    is_off,
    is_single,
    last_checked,
    open_softmax,
    pass_at,
    peak,
    quantiles,
    read,
    statistics,
)
from kofn.kernels.cpu.rows.search_lanes import (
    advance_all,
    aim_all,
    alike_all,
    count_all,
    fresh_all,
    move_all,
    off_all,
    open_all,
    settle_all,
    solved_all,
    spread_all,
    strange_all,
    sum_up_all,
    take_all,
)
from kofn.kernels.cpu.runtime.split_row import plain
from kofn.kernels.cpu.short.few import approach, is_below, keep_few, leaves_out, part, settle_few


@plain
def weights(group, lanes, wanted, labels, at_once):
    """Write the weights of a group of rows, if wanted; leave θ as `hi` and `lo` in their lanes.

    Where they are only wanted for a loss, `at_once` with it, p − t may stand in their place.

    (0, NaN) says that the search gave up; the answer is whether it did not. Of rows with `few`
    entries, if these are placed, the weights are in the thread's memory, for `few.spread`; the
    first is that of the label, if there is the address of `labels`.
    """
    count, kind, size = group.count, group.row.kind, group.row.size
    usual = _usual(group, lanes, wanted) if group.entries else 0
    if usual == count:
        return True
    checked = last_checked(kind, size) if wanted and not group.entries else 0.0
    if _start(group, lanes, labels):
        _sum_up(group, lanes)
    _search(group, lanes, checked)
    if kind in CAPPED:
        for r in range(count):
            if lanes.state[r] == FOUND and lanes.weight[r] == 0 and lanes.count[r] == lanes.k[r]:
                to_end(nth(group, r), lanes)
        aim_all(group.lanes, kind, size)
    if leaves_out(group, labels):
        settle_few(group, lanes, labels)
    if wanted:
        left = compare(group, lanes, checked, labels) if at_once else ALL
        _write(group, lanes, left)
        again = _open_again(group, lanes) if checked > 0 else 0
        if again:
            _search(group, lanes, 0.0)
            if leaves_out(group, labels):
                settle_few(group, lanes, labels)
            _write(group, lanes, again)
        _mend(group, lanes, wanted)
        if usual:
            pass_over_all(group, layout.PUT_USUAL)
        if group.entries:
            copy_all(group, layout.GIVE, plane(group, layout.KEPT), group.row.out)
    elif strange_all(group.lanes, count):
        _write(group, lanes, ALL)  # to the thread's own memory, for the sum's sake
        _mend(group, lanes, wanted)
    wrong = settle_all(group.lanes, count, size, wanted)
    if usual:
        take_all(group.lanes)
    if wrong == 0:
        return True
    all_solved = True
    for r in range(count):
        if lanes.state[r] == CLOSED:
            _close(nth(group, r), lanes, wanted)
        elif lanes.lo[r] != lanes.lo[r]:
            all_solved = False
    return all_solved


ROUNDS = 16
"""Evaluations per byte of a number, after which the reference has a row: a handful is usual, and
one in three may halve the bracket.
"""


FEW_TERMS, LEAST_WRITTEN_ONCE = 1 / 8, 2048
"""Of a row, the entries whose exact evaluation costs less than what a rough one leaves to do, where
a row is so long that its weights are to be written once.
"""


@plain
def _search(group, lanes, checked):
    """Evaluate the open rows, and take their steps, until the θ of all is found."""
    kind, size = group.row.kind, group.row.size
    rough = checked > 0 and kind in layout.HAVE_ROUGH
    few = FEW_TERMS * group.row.n if group.row.n >= LEAST_WRITTEN_ONCE else 0.0
    for r in range(group.count):
        many = lanes.few[r] == 0 or lanes.few[r] > few
        lanes.rough[r] = 1.0 if rough and many and lanes.strange[r] == 0 else 0.0
    for round_ in range(ROUNDS * size):
        aim_all(group.lanes, kind, size)
        if round_ == 0:
            approach(group, lanes)
        if not _evaluate(group, lanes):
            break
        if advance_all(group.lanes, kind, size, round_, checked, few):
            for r in range(group.count):
                if lanes.state[r] == SPECIAL:
                    advance(nth(group, r), lanes, round_)


@plain
def _usual(group, lanes, wanted):
    """Bring rows to their lanes; θ and weights of the usual ones; return how many these are."""
    n, alike = group.row.n, alike_all(group.lanes)
    copy_all(group, layout.BRING, group.row.x, group.entries)
    for r in range(1 if alike else group.count):
        if 0 < lanes.k[r] < n:
            quantiles(nth(group, r), lanes, lanes.k[r], np.float64(n), np.float64(n))
    if alike:
        spread_all(group.lanes)
    pass_over_all(group, layout.OPEN_USUAL)
    if not solved_all(group.lanes, group.count):
        return 0
    pass_over_all(group, layout.USUAL)
    usual = solved_all(group.lanes, group.count)
    if wanted and usual == group.count:
        copy_all(group, layout.GIVE, plane(group, layout.COTANGENT), group.row.out)
    return usual


@plain
def _start(group, lanes, labels):
    """Gather statistics of all rows, full ones where need be; whether some are a softmax."""
    row, count = group.row, group.count
    n, kind, size, peaks = row.n, row.kind, row.size, 0
    for r in range(count):
        each, k = nth(group, r), lanes.k[r]
        single = is_single(kind, k)
        peaks += 1 if single else 0
        if group.entries:
            continue
        if 0 < k < n:
            quantiles(each, lanes, k, np.float64(n), np.float64(n))
        if not single:
            statistics(each, lanes)
        elif kind == EXPONENTIAL:
            peak(each, lanes)
        else:
            finite_peak(each, lanes)
    summed = peaks if kind == EXPONENTIAL else 0
    if peaks and group.entries:
        pass_over_all(group, layout.PEAK)
    if summed < count:
        if group.entries:
            pass_over_all(group, layout.STATISTICS)
        open_all(group.lanes, count, n, kind, size)
    if summed:
        for r in range(count):
            if is_single(kind, lanes.k[r]):
                open_softmax(lanes, r, size)
    if count_all(group.lanes, SPECIAL):
        for r in range(count):
            if lanes.state[r] == SPECIAL:
                read(nth(group, r), lanes)
    if leaves_out(group, labels):
        keep_few(group, lanes, labels)
    return summed > 0


@plain
def _sum_up(group, lanes):
    """Prepare the rows that are a softmax; their sums tell θ."""
    if group.entries:
        pass_over_all(group, layout.FIRST_EVALUATION)
    else:
        aim_all(group.lanes, group.row.kind, group.row.size)
        for r in range(group.count):
            if lanes.state[r] == SUMMED:
                lanes.total[r] = pass_at(nth(group, r), lanes, layout.SUM_UP)[0]
                lanes.fresh[r] = 0.0
    sum_up_all(group.lanes)


@plain
def _evaluate(group, lanes):
    """Evaluate the rows whose θ is not found; return whether there are any."""
    any_open = count_all(group.lanes, OPEN) > 0
    if group.entries:
        if any_open:
            _prepare(group)
            pass_over_all(group, layout.EVALUATION)
        return any_open
    for r in range(group.count):
        if lanes.approached[r] > 0:
            lanes.approached[r] = 0.0  # `approach` has left the sums of an evaluation
        elif lanes.state[r] == OPEN:
            if lanes.few[r] > 0 and is_below(lanes, r):
                lanes.few[r] = 0.0
            evaluate(part(group, lanes, r, True), lanes)
    return any_open


@plain
def _prepare(group):
    """Prepare the rows abreast whose anchor has moved."""
    if group.row.kind not in BOUNDED and fresh_all(group.lanes):
        pass_over_all(group, layout.FIRST_EVALUATION)


ALL = (1 << layout.LANES) - 1


@plain
def _write(group, lanes, which):
    """Write the weights at θ where it is found, and their sums; `which` rows by their bits."""
    row = group.row
    if group.entries:
        _prepare(group)
        pass_over_all(group, layout.WRITE)
        return
    for r in range(group.count):
        if lanes.state[r] == FOUND and which >> r & 1:
            each = part(group, lanes, r, True)
            if lanes.fresh[r] and row.kind not in BOUNDED:
                pass_at(each, lanes, layout.FIRST_EVALUATION)
            lanes.total[r] = pass_at(each, lanes, layout.WRITE)[0]


MENDS = 4  # the first is enough unless the slopes have changed since the last evaluation


@plain
def _mend(group, lanes, wanted):
    """Where Σp misses k, move θ by a Newton step on this sum, and each weight with it.

    An evaluation adds up in float32, and rounds F of equal scores alike: its root is not the root
    of the weights as they are written.
    """
    row = group.row
    for _ in range(MENDS):
        if not off_all(group.lanes, group.count, row.size, wanted):
            break
        move_all(group.lanes, row.size, wanted)
        if group.entries:
            pass_over_all(group, layout.MEND)
            continue
        for r in range(group.count):
            rest = lanes.rest[r]
            if rest != 0:
                hi, lo, per_t = lanes.hi[r], lanes.lo[r], lanes.per_t[r]
                each, alpha = part(group, lanes, r, True), lanes.alpha[r]
                lanes.total[r] = pass_over(each, layout.MEND, hi, lo, per_t, alpha, rest)[0]


@plain
def _open_again(group, lanes):
    """Reopen the rows whose sum tells that the last step was too long; return which."""
    again = 0
    for r in range(group.count):
        if lanes.state[r] == FOUND and lanes.strange[r] == 0 and is_off(lanes, r):
            lanes.state[r], lanes.fresh[r] = OPEN, 1.0
            again |= 1 << r
    return again


@plain
def _close(row, lanes, wanted):
    """Answer a row without an equation: the share of its scores of +inf, and 0, 1 or NaN."""
    r = row.lane
    k, top, theta = lanes.k[r], lanes.top[r], lanes.anchor[r]
    if wanted:
        share = k if k != k else ((k / top if k <= top else 1.0) if top > 0 else 0.0)
        others = theta if theta != theta else (0.0 if theta > 0 else 1.0)
        pass_over(row, layout.CLOSE, others, share if theta != -math.inf else 1.0, 0.0, 0.0, 0.0)
    lanes.hi[r], lanes.lo[r] = theta, 0.0
