"""The sums of `subsets/quadrature.py`, row by row, over rows that stay in cache.

loops.py has the loops. Rows are dealt out to threads; no answer depends on their number.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import carray

from kofn.kernels.contract import COVARIANCE, LOG_COUNT, MARGINALS
from kofn.kernels.cpu.rows.formulas import deleted
from kofn.kernels.cpu.runtime.intrinsics import pointer
from kofn.kernels.cpu.runtime.shares import COUNT, plain, served
from kofn.kernels.cpu.runtime.vector_math import real
from kofn.kernels.cpu.subsets.layout import (
    BLOCK,
    ENTRIES,
    HI,
    IM,
    IMAG,
    LANES,
    LO,
    MOST,
    NODE,
    OUT,
    PAIRS,
    PARTS,
    PLACED,
    RE,
    REAL,
    SIN,
    TABLE,
    TOGETHER,
    VERSINE,
    WHAT,
    K,
    N,
    V,
    Y,
    padded,
)
from kofn.kernels.cpu.subsets.loops import (
    answer,
    centred,
    diagonal,
    folded,
    fours,
    moments,
    multiply,
    multiply_fours,
    multiply_nodes,
    others,
    pairs,
    place,
    prepare,
    product,
    settle,
    shifts,
)

_padded = plain(padded)


@plain
def _multiply(node, h, x, y):
    a, b = node[REAL, h], node[IMAG, h]
    node[REAL, h], node[IMAG, h] = a * x - b * y, a * y + b * x


@plain
def _products(u, node, count, re, im):
    """Multiply what each node counts by Π t there."""
    re[:count], im[:count] = 1.0, 0.0
    for start in range(0, u.size, BLOCK):
        for h in range(count):
            part = u[start : start + BLOCK]
            multiply(part, node[SIN, h], node[VERSINE, h], re[h], im[h])
    for h in range(count):
        x, y = folded(re[h], im[h])
        _multiply(node, h, x, y)


@plain
def _products_of_short(u, node, count, table):
    for first in range(0, count, TOGETHER):
        for h in range(TOGETHER):
            table[h], table[TOGETHER + h] = node[REAL, first + h], node[IMAG, first + h]
            table[2 * TOGETHER + h], table[3 * TOGETHER + h] = 1.0, 0.0
            table[4 * TOGETHER + h] = node[SIN, first + h]
            table[5 * TOGETHER + h] = node[VERSINE, first + h]
        multiply_nodes(u, table)
        for h in range(TOGETHER):
            node[REAL, first + h], node[IMAG, first + h] = table[h], table[TOGETHER + h]
            _multiply(node, first + h, table[2 * TOGETHER + h], table[3 * TOGETHER + h])


@plain
def _products_by_fours(u, node, count, terms):
    """The same of float32 coins: polynomials in float64 lose none of their digits."""
    fours(u, terms)
    for first in range(0, count, TOGETHER):
        multiply_fours(terms, node, first)


@plain
def _spectrum(y, n, hi, lo, u, k, node, re, im, table, terms, factors):
    """u, and the nodes; how many, Σpq and Pr(N = k) of n coins."""
    single = y.itemsize == 4
    variance, above = 0.0, 0.0
    for start in range(0, u.size, BLOCK):
        moments = prepare(y[start : start + BLOCK], hi, lo, u[start : start + BLOCK])
        variance += moments[0]
        above += moments[1]
    wide, least, negligible = (6.0, 10.0, 17.0) if single else (8.5, 14.0, 40.0)
    number = 2 * math.ceil((wide * math.sqrt(variance) + (least - 1)) / 2) + 1
    number = np.float64(min(number, n + 1 + n % 2))
    # The phase of each coin above ½, e^{iω}, less e^{iωk}.
    count = place(node, number, above - k, variance, negligible)
    if n <= BLOCK and single:
        _products_by_fours(u, node, count, terms)
    elif n <= BLOCK:
        _products_of_short(u, node, count, table)
    else:
        _products(u, node, count, re, im)
    return count, variance, settle(node, count, factors)


@plain
def _close(y, hi, k, what, out):
    """A row without a choice to make, or with a NaN, as conditional_bernoulli.py answers it."""
    out[:] = 0
    if what == COVARIANCE and hi != hi:
        for i in range(y.size):
            out[i] = 0.0 if deleted(y[i]) else hi
    if what != MARGINALS:
        return
    top = 0
    for i in range(y.size):
        top += 1 if y[i] == math.inf else 0
    first = 1.0 if hi < 0 or top <= k else (hi if hi != hi else k / top)
    others = hi if hi != hi else (0.0 if hi > 0 else 1.0)
    for i in range(y.size):
        if not deleted(y[i]):
            out[i] = first if y[i] == math.inf else others


@plain
def _shifts(u, factors, count, w, r, rho):
    """pq, q − p and (π − p)/pq of one block."""
    moments(u, w, r)
    shifts(w, r, factors, count, rho)


@plain
def _covariance(y, u, v, node, factors, count, variance, part, sums, out):
    n, mean = y.size, 0.0
    for h in range(count):
        sums[h, 0], sums[h, 1] = 0.0, 0.0
    total = 0.0
    for turn in range(3):  # the mean; what the others add up to; the answer
        for start in range(0, n, BLOCK):
            block = u[start : start + BLOCK]
            m = block.size
            w, r, rho, g = part[0, :m], part[1, :m], part[2, :m], part[3, :m]
            centred(y[start : start + m], v[start : start + m], mean, g)
            if turn == 0:
                moments(block, w, r)
                total += product(w, g)
                continue
            _shifts(block, factors, count, w, r, rho)
            if turn == 1:
                for i in range(m):
                    rho[i] *= w[i]
                total += product(rho, g)
                for h in range(count):
                    terms = others(w, r, g, real(w[0], node[VERSINE, h]))
                    sums[h, 0] -= terms[0] * node[VERSINE, h]
                    sums[h, 1] += terms[1] * node[SIN, h]
                continue
            into = out[start : start + m]
            into[:] = 0
            for h in range(count):
                pairs(w, r, g, node, h, sums[h], into)
            diagonal(block, w, rho, g, real(w[0], total), into)
        if turn == 0:
            mean = total / variance if variance > 0 else 0.0
            total = 0.0


@plain
def _copy(source, rest, into):
    """An assignment of a whole array would make room for a copy in between."""
    for i in range(into.size):
        into[i] = source[i] if i < source.size else rest


def serve(kind: int, number: Any) -> Any:
    """The work of a thread: the sums of rows."""

    @plain
    def work(job, own, first, last, _):
        words = carray(pointer(job), OUT + 1, np.int64)
        n, what, rows = words[N], words[WHAT], words[COUNT]
        per_row = 1 if what == LOG_COUNT else n
        ys = carray(pointer(words[Y]), rows * n, number)
        vs = carray(pointer(words[V]), rows * n, number)
        his = carray(pointer(words[HI]), rows, number)
        los = carray(pointer(words[LO]), rows, number)
        ks = carray(pointer(words[K]), rows, number)
        outs = carray(pointer(words[OUT]), rows * per_row, number)
        node = carray(pointer(own + 8 * NODE), (4, PLACED), np.float64)
        re = carray(pointer(own + 8 * RE), (MOST, LANES), np.float64)
        im = carray(pointer(own + 8 * IM), (MOST, LANES), np.float64)
        table = carray(pointer(own + 8 * TABLE), 6 * TOGETHER, np.float64)
        factors = carray(pointer(own + 8 * TABLE), (3, PLACED), number)  # after the table
        sums = carray(pointer(own + 8 * PAIRS), (MOST, 2), np.float64)
        part = carray(pointer(own + 8 * PARTS), (4, BLOCK), number)
        # Whole vectors only, so that equal logits meet the same instructions.
        full = _padded(n)
        terms = carray(pointer(own + 8 * PARTS), 2 * min(full, BLOCK), np.float64)
        room = carray(pointer(own + 8 * ENTRIES), (4, full), number)
        u = room[3]
        for i in range(first, last):
            y, v, hi, lo = ys[i * n : (i + 1) * n], vs[i * n : (i + 1) * n], his[i], los[i]
            into = outs[i * per_row : (i + 1) * per_row]
            if not abs(hi) < math.inf:
                _close(y, hi, ks[i], what, into)
                continue
            out = into
            if full > n:
                _copy(y, -math.inf, room[0])
                _copy(v, 0.0, room[1])
                y, v, out = room[0], room[1], room[2]
            k = np.float64(ks[i])
            count, variance, total = _spectrum(
                y, n, hi, lo, u, k, node, re, im, table, terms, factors
            )
            if what == LOG_COUNT:
                into[0] = math.log(total)
                continue
            if what == COVARIANCE:
                _covariance(y, u, v, node, factors, count, variance, part, sums, out)
            else:
                answer(u, factors, count, what == MARGINALS, out)
            if full > n:
                _copy(out[:n], 0.0, into)

    return served(work)
