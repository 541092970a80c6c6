"""Where θ of short rows is sought first, if nothing about them is unusual.

The search of rows/search.py keeps fifty numbers of a row in float64, and asks of each step whether
it is an ordinary one. Of rows of a few dozen entries that takes longer than the entries do. Here
all is in the precision of the scores, in registers, one row per lane: statistics and a start, then
evaluations, steps, the weights and their sum (steps.py). That sum says whether θ is found. Rows of
which anything is unusual, or whose weights do not add up, are left to the search.

Rows stop by themselves, and are then evaluated as before until all others have: no lane knows of
another. (Tests: test_kernels_short.py.)
"""

from __future__ import annotations

import math
from typing import Any

from numba import carray

from kofn.kernels.constants import SPREAD, USUAL
from kofn.kernels.contract import (
    BOUNDED,
    EXPONENTIAL,
    LINEAR,
    SQUARE,
)
from kofn.kernels.cpu.rows.formulas import (
    edge_beside,
    edge_of,
    prepare,
    start_below,
    unit,
)
from kofn.kernels.cpu.rows.frame import Pass
from kofn.kernels.cpu.rows.lanes import PLACE
from kofn.kernels.cpu.rows.layout import (
    COTANGENT,
    HAVE_ROUGH,
    KEPT,
    LANE,
    LANES,
    OF_USUAL,
    PLANES,
    SCORE,
)
from kofn.kernels.cpu.rows.search import least_unit
from kofn.kernels.cpu.runtime.intrinsics import VECTORS, at_once, never_unroll, pointer, vectors
from kofn.kernels.cpu.runtime.vector_math import inline, widest_vectors

STILL, GOING, NEAR, SOLVED = range(4)
"""States of a row: left to the search; θ is sought; weights are to be held to k; they add up."""
TEMPERATURE, PER_T, K, RISE, ANCHOR, LOW, HIGH, CAPPED_ROW = range(8)
STATE, BY, EVALUATIONS = range(8, len(OF_USUAL))
OWN = PLACE["own_of_usual"]


PARTS = 4
"""Of so many parts of a row, each every fourth entry, the greatest bound θ together where k ≤ 1: as
many as the loop below takes entries, and its network sorts."""


def _shares_of(kind: int) -> tuple[float, ...]:
    """F⁻¹(k/m)/F⁻¹(k) for m from 1 on: by the mean of m scores, θ is no more than that below it.

    F is convex there, so the weights of m scores are at least m·F of their mean, and they are no
    more than k.
    """
    power = {LINEAR: 1.0, SQUARE: 0.5}.get(kind, 0.0)
    return tuple(m**-power for m in range(1, PARTS + 1))


@inline
def larger(a, b):
    return a if a > b else b


@inline
def smaller(a, b):
    return a if a < b else b


def open_usual(kind: int, number: Any) -> Pass:
    """Statistics of the rows abreast, a θ to start from, its bracket; entries prepared for it.

    What they leave of a row is in `OWN`, in the precision of the scores. Rows that `usual` may
    solve count as solved so far.
    """
    bounded, softmax = kind in BOUNDED, kind == EXPONENTIAL
    parts, shares = kind in HAVE_ROUGH, _shares_of(kind)
    single, size = bounded or softmax, number(0).itemsize

    def one_pass(x, g, out, n, lanes, a, b, c, d, e):
        widest_vectors()
        zero, one, into = number(0), number(1), carray(pointer(lanes), 1, LANE)[0]
        infinity = number(math.inf)
        entries = carray(pointer(x), (n, PLANES, LANES), number)
        mine = carray(pointer(lanes + OWN), (len(OF_USUAL), LANES), number)
        own = carray(vectors(zero), (VECTORS, LANES), number)
        for r in range(LANES):
            own[0, r], own[1, r], own[2, r] = entries[n // 2, SCORE, r], zero, zero
            own[3, r] = own[4, r] = own[5, r] = own[6, r] = -infinity
        for i in range(0, n - 3, 4):
            for r in range(LANES):
                t, u = entries[i, SCORE, r], entries[i + 1, SCORE, r]
                v, w = entries[i + 2, SCORE, r], entries[i + 3, SCORE, r]
                if parts:
                    own[3, r], own[4, r] = larger(own[3, r], t), larger(own[4, r], u)
                    own[5, r], own[6, r] = larger(own[5, r], v), larger(own[6, r], w)
                elif single:
                    own[3, r] = larger(own[3, r], larger(larger(t, u), larger(v, w)))
                t, u, v, w = t - own[0, r], u - own[0, r], v - own[0, r], w - own[0, r]
                own[1, r] += (t + u) + (v + w)
                own[2, r] += (t * t + u * u) + (v * v + w * w)
        for i in range(n - n % 4, n):
            for r in range(LANES):
                v = entries[i, SCORE, r]
                own[3, r] = larger(own[3, r], v)
                v -= own[0, r]
                own[1, r] += v
                own[2, r] += v * v
        for r in range(LANES if parts else 0):  # largest first, by a sorting network
            own[3, r], own[4, r] = larger(own[3, r], own[4, r]), smaller(own[3, r], own[4, r])
            own[5, r], own[6, r] = larger(own[5, r], own[6, r]), smaller(own[5, r], own[6, r])
            own[3, r], own[5, r] = larger(own[3, r], own[5, r]), smaller(own[3, r], own[5, r])
            own[4, r], own[6, r] = larger(own[4, r], own[6, r]), smaller(own[4, r], own[6, r])
            own[4, r], own[5, r] = larger(own[4, r], own[5, r]), smaller(own[4, r], own[5, r])
        per_n, edge, all_n = one / number(n), edge_of(kind, into.alpha[0]), number(n)
        some, little, few = number(1e-5), number(1e-6), number(1e-3)
        for r in range(LANES):
            k, temperature, per_t = (
                number(into.k[r]),
                number(into.temperature[r]),
                number(into.per_t[r]),
            )
            pivot, mean, square = own[0, r], own[1, r] * per_n, own[2, r] * per_n
            variance = square - mean * mean
            variance = variance if variance > zero else zero
            reach = math.sqrt(all_n * (variance + some * square))
            mean += pivot
            # None of it is true of a NaN.
            plain_row = (reach < number(SPREAD) * temperature) & (abs(pivot) < number(USUAL))
            plain_row = plain_row & (into.temperature[r] >= least_unit(size))
            plain_row = plain_row & (k > zero) & (k < all_n)
            origin = temperature * number(edge_beside(kind, edge, into.alpha[r]))
            bell, quantile = number(into.bell[r]), number(into.own[r])
            start = mean + origin
            start -= start_below(bell * math.sqrt(variance), temperature * quantile + origin)
            low, high = mean - reach, mean + reach
            mine[CAPPED_ROW, r] = zero
            if bounded:
                end, alone = temperature * number(into.end[r]), temperature * number(into.alone[r])
                slack = little * (abs(low) + abs(high)) + few * (temperature + abs(end))
                is_one = alone == alone  # k ≤ 1: the greatest score alone bounds θ
                least = total = own[3, r]
                least -= alone
                if parts:
                    for j in range(1, PARTS):
                        total += own[3 + j, r]
                        bound = total * number(1 / (j + 1)) - alone * number(shares[j])
                        least = bound if bound > least else least
                # A little before, so that a θ is found between it and the others.
                first = least - alone * number(2.0**-10)
                low, high = low - end - slack, high - end + slack
                high = own[3, r] - end + slack if is_one else high
                start = first if is_one & ((start < first) | parts) else start
                low = least - slack if is_one else low
                start = low if start < low else (high if start > high else start)
                # Before its end, where it starts, the greatest score's slope is 0, and soon 1.
                capped = (k == one) & (own[3, r] - start >= alone)
                mine[CAPPED_ROW, r] = one if capped else zero
            if softmax:
                start = own[3, r] if k <= one else start
            mine[TEMPERATURE, r], mine[PER_T, r], mine[K, r] = temperature, per_t, k
            mine[RISE, r], mine[ANCHOR, r] = number(into.alpha[r] - 1), start
            mine[LOW, r], mine[HIGH, r] = low, high
            mine[STATE, r] = number(GOING) if plain_row else number(STILL)
            into.solved[r] = 1.0 if plain_row else 0.0
        if not bounded:
            for r in range(LANES):
                own[0, r], own[1, r] = mine[ANCHOR, r], number(unit(kind, into.per_t[r]))
            for i in range(n):
                for r in range(LANES):
                    v = entries[i, SCORE, r]
                    entries[i, KEPT, r] = prepare(kind, (v - own[0, r]) * own[1, r])
        never_unroll()
        at_once()

    return one_pass


def put_usual(kind: int, number: Any) -> Pass:
    """Put the weights that `usual` has written in the place of others."""

    def one_pass(x, g, out, n, lanes, a, b, c, d, e):
        widest_vectors()
        zero, into = number(0), carray(pointer(lanes), 1, LANE)[0]
        entries = carray(pointer(x), (n, PLANES, LANES), number)
        own = carray(vectors(zero), (VECTORS, LANES), number)
        for r in range(LANES):
            own[0, r] = into.solved[r]
        for i in range(n):
            for r in range(LANES):
                p = entries[i, COTANGENT, r]
                entries[i, KEPT, r] = p if own[0, r] > zero else entries[i, KEPT, r]
        never_unroll()

    return one_pass
