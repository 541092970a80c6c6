"""One visit to a row with costs, or to a part of one, on the way forward.

As in rows/loops.py, each function makes one Python function for a link's `kind` and a `number`;
here `g` are the costs, and `told` is the address of what layout.py lists.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import carray

from kofn.kernels.cpu.priced.formulas import on_grid, place, second, tails
from kofn.kernels.cpu.priced.layout import (
    EDGE,
    HI,
    LO,
    MAGIC,
    MEAN,
    PER_T,
    QUANTILE,
    RISE,
    TOLD,
    UNIT,
)
from kofn.kernels.cpu.rows.formulas import deleted, integral
from kofn.kernels.cpu.rows.loops import BLOCK, Visit
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


def rough(kind: int, number: Any) -> Visit:
    """What `evaluate` does, in the precision of the scores."""
    return _evaluate(kind, number, number)


def evaluate(kind: int, number: Any) -> Visit:
    """Σ of c times the smaller tails, of those above ½, what these cost, in two parts; ΣcF′, Σc²F′,
    that above ½, Σc³F″, in units of the greatest cost.
    """
    return _evaluate(kind, number, np.float64)


def _evaluate(kind: int, number: Any, kept: Any) -> Visit:
    def visit(x, g, out, n, sums, told, b, c, d, e):
        widest_vectors()
        scores, costs = carray(pointer(x), n, number), carray(pointer(g), n, number)
        into = carray(pointer(sums), 8, np.float64)
        tell = carray(pointer(np.int64(told)), TOLD, np.float64)
        hi, per_t, end = kept(tell[HI]), kept(tell[PER_T]), kept(tell[EDGE] / tell[PER_T])
        lo = second(tell[HI], hi, hi) + kept(tell[LO])
        rise, magic, unit = number(tell[RISE]), kept(tell[MAGIC]), kept(tell[UNIT])
        zero = kept(0)
        for start in range(0, n, BLOCK):
            xs, cs = scores[start : start + BLOCK], costs[start : start + BLOCK]
            whole, above, coarse, fine = zero, zero, zero, zero
            density, weight, weight_above, bend = zero, zero, zero, zero
            for i in range(xs.size):
                cost = kept(cs[i])
                z = number(place(kind, kept(xs[i]), cost, hi, lo, end, per_t))
                t, upper, first, curve = tails(kind, z, rise)
                part, share = cost * kept(t), cost * unit
                large = on_grid(cost, magic)
                flat = share * kept(first)
                steep = share * flat
                whole += part
                above += part if upper else zero
                coarse += large if upper else zero
                fine += cost - large if upper else zero
                density += flat
                weight += steep
                weight_above += steep if upper else zero
                bend += share * share * share * kept(curve)
            into[0] += whole
            into[1] += above
            into[2] += coarse
            into[3] += fine
            into[4] += density
            into[5] += weight
            into[6] += weight_above
            into[7] += bend

    return visit


def write(kind: int, number: Any) -> Visit:
    """F of each entry, and Σc·F; z is rounded once, as the last digits of F depend on it."""

    def visit(x, g, out, n, sums, told, b, c, d, e):
        widest_vectors()
        scores, costs = carray(pointer(x), n, number), carray(pointer(g), n, number)
        weights = carray(pointer(out), n, number)
        into = carray(pointer(sums), 8, np.float64)
        tell = carray(pointer(np.int64(told)), TOLD, np.float64)
        hi, lo, per_t, end = tell[HI], tell[LO], tell[PER_T], tell[EDGE] / tell[PER_T]
        rise, zero, one = number(tell[RISE]), number(0), number(1)
        for start in range(0, n, BLOCK):
            stop, total = start + BLOCK, zero
            xs, cs, ps = scores[start:stop], costs[start:stop], weights[start:stop]
            for i in range(xs.size):
                score, cost = np.float64(xs[i]), np.float64(cs[i])
                z = number(place(kind, score, cost, hi, lo, end, per_t))
                t, upper, _, _ = tails(kind, z, rise)
                p = one - t if upper else t
                ps[i] = p
                total += cs[i] * p
            into[0] += total

    return visit


def integrate(kind: int, number: Any) -> Visit:
    """Σ of G less max(z, 0) far up, the scores and the costs of those far up, Σ(G − zF).

    In a row that buys nothing or everything, what costs something adds its score times that weight.
    """

    def visit(x, g, out, n, sums, told, b, c, d, e):
        widest_vectors()
        scores, costs = carray(pointer(x), n, number), carray(pointer(g), n, number)
        into = carray(pointer(sums), 8, np.float64)
        tell = carray(pointer(np.int64(told)), TOLD, np.float64)
        hi, lo, per_t, end = tell[HI], tell[LO], tell[PER_T], tell[EDGE] / tell[PER_T]
        bought, rise, zero = tell[MEAN], number(tell[RISE]), number(0)
        closed = bought == bought
        for start in range(0, n, BLOCK):
            xs, cs = scores[start : start + BLOCK], costs[start : start + BLOCK]
            rest, change, above, spent = zero, zero, 0.0, 0.0
            for i in range(xs.size):
                playing = not deleted(xs[i])
                settled = closed & (cs[i] > zero)
                score, cost = np.float64(xs[i]), np.float64(cs[i])
                z = number(place(kind, score, cost, hi, lo, end, per_t))
                inside = playing & (not settled)
                part, up, entropy = integral(kind, z if inside else zero, rise)
                share = (1.0 if up else 0.0) if inside else (bought if settled & playing else 0.0)
                rest += part if inside else zero
                change += entropy if inside else zero
                above += share * score if share > 0 else 0.0
                spent += share * cost if share > 0 else 0.0
            into[0] += rest
            into[1] += above
            into[2] += spent
            into[3] += change

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
