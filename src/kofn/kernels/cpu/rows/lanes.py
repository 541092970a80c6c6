"""The state of the search for a few rows, one per lane, and the passes over them."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
from numba import carray

from kofn.kernels.cpu.rows.layout import LANE, LANES, PLANES
from kofn.kernels.cpu.runtime.intrinsics import call, never_unroll, pointer
from kofn.kernels.cpu.runtime.layout import PART, SUMS
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
copies of their entries, 0 where rows are not computed abreast, and of the memory for the few that
are kept of each, 0 where there is none: short/few.py has what is there.
"""


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
def moved(row, x, g, out, n):
    """Return a row with other scores, cotangents, answers and length."""
    kind, size = row.kind, row.size
    return Row(row.lane, row.passes, kind, size, x, g, out, n, row.sums, row.team, row.memo)


@plain
def pass_over_all(group, which, number=0.0):
    """Go over all rows of a group once; sums go to their lanes."""
    row, zero = group.row, 0.0
    address = carray(pointer(row.passes), which + 1, np.int64)[which]
    call(address, group.entries, 0, 0, row.n, group.lanes, number, zero, zero, zero, zero)


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
    lanes, at = carray(pointer(into), LANES, np.float64), address + first * size
    singles, doubles = (
        carray(pointer(at), LANES, np.float32),
        carray(pointer(at), LANES, np.float64),
    )
    # A number of turns that is known makes a few vectors of a loop.
    if count == LANES and size == 4:
        for r in range(LANES):
            lanes[r] = singles[r]
    elif count == LANES:
        for r in range(LANES):
            lanes[r] = doubles[r]
    else:
        for r in range(LANES):
            i = min(r, count - 1)
            lanes[r] = singles[i] if size == 4 else doubles[i]
    never_unroll()


@plain
def store_all(address, first, count, size, source):
    """Copy numbers of lanes back to their rows."""
    widest_vectors()
    lanes, at = carray(pointer(source), LANES, np.float64), address + first * size
    singles, doubles = (
        carray(pointer(at), LANES, np.float32),
        carray(pointer(at), LANES, np.float64),
    )
    if count == LANES and size == 4:
        for r in range(LANES):
            singles[r] = lanes[r]
    elif count == LANES:
        for r in range(LANES):
            doubles[r] = lanes[r]
    elif size == 4:
        for r in range(count):
            singles[r] = lanes[r]
    else:
        for r in range(count):
            doubles[r] = lanes[r]
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


def squares(number: Any, exchange: Any, wide: int, back: bool) -> Any:
    """Return what copies rows to their lanes, or `back`, by squares that an `exchange` turns."""
    size = number(0).itemsize
    step = PLANES * LANES * size

    @inline
    def copy(source, into, n, last):
        for start in range(0, n, wide):
            i = min(start, n - wide)
            for r in range(LANES - wide, -1, -wide):  # see `turn`
                row, lane = (r * n + i) * size, i * step + r * size
                if back:
                    at, into_at = source + lane, into + row
                    exchange(number(0), at, step, wide, into_at, n * size, last - r)
                else:
                    at, into_at = source + row, into + lane
                    exchange(number(0), at, n * size, last - r, into_at, step, wide)

    return copy
