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
    LANES,
    LO,
    MOST,
    NODE,
    OUT,
    PAIRS,
    PARTS,
    RE,
    TABLE,
    TOGETHER,
    WHAT,
    K,
    N,
    V,
    Y,
    padded,
)
from kofn.kernels.cpu.subsets.loops import (
    centred,
    complement,
    diagonal,
    finish,
    folded,
    fours,
    moments,
    multiply,
    multiply_fours,
    multiply_nodes,
    others,
    pairs,
    prepare,
    product,
    shifts,
)

_padded = plain(padded)


@plain
def _turned(x, y, cosine, sine):
    return x * cosine - y * sine, x * sine + y * cosine


@plain
def _products(u, node, count, re, im):
    """Re and Im of Π t at each node."""
    re[:count], im[:count] = 1.0, 0.0
    for start in range(0, u.size, BLOCK):
        for h in range(count):
            multiply(u[start : start + BLOCK], node[h, 0], node[h, 1], re[h], im[h])
    for h in range(count):
        node[h, 2], node[h, 3] = folded(re[h], im[h])


@plain
def _products_of_short(u, node, count, table):
    for first in range(0, count, TOGETHER):
        some = min(count - first, TOGETHER)
        for h in range(TOGETHER):
            known = h < some
            table[h], table[TOGETHER + h] = 1.0, 0.0
            table[2 * TOGETHER + h], table[3 * TOGETHER + h] = 1.0, 0.0
            table[4 * TOGETHER + h] = node[first + h, 0] if known else 0.0
            table[5 * TOGETHER + h] = node[first + h, 1] if known else 0.0
        multiply_nodes(u, table)
        for h in range(some):
            a, b = table[h], table[TOGETHER + h]
            x, y = table[2 * TOGETHER + h], table[3 * TOGETHER + h]
            node[first + h, 2], node[first + h, 3] = a * x - b * y, a * y + b * x


@plain
def _products_by_fours(u, node, count, table, terms):
    """The same of float32 coins: polynomials in float64 lose none of their digits."""
    fours(u, terms)
    for first in range(0, count, TOGETHER):
        some = min(count - first, TOGETHER)
        for h in range(TOGETHER):
            known = h < some
            table[h], table[TOGETHER + h] = 1.0, 0.0
            table[2 * TOGETHER + h] = node[first + h, 0] if known else 0.0
            table[3 * TOGETHER + h] = node[first + h, 1] if known else 0.0
        multiply_fours(terms, table)
        for h in range(some):
            node[first + h, 2], node[first + h, 3] = table[h], table[TOGETHER + h]


@plain
def _spectrum(y, n, hi, lo, u, k, node, re, im, table, terms):
    """u, and per node (sin, 1 − cos, Re c, Im c); how many, Σpq and Pr(N = k) of n coins."""
    single = y.itemsize == 4
    variance, above = 0.0, 0.0
    for start in range(0, u.size, BLOCK):
        moments = prepare(y[start : start + BLOCK], hi, lo, u[start : start + BLOCK])
        variance += moments[0]
        above += moments[1]
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
    if n <= BLOCK and single:
        _products_by_fours(u, node, count, table, terms)
    elif n <= BLOCK:
        _products_of_short(u, node, count, table)
    else:
        _products(u, node, count, re, im)
    total, cosine, sine = 0.0, 1 / number, 0.0
    for h in range(count):
        # The rest of the phase: e^{iω} of each coin above ½, less e^{iωk}.
        node[h, 2], node[h, 3] = _turned(node[h, 2], node[h, 3], cosine, sine)
        total += node[h, 2]
        cosine, sine = _turned(cosine, sine, turn_cos, turn_sin)
        if h == 0:
            cosine, sine = 2 * cosine, 2 * sine  # the others stand for two nodes
    for h in range(count):
        node[h, 2] /= total
        node[h, 3] /= total
    return count, variance, total


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
def _shifts(u, node, count, w, r, rho):
    """pq, q − p and (π − p)/pq of one block."""
    moments(u, w, r)
    shifts(w, r, node, count, rho)


@plain
def _tails(u, node, count, part, out):
    for start in range(0, u.size, BLOCK):
        block = u[start : start + BLOCK]
        w, r, rho = part[0, : block.size], part[1, : block.size], part[2, : block.size]
        _shifts(block, node, count, w, r, rho)
        finish(block, rho, out[start : start + BLOCK])


@plain
def _covariance(y, u, v, node, count, variance, part, sums, out):
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
            _shifts(block, node, count, w, r, rho)
            if turn == 1:
                for i in range(m):
                    rho[i] *= w[i]
                total += product(rho, g)
                for h in range(count):
                    terms = others(w, r, g, real(w[0], node[h, 1]))
                    sums[h, 0] -= terms[0] * node[h, 1]
                    sums[h, 1] += terms[1] * node[h, 0]
                continue
            into = out[start : start + m]
            into[:] = 0
            for h in range(count):
                pairs(w, r, g, node[h], sums[h], into)
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
        node = carray(pointer(own + 8 * NODE), (MOST, 4), np.float64)
        re = carray(pointer(own + 8 * RE), (MOST, LANES), np.float64)
        im = carray(pointer(own + 8 * IM), (MOST, LANES), np.float64)
        table = carray(pointer(own + 8 * TABLE), 6 * TOGETHER, np.float64)
        sums = carray(pointer(own + 8 * PAIRS), (MOST, 2), np.float64)
        part = carray(pointer(own + 8 * PARTS), (4, BLOCK), number)
        # Whole vectors only, so that equal logits meet the same instructions.
        full = _padded(n)
        terms = carray(pointer(own + 8 * PARTS), 2 * min(full, BLOCK), np.float64)
        room = carray(pointer(own + 8 * ENTRIES), (4, full), number)
        u = room[3]
        for i in range(first, last):
            y, v, hi, lo = ys[i * n : (i + 1) * n], vs[i * n : (i + 1) * n], his[i], los[i]
            answer = outs[i * per_row : (i + 1) * per_row]
            if not abs(hi) < math.inf:
                _close(y, hi, ks[i], what, answer)
                continue
            out = answer
            if full > n:
                _copy(y, -math.inf, room[0])
                _copy(v, 0.0, room[1])
                y, v, out = room[0], room[1], room[2]
            k = np.float64(ks[i])
            count, variance, total = _spectrum(y, n, hi, lo, u, k, node, re, im, table, terms)
            if what == LOG_COUNT:
                answer[0] = math.log(total)
                continue
            if what == COVARIANCE:
                _covariance(y, u, v, node, count, variance, part, sums, out)
            else:
                _tails(u, node, count, part, out)
                if what == MARGINALS:
                    complement(y, hi, lo, out)
            if full > n:
                _copy(out[:n], 0.0, answer)

    return served(work)
