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
from kofn.kernels.cpu.subsets.layout import ABREAST, LANES, TOGETHER, WIDE

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
def multiply_fours(terms, flat):
    """Multiply for TOGETHER nodes at once by the polynomials of `fours`.

    In `flat` is a product of each, then sin ω and 1 − cos ω. Half of the nodes are a register.
    """
    widest_vectors()
    own = carray(vectors(flat[0]), (VECTORS, ABREAST), np.float64)
    for j in range(ABREAST):
        own[0, j], own[1, j] = flat[j], flat[j + TOGETHER]
        own[2, j], own[3, j] = flat[j + 2 * TOGETHER], flat[j + 3 * TOGETHER]
        i = j + ABREAST
        own[4, j], own[5, j] = flat[i], flat[i + TOGETHER]
        own[6, j], own[7, j] = flat[i + 2 * TOGETHER], flat[i + 3 * TOGETHER]
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
        flat[j], flat[j + ABREAST] = own[0, j], own[4, j]
        flat[j + TOGETHER], flat[j + TOGETHER + ABREAST] = own[1, j], own[5, j]
    never_unroll()


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
def shifts(w, r, node, count, rho):
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
            versine = real(w[0], node[h, 1])
            by_r, by_1 = real(w[0], node[h, 1] * node[h, 2]), real(w[0], node[h, 0] * node[h, 3])
            for j in range(WIDE):
                own[0, j] -= _shift(ws[j], rs[j], versine, by_r, by_1)
                own[1, j] -= _shift(ws[j + WIDE], rs[j + WIDE], versine, by_r, by_1)
                own[2, j] -= _shift(ws[j + 2 * WIDE], rs[j + 2 * WIDE], versine, by_r, by_1)
                own[3, j] -= _shift(ws[j + 3 * WIDE], rs[j + 3 * WIDE], versine, by_r, by_1)
        for j in range(WIDE):
            into[j], into[j + WIDE] = own[0, j], own[1, j]
            into[j + 2 * WIDE], into[j + 3 * WIDE] = own[2, j], own[3, j]
    never_unroll()


@inline
def _shift(w, r, versine, by_r, by_1):
    return quotient(r * by_r + by_1, real(w, 1.0) - (w + w) * versine)


@each
def finish(u, rho, out):
    widest_vectors()
    zero, one = real(u[0], 0.0), real(u[0], 1.0)
    for i in range(u.size):
        p = u[i]
        tail = abs(p)
        answer = tail + p * (one - tail) * rho[i]
        out[i] = min(max(answer, zero), one)


@each
def complement(y, hi, lo, out):
    """From tails to marginals."""
    widest_vectors()
    zero, one = real(y[0], 0.0), real(y[0], 1.0)
    for i in range(y.size):
        out[i] = one - out[i] if distance(y[i], hi, lo, one) > zero else out[i]


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
def pairs(w, r, g, node, sums, out):
    """Add Re[c·a(b − a·g)] of one node: (sin ω, 1 − cos ω, Re c, Im c) and the two sums of a·g."""
    widest_vectors()
    one, sin, versine = real(w[0], 1.0), real(w[0], node[0]), real(w[0], node[1])
    real_part, imag_part = real(w[0], node[2]), real(w[0], node[3])
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
