"""Of a longer row, the few entries that may have a weight: a search goes over copies of these.

They are where the answer of the row will be. Some have answers of their own, which are put in their
places in the end. (Tests: test_kernels_few.py.)
"""

from __future__ import annotations

import math

import numpy as np
from numba import carray

from kofn.kernels.contract import BOUNDED
from kofn.kernels.cpu.rows import layout
from kofn.kernels.cpu.rows.lanes import OPEN, moved, nth, pass_over
from kofn.kernels.cpu.runtime.intrinsics import call, pointer
from kofn.kernels.cpu.runtime.layout import AT_ONCE, PART, SUMS
from kofn.kernels.cpu.runtime.layout import HEAD as TEAM_HEAD
from kofn.kernels.cpu.runtime.registers import registers_are_wide
from kofn.kernels.cpu.runtime.split_row import plain
from kofn.kernels.cpu.runtime.vector_math import inline, widest_vectors

few_of, apart_of = plain(layout.few_of), plain(layout.apart_of)
turned_of = plain(layout.turned_of)


MARGIN = 0.3
"""Standard deviations of the scores that θ may be below its start, for entries to be left out."""

SLACK = 2.0**-4
"""Temperatures between the least that is kept and the floor of θ: more than it is mended by."""

COMMON, SELDOM, RARE = 0.45, 1.3, 1.9
"""Standard deviations above the mean from which on a third of normal scores are, a tenth, and a
thirtieth.

A third can be copied in less time than an evaluation takes by wide registers, a thirtieth one by
one. Of a tenth the weights may be put in their places.
"""

LEAST_LEFT_OUT = 256
"""Entries of the shortest row of which a part is worth being copied where nothing bounds θ."""


@plain
def leaves_out(group, labels):
    """Whether entries without a weight may be in no pass: an answer at a label needs places."""
    return group.row.kind in BOUNDED and not group.entries and (group.few or not labels)


@plain
def keep_few(group, lanes, labels):
    """Keep the entries whose weight may not be 0, of rows where these are few.

    Below some floor θ cannot be where the greatest score bounds it, else it is not likely to be.
    """
    row, least_often = group.row, COMMON if registers_are_wide() else RARE
    for r in range(group.count):
        temperature, mean = lanes.temperature[r], lanes.mean[r]
        deviation, anchor = math.sqrt(lanes.variance[r]), lanes.anchor[r]
        bounds = lanes.alone[r] == lanes.alone[r]
        least = anchor + temperature * lanes.low[r]
        if not bounds:
            margin = MARGIN * deviation + 2 * SLACK * temperature
            least = max(least, anchor - margin)
        worth = row.n >= LEAST_LEFT_OUT and least - mean > least_often * deviation
        if lanes.state[r] == OPEN and (bounds or worth):
            label = carray(pointer(labels), r + 1, np.int64)[r] if labels else -1
            label = label if label < row.n else -1
            placed = labels or (bounds and least - mean > SELDOM * deviation)
            lanes.placed[r] = 1.0 if group.few and placed else 0.0
            _keep(group, lanes, r, least, 0.0 if least - mean > RARE * deviation else 1.0, label)
            slack = 1e-6 * abs(least) + SLACK * temperature
            lanes.floor[r] = -math.inf if bounds else least + slack


@inline
def is_below(lanes, r):
    """Whether θ is below the floor, where all entries of a row are needed again."""
    return lanes.anchor[r] + lanes.temperature[r] * lanes.delta[r] < lanes.floor[r]


FEW_PLACES = 1 / 10
"""Of a row, the entries whose weights are sooner put in their places than the row is gone over."""


@plain
def settle_few(group, lanes, labels):
    """Have the weights of all entries written, unless those of a few are to be put in their places.

    Where nothing bounds θ, it may have been found below the floor.
    """
    most = FEW_PLACES * group.row.n
    for r in range(group.count):
        few, placed = lanes.few[r], lanes.placed[r] > 0
        if few > 0 and (is_below(lanes, r) or not placed or not (labels or few <= most)):
            lanes.few[r] = 0.0


LEAST_AT_ONCE = 16
"""Up to so many entries a row is padded to these, else to a multiple of AT_ONCE."""


@plain
def part(group, lanes, r, padded):
    """A row of a group, of which there may be no entries but those that were kept.

    Where that is asked for, they are `padded` by some without a weight: the loops of a pass end
    alike for most rows then, as a processor foresees.
    """
    row, few = nth(group, r), np.int64(lanes.few[r])
    if few == 0:
        return row
    out = _answers(group, r) if lanes.placed[r] > 0 else row.out
    multiple = (AT_ONCE if few > LEAST_AT_ONCE else LEAST_AT_ONCE) if padded else 1
    return moved(row, row.out, row.g, out, -(-few // multiple) * multiple)


@plain
def _answers(group, r):
    """The address of the answers of a row's few entries; their places are behind them."""
    size = group.row.size
    return group.few + 8 * (
        turned_of(group.row.kind, size) + r * apart_of(few_of(group.row.n), size)
    )


@plain
def _keep(group, lanes, r, least, together, label):
    """Keep the entries of a row from `least` on, and the label's, the first, if there is one.

    Others are in no pass from then on. Where they are many, all stay. Many are copied `together`.
    """
    row, places, most = nth(group, r), 0, 3 * min(group.row.n, PART) // 8
    if row.n <= PART:
        most = min(most, row.n - AT_ONCE)  # the answer has room for the copies and what pads them
    if lanes.placed[r] > 0:
        most = min(most, few_of(row.n))
        places = _answers(group, r) + (few_of(row.n) + AT_ONCE) * row.size
    to_few = moved(row, row.x, places, row.out, row.n)
    sums = pass_over(to_few, layout.KEEP, least, np.float64(most), together, np.float64(label), 0.0)
    lanes.few[r] = 0.0 if sums[1] > 0 else sums[0]
    if lanes.few[r] > 0:
        if row.n > PART:
            _gather(row)
        end = row.out + np.int64(lanes.few[r]) * row.size
        if row.size == 4:
            _pad(np.float32, end)
        else:
            _pad(np.float64, end)


@plain
def _pad(number, at):
    """Put AT_ONCE scores that are out of play."""
    widest_vectors()
    after = carray(pointer(at), AT_ONCE, number)
    for j in range(AT_ONCE):
        after[j] = -math.inf


@plain
def _gather(row):
    """Move what the parts of a long row have kept to the first, from their places in the answer.

    What a part has added up is in the team's memory: how many there are.
    """
    into, parts = np.int64(0), -(-row.n // PART)
    counts = carray(pointer(row.team + 8 * TEAM_HEAD), (parts, SUMS), np.float64)
    for i in range(parts):
        source, count = row.out + i * PART * row.size, np.int64(counts[i, 0])
        if i > 0 and row.size == 4:
            _move(np.float32, source, row.out + 4 * into, count)
        elif i > 0:
            _move(np.float64, source, row.out + 8 * into, count)
        into += count


@plain
def _move(number, source, into, count):
    widest_vectors()
    given, taken = carray(pointer(source), count, number), carray(pointer(into), count, number)
    for j in range(count):
        taken[j] = given[j]


@plain
def approach(group, lanes):
    """Go towards θ of the rows of which few entries are left, all at once: approach.py."""
    row, most = group.row, 0.0
    if not group.few or turned_of(row.kind, row.size) == 0:
        return
    for r in range(group.count):
        few = lanes.few[r]
        is_short = 0 < few <= layout.APPROACHED and lanes.state[r] == OPEN
        is_short = is_short and lanes.rough[r] > 0 and not is_below(lanes, r)
        lanes.approached[r] = 1.0 if is_short else 0.0
        most = max(most, lanes.approached[r] * few)
    if most > 0:
        address = carray(pointer(row.passes), layout.APPROACH + 1, np.int64)[layout.APPROACH]
        n, apart, count, zero = np.int64(most), row.n * row.size, np.float64(group.count), 0.0
        call(address, row.out, apart, group.few, n, group.lanes, count, zero, zero, zero, zero)


@plain
def spread(group, lanes):
    """Write what there is of the kept entries to their places in the answers, and 0 elsewhere."""
    for r in range(group.count):
        if lanes.few[r] > 0:
            most, row = few_of(group.row.n), nth(group, r)
            at = _answers(group, r)
            own = moved(row, at, at + (most + AT_ONCE) * row.size, row.out, row.n)
            pass_over(own, layout.SPREAD, 0.0, 0.0, 0.0, 0.0, lanes.few[r])
