"""One visit to a row with costs on the way back; as loops.py, where θ is known.

The cotangents of the weights are so many bytes from the scores, those of the costs from the answer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from kofn.kernels.cpu.priced.formulas import distance, slope_at, tails
from kofn.kernels.cpu.priced.layout import (
    EDGE,
    G_AT,
    HI,
    IN_COSTS_AT,
    LO,
    MEAN,
    PER_T,
    RISE,
    TOLD,
)
from kofn.kernels.cpu.rows.formulas import deleted
from kofn.kernels.cpu.rows.loops import Visit
from kofn.kernels.cpu.runtime.intrinsics import pointer
from kofn.kernels.cpu.runtime.vector_math import ordered, unordered, widest_vectors


def weigh(kind: int, number: Any) -> Visit:
    """First: F′ to `out`; 0, the greatest cost of an entry in play, Σc²F′ and ΣcF′g."""

    def visit(x, g, out, n, sums, told, b, c, d, e):
        widest_vectors()
        scores, costs = carray(pointer(x), n, number), carray(pointer(g), n, number)
        slopes, into = carray(pointer(out), n, number), carray(pointer(sums), 8, np.float64)
        tell = carray(pointer(np.int64(told)), TOLD, np.float64)
        cotangent = carray(pointer(x + np.int64(tell[G_AT])), n, number)
        hi, lo, per_t, edge = tell[HI], tell[LO], tell[PER_T], tell[EDGE]
        rise, zero = number(tell[RISE]), number(0)
        weight, product, greatest = 0.0, 0.0, ordered(zero)
        for i in range(n):
            cost = np.float64(costs[i])
            key = ordered(zero if deleted(scores[i]) else costs[i])
            greatest = max(greatest, key)
            z = number(distance(scores[i], cost, hi, lo) * per_t - edge)
            w = slope_at(kind, scores[i], z, rise)
            slopes[i] = w
            # What is not chosen may carry any cotangent, NaN included, and cost anything.
            part = w * cotangent[i] if w > zero else zero
            cost = cost if w > zero else 0.0
            weight += cost * cost * np.float64(w)
            product += cost * np.float64(part)
        into[1], into[2], into[3] = unordered(greatest, zero), weight, product

    return visit


def slope(kind: int, number: Any) -> Visit:
    """Then: u/T with u = F′(g − dc) to `out`; Σcu, Σ|cu|, Σu(x − θc)/T."""

    def visit(x, g, out, n, sums, told, b, c, d, e):
        widest_vectors()
        scores, costs = carray(pointer(x), n, number), carray(pointer(g), n, number)
        slopes, into = carray(pointer(out), n, number), carray(pointer(sums), 8, np.float64)
        tell = carray(pointer(np.int64(told)), TOLD, np.float64)
        cotangent = carray(pointer(x + np.int64(tell[G_AT])), n, number)
        hi, lo, per_t, mean = tell[HI], tell[LO], tell[PER_T], tell[MEAN]
        zero, total, size, in_t = number(0), 0.0, 0.0, 0.0
        for i in range(n):
            w, cost = slopes[i], np.float64(costs[i])
            moves = w > zero
            z = distance(scores[i], cost, hi, lo) * per_t
            u = np.float64(w) * (np.float64(cotangent[i]) - mean * cost)
            u = u if moves else 0.0
            cost = cost if moves else 0.0
            slopes[i] = number(u * per_t)
            total += cost * u
            size += abs(cost * u)
            in_t += u * (z if moves else 0.0)
        into[0], into[1], into[2] = total, size, in_t

    return visit


def centre(kind: int, number: Any) -> Visit:
    """Where rounding left Σcu ≠ 0: take F′·d·c/T off; ΣF′·d·c(x − θc)/T."""

    def visit(x, g, out, n, sums, told, b, c, d, e):
        widest_vectors()
        scores, costs = carray(pointer(x), n, number), carray(pointer(g), n, number)
        slopes, into = carray(pointer(out), n, number), carray(pointer(sums), 8, np.float64)
        tell = carray(pointer(np.int64(told)), TOLD, np.float64)
        hi, lo, per_t, edge, mean = tell[HI], tell[LO], tell[PER_T], tell[EDGE], tell[MEAN]
        rise, zero, in_t = number(tell[RISE]), number(0), 0.0
        for i in range(n):
            cost = np.float64(costs[i])
            z = distance(scores[i], cost, hi, lo) * per_t
            w = slope_at(kind, scores[i], number(z - edge), rise)
            moves = w > zero
            u = np.float64(w) * mean * cost if moves else 0.0
            slopes[i] = number(np.float64(slopes[i]) - u * per_t)
            in_t += u * (z if moves else 0.0)
        into[0] = in_t

    return visit


def charge(kind: int, number: Any) -> Visit:
    """Last: −θu/T − F·d, the cotangents of the costs."""

    def visit(x, g, out, n, sums, told, b, c, d, e):
        widest_vectors()
        scores, costs = carray(pointer(x), n, number), carray(pointer(g), n, number)
        slopes = carray(pointer(out), n, number)
        tell = carray(pointer(np.int64(told)), TOLD, np.float64)
        found = carray(pointer(out + np.int64(tell[IN_COSTS_AT])), n, number)
        hi, lo, per_t, edge, mean = tell[HI], tell[LO], tell[PER_T], tell[EDGE], tell[MEAN]
        rise, one, theta = number(tell[RISE]), number(1), hi + lo
        for i in range(n):
            z = number(distance(scores[i], np.float64(costs[i]), hi, lo) * per_t - edge)
            t, upper, _, _ = tails(kind, z, rise)
            p = np.float64(one - t if upper else t)
            in_cost = -theta * np.float64(slopes[i]) - p * mean
            found[i] = number(0.0 if deleted(scores[i]) else in_cost)

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
