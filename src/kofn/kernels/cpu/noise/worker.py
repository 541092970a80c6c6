"""The work of one thread: sums over its rows at each node, and sums over the nodes of each row.

Each function here makes, for a noise's `kind` and a `number` (np.float32 or np.float64), one
function that takes rows until there are none. The hazards of one node stay in memory until the sums
over the row say how much the node counts: so each is computed once, and memory stays O(n). Φ of a
row is multiplied up in float64, where it is at least e^−74 at every node; that takes a loop of its
own, because in one with float32 numbers vectors would be half as wide.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import carray, njit

from kofn.kernels.cpu.noise.formulas import cdf_of, tail_and_hazard
from kofn.kernels.cpu.rows.loops import BLOCK, OPTIONS
from kofn.kernels.cpu.runtime.intrinsics import pointer
from kofn.kernels.cpu.runtime.shares import COUNT, joined, report, take, wait
from kofn.kernels.cpu.runtime.vector_math import inline, log, widest_vectors

# A job, the integers that every thread on it reads: those of shares.py first. Numbers of nodes
# are (nodes, rows), those of entries (rows, n).
N, NODES, Y, AT, MASS, TOTAL, V, OUT = range(4, 12)
WORDS = 12

Worker = Callable[[Any, Any, Any], None]


@inline
def _away(at, y):
    """m − y, apart from the sums, which may be taken in any order."""
    return at - y


@njit(nogil=True, **OPTIONS)
def _product(tails):
    """Π Φ of a row."""
    widest_vectors()
    whole = 1.0
    for i in range(tails.size):
        whole *= cdf_of(tails[i])
    return whole


@njit(nogil=True, **OPTIONS)
def _sum_of_logs(tails):
    """Σ log Φ of a row whose Π Φ underflows, as where the search for nodes begins."""
    widest_vectors()
    whole, least = 0.0, 1e-300
    for i in range(tails.size):
        cdf = cdf_of(tails[i])
        some = cdf > least
        whole += log(cdf if some else least)
    return whole


def logs(kind: int, number: Any) -> Worker:
    """Σ log Φ to TOTAL."""
    infinity = number(math.inf)

    def work(job, own, leads):
        widest_vectors()
        if not joined(job, leads):
            return
        words = carray(pointer(job), WORDS, np.int64)
        n, nodes, rows = words[N], words[NODES], words[COUNT]
        ys = carray(pointer(words[Y]), rows * n, number)
        ats = carray(pointer(words[AT]), nodes * rows, number)
        found = carray(pointer(words[TOTAL]), nodes * rows, number)
        zero, one, tails = number(0), number(1), carray(pointer(own), n, number)
        first, last = take(job)
        while first < last:
            for r in range(first, last):
                row = ys[r * n : r * n + n]
                for node in range(r, nodes * rows, rows):
                    at = ats[node]
                    for i in range(n):
                        y = row[i]
                        some = y != -infinity
                        tail, _ = tail_and_hazard(kind, _away(at, y if some else zero))
                        tails[i] = tail if some else one
                    whole = _product(tails)
                    usual = whole > 1e-290
                    found[node] = math.log(whole) if usual else _sum_of_logs(tails)
            report(job, last - first)
            first, last = take(job)
        if leads:
            wait(job)

    return work


def spread(kind: int, number: Any) -> Worker:
    """Σ log Φ to V, Σ φ/Φ to TOTAL, and Σ of MASS·ΠΦ·φ/Φ over the nodes to OUT."""
    infinity = number(math.inf)

    def work(job, own, leads):
        widest_vectors()
        if not joined(job, leads):
            return
        words = carray(pointer(job), WORDS, np.int64)
        n, nodes, rows = words[N], words[NODES], words[COUNT]
        ys = carray(pointer(words[Y]), rows * n, number)
        outs = carray(pointer(words[OUT]), rows * n, number)
        ats = carray(pointer(words[AT]), nodes * rows, number)
        masses = carray(pointer(words[MASS]), nodes * rows, number)
        totals = carray(pointer(words[TOTAL]), nodes * rows, number)
        found = carray(pointer(words[V]), nodes * rows, number)
        zero, one = number(0), number(1)
        kept = carray(pointer(own), n, number)
        tails = carray(pointer(own + 8 * n), n, number)
        first, last = take(job)
        while first < last:
            for r in range(first, last):
                row, out = ys[r * n : r * n + n], outs[r * n : r * n + n]
                out[:] = zero
                for node in range(r, nodes * rows, rows):
                    at, total = ats[node], 0.0
                    for start in range(0, n, BLOCK):
                        stop, part = start + BLOCK, zero
                        block, keep, below = row[start:stop], kept[start:stop], tails[start:stop]
                        for i in range(block.size):
                            y = block[i]
                            some = y != -infinity
                            tail, h = tail_and_hazard(kind, _away(at, y if some else zero))
                            h = h if some else zero
                            below[i] = tail if some else one
                            keep[i] = h
                            part += h
                        total += part
                    whole = _product(tails)
                    found[node] = math.log(whole) if whole > 0 else -math.inf
                    totals[node] = total
                    mass = number(masses[node] * whole)
                    for i in range(n):
                        out[i] += mass * kept[i]
            report(job, last - first)
            first, last = take(job)
        if leads:
            wait(job)

    return work


def product(kind: int, number: Any) -> Worker:
    """Σ over nodes of MASS·h(v − Σhv/TOTAL) to OUT, h = φ/Φ."""
    infinity = number(math.inf)

    def work(job, own, leads):
        widest_vectors()
        if not joined(job, leads):
            return
        words = carray(pointer(job), WORDS, np.int64)
        n, nodes, rows = words[N], words[NODES], words[COUNT]
        ys = carray(pointer(words[Y]), rows * n, number)
        outs = carray(pointer(words[OUT]), rows * n, number)
        vs = carray(pointer(words[V]), rows * n, number)
        ats = carray(pointer(words[AT]), nodes * rows, number)
        masses = carray(pointer(words[MASS]), nodes * rows, number)
        totals = carray(pointer(words[TOTAL]), nodes * rows, number)
        zero, kept = number(0), carray(pointer(own), n, number)
        first, last = take(job)
        while first < last:
            for r in range(first, last):
                row, out, v = ys[r * n : r * n + n], outs[r * n : r * n + n], vs[r * n : r * n + n]
                out[:] = zero
                for node in range(r, nodes * rows, rows):
                    at, whole = ats[node], 0.0
                    for start in range(0, n, BLOCK):
                        stop = start + BLOCK
                        block, keep, of_v = row[start:stop], kept[start:stop], v[start:stop]
                        part = zero
                        for i in range(block.size):
                            y = block[i]
                            some = y != -infinity
                            _, h = tail_and_hazard(kind, _away(at, y if some else zero))
                            h = h if some else zero
                            keep[i] = h
                            part += h * of_v[i]
                        whole += part
                    mean = number(whole / totals[node] if totals[node] > zero else 0.0)
                    mass = masses[node]
                    for i in range(n):
                        out[i] += mass * (kept[i] * (v[i] - mean))
            report(job, last - first)
            first, last = take(job)
        if leads:
            wait(job)

    return work
