"""The work of one thread: the hard choice of its rows, or the indices of their largest scores."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import carray

from kofn.kernels.cpu.choice.search import count_above, ends, kth_largest, least_from
from kofn.kernels.cpu.runtime.intrinsics import pointer
from kofn.kernels.cpu.runtime.shares import COUNT, plain, served
from kofn.kernels.cpu.runtime.vector_math import real, widest_vectors

# A job, the integers that every thread on it reads: those of shares.py first; K is the address of
# a number per row, 0 where there is one for all; of indices it is k itself.
N, X, K, OUT = range(4, 8)
WORDS = 8

_SINGLE, _DOUBLE = (float(np.finfo(number).min) / 2 for number in (np.float32, np.float64))

FEW = 512  # scores times k, up to which inserting each score costs less than a search
RUN = 16  # indices that are sorted by insertion; longer runs are merged


@plain
def _ones(x, t, out):
    """1 where a score is at least t, else 0."""
    widest_vectors()
    for i in range(x.size):
        out[i] = real(t, 1.0) if x[i] >= t else real(t, 0.0)


@plain
def _ranked(x, t, left, out):
    """1 above t, what is left at t, to the lowest index first, 0 below."""
    zero, one = real(t, 0.0), real(t, 1.0)
    for i in range(x.size):
        v = x[i]
        share = one if v > t else zero
        if v == t:
            share = min(max(left, zero), one)
            left -= one
        out[i] = share


@plain
def _spoil(x, lowest, k, out):
    """NaN where a row with a NaN, or whose k is NaN, has a score in play; +inf keeps its choice."""
    for i in range(x.size):
        v = x[i]
        if not v <= lowest and (k != k or v != real(lowest, math.inf)):
            out[i] = real(lowest, math.nan)


@plain
def _choose(x, k, lowest, out):
    least, greatest, bad = ends(x, lowest)
    if not k > 0 or least > greatest:  # k is 0 or NaN, or nothing is in play
        out[:] = real(lowest, 0.0)
    else:
        whole = math.ceil(k)
        t, above = kth_largest(x, whole, least, greatest)
        if above < 0 and k == whole:
            _ones(x, t, out)
        else:
            if above < 0:
                t = least_from(x, t)
                above = count_above(x, t)
            _ranked(x, t, real(lowest, k - above), out)
    if bad or k != k:
        _spoil(x, lowest, k, out)


@plain
def _insert_all(x, k, lowest, scores, indices):
    """What `_collect` and `_sort` do, for few scores: keep those chosen so far in order."""
    found = np.int64(0)
    for i in range(x.size):
        v = x[i]
        if v > lowest and (found < k or v > scores[k - 1]):
            j = min(found, k - 1)
            while j > 0 and scores[j - 1] < v:
                scores[j], indices[j] = scores[j - 1], indices[j - 1]
                j -= 1
            scores[j], indices[j] = v, i
            found = min(found + 1, k)
    return found


@plain
def _collect(x, k, lowest, scores, indices):
    """Up to k scores that a choice of k takes, and their indices, in the order of the row."""
    least, greatest, _ = ends(x, lowest)
    if k < 1 or least > greatest:
        return np.int64(0)
    t, above = kth_largest(x, k, least, greatest)
    ties = k - above if above >= 0 else np.int64(x.size)
    found = np.int64(0)
    for i in range(x.size):
        v = x[i]
        if v >= t and (v > t or ties > 0):
            ties -= v == t
            scores[found], indices[found] = v, i
            found += 1
    return found


@plain
def _insert(scores, indices):
    """Sort by falling scores; equal ones stay in their order."""
    for i in range(1, scores.size):
        v, index, j = scores[i], indices[i], i
        while j > 0 and scores[j - 1] < v:
            scores[j], indices[j] = scores[j - 1], indices[j - 1]
            j -= 1
        scores[j], indices[j] = v, index


@plain
def _merge(scores, indices, middle, into, indices_into):
    """The two sorted parts, before `middle` and from it on, as one."""
    a, b = 0, middle
    for i in range(scores.size):
        second = a >= middle or (b < scores.size and scores[b] > scores[a])
        j = b if second else a
        into[i], indices_into[i] = scores[j], indices[j]
        b += second
        a += not second


@plain
def _sort(scores, indices, spare, spare_indices):
    """Sort by falling scores; the other two are memory of the same size."""
    n, width = scores.size, RUN
    for i in range(0, n, width):
        _insert(scores[i : i + width], indices[i : i + width])
    while width < n:
        for i in range(0, n, 2 * width):
            end, middle = min(i + 2 * width, n), min(width, n - i)
            part, places = scores[i:end], indices[i:end]
            _merge(part, places, middle, spare[i:end], spare_indices[i:end])
        for i in range(n):  # an assignment of whole arrays makes a copy in between
            scores[i], indices[i] = spare[i], spare_indices[i]
        width *= 2


@plain
def _fill(x, lowest, indices, found):
    """The lowest indices of scores that are not in play, after those found."""
    i = 0
    while found < indices.size:
        if not x[i] > lowest:
            indices[found] = i
            found += 1
        i += 1


@plain
def lowest_of(xs):
    """Scores up to this one count as masked."""
    return real(xs[0], _SINGLE if xs.itemsize == 4 else _DOUBLE)


def choices(kind: int, number: Any) -> Any:
    """The work of a thread: the hard choices of rows, for k of each or one number."""

    @plain
    def work(job, own, first, last, k):
        words = carray(pointer(job), WORDS, np.int64)
        n, rows = words[N], words[COUNT]
        xs = carray(pointer(words[X]), rows * n, number)
        outs = carray(pointer(words[OUT]), rows * n, number)
        ks, lowest = carray(pointer(words[K]), rows, number), lowest_of(xs)
        for r in range(first, last):
            here = np.float64(ks[r] if words[K] != 0 else real(lowest, k))
            _choose(xs[r * n : r * n + n], here, lowest, outs[r * n : r * n + n])

    return served(work)


def largest(kind: int, number: Any) -> Any:
    """The work of a thread: the indices of the k largest scores of rows."""

    @plain
    def work(job, own, first, last, _):
        words = carray(pointer(job), WORDS, np.int64)
        n, k, rows = words[N], words[K], words[COUNT]
        xs = carray(pointer(words[X]), rows * n, number)
        outs = carray(pointer(words[OUT]), rows * k, np.int64)
        lowest, scores = lowest_of(xs), carray(pointer(own), k, number)
        spare = carray(pointer(own + 8 * k), k, number)
        spare_indices = carray(pointer(own + 16 * k), k, np.int64)
        for r in range(first, last):
            x, indices = xs[r * n : r * n + n], outs[r * k : r * k + k]
            if 0 < n * k <= FEW:
                found = _insert_all(x, k, lowest, scores, indices)
            else:
                found = _collect(x, k, lowest, scores, indices)
                _sort(scores[:found], indices[:found], spare[:found], spare_indices[:found])
            _fill(x, lowest, indices, found)

    return served(work)
