"""Sums over rows of scores with noise at each node, and sums over the nodes of each row.

Each maker below has, for a noise's `kind` and a `number` (np.float32 or np.float64), the work of a
thread. The hazards of one node stay in memory until the sums over the row say how much the node
counts: so each is computed once, and memory stays O(n). Φ of a row is multiplied up in float64,
where it is at least e^−74 at every node; that takes a loop of its own, because in one with float32
numbers vectors would be half as wide.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import carray

from kofn.kernels.cpu.rows.frame import BLOCK, loop
from kofn.kernels.cpu.runtime.intrinsics import pointer
from kofn.kernels.cpu.runtime.shares import COUNT, served
from kofn.kernels.cpu.runtime.vector_math import (
    inline,
    log,
    real,
    widest_vectors,
)
from kofn.kernels.cpu.runtime.words import OF_ENTRIES, by_kind

# A job, the integers that every thread on it reads: shares.py's first. Numbers of nodes
# are (nodes, rows), numbers of entries (rows, n).
N, NODES, Y, AT, MASS, TOTAL, V, OUT = range(4, 12)
WORDS = 12


noise = by_kind(OF_ENTRIES, "noise", "z")


@inline
def tail_and_hazard(kind, z):
    """(Φ, or Φ − 1 where z > 0; φ/Φ) of the noise, which `links/` defines; 0 where Φ is subnormal.

    The first is the smaller tail: 1 − t would lose the sum of many small t.
    """
    t, upper, h = noise(kind, z)
    known = z == z
    signed = -max(t, real(z, 1e-37)) if upper else t  # the sign of 0 would be lost
    return signed if known else z, h if known else z


@inline
def cdf_of(tail):
    """Φ, in float64, from the smaller tail of `tail_and_hazard`."""
    wide = real(1.0, tail)
    return 1.0 + wide if wide < 0.0 else wide


@inline
def _margin(at, y):
    """m − y, apart from the sums, which may be taken in any order."""
    return at - y


@loop
def _product(tails):
    """Π Φ of a row."""
    widest_vectors()
    whole = 1.0
    for i in range(tails.size):
        whole *= cdf_of(tails[i])
    return whole


@loop
def _sum_of_logs(tails):
    """Σ log Φ of a row whose Π Φ underflows, as where the search for nodes begins."""
    widest_vectors()
    whole, least = 0.0, 1e-300
    for i in range(tails.size):
        cdf = cdf_of(tails[i])
        some = cdf > least
        whole += log(cdf if some else least)
    return whole


def logs(kind: int, number: Any) -> Any:
    """Σ log Φ to TOTAL."""
    infinity = number(math.inf)

    @loop
    def work(job, own, first, last, _):
        widest_vectors()
        words = carray(pointer(job), WORDS, np.int64)
        n, nodes, rows = words[N], words[NODES], words[COUNT]
        ys = carray(pointer(words[Y]), rows * n, number)
        ats = carray(pointer(words[AT]), nodes * rows, number)
        sums = carray(pointer(words[TOTAL]), nodes * rows, number)
        zero, one, tails = number(0), number(1), carray(pointer(own), n, number)
        for r in range(first, last):
            row = ys[r * n : r * n + n]
            for node in range(r, nodes * rows, rows):
                at = ats[node]
                for i in range(n):
                    y = row[i]
                    some = y != -infinity
                    tail, _ = tail_and_hazard(kind, _margin(at, y if some else zero))
                    tails[i] = tail if some else one
                whole = _product(tails)
                usual = whole > 1e-290
                sums[node] = math.log(whole) if usual else _sum_of_logs(tails)

    return served(work)


def spread(kind: int, number: Any) -> Any:
    """Σ log Φ to V, Σ φ/Φ to TOTAL, and Σ of MASS·ΠΦ·φ/Φ over the nodes to OUT."""
    infinity = number(math.inf)

    @loop
    def work(job, own, first, last, _):
        widest_vectors()
        words = carray(pointer(job), WORDS, np.int64)
        n, nodes, rows = words[N], words[NODES], words[COUNT]
        ys = carray(pointer(words[Y]), rows * n, number)
        outs = carray(pointer(words[OUT]), rows * n, number)
        ats = carray(pointer(words[AT]), nodes * rows, number)
        masses = carray(pointer(words[MASS]), nodes * rows, number)
        totals = carray(pointer(words[TOTAL]), nodes * rows, number)
        logs_of = carray(pointer(words[V]), nodes * rows, number)
        zero, one = number(0), number(1)
        kept = carray(pointer(own), n, number)
        tails = carray(pointer(own + 8 * n), n, number)
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
                        tail, h = tail_and_hazard(kind, _margin(at, y if some else zero))
                        h = h if some else zero
                        below[i] = tail if some else one
                        keep[i] = h
                        part += h
                    total += part
                whole = _product(tails)
                logs_of[node] = math.log(whole) if whole > 0 else -math.inf
                totals[node] = total
                mass = number(masses[node] * whole)
                for i in range(n):
                    out[i] += mass * kept[i]

    return served(work)


def product(kind: int, number: Any) -> Any:
    """Σ over nodes of MASS·h(v − Σhv/TOTAL) to OUT, h = φ/Φ."""
    infinity = number(math.inf)

    @loop
    def work(job, own, first, last, _):
        widest_vectors()
        words = carray(pointer(job), WORDS, np.int64)
        n, nodes, rows = words[N], words[NODES], words[COUNT]
        ys = carray(pointer(words[Y]), rows * n, number)
        outs = carray(pointer(words[OUT]), rows * n, number)
        vs = carray(pointer(words[V]), rows * n, number)
        ats = carray(pointer(words[AT]), nodes * rows, number)
        masses = carray(pointer(words[MASS]), nodes * rows, number)
        totals = carray(pointer(words[TOTAL]), nodes * rows, number)
        zero, kept = number(0), carray(pointer(own), n, number)
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
                        _, h = tail_and_hazard(kind, _margin(at, y if some else zero))
                        h = h if some else zero
                        keep[i] = h
                        part += h * of_v[i]
                    whole += part
                mean = number(whole / totals[node] if totals[node] > zero else 0.0)
                mass = masses[node]
                for i in range(n):
                    out[i] += mass * (kept[i] * (v[i] - mean))

    return served(work)
