"""One pass over a group of short rows at once, one row per SIMD lane.

A row of 64 is four vectors: adding up across each costs as much as what is added. Here entry i of
every row of a group is one vector, and a sum over a row stays in its lane. `bring` copies rows into
a thread's own memory that way round and `give` copies an answer back. The passes between read these
copies, take their numbers from the lanes and leave their sums there.

Each function here makes a function of the signature `native.PASS`, as in loops.py: (x, g, out, n,
lanes, a, b, c, d, e), of whose numbers only `bring` and `give` take one. `lanes` is the address of
a `LANE`, x the address of the copies: of each entry the scores, kept numbers or the answer to be,
and cotangents, next to each other, so that LLVM sees that these do not overlap. Sums of 16 entries,
and of 4 weights, are in the precision of the scores, longer ones in float64.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import carray

from kofn.kernels.contract import BOUNDED, EXPONENTIAL
from kofn.kernels.cpu.rows import lanes as of_lanes
from kofn.kernels.cpu.rows import loops
from kofn.kernels.cpu.rows.formulas import (
    centred,
    deleted,
    distance,
    evaluated,
    prepare,
    sloped,
    unit,
    weighed,
    written,
)
from kofn.kernels.cpu.rows.frame import Pass
from kofn.kernels.cpu.rows.lanes import OPEN, SPECIAL
from kofn.kernels.cpu.rows.layout import COTANGENT, KEPT, LANE, LANES, PLANES, SCORE
from kofn.kernels.cpu.runtime.intrinsics import VECTORS, at_once, never_unroll, pointer, vectors
from kofn.kernels.cpu.runtime.layout import REGISTER
from kofn.kernels.cpu.runtime.registers import turn, turn_half
from kofn.kernels.cpu.runtime.vector_math import ordered, unordered, widest_vectors
from kofn.kernels.cpu.short import opening, steps

scale = loops.scale  # of rows that lie one after another again
BLOCK, FEW = steps.BLOCK, steps.FEW

# Of one row, as it is:
full_statistics, close, close_back = loops.full_statistics, loops.close, loops.close_back
open_usual, usual, put_usual = opening.open_usual, steps.usual, opening.put_usual


def bring(kind: int, number: Any) -> Pass:
    """Copy a rows, one after another in x, to their lanes in `out`; the last is in all further."""
    return _copy(number, False)


def give(kind: int, number: Any) -> Pass:
    """Copy the lanes in x to a rows, one after another in `out`."""
    return _copy(number, True)


def _copy(number: Any, back: bool) -> Pass:
    """By squares as wide as a vector, or as half of one; narrower rows number by number."""
    wide = REGISTER // number(0).itemsize
    half = wide // 2
    in_wide = of_lanes.squares(number, turn, wide, back)
    in_half = of_lanes.squares(number, turn_half, half, back)

    def one_pass(x, g, out, n, lanes, count, b, c, d, e):
        widest_vectors()
        last = int(count) - 1
        if n >= wide:
            in_wide(x, out, n, last)
        elif n >= half:
            in_half(x, out, n, last)
        else:
            rows = carray(pointer(out if back else x), (last + 1, n), number)
            entries = carray(pointer(x if back else out), (n, PLANES, LANES), number)
            for i in range(n):
                if back:
                    for r in range(last + 1):
                        rows[r, i] = entries[i, 0, r]
                else:
                    for r in range(LANES):
                        entries[i, 0, r] = rows[min(r, last), i]
        never_unroll()

    return one_pass


def statistics(kind: int, number: Any) -> Pass:
    """Σd and Σd² with d = x − pivot. Neither is finite where the row holds ±inf or NaN."""

    def one_pass(x, g, out, n, lanes, a, b, c, d, e):
        widest_vectors()
        zero, into = number(0), carray(pointer(lanes), 1, LANE)[0]
        entries = carray(pointer(x), (n, PLANES, LANES), number)
        own = carray(vectors(zero), (VECTORS, LANES), number)
        for r in range(LANES):
            into.pivot[r], own[0, r] = entries[n // 2, SCORE, r], entries[n // 2, SCORE, r]
            into.total[r], into.squares[r] = 0, 0
        for start in range(0, n, BLOCK):
            for r in range(LANES):
                own[1, r], own[2, r] = zero, zero
            some = entries[start : start + BLOCK]
            for i in range(some.shape[0]):
                for r in range(LANES):
                    offset = some[i, SCORE, r] - own[0, r]
                    own[1, r] += offset
                    own[2, r] += offset * offset
            for r in range(LANES):
                into.total[r] += own[1, r]
                into.squares[r] += own[2, r]
        never_unroll()
        at_once()

    return one_pass


def peak(kind: int, number: Any) -> Pass:
    """The greatest score in play, how many those are, #(+inf or NaN)."""
    infinity, integer = number(math.inf), np.int32 if number is np.float32 else np.int64

    def one_pass(x, g, out, n, lanes, a, b, c, d, e):
        widest_vectors()
        zero, one, into = number(0), number(1), carray(pointer(lanes), 1, LANE)[0]
        entries = carray(pointer(x), (n, PLANES, LANES), number)
        own = carray(vectors(zero), (VECTORS, LANES), number)
        greatest = carray(vectors(ordered(zero)), (VECTORS, LANES), integer)
        for r in range(LANES):
            own[0, r], own[1, r], greatest[0, r] = zero, zero, ordered(-infinity)
        for i in range(n):
            for r in range(LANES):
                v = entries[i, SCORE, r]
                out_of_play = deleted(v)
                finite = abs(v) < infinity and not out_of_play
                key = ordered(v) if finite else ordered(-infinity)
                greatest[0, r] = max(greatest[0, r], key)
                own[0, r] += one if finite else zero
                own[1, r] += zero if finite or out_of_play else one
        for r in range(LANES):
            into.greatest[r] = unordered(greatest[0, r], zero)
            into.live[r], into.bad[r] = own[0, r], own[1, r]
        never_unroll()

    return one_pass


def first_evaluation(kind: int, number: Any) -> Pass:
    """Prepare each entry for the anchor of its lane; where it has not moved, it is as before.

    Their sum, in float64 entry by entry or in blocks of such, tells θ of a softmax.
    """
    adds, single = kind == EXPONENTIAL, number is np.float32

    def one_pass(x, g, out, n, lanes, a, b, c, d, e):
        widest_vectors()
        zero, into = number(0), carray(pointer(lanes), 1, LANE)[0]
        entries = carray(pointer(x), (n, PLANES, LANES), number)
        own = carray(vectors(zero), (VECTORS, LANES), number)
        sums = carray(vectors(0.0), (VECTORS, LANES), np.float64)
        for r in range(LANES):
            own[0, r], own[1, r], sums[0, r] = into.anchor[r], unit(kind, into.per_t[r]), 0
        for start in range(0, n, BLOCK):
            for r in range(LANES):
                own[2, r] = zero
            some = entries[start : start + BLOCK]
            for i in range(some.shape[0]):
                for r in range(LANES):
                    v = prepare(kind, (some[i, SCORE, r] - own[0, r]) * own[1, r])
                    some[i, KEPT, r] = v
                    sums[0, r] += v if adds and single else zero
                    own[2, r] += zero if single else v
            for r in range(LANES):
                sums[0, r] += own[2, r]
        for r in range(LANES):
            into.fresh[r], into.total[r] = 0, sums[0, r]
        never_unroll()
        at_once()

    return one_pass


def evaluate(kind: int, number: Any) -> Pass:
    """Σ of the tails not above ½, and of those above, ΣF′, #{F > ½}, ΣF″."""
    afresh = kind in BOUNDED

    def one_pass(x, g, out, n, lanes, a, b, c, d, e):
        widest_vectors()
        zero, one, into = number(0), number(1), carray(pointer(lanes), 1, LANE)[0]
        entries = carray(pointer(x), (n, PLANES, LANES), number)
        own = carray(vectors(zero), (VECTORS, LANES), number)
        place = carray(vectors(zero), (VECTORS, LANES), number)
        sums = carray(vectors(0.0), (VECTORS, LANES), np.float64)
        for r in range(LANES):
            place[3, r] = into.alpha[r] - 1
            place[0, r], place[1, r], place[2, r] = into.base[r], into.by[r], into.per_t[r]
            sums[0, r], sums[1, r], sums[2, r], sums[3, r], sums[4, r] = 0, 0, 0, 0, 0
        for start in range(0, n, BLOCK):
            for r in range(LANES):
                own[0, r], own[1, r], own[2, r], own[3, r], own[4, r] = zero, zero, zero, zero, zero
            for i in range(start, min(start + BLOCK, n)):
                for r in range(LANES):
                    by = place[1, r]
                    if afresh:
                        y = distance(entries[i, SCORE, r], place[0, r], by, place[2, r])
                    else:
                        y = entries[i, KEPT, r]
                    t, t_above, first, upper, second = evaluated(kind, y, by, one / by, place[3, r])
                    own[0, r] += t
                    own[1, r] += t_above
                    own[2, r] += first
                    own[3, r] += upper
                    own[4, r] += second
            for r in range(LANES):
                sums[0, r] += np.float64(own[0, r]) - np.float64(own[1, r])
                sums[1, r] += own[1, r]
                sums[2, r] += own[2, r]
                sums[3, r] += own[3, r]
                sums[4, r] += own[4, r]
        for r in range(LANES):
            # A row whose θ is found keeps its sums: its bits are those it has among any others.
            still = into.state[r] == OPEN
            into.below[r] = sums[0, r] if still else into.below[r]
            into.above[r] = sums[1, r] if still else into.above[r]
            into.weight[r] = sums[2, r] if still else into.weight[r]
            into.count[r] = sums[3, r] if still else into.count[r]
            into.slope[r] = sums[4, r] if still else into.slope[r]
        never_unroll()

    return one_pass


def write(kind: int, number: Any) -> Pass:
    """F of each entry, of what was prepared in its place, and ΣF."""
    afresh = kind in BOUNDED

    def one_pass(x, g, out, n, lanes, a, b, c, d, e):
        widest_vectors()
        zero, one, into = number(0), number(1), carray(pointer(lanes), 1, LANE)[0]
        entries = carray(pointer(x), (n, PLANES, LANES), number)
        own = carray(vectors(zero), (VECTORS, LANES), number)
        for r in range(LANES):
            own[4, r] = into.alpha[r] - 1
            own[1, r], own[2, r], own[3, r] = into.base[r], into.by[r], into.per_t[r]
            into.total[r] = 0
        for start in range(0, n, FEW):
            for r in range(LANES):
                own[0, r] = zero
            for i in range(start, min(start + FEW, n)):
                for r in range(LANES):
                    by = own[2, r]
                    y = (
                        distance(entries[i, SCORE, r], own[1, r], by, own[3, r])
                        if afresh
                        else entries[i, KEPT, r]
                    )
                    p = written(kind, y, by, one / by, own[4, r])
                    entries[i, KEPT, r] = p
                    own[0, r] += p
            for r in range(LANES):
                into.total[r] += own[0, r]
        never_unroll()

    return one_pass


def mend(kind: int, number: Any) -> Pass:
    """F′·rest more of each weight, which stays in [0, 1], and their sum; ΣF′, for the next time."""

    def one_pass(x, g, out, n, lanes, a, b, c, d, e):
        widest_vectors()
        zero, one, into = number(0), number(1), carray(pointer(lanes), 1, LANE)[0]
        entries = carray(pointer(x), (n, PLANES, LANES), number)
        own = carray(vectors(zero), (VECTORS, LANES), number)
        for r in range(LANES):
            own[5, r] = into.alpha[r] - 1
            own[1, r], own[2, r], own[3, r] = into.hi[r], into.lo[r], into.per_t[r]
            own[4, r], own[6, r], into.total[r] = into.rest[r], zero, 0
        for start in range(0, n, FEW):
            for r in range(LANES):
                own[0, r] = zero
            for i in range(start, min(start + FEW, n)):
                for r in range(LANES):
                    hi, lo, rest = own[1, r], own[2, r], own[4, r]
                    w = centred(kind, entries[i, SCORE, r], hi, lo, own[3, r], own[5, r], one)
                    p = min(max(entries[i, KEPT, r] + w * rest, zero), one)
                    entries[i, KEPT, r] = p
                    own[0, r] += p
                    own[6, r] += w
            for r in range(LANES):
                into.total[r] += own[0, r]
        for r in range(LANES):
            into.weight[r] = np.float64(own[6, r]) if into.rest[r] != 0 else into.weight[r]
        never_unroll()

    return one_pass


def weigh(kind: int, number: Any) -> Pass:
    """Way back, first: F′ in its place, ΣF′, ΣF′g and ΣF′z."""

    def one_pass(x, g, out, n, lanes, a, b, c, d, e):
        widest_vectors()
        zero, into = number(0), carray(pointer(lanes), 1, LANE)[0]
        entries = carray(pointer(x), (n, PLANES, LANES), number)
        own = carray(vectors(zero), (VECTORS, LANES), number)
        for r in range(LANES):
            own[6, r] = into.alpha[r] - 1
            own[2, r], own[3, r], own[4, r] = into.hi[r], into.lo[r], into.per_t[r]
            into.weight[r], into.total[r], into.moment[r] = 0, 0, 0
        for start in range(0, n, BLOCK):
            for r in range(LANES):
                own[0, r], own[1, r], own[5, r] = zero, zero, zero
            for i in range(start, min(start + BLOCK, n)):
                for r in range(LANES):
                    v, u, hi, lo = (
                        entries[i, SCORE, r],
                        entries[i, COTANGENT, r],
                        own[2, r],
                        own[3, r],
                    )
                    w, product, moment = weighed(kind, v, u, hi, lo, own[4, r], own[6, r])
                    entries[i, KEPT, r] = w
                    own[0, r] += w
                    own[1, r] += product
                    own[5, r] += moment
            for r in range(LANES):
                into.weight[r] += own[0, r]
                into.total[r] += own[1, r]
                into.moment[r] += own[5, r]
        never_unroll()

    return one_pass


def slope(kind: int, number: Any) -> Pass:
    """Way back, then: u/T with u = F′(g − mean) in its place; Σu, Σ|u|, Σu(x − pivot)/T."""

    def one_pass(x, g, out, n, lanes, a, b, c, d, e):
        widest_vectors()
        zero, into = number(0), carray(pointer(lanes), 1, LANE)[0]
        entries = carray(pointer(x), (n, PLANES, LANES), number)
        own = carray(vectors(zero), (VECTORS, LANES), number)
        for r in range(LANES):
            own[3, r], own[4, r], own[5, r] = into.pivot[r], into.per_t[r], into.mean[r]
            into.total[r], into.size[r], into.slope[r] = 0, 0, 0
        for start in range(0, n, BLOCK):
            for r in range(LANES):
                own[0, r], own[1, r], own[2, r] = zero, zero, zero
            for i in range(start, min(start + BLOCK, n)):
                for r in range(LANES):
                    v, w, per_t = entries[i, SCORE, r], entries[i, KEPT, r], own[4, r]
                    u, uy = sloped(v, entries[i, COTANGENT, r], w, own[3, r], per_t, own[5, r])
                    entries[i, KEPT, r] = u * per_t
                    own[0, r] += u
                    own[1, r] += abs(u)
                    own[2, r] += uy
            for r in range(LANES):
                into.total[r] += own[0, r]
                into.size[r] += own[1, r]
                into.slope[r] += own[2, r]
        never_unroll()

    return one_pass


def centre(kind: int, number: Any) -> Pass:
    """Way back, where rounding left Σu ≠ 0: take F′·rest/T off.

    Only in lanes that are special.
    """

    def one_pass(x, g, out, n, lanes, a, b, c, d, e):
        widest_vectors()
        zero, one, into = number(0), number(1), carray(pointer(lanes), 1, LANE)[0]
        entries = carray(pointer(x), (n, PLANES, LANES), number)
        own = carray(vectors(zero), (VECTORS, LANES), number)
        for r in range(LANES):
            own[6, r] = into.alpha[r] - 1
            own[1, r], own[2, r], own[3, r] = into.hi[r], into.lo[r], into.per_t[r]
            own[4, r], own[5, r] = into.rest[r], one if into.state[r] == SPECIAL else zero
        for i in range(n):
            for r in range(LANES):
                per_t, special = own[3, r], own[5, r] > zero
                hi, lo, rest = own[1, r], own[2, r], own[4, r]
                u = centred(kind, entries[i, SCORE, r], hi, lo, per_t, own[6, r], rest)
                entries[i, KEPT, r] -= u * per_t if special else zero
        never_unroll()

    return one_pass
