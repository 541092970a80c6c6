"""The state of the search for a few rows, one per lane, and the passes over them."""

from __future__ import annotations

import math
from collections import namedtuple
from typing import Any

import numpy as np
from numba import carray

from kofn.kernels.contract import LINEAR
from kofn.kernels.cpu.rows import layout
from kofn.kernels.cpu.rows.formulas import evaluated
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


BLOCK = 16  # entries whose sums are in the precision of the scores
MOST = 8  # steps of `approach`: three or four are usual
UNSEEN = 2.0**-21
"""Temperatures between θ and the next number of the scores' type that entries may pass unseen."""


@inline
def gathered(total, rest, term):
    """Add a term to a sum, and what the sum cannot hold of it to its rest."""
    new = total + term
    return new, rest + (term - (new - total))


@inline
def excess_of(count, k, total, rest):
    """ΣF − k, of which count − k is exact near θ."""
    return ((count - k) + total) + rest


def approach(kind: int, number: Any) -> Pass:
    """Newton's steps, in the scores' precision, of the open rows of a bounded link whose
    statistics were enough. They may find θ if they `may`: then Σp is held to k afterwards.

    These rows are short and abreast: a step of the search takes as long as an evaluation of some
    dozens of entries. Here F is evaluated at numbers of the scores' type, sums of its tails are as
    exact as there, and a step is the last for the same reason. What is unusual is left to the
    search, which begins where these steps end.
    """
    straight, size = kind == LINEAR, number(0).itemsize

    def one_pass(x, g, out, n, lanes, may, b, c, d, e):
        widest_vectors()
        zero, one, into = number(0), number(1), carray(pointer(lanes), 1, LANE)[0]
        half, four, unseen = number(0.5), number(4), number(UNSEEN)
        eps = number(2.0**-23 if size == 4 else 2.0**-52)
        entries = carray(pointer(x), (n, PLANES, LANES), number)
        own = carray(vectors(zero), (VECTORS, LANES), number)
        sums = carray(vectors(zero), (VECTORS, LANES), number)
        place = carray(vectors(zero), (VECTORS, LANES), number)
        row = carray(vectors(zero), (VECTORS, LANES), number)
        for r in range(LANES):
            anchor, temperature, k = into.anchor[r], into.temperature[r], into.k[r]
            plain_row = (into.state[r] == OPEN) & (into.strange[r] == 0)
            row[0, r], row[1, r], row[2, r] = into.per_t[r], into.alpha[r] - 1, temperature
            row[3, r], row[4, r], row[5, r] = k, rounded(k, size) - k, n - k
            place[0, r], place[1, r] = anchor, anchor + temperature * into.low[r]
            place[2, r] = anchor + temperature * into.high[r]
            # Before its end, where a single θ begins, the greatest score's slope is 0, and soon 1.
            capped = (k == 1) & (into.greatest[r] - anchor >= temperature * into.alone[r])
            place[3, r], place[4, r] = one if plain_row else zero, one if capped else zero
        for _ in range(MOST):
            for r in range(LANES):
                sums[0, r], sums[1, r], sums[2, r] = zero, row[4, r], zero
                sums[3, r], sums[4, r], sums[5, r] = zero, zero, zero
            for first in range(0, n, BLOCK):
                for r in range(LANES):
                    own[0, r], own[1, r], own[2, r], own[3, r] = zero, zero, zero, zero
                    own[4, r] = zero
                for i in range(first, min(first + BLOCK, n)):
                    for r in range(LANES):
                        z = (entries[i, SCORE, r] - place[0, r]) * row[0, r]
                        t, above, slope, upper, bend = evaluated(kind, z, zero, zero, row[1, r])
                        own[0, r] += t
                        own[1, r] += above
                        own[2, r] += slope
                        own[3, r] += upper
                        own[4, r] += bend
                for r in range(LANES):
                    # Of those above ½ it is 1 − F that was added up.
                    term = own[0, r] - (own[1, r] + own[1, r])
                    sums[0, r], sums[1, r] = gathered(sums[0, r], sums[1, r], term)
                    sums[2, r] += own[2, r]
                    sums[3, r] += own[1, r]
                    sums[4, r] += own[4, r]
                    sums[5, r] += own[3, r]
            moving = False
            for r in range(LANES):
                k, theta, above = row[3, r], place[0, r], sums[3, r]
                excess = excess_of(sums[5, r], k, sums[0, r], sums[1, r])
                below, weight = sums[0, r] + above, sums[2, r] + place[4, r]
                low = theta if excess > zero else place[1, r]
                high = place[2, r] if excess > zero else theta
                divisor = weight
                if not straight:  # to where a parabola is k
                    square = weight * weight - (sums[4, r] + sums[4, r]) * excess
                    divisor = half * (weight + math.sqrt(square if square > zero else zero))
                step = excess / divisor if excess != zero else zero
                target = theta + row[2, r] * step
                still = target == theta
                held = ((low < target) & (target < high)) | still
                target = target if held else half * (low + high)
                # `most_change` of search.py, and the tolerance of `advance_all`.
                enter = straight & (excess < zero) & (below == zero)
                most = row[5, r] if enter & (row[5, r] > weight) else weight
                least, tails = weight if weight < k else k, four * (below + above)
                tolerance = eps * (least if least > tails else tails)
                near = (abs(step) * most <= tolerance) | (still & (abs(step) <= unseen))
                near = near & held
                # A row stops by itself, and is then evaluated as before, until others have stopped:
                # its bits are those that it has among any others.
                going = (place[3, r] > zero) & (not near) & (target != theta)
                own[0, r], own[1, r], own[2, r] = target, step, one if near else zero
                place[0, r], place[1, r] = target if going else theta, low
                place[2, r], place[3, r] = high, one if going else zero
                place[4, r] = zero if going else place[4, r]
                moving |= going
            if not moving:
                break
        for r in range(LANES):
            anchor, theta = into.anchor[r], np.float64(place[0, r])
            target, step, near = np.float64(own[0, r]), np.float64(own[1, r]), own[2, r] > zero
            weight, above, count = sums[2, r], sums[3, r], np.float64(sums[5, r])
            plain_row = (into.state[r] == OPEN) & (into.strange[r] == 0)
            excess = excess_of(sums[5, r], row[3, r], sums[0, r], sums[1, r])
            # Where F meets its end at every score above ½, the search may have to choose hard.
            soft = ((above > zero) | (count != into.k[r])) & (weight > zero)
            hard = (excess == zero) & (weight == zero)
            found = plain_row & (soft | hard) & near & (may > 0)
            moved = (theta if found else target) if plain_row else anchor
            by = (moved - anchor) * into.per_t[r]
            into.anchor[r], into.low[r], into.high[r] = moved, into.low[r] - by, into.high[r] - by
            into.delta[r] = step if found else into.delta[r]
            into.weight[r] = np.float64(weight) if found else into.weight[r]
            into.state[r] = FOUND if found else into.state[r]
        never_unroll()

    return one_pass
