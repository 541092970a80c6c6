"""Steps towards θ of rows of which few entries are left, one row in each lane.

(Tests: test_kernels_few.py.)
"""

from __future__ import annotations

import math
from typing import Any

from numba import carray

from kofn.kernels.contract import LINEAR
from kofn.kernels.cpu.rows.formulas import roughly
from kofn.kernels.cpu.rows.frame import Pass
from kofn.kernels.cpu.rows.layout import LANE, LANES
from kofn.kernels.cpu.runtime.intrinsics import VECTORS, either, never_unroll, pointer, vectors
from kofn.kernels.cpu.runtime.registers import turn
from kofn.kernels.cpu.runtime.vector_math import multiply_add, widest_vectors

TURNS, CLOSE = 6, 1e-3
"""Evaluations, and the step, in units of T, that is left to the search, which has bounds for it."""


def approach(kind: int, number: Any) -> Pass:
    """Rough evaluations of the rows that are `approached`, at most `n` entries of each, and steps
    from one to the next: δ, and the sums of the last.

    Rows are `apart` from one another, and are turned to their lanes in `out`. No sum depends on
    what is in other lanes: a row that takes no step keeps its sums.
    """

    def one_pass(x, apart, out, n, lanes, count, b, c, d, e):
        widest_vectors()
        zero, one, two, close = number(0), number(1), number(2), number(CLOSE)
        into, nothing = carray(pointer(lanes), 1, LANE)[0], number(-math.inf)
        last, whole = int(count) - 1, -(-n // LANES) * LANES
        for i in range(0, whole, LANES):
            turn(zero, x + 4 * i, apart, last, out + 4 * LANES * i, 4 * LANES, LANES)
        entries = carray(pointer(out), (whole, LANES), number)
        row = carray(vectors(zero), (VECTORS, LANES), number)
        sums = carray(vectors(zero), (VECTORS, LANES), number)
        way = carray(vectors(zero), (VECTORS, LANES), number)
        for r in range(LANES):
            per_t, delta = number(into.per_t[r]), into.delta[r]
            row[0, r], row[1, r], row[2, r] = per_t, into.base[r], number(into.by[r]) * per_t
            row[3, r], row[4, r] = into.wanted[r], into.few[r]
            floor = (into.floor[r] - into.anchor[r]) * into.per_t[r]
            row[5, r] = max(into.low[r], floor) - delta
            row[6, r] = into.high[r] - delta
            way[0, r] = zero
        for i in range(whole):
            for r in range(LANES):
                entries[i, r] = entries[i, r] if number(i) < row[4, r] else nothing
        for taken in range(TURNS):
            for r in range(LANES):
                sums[0, r], sums[1, r], sums[2, r] = zero, zero, zero
                way[1, r] = row[2, r] + way[0, r]
            for i in range(whole):
                for r in range(LANES):
                    z = multiply_add(entries[i, r] - row[1, r], row[0, r], -way[1, r])
                    p, slope, bend = roughly(kind, z)
                    sums[0, r] += p
                    sums[1, r] += slope
                    sums[2, r] += bend
            if taken == TURNS - 1:
                break
            go_on = zero
            for r in range(LANES):
                excess, weight = sums[0, r] - row[3, r], sums[1, r]
                divisor = weight
                if kind != LINEAR:  # to where a parabola is k
                    square = weight * weight - two * sums[2, r] * excess
                    root = math.sqrt(square if square > zero else zero)
                    divisor = (weight + root) / two
                step = excess / divisor
                target = way[0, r] + step
                go = (abs(step) > close) & (row[5, r] < target) & (target < row[6, r])
                way[0, r] = either(go, target, way[0, r])
                go_on += one if go else zero
            if go_on == zero:
                break
        for r in range(LANES):
            mine = into.approached[r] > 0
            below, above, weight = into.below[r], into.above[r], into.weight[r]
            into.below[r], into.above[r] = sums[0, r] if mine else below, 0.0 if mine else above
            into.weight[r] = sums[1, r] if mine else weight
            count_, slope = into.count[r], into.slope[r]
            into.count[r], into.slope[r] = 0.0 if mine else count_, sums[2, r] if mine else slope
            into.delta[r] += way[0, r] if mine else 0.0
        never_unroll()

    return one_pass
