"""One pass over some coins of a k-subset: the only loops over them on a CPU.

Coins are kept as signed tails u, +p where p ≤ ½ and −q elsewhere. The characteristic function of
their number is multiplied up in float64, complex number by complex number on lanes that are
independent of each other, instead of by logarithms and arcs: some 4 operations a coin and node.
"""

from __future__ import annotations

import math

import numpy as np
from numba import carray, njit

from kofn.kernels.cpu.rows.formulas import distance
from kofn.kernels.cpu.rows.frame import loop
from kofn.kernels.cpu.runtime.intrinsics import VECTORS, never_unroll, vectors
from kofn.kernels.cpu.runtime.shares import plain
from kofn.kernels.cpu.runtime.vector_math import (
    LOG2_E,
    exp2,
    inline,
    quotient,
    real,
    widest_vectors,
)
from kofn.kernels.cpu.runtime.words import reach
from kofn.kernels.cpu.subsets.layout import (
    ABREAST,
    IMAG,
    LANES,
    MOST,
    PLACED,
    REAL,
    SIN,
    TOGETHER,
    VERSINE,
    WIDE,
)

each = njit(error_model="numpy", nogil=True, fastmath={"contract"})


@loop
def prepare(y, hi, lo, u):
    """u at z = y − (hi + lo); Σpq and the number of z > 0."""
    widest_vectors()
    zero, one, far = real(y[0], 0.0), real(y[0], 1.0), reach(y[0])
    octaves = real(y[0], -LOG2_E)
    variance, above = zero, zero
    for i in range(y.size):
        z = distance(y[i], hi, lo, one)
        size = abs(z)
        e = exp2(min(size, far) * octaves)
        tail = quotient(e, one + e)
        tail = tail if size < far else zero
        upper = z > zero
        u[i] = -tail if upper else tail
        variance += tail * (one - tail)
        above += one if upper else zero
    return np.float64(variance), np.float64(above)


@each
def multiply(u, sin, versine, re, im):
    """Multiply each lane by t = 1 − |u|(1 − cos ω) + iu sin ω of its coins."""
    widest_vectors()
    for start in range(0, u.size, LANES):
        part = u[start : start + LANES]
        for j in range(LANES):
            a = 1.0 - abs(part[j]) * versine
            b = part[j] * sin
            x, y = re[j], im[j]
            re[j] = x * a - y * b
            im[j] = x * b + y * a


@each
def multiply_nodes(u, flat):
    """Multiply for some nodes at once, each a lane; two coins side by side, as products take time.

    In `flat` are two products of each, then sin ω and 1 − cos ω: one array, so that the compiler
    knows that none is another.
    """
    widest_vectors()
    for i in range(0, u.size, 2):
        first, second = np.float64(u[i]), np.float64(u[i + 1])
        p, q = abs(first), abs(second)
        for j in range(TOGETHER):
            sin, versine = flat[j + 4 * TOGETHER], flat[j + 5 * TOGETHER]
            a, b = 1.0 - p * versine, first * sin
            x, y = flat[j], flat[j + TOGETHER]
            flat[j] = x * a - y * b
            flat[j + TOGETHER] = x * b + y * a
            a, b = 1.0 - q * versine, second * sin
            x, y = flat[j + 2 * TOGETHER], flat[j + 3 * TOGETHER]
            flat[j + 2 * TOGETHER] = x * a - y * b
            flat[j + 3 * TOGETHER] = x * b + y * a


@each
def fours(u, terms):
    """Write the products of four coins each as polynomials in v = 1 − cos ω: of Re t, but for its
    1, the terms of v to v⁴; then of Im t/sin ω those of 1 to v³. Eight fours are side by side.

    Two coins have 1 + av + bv² and c + dv; sin² ω is 2v − v².
    """
    widest_vectors()
    own = carray(vectors(1.0), (8, ABREAST), np.float64)  # shares memory with no array
    for start in range(0, u.size, 4 * ABREAST):
        coins, into = u[start : start + 4 * ABREAST], terms[2 * start : 2 * start + 8 * ABREAST]
        for j in range(ABREAST):
            p, q = np.float64(coins[j]), np.float64(coins[j + ABREAST])
            a, b, c, d = _pair(p, q, abs(p), abs(q))
            p, q = np.float64(coins[j + 2 * ABREAST]), np.float64(coins[j + 3 * ABREAST])
            e, f, g, h = _pair(p, q, abs(p), abs(q))
            none, one, two = c * g, c * h + d * g, d * h
            own[0, j], own[1, j] = a + e - (none + none), b + f + a * e + none - (one + one)
            own[2, j], own[3, j] = a * f + b * e + one - (two + two), b * f + two
            own[4, j], own[5, j] = c + g, d + h + a * g + e * c
            own[6, j], own[7, j] = a * h + e * d + b * g + f * c, b * h + f * d
        for i in range(8):
            for j in range(ABREAST):
                into[i * ABREAST + j] = own[i, j]
    never_unroll()


@inline
def _pair(u, w, p, q):
    product = u * w
    return -(p + q + product + product), p * q + product, u + w, -(u * q + w * p)


@each
def multiply_fours(terms, node, first):
    """Multiply TOGETHER nodes at once, from `first` on, by the polynomials of `fours`.

    Half of the nodes are a register.
    """
    widest_vectors()
    own = carray(vectors(node[0, 0]), (VECTORS, ABREAST), np.float64)
    for j in range(ABREAST):
        i = first + j
        own[0, j], own[1, j], own[2, j], own[3, j] = node[0, i], node[1, i], node[2, i], node[3, i]
        i += ABREAST
        own[4, j], own[5, j], own[6, j], own[7, j] = node[0, i], node[1, i], node[2, i], node[3, i]
    for start in range(0, terms.size, 8 * ABREAST):
        part = terms[start : start + 8 * ABREAST]
        for i in range(ABREAST):
            a, b, c = part[i], part[i + ABREAST], part[i + 2 * ABREAST]
            d, e, f = part[i + 3 * ABREAST], part[i + 4 * ABREAST], part[i + 5 * ABREAST]
            g, h = part[i + 6 * ABREAST], part[i + 7 * ABREAST]
            for j in range(ABREAST):
                x, y, v = own[0, j], own[1, j], own[3, j]
                re = 1.0 + v * (a + v * (b + v * (c + v * d)))
                im = own[2, j] * (e + v * (f + v * (g + v * h)))
                own[0, j], own[1, j] = x * re - y * im, x * im + y * re
                x, y, v = own[4, j], own[5, j], own[7, j]
                re = 1.0 + v * (a + v * (b + v * (c + v * d)))
                im = own[6, j] * (e + v * (f + v * (g + v * h)))
                own[4, j], own[5, j] = x * re - y * im, x * im + y * re
    for j in range(ABREAST):
        i = first + j
        node[REAL, i], node[IMAG, i] = own[0, j], own[1, j]
        node[REAL, i + ABREAST], node[IMAG, i + ABREAST] = own[4, j], own[5, j]
    never_unroll()


@inline
def _sine(x):
    """sin πx for |x| ≤ ½: x·q(x²), q interpolated at Chebyshev's nodes, to 4e-17."""
    y = x * x
    series = S4 + y * (S5 + y * (S6 + y * (S7 + y * S8)))
    return x * (S0 + y * (S1 + y * (S2 + y * (S3 + y * series))))


S0, S1, S2, S3, S4, S5, S6, S7, S8 = (
    3.141592653589793, -5.167712780049969, 2.5501640398773007, -0.5992645293189447,
    0.0821458865731029, -0.007370430505916944, 0.0004662998161898394, -2.1903497074626018e-05,
    7.697826768224191e-07,
)  # fmt: skip
NEAREST = 1.5 * 2.0**52  # added and taken off, it rounds to a whole number


@each
def place(node, number, offset, variance, negligible):
    """Begin with the nodes that are not negligible of so many on the circle: what they count, times
    the phase of `offset` heads. Return how many there are; others up to a multiple of TOGETHER
    count 0.
    """
    widest_vectors()
    each_turn, count = 1 / number, 0
    for first in range(0, PLACED, TOGETHER):
        if 2 * first >= number:
            break
        for j in range(TOGETHER):
            h = first + j
            place_ = np.float64(np.int32(h))  # older processors convert no longer ones in vectors
            turn = place_ * each_turn
            sine, cosine = _sine(turn), _sine(0.5 - turn)
            square = 2 * sine * sine
            there = (2 * place_ < number) & (place_ < MOST) & (variance * square <= negligible)
            # h·offset turns less whole ones, without rounding.
            way = place_ * offset
            half = (way - number * ((way * each_turn + NEAREST) - NEAREST)) * each_turn
            away, along = _sine(half), _sine(0.5 - abs(half))
            share = each_turn if place_ == 0 else 2 * each_turn  # the others stand for two nodes
            share = share if there else 0.0
            node[REAL, h], node[IMAG, h] = share * (1 - 2 * away * away), share * 2 * away * along
            node[SIN, h] = 2 * sine * cosine if there else 0.0
            node[VERSINE, h] = square if there else 0.0
            count += 1 if there else 0
    never_unroll()
    return count


@loop
def settle(node, count, factors):
    """Divide by Pr(N = k), the sum of the real parts, and return it. Write 1 − cos ω, and what
    `shifts` multiplies by: r, and 1.
    """
    widest_vectors()
    total = 0.0
    for first in range(0, count, TOGETHER):
        for j in range(TOGETHER):
            total += node[REAL, first + j]
    part = 1 / total
    for first in range(0, count, TOGETHER):
        for j in range(TOGETHER):
            h = first + j
            node[REAL, h] *= part
            node[IMAG, h] *= part
            versine = node[VERSINE, h]
            factors[0, h], factors[1, h] = versine, versine * node[REAL, h]
            factors[2, h] = node[SIN, h] * node[IMAG, h]
    never_unroll()
    return total


@plain
def folded(re, im):
    """The product of the lanes of a node."""
    lanes = LANES
    while lanes > 8:
        lanes //= 2
        for j in range(lanes):
            x, y = re[j], im[j]
            re[j] = x * re[j + lanes] - y * im[j + lanes]
            im[j] = x * im[j + lanes] + y * re[j + lanes]
    x, y = re[0], im[0]
    for j in range(1, lanes):
        x, y = x * re[j] - y * im[j], x * im[j] + y * re[j]
    return x, y


@each
def moments(u, w, r):
    """pq and q − p; where p is the larger, u is negative (or −0 and w is 0)."""
    widest_vectors()
    zero, one, two = real(u[0], 0.0), real(u[0], 1.0), real(u[0], 2.0)
    for i in range(u.size):
        tail = abs(u[i])
        w[i] = tail * (one - tail)
        r[i] = one - two * tail if u[i] >= zero else two * tail - one


@each
def shifts(w, r, factors, count, rho):
    """Write (π − p)/w, the sum of −(r·(1 − cos ω)·Re c + sin ω·Im c)/D over nodes; whole LANES.

    Four registers of float32 entries go side by side, and their sums stay there.
    """
    widest_vectors()
    zero, one = real(w[0], 0.0), real(w[0], 1.0)
    own = carray(vectors(one), (VECTORS, WIDE), w.dtype)
    for start in range(0, w.size, 4 * WIDE):
        ws, rs = w[start : start + 4 * WIDE], r[start : start + 4 * WIDE]
        into = rho[start : start + 4 * WIDE]
        for j in range(WIDE):
            own[0, j], own[1, j], own[2, j], own[3, j] = zero, zero, zero, zero
        for h in range(count):
            at = factors[0, h], factors[1, h], factors[2, h]
            for j in range(WIDE):
                own[0, j] -= _shift(ws[j], rs[j], *at)
                own[1, j] -= _shift(ws[j + WIDE], rs[j + WIDE], *at)
                own[2, j] -= _shift(ws[j + 2 * WIDE], rs[j + 2 * WIDE], *at)
                own[3, j] -= _shift(ws[j + 3 * WIDE], rs[j + 3 * WIDE], *at)
        for j in range(WIDE):
            into[j], into[j + WIDE] = own[0, j], own[1, j]
            into[j + 2 * WIDE], into[j + 3 * WIDE] = own[2, j], own[3, j]
    never_unroll()


@inline
def _shift(w, r, versine, by_r, by_1):
    return quotient(r * by_r + by_1, real(w, 1.0) - (w + w) * versine)


@each
def answer(u, factors, count, whole, out):
    """Write the tails at N = k, or if `whole` the marginals; as `moments`, `shifts` and `finish`
    do one after another.
    """
    widest_vectors()
    zero, one = real(u[0], 0.0), real(u[0], 1.0)
    own = carray(vectors(one), (VECTORS, WIDE), u.dtype)
    coin = carray(vectors(one), (VECTORS, WIDE), u.dtype)
    for start in range(0, u.size, 4 * WIDE):
        us, into = u[start : start + 4 * WIDE], out[start : start + 4 * WIDE]
        for j in range(WIDE):
            own[0, j], own[1, j], own[2, j], own[3, j] = zero, zero, zero, zero
            coin[0, j], coin[4, j] = _moments(us[j])
            coin[1, j], coin[5, j] = _moments(us[j + WIDE])
            coin[2, j], coin[6, j] = _moments(us[j + 2 * WIDE])
            coin[3, j], coin[7, j] = _moments(us[j + 3 * WIDE])
        for h in range(count):
            at = factors[0, h], factors[1, h], factors[2, h]
            for j in range(WIDE):
                own[0, j] -= _shift(coin[0, j], coin[4, j], *at)
                own[1, j] -= _shift(coin[1, j], coin[5, j], *at)
                own[2, j] -= _shift(coin[2, j], coin[6, j], *at)
                own[3, j] -= _shift(coin[3, j], coin[7, j], *at)
        for j in range(WIDE):
            into[j] = _with_shift(us[j], own[0, j], whole)
            into[j + WIDE] = _with_shift(us[j + WIDE], own[1, j], whole)
            into[j + 2 * WIDE] = _with_shift(us[j + 2 * WIDE], own[2, j], whole)
            into[j + 3 * WIDE] = _with_shift(us[j + 3 * WIDE], own[3, j], whole)
    never_unroll()


@inline
def _moments(p):
    tail, one = abs(p), real(p, 1.0)
    return tail * (one - tail), (one - (tail + tail)) if p >= real(p, 0.0) else tail + tail - one


@inline
def _with_shift(p, rho, whole):
    tail, zero, one = abs(p), real(p, 0.0), real(p, 1.0)
    tail = min(max(tail + p * (one - tail) * rho, zero), one)
    return one - tail if whole & (math.copysign(one, p) < zero) else tail


@each
def centred(y, v, mean, g):
    """v − mean; 0 where out of play, whatever v is there."""
    widest_vectors()
    zero, infinity, mean_ = real(y[0], 0.0), real(y[0], math.inf), real(y[0], mean)
    for i in range(y.size):
        g[i] = v[i] - mean_ if abs(y[i]) < infinity else zero


@loop
def product(a, b):
    widest_vectors()
    total = real(a[0], 0.0)
    for i in range(a.size):
        total += a[i] * b[i]
    return np.float64(total)


@loop
def others(w, r, g, versine):
    """Σ g·w·r/D and Σ g·w/D."""
    widest_vectors()
    one, zero = real(w[0], 1.0), real(w[0], 0.0)
    first, second = zero, zero
    for i in range(w.size):
        part = g[i] * quotient(w[i], one - (w[i] + w[i]) * versine)
        first += part * r[i]
        second += part
    return np.float64(first), np.float64(second)


@each
def pairs(w, r, g, node, h, sums, out):
    """Add Re[c·a(b − a·g)] of a node, with the two sums of a·g."""
    widest_vectors()
    one, sin, versine = real(w[0], 1.0), real(w[0], node[SIN, h]), real(w[0], node[VERSINE, h])
    real_part, imag_part = real(w[0], node[REAL, h]), real(w[0], node[IMAG, h])
    first, second = real(w[0], sums[0]), real(w[0], sums[1])
    for i in range(w.size):
        over = quotient(w[i], one - (w[i] + w[i]) * versine)
        x, y = -over * r[i] * versine, over * sin
        p, q = first - g[i] * x, second - g[i] * y
        out[i] += real_part * (x * p - y * q) - imag_part * (x * q + y * p)


@each
def diagonal(u, w, rho, g, total, out):
    """Add −δ(Σδg − δg) + π(1 − π)g."""
    widest_vectors()
    one = real(w[0], 1.0)
    for i in range(w.size):
        delta, p = w[i] * rho[i], u[i]
        tail = abs(p) + p * (one - abs(p)) * rho[i]
        out[i] += tail * (one - tail) * g[i] - delta * (total - delta * g[i])
