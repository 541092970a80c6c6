"""The state of the search for a few rows, one per lane, and the passes over them."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
from numba import carray

from kofn.kernels.cpu.rows import layout
from kofn.kernels.cpu.rows.formulas import distance, evaluated
from kofn.kernels.cpu.rows.frame import Pass
from kofn.kernels.cpu.rows.layout import KEEP, LANE, LANES, PLANES, SCORE, SPREAD
from kofn.kernels.cpu.runtime.intrinsics import VECTORS, call, never_unroll, pointer, vectors
from kofn.kernels.cpu.runtime.layout import AT_ONCE, PART, SUMS
from kofn.kernels.cpu.runtime.split_row import pass_over_parts, plain
from kofn.kernels.cpu.runtime.vector_math import inline, widest_vectors

LEAST_SINGLE, LEAST_DOUBLE = (float(np.finfo(number).min) / 2 for number in ("f4", "f8"))

PLACE = {name: LANE.fields[name][1] for name in LANE.names}
"""Bytes from the address of the lanes to each number."""

OPEN, SPECIAL, FOUND, LOST, CLOSED, SUMMED = range(6)
"""States of a lane. A special one waits for search.py; a closed row needs no equation; a lost one
is left to the reference; the θ of a summed one is known from one sum."""

Row = namedtuple("Row", "lane passes kind size x g out n sums team memo")
"""A row: its lane; addresses of passes over it (loops.py), of its scores, cotangents and answer, of
the sums, of the team, and of what `quantiles` keeps from one row to the next; the link's kind;
bytes per number; n.
"""

Group = namedtuple("Group", "row count lanes entries few")
"""Rows one after another: the first of them and how many; the addresses of their lanes, of the
copies of their entries, 0 where rows are not computed abreast, and of the few that are kept of
each, 0 where none are.
"""

few_of, apart_of = plain(layout.few_of), plain(layout.apart_of)


@plain
def nth(group, r):
    """A row of a group, in its lane."""
    row = group.row
    at = r * row.n * row.size
    x, g, out = row.x + at, row.g + at if row.g else 0, row.out + at
    return Row(
        r,
        row.passes,
        row.kind,
        row.size,
        x,
        g,
        out,
        row.n,
        row.sums,
        row.team,
        row.memo,
    )


@plain
def _kept(group, r):
    """The address of the entries that are kept of a row."""
    return group.few + 8 * r * apart_of(few_of(group.row.n), group.row.size)


@plain
def part(group, lanes, r):
    """A row of a group, of which there may be no entries but those that were kept."""
    row, few = nth(group, r), np.int64(lanes.few[r])
    if few == 0:
        return row
    at = _kept(group, r)
    out = at + (few_of(row.n) + AT_ONCE) * row.size
    return Row(r, row.passes, row.kind, row.size, at, row.g, out, few, row.sums, row.team, row.memo)


@plain
def keep(group, lanes, r, least, label):
    """Keep the entries above `least` of a row, and the label's, the first, if there is one.

    Others are in no pass from then on. Where they are many, all stay.
    """
    row, at, most = nth(group, r), _kept(group, r), few_of(group.row.n)
    to_few = Row(
        r, row.passes, row.kind, row.size, row.x, row.g, at, row.n, row.sums, row.team, row.memo
    )
    sums = pass_over(to_few, KEEP, least, np.float64(most), 0.0, 0.0, np.float64(label))
    lanes.few[r] = sums[0]


@plain
def spread(group, lanes):
    """Write what there is of the kept entries to their places in the answers, and 0 elsewhere."""
    for r in range(group.count):
        if lanes.few[r] > 0:
            at, most = np.float64(_kept(group, r)), np.float64(few_of(group.row.n))
            pass_over(nth(group, r), SPREAD, at, most, 0.0, 0.0, lanes.few[r])


@plain
def pass_over_all(group, which):
    """Go over all rows of a group once; sums go to their lanes."""
    row, zero = group.row, 0.0
    address = carray(pointer(row.passes), which + 1, np.int64)[which]
    call(address, group.entries, 0, 0, row.n, group.lanes, zero, zero, zero, zero, zero)


@plain
def copy_all(group, which, source, into):
    """Bring rows to their lanes, or give them back."""
    row, zero = group.row, 0.0
    address = carray(pointer(row.passes), which + 1, np.int64)[which]
    count = np.float64(group.count)
    call(address, source, 0, into, row.n, group.lanes, count, zero, zero, zero, zero)


@plain
def plane(group, which):
    """Return the address of one of PLANES in the copies of a group's entries."""
    return group.entries + which * LANES * group.row.size


@plain
def pass_over(row, which, hi, lo, per_t, alpha, rest):
    """Go over the row once; return its sums."""
    return _pass_over(row, which, False, hi, lo, per_t, alpha, rest)


@plain
def pass_for_extremes(row, which, hi, lo, per_t, alpha, rest):
    """The same, by a pass whose first two sums are a least and a greatest."""
    return _pass_over(row, which, True, hi, lo, per_t, alpha, rest)


@plain
def _pass_over(row, which, extremes, hi, lo, per_t, alpha, rest):
    address = carray(pointer(row.passes), which + 1, np.int64)[which]
    sums = carray(pointer(row.sums), SUMS, np.float64)
    for i in range(SUMS):
        sums[i] = 0
    x, g, out, n, into = row.x, row.g, row.out, row.n, row.sums
    if n <= PART:
        call(address, x, g, out, n, into, hi, lo, per_t, alpha, rest)
    else:
        pass_over_parts(
            row.team, address, x, g, out, n, into, row.size, extremes, hi, lo, per_t, alpha, rest
        )
    return sums


@plain
def load_all(address, first, count, size, into):
    """Copy numbers of rows to their lanes, which begin at `into`; the last to further lanes."""
    widest_vectors()
    lanes = carray(pointer(into), LANES, np.float64)
    if size == 4:
        singles = carray(pointer(address), first + count, np.float32)
        for r in range(count):
            lanes[r] = singles[first + r]
    else:
        doubles = carray(pointer(address), first + count, np.float64)
        for r in range(count):
            lanes[r] = doubles[first + r]
    for r in range(count, LANES):
        lanes[r] = lanes[count - 1]
    never_unroll()


@plain
def store_all(address, first, count, size, source):
    """Copy numbers of lanes back to their rows."""
    widest_vectors()
    lanes = carray(pointer(source), LANES, np.float64)
    if size == 4:
        singles = carray(pointer(address), first + count, np.float32)
        for r in range(count):
            singles[first + r] = lanes[r]
    else:
        doubles = carray(pointer(address), first + count, np.float64)
        for r in range(count):
            doubles[first + r] = lanes[r]
    never_unroll()


@plain
def load(address, i, size):
    """The i-th number at `address`."""
    if size == 4:
        return np.float64(carray(pointer(address), i + 1, np.float32)[i])
    return carray(pointer(address), i + 1, np.float64)[i]


@inline
def is_deleted(score, size):
    """Whether a score of the rows' type is out of play: formulas.py says which are."""
    return score <= (LEAST_SINGLE if size == 4 else LEAST_DOUBLE)


@plain
def store(address, i, size, value):
    if size == 4:
        carray(pointer(address), i + 1, np.float32)[i] = value
    else:
        carray(pointer(address), i + 1, np.float64)[i] = value


@plain
def pivot_of(hi, lo, temperature, weight, moment):
    """Return the mean of x from Σw and Σwz; θ where there is none."""
    return hi + lo + (temperature * (moment / weight) if weight > 0 else 0.0)


MOST_SINGLE = float(np.finfo(np.float32).max)


@inline
def rounded(value, size):
    """`value` as the scores' type holds it."""
    return np.float64(np.float32(value)) if size == 4 else value


@inline
def two_floats(anchor, offset, size):
    """anchor + offset as a number of the scores' type and what it cannot hold (two-sum)."""
    total = anchor + offset
    part = total - anchor
    rest = (anchor - (total - part)) + (offset - part)
    # θ may lie beyond the greatest number of that type, and is no infinity all the same.
    high = rounded(min(max(total, -MOST_SINGLE), MOST_SINGLE), size) if size == 4 else total
    return high, (total - high) + rest


MOST = 8  # steps of `approach`: a handful is usual
ENOUGH = 2.0**-12  # temperatures: what a step so short leaves is rounding, but for kinks


def approach(kind: int, number: Any) -> Pass:
    """Move the anchors of open rows of a bounded link, whose statistics were enough, towards θ.

    They are short rows abreast. A step of the search takes as long as an evaluation of some dozens
    of entries, and is taken often where F bends at its end, as a quantile says little of few
    scores. These steps are Newton's, of the scores' precision, and do nothing but move a lane
    inside its bracket: the search begins where they end. They decide how long it takes, and no
    answer.
    """
    size = number(0).itemsize

    def one_pass(x, g, out, n, lanes, a, b, c, d, e):
        widest_vectors()
        zero, one, into = number(0), number(1), carray(pointer(lanes), 1, LANE)[0]
        half, enough = number(0.5), number(ENOUGH)
        entries = carray(pointer(x), (n, PLANES, LANES), number)
        own = carray(vectors(zero), (VECTORS, LANES), number)
        place = carray(vectors(zero), (VECTORS, LANES), number)
        for r in range(LANES):
            own[0, r], own[1, r], own[2, r] = zero, into.low[r], into.high[r]
            place[0, r], place[2, r] = into.anchor[r], into.per_t[r]
            place[3, r], place[4, r] = into.alpha[r] - 1, into.temperature[r]
            plain_row = (into.state[r] == OPEN) & (into.strange[r] == 0)
            place[5, r], place[6, r] = into.k[r], one if plain_row else zero
        for _ in range(MOST):
            for r in range(LANES):
                own[3, r], own[4, r], own[5, r], own[6, r] = zero, zero, zero, zero
                place[1, r] = own[0, r] * place[4, r]
            for i in range(n):
                for r in range(LANES):
                    z = distance(entries[i, SCORE, r], place[0, r], place[1, r], place[2, r])
                    t, above, first, upper, _ = evaluated(kind, z, zero, zero, place[3, r])
                    own[3, r] += t
                    own[4, r] += above
                    own[5, r] += upper
                    own[6, r] += first
            moving = 0
            for r in range(LANES):
                # Of those above ½ it is 1 − F that was added up.
                excess = (own[5, r] - place[5, r]) + (own[3, r] - (own[4, r] + own[4, r]))
                delta = own[0, r]
                low = delta if excess > zero else own[1, r]
                high = own[2, r] if excess > zero else delta
                target = delta + excess / own[6, r]
                target = target if (low < target) & (target < high) else half * (low + high)
                moves = (place[6, r] > zero) & (excess != zero)
                target = target if moves else delta
                own[0, r], own[1, r], own[2, r] = target, low, high
                # A row stops by itself: its bits are those that it has among any others.
                going = abs(target - delta) > enough
                place[6, r] = one if going else zero
                moving += 1 if going else 0
            if moving == 0:
                break
        for r in range(LANES):
            anchor, temperature = into.anchor[r], into.temperature[r]
            moved = rounded(anchor + temperature * own[0, r], size)
            moved = moved if own[0, r] != zero else anchor
            by = (moved - anchor) * into.per_t[r]
            into.anchor[r], into.low[r], into.high[r] = moved, into.low[r] - by, into.high[r] - by
        never_unroll()

    return one_pass
