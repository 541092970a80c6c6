"""The sampling of `subsets/sampling.py`, row by row, over rows that stay in cache.

The same distributions on the same windows, the same uniform numbers in the same places. A node of
the tree is a set of coins, with the distribution of its number of heads; each level halves the
number of nodes. Vector code needs long loops: on the first levels, with many small nodes, the same
number of heads of all nodes is contiguous; on the others all numbers of a node. Each sample of a
row goes down the one tree of that row.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import carray

from kofn.kernels.cpu.runtime.intrinsics import pointer
from kofn.kernels.cpu.runtime.shares import COUNT, plain, served
from kofn.kernels.cpu.runtime.vector_math import real, widest_vectors
from kofn.kernels.cpu.subsets.layout import APART, FIRST, NODES, STARTS, STEP, WINDOW
from kofn.kernels.cpu.subsets.loops import each, prepare

# A job, the integers that every thread on it reads: those of shares.py first.
N, SIZE, SAMPLES, SPLITS, LEVELS, SHAPES, Z, K, U, OUT = range(4, 14)


@each
def _side_by_side(below, wide, nodes, half, here, apart):
    """All pairs of nodes, i and half + i, at once."""
    widest_vectors()
    here[:] = real(below[0], 0.0)
    for a in range(wide):
        one = below[a * nodes : a * nodes + half]
        for b in range(wide):
            two = below[b * nodes + half : b * nodes + 2 * half]
            into = here[(a + b) * apart : (a + b) * apart + half]
            for i in range(half):
                into[i] += one[i] * two[i]


@each
def _convolve(a, b, out):
    """One pair of nodes."""
    widest_vectors()
    out[:] = real(a[0], 0.0)
    for i in range(a.size):
        x, part = a[i], out[i : i + b.size]
        for j in range(b.size):
            part[j] += x * b[j]


@each
def _without_dust(values, dust, out):
    widest_vectors()
    zero = real(values[0], 0.0)
    for i in range(values.size):
        out[i] = zero if values[i] < dust else values[i]


@plain
def _leaves(u, nodes, dust, probability, mean):
    """Nodes of one coin, from its signed tail."""
    zero, one, n = real(u[0], 0.0), real(u[0], 1.0), u.size
    for i in range(nodes):
        tail = abs(u[i]) if i < n else zero
        other = one - tail
        tail = tail if tail >= dust else zero
        upper = i < n and math.copysign(1.0, u[i]) < 0
        probability[i] = tail if upper else other
        probability[nodes + i] = mean[i] = other if upper else tail


@plain
def _climb(shapes, levels, dust, probability, start, mean, products):
    """Build the nodes from one coin each, whose means are there, to the two halves of the row."""
    start[: shapes[0, NODES]] = 0
    for level in range(1, levels):
        below, here = shapes[level - 1], shapes[level]
        nodes, half, wide = below[NODES], below[NODES] // 2, below[WINDOW]
        starts, window = here[STARTS], here[WINDOW]
        if here[APART] == 1:
            cells = probability[here[FIRST] : here[FIRST] + here[NODES] * window]
            into = probability[below[FIRST] : below[FIRST] + nodes * wide]
            _side_by_side(into, wide, nodes, half, cells, here[NODES])
            _without_dust(cells, dust, cells)
            start[starts : starts + half] = 0
            for i in range(half):
                mean[i] += mean[half + i]
        else:
            for i in range(half):
                both = products[: 2 * wide - 1]
                if below[APART] == 1:
                    for j in range(wide):
                        at = below[FIRST] + j * nodes + i
                        products[2 * wide + j] = probability[at]
                        products[3 * wide + j] = probability[at + half]
                    _convolve(products[2 * wide : 3 * wide], products[3 * wide : 4 * wide], both)
                else:
                    at = below[FIRST] + i * wide
                    two = at + half * wide
                    _convolve(probability[at : at + wide], probability[two : two + wide], both)
                first = start[below[STARTS] + i] + start[below[STARTS] + half + i]
                mean[i] += mean[half + i]
                base = first
                at = here[FIRST] + i * window
                into = probability[at : at + window]
                if window < both.size:
                    most = (1 << level) + 1 - window
                    base = np.int64(round(mean[i])) - window // 2
                    base = min(max(base, 0), most)
                    into[:] = 0
                start[starts + i] = base
                low, high = max(base, first), min(base + window, first + both.size)
                kept = both[low - first : high - first]
                _without_dust(kept, dust, into[low - base : high - base])
        if half < here[NODES]:  # one without coins, to make their number even
            for j in range(window):
                at = here[FIRST] + half * here[APART] + j * here[STEP]
                probability[at] = 1 if j == 0 else 0
            start[starts + half], mean[half] = 0, 0


@plain
def _descend(shapes, levels, k, probability, start, uniforms, count):
    """Deal k down to the coins, 0 or 1 each."""
    count[0], used = k, 0
    for level in range(levels - 1, -1, -1):
        here = shapes[level]
        half, window, step, apart = here[NODES] // 2, here[WINDOW], here[STEP], here[APART]
        for i in range(half):
            heads = count[i]
            one = here[FIRST] + i * apart
            two = one + half * apart
            first = start[here[STARTS] + i]
            less = heads - first - start[here[STARTS] + half + i]
            # Heads of the first node beyond where its window begins: between low and high.
            low, high = max(0, less - window + 1), min(window - 1, less)
            total = real(probability[0], 0.0)
            if low < high:
                for j in range(low, high + 1):
                    total += probability[one + j * step] * probability[two + (less - j) * step]
            aim, likely = uniforms[used + i] * total, real(probability[0], 0.0)
            while low < high:
                likely += probability[one + low * step] * probability[two + (less - low) * step]
                if likely > aim or likely >= total:
                    break
                low += 1
            count[i] = first + low
            count[half + i] = heads - count[i]
        used += half


@plain
def _after(at, count):
    """The address after so many words, where a vector may begin."""
    return at + 64 * (-(-count // 8))


def serve(kind: int, number: Any) -> Any:
    """The work of a thread: the samples of rows."""

    @plain
    def work(job, own, first, last, _):
        words = carray(pointer(job), OUT + 1, np.int64)
        n, samples, splits, levels = words[N], words[SAMPLES], words[SPLITS], words[LEVELS]
        rows, every = words[COUNT], words[COUNT] * samples
        shapes = carray(pointer(words[SHAPES]), (levels, 6), np.int64)
        zs = carray(pointer(words[Z]), rows * n, number)
        ks = carray(pointer(words[K]), rows, number)
        uniforms = carray(pointer(words[U]), every * splits, number)
        outs = carray(pointer(words[OUT]), every * n, np.bool_)
        nodes, top = shapes[0, NODES], shapes[levels - 1]
        dust = real(zs[0], math.sqrt(2.0**-126 if zs.itemsize == 4 else 2.0**-1022))
        cells, starts = top[FIRST] + top[NODES] * top[WINDOW], top[STARTS] + top[NODES]
        at = own
        probability, at = carray(pointer(at), cells, number), _after(at, cells)
        products, at = carray(pointer(at), 4 * top[WINDOW], number), _after(at, 4 * top[WINDOW])
        mean, at = carray(pointer(at), nodes, number), _after(at, nodes)
        start, at = carray(pointer(at), starts, np.int64), _after(at, starts)
        count, at = carray(pointer(at), nodes, np.int64), _after(at, nodes)
        u = carray(pointer(at), n, number)
        for i in range(first, last):
            prepare(zs[i * n : (i + 1) * n], real(zs[0], 0.0), real(zs[0], 0.0), u)
            _leaves(u, nodes, dust, probability, mean)
            _climb(shapes, levels, dust, probability, start, mean, products)
            for sample in range(samples):
                at = sample * rows + i
                numbers = uniforms[at * splits : (at + 1) * splits]
                _descend(shapes, levels, np.int64(ks[i]), probability, start, numbers, count)
                out = outs[at * n : (at + 1) * n]
                for j in range(n):
                    out[j] = count[j] == 1

    return served(work)
