"""One visit to a row with costs, or to a part of one, on the way forward.

As in rows/loops.py, each function makes one Python function for a link's `kind` and a `number`;
here `g` are the costs, and `told` is the address of what layout.py lists. Sums are of float64: an
entry that is cheap makes up for what is lost of those that are dear.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import carray

from kofn.kernels.contract import BOUNDED
from kofn.kernels.cpu.priced.formulas import distance, from_end, on_grid, tails
from kofn.kernels.cpu.priced.layout import EDGE, HI, LO, MAGIC, MEAN, PER_T, QUANTILE, RISE, TOLD
from kofn.kernels.cpu.rows.formulas import deleted
from kofn.kernels.cpu.rows.loops import Visit
from kofn.kernels.cpu.runtime.intrinsics import pointer
from kofn.kernels.cpu.runtime.vector_math import ordered, unordered, widest_vectors


def survey(kind: int, number: Any) -> Visit:
    """Least and greatest cost, Σc, Σc², Σc³, Σcx, Σc²x, Σcx² of entries in play.

    One of the sums is not finite where a score is NaN or +inf, or a cost NaN or infinite.
    """

    def visit(x, g, out, n, sums, told, b, c, d, e):
        widest_vectors()
        scores, costs = carray(pointer(x), n, number), carray(pointer(g), n, number)
        into = carray(pointer(sums), 8, np.float64)
        zero = number(0)
        least, greatest = ordered(number(math.inf)), ordered(number(-math.inf))
        first, second, third, in_x, in_c, square = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
        for i in range(n):
            playing = not deleted(scores[i])
            price = costs[i] if playing else zero
            score = np.float64(scores[i] if playing else zero)
            key = ordered(price)
            least = min(least, key)
            greatest = max(greatest, key)
            cost = np.float64(price)
            both, twice = cost * score, cost * cost
            first += cost
            second += twice
            third += twice * cost
            in_x += both
            in_c += both * cost
            square += both * score
        into[0], into[1] = unordered(least, zero), unordered(greatest, zero)
        into[2], into[3], into[4] = first, second, third
        into[5], into[6], into[7] = in_x, in_c, square

    return visit


def ends(kind: int, number: Any) -> Visit:
    """Least and greatest θ at which an entry has the share to buy of all costs, and Σ|x|."""

    def visit(x, g, out, n, sums, told, b, c, d, e):
        widest_vectors()
        scores, costs = carray(pointer(x), n, number), carray(pointer(g), n, number)
        into = carray(pointer(sums), 8, np.float64)
        tell = carray(pointer(np.int64(told)), TOLD, np.float64)
        away = (tell[QUANTILE] + tell[EDGE]) / tell[PER_T]
        least, greatest = ordered(math.inf), ordered(-math.inf)
        for i in range(n):
            v, cost = scores[i], np.float64(costs[i])
            pays = (not deleted(v)) & (cost > 0)
            crossing = ordered((np.float64(v) - away) / (cost if pays else 1.0))
            least = min(least, crossing if pays else ordered(math.inf))
            greatest = max(greatest, crossing if pays else ordered(-math.inf))
        into[0], into[1] = unordered(least, 0.0), unordered(greatest, 0.0)

    return visit


def evaluate(kind: int, number: Any) -> Visit:
    """Σ of c times the smaller tails, of those above ½, what these cost, in two parts, Σc²F′, that
    above ½, Σc³F″, ΣcF′.
    """
    double = number is np.float64
    ending = double and kind in BOUNDED

    def visit(x, g, out, n, sums, told, b, c, d, e):
        widest_vectors()
        scores, costs = carray(pointer(x), n, number), carray(pointer(g), n, number)
        into = carray(pointer(sums), 8, np.float64)
        tell = carray(pointer(np.int64(told)), TOLD, np.float64)
        hi, lo, per_t, edge, magic = tell[HI], tell[LO], tell[PER_T], tell[EDGE], tell[MAGIC]
        rise, zero, end = number(tell[RISE]), 0.0, edge / per_t
        whole, above, coarse, fine = 0.0, 0.0, 0.0, 0.0
        weight, weight_above, bend, density = 0.0, 0.0, 0.0, 0.0
        for i in range(n):
            cost = np.float64(costs[i])
            if ending:
                z = number(from_end(scores[i], cost, hi, lo, end) * per_t)
            else:
                z = number(distance(scores[i], cost, hi, lo) * per_t - edge)
            t, upper, first, second = tails(kind, z, rise)
            part, flat = cost * np.float64(t), cost * np.float64(first)
            steep = cost * flat
            whole += part
            above += part if upper else zero
            if double:
                large = on_grid(cost, magic)
                coarse += large if upper else zero
                fine += cost - large if upper else zero
            else:
                coarse += cost if upper else zero
            density += flat
            weight += steep
            weight_above += steep if upper else zero
            bend += cost * cost * cost * np.float64(second)
        into[0], into[1], into[2], into[3] = whole, above, coarse, fine
        into[4], into[5], into[6], into[7] = weight, weight_above, bend, density

    return visit


def write(kind: int, number: Any) -> Visit:
    """F of each entry, and Σc·F."""
    ending = number is np.float64 and kind in BOUNDED

    def visit(x, g, out, n, sums, told, b, c, d, e):
        widest_vectors()
        scores, costs = carray(pointer(x), n, number), carray(pointer(g), n, number)
        weights = carray(pointer(out), n, number)
        into = carray(pointer(sums), 8, np.float64)
        tell = carray(pointer(np.int64(told)), TOLD, np.float64)
        hi, lo, per_t, edge = tell[HI], tell[LO], tell[PER_T], tell[EDGE]
        rise, one, end, total = number(tell[RISE]), number(1), edge / per_t, 0.0
        for i in range(n):
            cost = np.float64(costs[i])
            if ending:
                z = number(from_end(scores[i], cost, hi, lo, end) * per_t)
            else:
                z = number(distance(scores[i], cost, hi, lo) * per_t - edge)
            t, upper, _, _ = tails(kind, z, rise)
            p = one - t if upper else t
            weights[i] = p
            total += cost * np.float64(p)
        into[0] = total

    return visit


def close(kind: int, number: Any) -> Visit:
    """A row that buys nothing or everything: that weight to what costs something, F(x/T) to what
    does not.
    """

    def visit(x, g, out, n, sums, told, b, c, d, e):
        scores, costs = carray(pointer(x), n, number), carray(pointer(g), n, number)
        weights = carray(pointer(out), n, number)
        tell = carray(pointer(np.int64(told)), TOLD, np.float64)
        per_t, edge, bought = tell[PER_T], tell[EDGE], number(tell[MEAN])
        rise, zero, one = number(tell[RISE]), number(0), number(1)
        for i in range(n):
            v = scores[i]
            t, upper, _, _ = tails(kind, number(np.float64(v) * per_t - edge), rise)
            p = bought if costs[i] > zero else (one - t if upper else t)
            weights[i] = zero if deleted(v) else p

    return visit
