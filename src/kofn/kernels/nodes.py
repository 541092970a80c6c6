"""The sums of _nodes.py over rows that stay in cache: what N = k says of each coin, row by row.

A row's characteristic function is multiplied up in float64, complex number by complex number on
lanes that are independent of each other, instead of by logarithms and arcs: some 4 operations a
coin and node. Coins are kept as signed tails u, +p where p ≤ ½ and −q elsewhere. Rows are dealt out
to threads; no answer depends on their number.
"""

from __future__ import annotations

import math

import numpy as np
from numba import carray, njit

from kofn._nodes import COVARIANCE, LOG_COUNT, MARGINALS
from kofn.kernels import passes
from kofn.kernels.elementary import LOG2_E, exp2, quotient, real, widest_vectors
from kofn.kernels.entries import distance, reach
from kofn.kernels.native import fetch, fetch_add, pointer

BLOCK = 512
LANES = 64  # complex products side by side
MOST = 27  # nodes

# A job, the integers that every thread on it is told.
NEXT, DONE, COUNT, CHUNK, N, SIZE, WHAT, Y, HI, LO, K, V, OUT = range(13)

loop = njit(nogil=True, **passes.OPTIONS)  # sums may be taken in any order
each = njit(error_model="numpy", nogil=True, fastmath={"contract"})
plain = njit(error_model="numpy", nogil=True)


@loop
def _prepare(y, hi, lo, u):
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
def _multiply(u, sin, versine, re, im):
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


@plain
def _folded(re, im):
    """The product of the lanes."""
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
def _coins(u, w, r):
    """pq and q − p; where p is the larger, u is negative (or −0 and w is 0)."""
    widest_vectors()
    zero, one, two = real(u[0], 0.0), real(u[0], 1.0), real(u[0], 2.0)
    for i in range(u.size):
        tail = abs(u[i])
        w[i] = tail * (one - tail)
        r[i] = one - two * tail if u[i] >= zero else two * tail - one


@each
def _shift(w, r, versine, by_r, by_1, rho):
    """Add −(r·by_r + by_1)/D to (π − p)/w."""
    widest_vectors()
    one = real(w[0], 1.0)
    for i in range(w.size):
        rho[i] -= quotient(r[i] * by_r + by_1, one - (w[i] + w[i]) * versine)


@each
def _finish(u, rho, out):
    widest_vectors()
    zero, one = real(u[0], 0.0), real(u[0], 1.0)
    for i in range(u.size):
        p = u[i]
        tail = abs(p)
        answer = tail + p * (one - tail) * rho[i]
        out[i] = min(max(answer, zero), one)


@each
def _complement(y, hi, lo, out):
    """From tails to marginals."""
    widest_vectors()
    zero, one = real(y[0], 0.0), real(y[0], 1.0)
    for i in range(y.size):
        out[i] = one - out[i] if distance(y[i], hi, lo, one) > zero else out[i]


@plain
def _close(y, hi, k, what, out):
    """A row without a choice to make, or with a NaN: what _conditional.py answers there."""
    out[:] = 0
    if what != MARGINALS:
        return
    top = 0
    for i in range(y.size):
        top += 1 if y[i] == math.inf else 0
    first = 1.0 if hi < 0 or top <= k else (hi if hi != hi else k / top)
    others = hi if hi != hi else (0.0 if hi > 0 else 1.0)
    for i in range(y.size):
        if y[i] != -math.inf:
            out[i] = first if y[i] == math.inf else others


@each
def _centred(y, v, mean, g):
    """v − mean; 0 where out of play, whatever v is there."""
    widest_vectors()
    zero, infinity, mean_ = real(y[0], 0.0), real(y[0], math.inf), real(y[0], mean)
    for i in range(y.size):
        g[i] = v[i] - mean_ if abs(y[i]) < infinity else zero


@loop
def _product(a, b):
    widest_vectors()
    total = real(a[0], 0.0)
    for i in range(a.size):
        total += a[i] * b[i]
    return np.float64(total)


@loop
def _others(w, r, g, versine):
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
def _pairs(w, r, g, versine, sin, real_part, imag_part, first, second, out):
    """Add Re[c·a(b − a·g)] of one node."""
    widest_vectors()
    one = real(w[0], 1.0)
    for i in range(w.size):
        over = quotient(w[i], one - (w[i] + w[i]) * versine)
        x, y = -over * r[i] * versine, over * sin
        p, q = first - g[i] * x, second - g[i] * y
        out[i] += real_part * (x * p - y * q) - imag_part * (x * q + y * p)


@each
def _diagonal(u, w, rho, g, total, out):
    """Add −δ(Σδg − δg) + π(1 − π)g."""
    widest_vectors()
    one = real(w[0], 1.0)
    for i in range(w.size):
        delta, p = w[i] * rho[i], u[i]
        tail = abs(p) + p * (one - abs(p)) * rho[i]
        out[i] += tail * (one - tail) * g[i] - delta * (total - delta * g[i])


@plain
def _turned(x, y, cosine, sine):
    return x * cosine - y * sine, x * sine + y * cosine


@plain
def _spectrum(y, n, hi, lo, u, k, node, re, im):
    """u, and per node (sin, 1 − cos, Re c, Im c); how many, Σpq and Pr(N = k) of n coins."""
    single = y.itemsize == 4
    variance, above = 0.0, 0.0
    for start in range(0, u.size, BLOCK):
        found = _prepare(y[start : start + BLOCK], hi, lo, u[start : start + BLOCK])
        variance += found[0]
        above += found[1]
    wide, least, negligible = (6.0, 10.0, 17.0) if single else (8.5, 14.0, 40.0)
    number = 2 * math.ceil((wide * math.sqrt(variance) + (least - 1)) / 2) + 1
    number = np.float64(min(number, n + 1 + n % 2))
    # Turns are multiplied up, by half of ω, whose sine keeps the digits of 1 − cos ω.
    half, turn = math.pi / number, 2 * math.pi * ((above - k) % number) / number
    half_cos, half_sin = math.cos(half), math.sin(half)
    turn_cos, turn_sin = math.cos(turn), math.sin(turn)
    count, cosine, sine = 0, 1.0, 0.0
    while count < MOST and 2 * count < number and variance * 2 * sine * sine <= negligible:
        node[count, 0], node[count, 1] = 2 * sine * cosine, 2 * sine * sine
        cosine, sine = _turned(cosine, sine, half_cos, half_sin)
        count += 1
    re[:count], im[:count] = 1.0, 0.0
    for start in range(0, u.size, BLOCK):
        for h in range(count):
            _multiply(u[start : start + BLOCK], node[h, 0], node[h, 1], re[h], im[h])
    total, cosine, sine = 0.0, 1 / number, 0.0
    for h in range(count):
        # What is left of the phase: e^{iω} of each coin above ½, less e^{iωk}.
        x, y = _folded(re[h], im[h])
        node[h, 2], node[h, 3] = _turned(x, y, cosine, sine)
        total += node[h, 2]
        cosine, sine = _turned(cosine, sine, turn_cos, turn_sin)
        if h == 0:
            cosine, sine = 2 * cosine, 2 * sine  # the others stand for two nodes
    for h in range(count):
        node[h, 2] /= total
        node[h, 3] /= total
    return count, variance, total


@plain
def _shifts(u, node, count, w, r, rho):
    """pq, q − p and (π − p)/pq of one block."""
    _coins(u, w, r)
    rho[:] = 0
    for h in range(count):
        versine = real(w[0], node[h, 1])
        by_r = real(w[0], node[h, 1] * node[h, 2])
        by_1 = real(w[0], node[h, 0] * node[h, 3])
        _shift(w, r, versine, by_r, by_1, rho)


@plain
def _tails(u, node, count, part, out):
    for start in range(0, u.size, BLOCK):
        block = u[start : start + BLOCK]
        w, r, rho = part[0, : block.size], part[1, : block.size], part[2, : block.size]
        _shifts(block, node, count, w, r, rho)
        _finish(block, rho, out[start : start + BLOCK])


@plain
def _covariance(y, u, v, node, count, variance, part, out):
    n, mean = y.size, 0.0
    sums = np.zeros((MOST, 2))
    total = 0.0
    for turn in range(3):  # the mean; what the others add up to; the answer
        for start in range(0, n, BLOCK):
            block = u[start : start + BLOCK]
            m = block.size
            w, r, rho, g = part[0, :m], part[1, :m], part[2, :m], part[3, :m]
            _centred(y[start : start + m], v[start : start + m], mean, g)
            if turn == 0:
                _coins(block, w, r)
                total += _product(w, g)
                continue
            _shifts(block, node, count, w, r, rho)
            if turn == 1:
                for i in range(m):
                    rho[i] *= w[i]
                total += _product(rho, g)
                for h in range(count):
                    found = _others(w, r, g, real(w[0], node[h, 1]))
                    sums[h, 0] -= found[0] * node[h, 1]
                    sums[h, 1] += found[1] * node[h, 0]
                continue
            into = out[start : start + m]
            into[:] = 0
            for h in range(count):
                numbers = (
                    real(w[0], node[h, 1]),
                    real(w[0], node[h, 0]),
                    real(w[0], node[h, 2]),
                    real(w[0], node[h, 3]),
                    real(w[0], sums[h, 0]),
                    real(w[0], sums[h, 1]),
                )
                _pairs(w, r, g, *numbers, into)
            _diagonal(block, w, rho, g, real(w[0], total), into)
        if turn == 0:
            mean = total / variance if variance > 0 else 0.0
            total = 0.0


@plain
def _rows(job, words, ys, his, los, ks, vs, outs):
    n, what = words[N], words[WHAT]
    node, re, im = np.empty((MOST, 4)), np.empty((MOST, LANES)), np.empty((MOST, LANES))
    # Whole vectors only, so that equal logits meet the same instructions.
    full = -(-n // LANES) * LANES
    u, part = np.empty(full, ys.dtype), np.empty((4, BLOCK), ys.dtype)
    room = np.empty((3, full if full > n else 0), ys.dtype)
    first = fetch_add(job + 8 * NEXT, words[CHUNK])
    while first < words[COUNT]:
        last = min(first + words[CHUNK], words[COUNT])
        for i in range(first, last):
            y, v, hi, lo, k = (
                ys[i * n : (i + 1) * n],
                vs[i * n : (i + 1) * n],
                his[i],
                los[i],
                ks[i],
            )
            answer = outs[i : i + 1] if what == LOG_COUNT else outs[i * n : (i + 1) * n]
            if not abs(hi) < math.inf:
                _close(y, hi, k, what, answer)
                continue
            out = answer
            if full > n:
                room[0, :n], room[0, n:], room[1, :n], room[1, n:] = y, -math.inf, v, 0
                y, v, out = room[0], room[1], room[2]
            count, variance, total = _spectrum(y, n, hi, lo, u, np.float64(k), node, re, im)
            if what == LOG_COUNT:
                answer[0] = math.log(total)
                continue
            if what == COVARIANCE:
                _covariance(y, u, v, node, count, variance, part, out)
            else:
                _tails(u, node, count, part, out)
                if what == MARGINALS:
                    _complement(y, hi, lo, out)
            if full > n:
                answer[:] = out[:n]
        fetch_add(job + 8 * DONE, last - first)
        first = fetch_add(job + 8 * NEXT, words[CHUNK])


@plain
def _rows_of(job, number):
    words = carray(pointer(job), OUT + 1, np.int64)
    rows, entries = words[COUNT], words[COUNT] * words[N]
    _rows(
        job,
        words,
        carray(pointer(words[Y]), entries, number),
        carray(pointer(words[HI]), rows, number),
        carray(pointer(words[LO]), rows, number),
        carray(pointer(words[K]), rows, number),
        carray(pointer(words[V]), entries, number),
        carray(pointer(words[OUT]), rows if words[WHAT] == LOG_COUNT else entries, number),
    )


def serve_single(job):
    """Take rows of float32 until there are none."""
    _rows_of(job, np.float32)


def serve_double(job):
    """Take rows of float64 until there are none."""
    _rows_of(job, np.float64)


def wait(job):
    """Until the rows that other threads have taken are done too."""
    words = carray(pointer(job), OUT + 1, np.int64)
    while fetch(job + 8 * DONE) < words[COUNT]:
        pass
