"""One visit to a row with costs on the way back; as loops.py, where θ is known.

The cotangents of the weights are so many bytes from the scores, those of the costs from the answer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from kofn.kernels.contract import BOUNDED
from kofn.kernels.cpu.priced.formulas import distance, place, second, slope_at, tails
from kofn.kernels.cpu.priced.layout import (
    EDGE,
    G_AT,
    HI,
    IN_COSTS_AT,
    LO,
    MEAN,
    PER_T,
    PIVOT,
    RISE,
    TOLD,
    UNIT,
)
from kofn.kernels.cpu.rows.formulas import deleted
from kofn.kernels.cpu.rows.loops import BLOCK, Visit
from kofn.kernels.cpu.runtime.intrinsics import pointer
from kofn.kernels.cpu.runtime.vector_math import (
    ordered,
    unordered,
    where_positive,
    widest_vectors,
)


def dearest(kind: int, number: Any) -> Visit:
    """First: 0, and the greatest cost of an entry in play."""

    def visit(x, g, out, n, sums, told, b, c, d, e):
        widest_vectors()
        scores, costs = carray(pointer(x), n, number), carray(pointer(g), n, number)
        into, zero = carray(pointer(sums), 8, np.float64), number(0)
        greatest = ordered(zero)
        for i in range(n):
            key = ordered(zero if deleted(scores[i]) else costs[i])
            greatest = max(greatest, key)
        into[1] = unordered(greatest, zero)

    return visit


def weigh(kind: int, number: Any) -> Visit:
    """Then: F′ to `out`; Σc²F′, ΣcF′g and ΣcF′(x − θc)/T with costs in units of the greatest."""

    def visit(x, g, out, n, sums, told, b, c, d, e):
        widest_vectors()
        scores, costs = carray(pointer(x), n, number), carray(pointer(g), n, number)
        slopes, into = carray(pointer(out), n, number), carray(pointer(sums), 8, np.float64)
        tell = carray(pointer(np.int64(told)), TOLD, np.float64)
        cotangent = carray(pointer(x + np.int64(tell[G_AT])), n, number)
        hi, per_t, end = number(tell[HI]), number(tell[PER_T]), number(tell[EDGE] / tell[PER_T])
        lo = second(tell[HI], hi, hi) + number(tell[LO])
        rise, unit, zero = number(tell[RISE]), number(tell[UNIT]), number(0)
        origin = number(tell[EDGE]) if kind in BOUNDED else zero
        for start in range(0, n, BLOCK):
            stop = start + BLOCK
            xs, cs, gs = scores[start:stop], costs[start:stop], cotangent[start:stop]
            ws, weight, product, moment = slopes[start:stop], zero, zero, zero
            for i in range(xs.size):
                z = place(kind, xs[i], cs[i], hi, lo, end, per_t)
                w = slope_at(kind, xs[i], z, rise)
                ws[i] = w
                # What is not chosen may carry any cotangent, NaN included, and cost anything.
                share = where_positive(w, cs[i] * unit)
                steep = share * w
                weight += share * steep
                product += where_positive(w, steep * gs[i])
                moment += where_positive(w, steep * (z + origin))
            into[0] += weight
            into[1] += product
            into[2] += moment

    return visit


def slope(kind: int, number: Any) -> Visit:
    """Then: u/T with u = F′(g − dc) to `out`; Σcu, Σ|cu| in those units, Σu(x − pivot·c)/T."""

    def visit(x, g, out, n, sums, told, b, c, d, e):
        widest_vectors()
        scores, costs = carray(pointer(x), n, number), carray(pointer(g), n, number)
        slopes, into = carray(pointer(out), n, number), carray(pointer(sums), 8, np.float64)
        tell = carray(pointer(np.int64(told)), TOLD, np.float64)
        cotangent = carray(pointer(x + np.int64(tell[G_AT])), n, number)
        hi, per_t = number(tell[PIVOT]), number(tell[PER_T])
        lo = second(tell[PIVOT], hi, hi)
        mean, unit, zero = number(tell[MEAN]), number(tell[UNIT]), number(0)
        rest = second(tell[MEAN], mean, mean)
        for start in range(0, n, BLOCK):
            stop = start + BLOCK
            xs, cs, gs = scores[start:stop], costs[start:stop], cotangent[start:stop]
            ws, total, size, in_t = slopes[start:stop], zero, zero, zero
            for i in range(xs.size):
                w, cost = ws[i], cs[i]
                moves = w > zero
                u = w * distance(gs[i], cost, mean, rest) if moves else zero
                z = distance(xs[i], cost, hi, lo) * per_t if moves else zero
                ws[i] = u * per_t
                part = cost * unit * u if moves else zero
                total += part
                size += abs(part)
                in_t += u * z
            into[0] += total
            into[1] += size
            into[2] += in_t

    return visit


def centre(kind: int, number: Any) -> Visit:
    """Where rounding left Σcu ≠ 0: take F′·d·c/T off."""

    def visit(x, g, out, n, sums, told, b, c, d, e):
        widest_vectors()
        scores, costs = carray(pointer(x), n, number), carray(pointer(g), n, number)
        slopes = carray(pointer(out), n, number)
        tell = carray(pointer(np.int64(told)), TOLD, np.float64)
        hi, per_t, end = number(tell[HI]), number(tell[PER_T]), number(tell[EDGE] / tell[PER_T])
        lo = second(tell[HI], hi, hi) + number(tell[LO])
        rise, mean, zero = number(tell[RISE]), number(tell[MEAN]), number(0)
        for i in range(n):
            z = place(kind, scores[i], costs[i], hi, lo, end, per_t)
            w = slope_at(kind, scores[i], z, rise)
            slopes[i] -= w * mean * costs[i] * per_t if w > zero else zero

    return visit


def charge(kind: int, number: Any) -> Visit:
    """Last: −θu/T − F·d, the cotangents of the costs."""

    def visit(x, g, out, n, sums, told, b, c, d, e):
        widest_vectors()
        scores, costs = carray(pointer(x), n, number), carray(pointer(g), n, number)
        slopes = carray(pointer(out), n, number)
        tell = carray(pointer(np.int64(told)), TOLD, np.float64)
        found = carray(pointer(out + np.int64(tell[IN_COSTS_AT])), n, number)
        hi, per_t, end = number(tell[HI]), number(tell[PER_T]), number(tell[EDGE] / tell[PER_T])
        lo = second(tell[HI], hi, hi) + number(tell[LO])
        rise, mean, zero, one = number(tell[RISE]), number(tell[MEAN]), number(0), number(1)
        for i in range(n):
            t, upper, _, _ = tails(kind, place(kind, scores[i], costs[i], hi, lo, end, per_t), rise)
            p = one - t if upper else t
            found[i] = zero if deleted(scores[i]) else -hi * slopes[i] - p * mean

    return visit


def still(kind: int, number: Any) -> Visit:
    """A row that buys nothing or everything: 0; how many of its entries move all the same."""

    def visit(x, g, out, n, sums, told, b, c, d, e):
        widest_vectors()
        scores, costs = carray(pointer(x), n, number), carray(pointer(g), n, number)
        slopes, into = carray(pointer(out), n, number), carray(pointer(sums), 8, np.float64)
        tell = carray(pointer(np.int64(told)), TOLD, np.float64)
        zero, free = number(0), 0.0
        for i in range(n):
            slopes[i] = zero
            free += 0.0 if deleted(scores[i]) or costs[i] > zero else 1.0
        into[0] = free
        if tell[IN_COSTS_AT] != 0:
            found = carray(pointer(out + np.int64(tell[IN_COSTS_AT])), n, number)
            for i in range(n):
                found[i] = zero

    return visit
