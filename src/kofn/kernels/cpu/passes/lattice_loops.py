"""The largest of scores with smooth noise, by sums on a lattice: what one thread does with rows.

Both sums of maps/argmax/quadrature.py, over entries and over nodes, are of functions of m − y that
are the same for all rows. With m and y on one lattice they are tables, and no entry needs an
exponential: a row's scores become weights of the points of the lattice, by the transpose of
interpolation; L and H are sums over points; and p is interpolated, for it is one smooth function of
y. The trapezoidal rule of e^L, which is smooth and ends far below and above, converges faster than
any power of the step. All of it is in float64. (Tests: test_kernels_lattice.py.)
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import carray

from kofn.kernels.contract import KINDS
from kofn.kernels.cpu.passes.layout import BINS, MOMENTS, TABLE, WIDTH
from kofn.kernels.cpu.passes.noise_loops import tail_and_hazard
from kofn.kernels.cpu.passes.polynomials import (
    POINTS,
    add_powers,
    at_point,
    polynomial,
    through_points,
)
from kofn.kernels.cpu.rows.formulas import deleted
from kofn.kernels.cpu.rows.frame import loop
from kofn.kernels.cpu.runtime.intrinsics import pointer
from kofn.kernels.cpu.runtime.shares import COUNT, served
from kofn.kernels.cpu.runtime.vector_math import (
    ordered,
    real,
    unordered,
    widest_vectors,
)
from kofn.kernels.cpu.runtime.words import exponential, log, log_rest

# A job, the integers that every thread on it reads: shares.py's first.
N, X, T, V, P, OUT, IN_T = range(4, 11)
WORDS = 11
FOUR = 4  # nodes at once, so that what is common to them is loaded once
ABOVE = POINTS // 2 - 1  # points above the first bin
LEAST_LOG, RARE, FAINT = -90.0, 1e-9, 1e-10


@loop
def _tables(kind, step, first, logs, hazards):
    """Compute log Φ and φ/Φ at all points."""
    widest_vectors()
    for i in range(TABLE):
        tail, hazards[i] = tail_and_hazard(kind, (i - first - ABOVE) * step)
        logs[i] = log_rest(-tail) if tail < 0.0 else log(tail)


@loop
def _greatest(row):
    """The greatest score; a NaN, if there is one that is positive."""
    widest_vectors()
    key = ordered(row[0])
    for i in range(row.size):
        key = max(key, ordered(row[i]))
    return unordered(key, row[0])


@loop
def _places(row, chances, some, top, t, per_step, bins, places):
    """Write where entries are on the lattice, −1 for those that are masked or without a chance.

    The lowest bin that counts is returned, or −1 if there is a NaN.
    """
    widest_vectors()
    zero, nowhere = real(top, 0.0), real(top, -1.0)
    lowest, known = 0, True
    for i in range(row.size):
        idle = deleted(row[i]) | (some & (chances[i] == zero))
        place = nowhere if idle else (top - row[i]) / t * per_step
        known &= place == place
        places[i] = place
        lowest = max(lowest, np.int32(place) if place < bins else np.int32(0))
    return lowest if known else -1


@loop
def _sums(weights, table, at, stride, size):
    """Σ over points at four nodes."""
    widest_vectors()
    a, b, c, d = 0.0, 0.0, 0.0, 0.0
    for i in range(size):
        w, place = weights[i], at + i
        a += w * table[place]
        b += w * table[place + stride]
        c += w * table[place + 2 * stride]
        d += w * table[place + 3 * stride]
    return a, b, c, d


@loop
def _spread(values, table, at, stride, size, a, b, c, d):
    """Add what four nodes give to points."""
    widest_vectors()
    for i in range(size):
        place = at + i
        near = a * table[place] + b * table[place + stride]
        values[i] += near + (c * table[place + 2 * stride] + d * table[place + 3 * stride])


@loop
def _two_sums(weights, others, table, at, stride, size):
    """Σ over points at four nodes, for two kinds of weights."""
    widest_vectors()
    a, b, c, d, e, f, g, h = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for i in range(size):
        u, v, place = weights[i], others[i], at + i
        first, second = table[place], table[place + stride]
        third, fourth = table[place + 2 * stride], table[place + 3 * stride]
        a, b, c, d = a + u * first, b + u * second, c + u * third, d + u * fourth
        e, f, g, h = e + v * first, f + v * second, g + v * third, h + v * fourth
    return (a, b, c, d), (e, f, g, h)


@loop
def _spread_two(values, others, table, at, stride, size, mass, moved):
    """Add what four nodes give to points, of two kinds."""
    widest_vectors()
    a, b, c, d = mass
    e, f, g, h = moved
    for i in range(size):
        place = at + i
        first, second = table[place], table[place + stride]
        third, fourth = table[place + 2 * stride], table[place + 3 * stride]
        values[i] += (a * first + b * second) + (c * third + d * fourth)
        others[i] += (e * first + f * second) + (g * third + h * fourth)


@loop
def _to_points(moments, at, weights, size):
    for i in range(size):
        weights[i] = at_point(at + 64 * i)
    moments[: POINTS * (size + POINTS - 1)] = 0.0


@loop
def _to_bins(at, values, values_at, size):
    """Leave the coefficients of each bin's polynomial; values become 0."""
    for i in range(size - POINTS + 1):
        through_points(at + 64 * i, values_at + 8 * i)
    values[:size] = 0.0


def lattice(kind: int, number: Any) -> Any:
    """p to OUT; or, if there is V, its cotangents to OUT and IN_T, of p in P."""
    step, low, reach, few, some_, many = KINDS[kind].kind.lattice or (1.0, 1.0, 1.0, 0, 0, 0)
    per_step, bins, first = number(1 / step), int(reach / step), int(low / step)
    assert bins <= BINS, "a row has room for so many bins"

    @loop
    def work(job, own, begin, end, _):
        widest_vectors()
        words, made = carray(pointer(job), WORDS, np.int64), carray(pointer(own), 1, np.float64)
        n, rows, back, some = words[N], words[COUNT], words[V] != 0, words[P] != 0
        xs = carray(pointer(words[X]), rows * n, number)
        ts = carray(pointer(words[T]), rows, number)
        vs = carray(pointer(words[V if back else X]), rows * n, number)
        ps = carray(pointer(words[P if some else X]), rows * n, number)
        outs = carray(pointer(words[OUT]), rows * n, number)
        in_ts = carray(pointer(words[IN_T if back else T]), rows, number)
        logs = carray(pointer(own + 64), TABLE, np.float64)
        hazards = carray(pointer(own + 64 + 8 * TABLE), TABLE, np.float64)
        bins_at = own + 64 + 16 * TABLE
        others_at = bins_at + 8 * MOMENTS
        moments = carray(pointer(bins_at), MOMENTS, np.float64)
        others = carray(pointer(others_at), MOMENTS, np.float64)
        points_at = others_at + 8 * MOMENTS
        weights = carray(pointer(points_at), WIDTH, np.float64)
        weighed = carray(pointer(points_at + 8 * WIDTH), WIDTH, np.float64)
        values = carray(pointer(points_at + 16 * WIDTH), WIDTH, np.float64)
        slopes = carray(pointer(points_at + 24 * WIDTH), WIDTH, np.float64)
        places = carray(pointer(points_at + 32 * WIDTH), n, number)
        if made[0] == 0.0:
            _tables(kind, step, first, logs, hazards)
            made[0] = 1.0
        last, stride = first, 8 if n <= few else 4 if n <= some_ else 2 if n <= many else 1
        while last < TABLE - WIDTH - FOUR and -logs[last + ABOVE] * n > RARE:
            last += 1
        nan, zero = number(math.nan), number(0.0)
        for r in range(begin, end):
            row, out, v = xs[r * n : r * n + n], outs[r * n : r * n + n], vs[r * n : r * n + n]
            p, t = ps[r * n : r * n + n], ts[r]
            top = _greatest(row)
            depth = _places(row, p, some, top, t, per_step, number(bins), places)
            if depth < 0:
                for i in range(n):
                    out[i] = zero if places[i] < zero else nan
                if back:
                    in_ts[r] = nan
                continue
            size, origin = depth + POINTS, zero
            if back:
                for i in range(n):
                    if places[i] == zero:
                        origin = v[i]
                        break
            for i in range(n):
                place = places[i]
                if place >= zero and place < bins:
                    at = np.int64(place)
                    x = np.float64(place) - at - 0.5
                    at = 64 * (at + POINTS - 1)
                    add_powers(bins_at + at, x, 1.0)
                    if back:
                        add_powers(others_at + at, x, np.float64(v[i]) - origin)
            _to_points(moments, bins_at, weights, size)
            if back:
                _to_points(others, others_at, weighed, size)
            node, total, log_mass, share, most = last - 3 * stride, 0.0, 0.0, 0.0, 0.0
            # Further below, the lowest entry has next to no chance, and the others have less.
            while node >= 0 and log_mass > LEAST_LOG:
                a, b, c, d = _sums(weights, logs, node, stride, size)
                log_mass = a
                a, b, c, d = exponential(a), exponential(b), exponential(c), exponential(d)
                share = a * hazards[node + depth + ABOVE]
                most = max(most, share)
                if back:
                    each, moved = _two_sums(weights, weighed, hazards, node, stride, size)
                    moved = a * moved[0], b * moved[1], c * moved[2], d * moved[3]
                    mass = a * each[0], b * each[1], c * each[2], d * each[3]
                    total += (mass[0] + mass[1]) + (mass[2] + mass[3])
                    _spread_two(values, slopes, hazards, node, stride, size, mass, moved)
                else:
                    _spread(values, hazards, node, stride, size, a, b, c, d)
                node -= FOUR * stride if share >= FAINT * most else TABLE
            _to_bins(bins_at, values, points_at + 16 * WIDTH, size)
            if back:
                _to_bins(others_at, slopes, points_at + 24 * WIDTH, size)
            whole, lever = 0.0, 0.0
            for i in range(n):
                place, found = places[i], 0.0
                if place >= zero and place < bins:
                    at = np.int64(place)
                    x = np.float64(place) - at - 0.5
                    found = polynomial(bins_at + 64 * at, x)
                    if back:
                        change = np.float64(v[i]) - origin
                        found = change * found - polynomial(others_at + 64 * at, x)
                        lever += found * place
                    else:
                        found = max(found, 0.0)
                whole += found
                out[i] = number(found)
            whole = total * t if back else whole
            scale = 1.0 / whole if whole > 0.0 else 0.0
            for i in range(n):
                out[i] *= number(scale)
            moments[: POINTS * size] = 0.0
            if back:
                others[: POINTS * size] = 0.0
                in_ts[r] = number(lever * scale * step)

    return served(work)
