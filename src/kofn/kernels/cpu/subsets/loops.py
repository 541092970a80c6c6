"""One pass over some coins of a k-subset: the only loops over them on a CPU.

Coins are kept as signed tails u, +p where p ≤ ½ and −q elsewhere. The characteristic function of
their number is multiplied up in float64, complex number by complex number on lanes that are
independent of each other, instead of by logarithms and arcs: some 4 operations a coin and node.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from kofn.kernels.cpu.rows.formulas import distance
from kofn.kernels.cpu.rows.frame import loop
from kofn.kernels.cpu.runtime.shares import plain
from kofn.kernels.cpu.runtime.vector_math import LOG2_E, exp2, quotient, real, widest_vectors
from kofn.kernels.cpu.runtime.words import reach
from kofn.kernels.cpu.subsets.layout import LANES, TOGETHER

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
def shift(w, r, versine, by_r, by_1, rho):
    """Add −(r·by_r + by_1)/D to (π − p)/w."""
    widest_vectors()
    one = real(w[0], 1.0)
    for i in range(w.size):
        rho[i] -= quotient(r[i] * by_r + by_1, one - (w[i] + w[i]) * versine)


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
