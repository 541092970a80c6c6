"""The functions of passes.py, as in loops.py: sums of a `Pass`, and S_k = kθ + TΣG(z).

(Tests: test_kernels_passes.py, test_kernels_value.py.)
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import carray

from kofn.kernels.cpu.knapsack.formulas import tails
from kofn.kernels.cpu.rows.formulas import deleted, distance, edge, integral
from kofn.kernels.cpu.rows.frame import BLOCK, in_loop, pass_of
from kofn.kernels.cpu.rows.frame import Pass as Loop
from kofn.kernels.cpu.rows.passes import Pass
from kofn.kernels.cpu.runtime.intrinsics import pointer
from kofn.kernels.cpu.runtime.split_row import plain
from kofn.kernels.cpu.runtime.vector_math import widest_vectors
from kofn.kernels.cpu.runtime.words import OF_ENTRIES


def entries(of: Pass, kind: int, number: Any) -> Loop:
    """Σ of the terms."""
    terms, zero, infinity = OF_ENTRIES(of.entry), number(0), number(math.inf)

    @in_loop
    def entry(x, g, old, hi, lo, per_t, rise, rest):
        moves = abs(x) < infinity and not deleted(x)
        z = distance(x, hi, lo, per_t)
        t, upper, slope, _ = tails(kind, z if moves else zero, rise)
        upper = upper if moves else x > zero
        return old, terms(t if moves else zero, upper, slope if moves else zero)

    return pass_of(number, entry, zero, zero)


def settled(of: Pass, kind: int, number: Any) -> Loop:
    """#(+inf), #(out of play), #others: each of these has one weight."""
    zero, one, infinity = number(0), number(1), number(math.inf)

    @in_loop
    def entry(x, g, old, hi, lo, per_t, rise, rest):
        top, out = x == infinity, deleted(x)
        live = zero if top or out else one
        return old, (one if top else zero, one if out else zero, live)

    return pass_of(number, entry, zero, zero, zero)


def row(of: Pass, kind: int, number: Any) -> Loop:
    """The two sums, from these counts if the row has no equation."""
    terms, zero, one = OF_ENTRIES(of.entry), number(0), number(1)

    @in_loop
    def of_weight(p):
        upper = p > number(0.5)
        first, second = terms(one - p if upper else p, upper, zero)
        return np.float64(first), np.float64(second)

    def of_row(x, g, out, n, sums, hi, lo, temperature, alpha, k):
        into = carray(pointer(sums), 8, np.float64)
        if hi != hi:
            into[0], into[1] = hi, hi
        elif not abs(hi) < math.inf:
            top, gone, live = into[0], into[1], into[2]
            share = number(k / top) if hi > 0 and k < top else one
            at_top, at_rest = of_weight(share), of_weight(zero if hi > 0 else one)
            at_none = of_weight(zero)
            into[0] = top * at_top[0] + gone * at_none[0] + live * at_rest[0]
            into[1] = top * at_top[1] + gone * at_none[1] + live * at_rest[1]

    return of_row


def integrate(kind: int, number: Any) -> Loop:
    """Σ of G less max(z, 0) far up, #far up and the Σ of their scores, Σ(G − zF)."""
    infinity = number(math.inf)

    def one_pass(x, g, out, n, sums, hi, lo, per_t, alpha, e):
        widest_vectors()
        scores, into = carray(pointer(x), n, number), carray(pointer(sums), 8, np.float64)
        hi_, lo_, per_t_, rise_ = number(hi), number(lo), number(per_t), number(alpha - 1)
        zero, one = number(0), number(1)
        for start in range(0, n, BLOCK):
            block = scores[start : start + BLOCK]
            rest, count, above, entropy = zero, zero, zero, zero
            for i in range(block.size):
                v = block[i]
                z = distance(v, hi_, lo_, per_t_)
                playing = not deleted(v)
                finite = abs(z) < infinity and playing
                part, is_up, change = integral(kind, z if finite else zero, rise_)
                up = is_up if finite else z > zero and playing
                rest += part if finite else zero
                count += one if up else zero
                above += v if up else zero
                entropy += change if finite else zero
            into[0] += rest
            into[1] += count
            into[2] += above
            into[3] += entropy

    return one_pass


def total(kind: int, number: Any) -> Loop:
    """The sum of the scores in play, #(+inf)."""
    infinity = number(math.inf)

    def one_pass(x, g, out, n, sums, hi, lo, per_t, alpha, rest):
        scores, into = carray(pointer(x), n, number), carray(pointer(sums), 8, np.float64)
        for i in range(n):
            v = scores[i]
            into[0] += np.float64(v) if abs(v) < infinity and not deleted(v) else 0.0
            into[1] += 1.0 if v == infinity else 0.0

    return one_pass


def value(kind: int, number: Any) -> Loop:
    """(S_k, its slope in T) of the sums of `integrate` or `total`."""

    def of_row(x, g, out, n, sums, hi, lo, temperature, alpha, k):
        into = carray(pointer(sums), 8, np.float64)
        into[0], into[1] = _value(into, hi, lo, temperature, k, edge(kind, alpha))

    return of_row


@plain
def _value(sums, hi, lo, temperature, k, edge_):
    """Of G = z + rest, far up, z is taken out of the sum: many scores far up and a k that is nearly
    as large would leave a small difference of large numbers.
    """
    if hi != hi:
        return hi, hi
    if abs(hi) < math.inf:
        theta = hi + lo - temperature * edge_
        return (k - sums[1]) * theta + sums[2] + temperature * sums[0], sums[3]
    chosen = sums[0] if hi < 0 else 0.0
    return (math.inf if sums[1] > 0 and k > 0 else chosen), 0.0
