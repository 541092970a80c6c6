"""The work of one thread: the hard choices of its rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import carray

from kofn.kernels.cpu.choice.abreast import kth_of
from kofn.kernels.cpu.choice.layout import ROWS, kept_of
from kofn.kernels.cpu.choice.sample import kth_of_row
from kofn.kernels.cpu.choice.search import count_above, ends, least_from
from kofn.kernels.cpu.runtime.intrinsics import pointer
from kofn.kernels.cpu.runtime.layout import AT_ONCE
from kofn.kernels.cpu.runtime.registers import above, lowest, reaching
from kofn.kernels.cpu.runtime.shares import COUNT, plain, served
from kofn.kernels.cpu.runtime.vector_math import real, widest_vectors

# A job, the integers that every thread on it reads: those of shares.py first; K is the address of
# a number per row, 0 where there is one for all.
N, X, K, OUT = range(4, 8)
WORDS = 8

_kept_of = plain(kept_of)

_SINGLE, _DOUBLE = (float(np.finfo(number).min) / 2 for number in (np.float32, np.float64))


@plain
def _ones(x, t, out):
    """1 where a score is at least t, else 0."""
    widest_vectors()
    for i in range(x.size):
        out[i] = real(t, 1.0) if x[i] >= t else real(t, 0.0)


@plain
def _tell(x, t, lowest, out):
    """1 where a score is at least t, or in play if t is not, else 0; how many, if any is NaN."""
    widest_vectors()
    reached, bad, none_left = np.int32(0), np.int32(0), t <= lowest
    t = lowest if none_left else t
    one, zero = real(t, 1.0), real(t, 0.0)
    if none_left:
        for i in range(x.size):
            v = x[i]
            out[i] = one if v > t else zero
            bad = np.int32(bad | np.int32(v != v))
    else:
        for i in range(x.size):
            v = x[i]
            out[i] = one if v >= t else zero
            reached = np.int32(reached + np.int32(v >= t))
            bad = np.int32(bad | np.int32(v != v))
    return np.int64(reached), bad != 0


@plain
def _above(x, t, out):
    """1 above t, else 0."""
    widest_vectors()
    for i in range(x.size):
        out[i] = real(t, 1.0) if x[i] > t else real(t, 0.0)


@plain
def _ranked(x, address, t, left, out):
    """Write 1 above t, the places `left` at t, to the lowest index first, 0 below."""
    widest_vectors()
    zero, one, whole = real(t, 0.0), real(t, 1.0), x.size // AT_ONCE * AT_ONCE
    _above(x, t, out)
    for start in range(0, whole, AT_ONCE):
        if not left > zero:
            return
        at = address + start * x.itemsize
        bits = reaching(at, t) & ~above(at, t)
        while bits != 0 and left > zero:
            out[start + lowest(bits)] = min(left, one)
            left -= one
            bits &= bits - 1
    for i in range(whole, x.size):
        if x[i] == t and left > zero:
            out[i] = min(left, one)
            left -= one


@plain
def _spoil(x, lowest, k, out):
    """NaN where a row with a NaN, or whose k is NaN, has a score in play; +inf keeps its choice."""
    for i in range(x.size):
        v = x[i]
        if not v <= lowest and (k != k or v != real(lowest, math.inf)):
            out[i] = real(lowest, math.nan)


@plain
def _choose(x, address, k, lowest, out):
    bad = False
    if not k > 0:  # 0 or NaN
        out[:] = real(lowest, 0.0)
        _, _, bad = ends(x, lowest)
    else:
        whole = np.int64(math.ceil(k))
        t, greater, bad = kth_of_row(x, address, whole, lowest, out)
        if greater < 0 and k == whole:
            _ones(x, t, out)
        else:
            if greater < 0:
                t = least_from(x, t)
                greater = count_above(x, t)
            _ranked(x, address, t, real(lowest, k - greater), out)
    if bad or k != k:
        _spoil(x, lowest, k, out)


@plain
def lowest_of(xs):
    """Scores up to this one count as masked."""
    return real(xs[0], _SINGLE if xs.itemsize == 4 else _DOUBLE)


def choices(kind: int, number: Any) -> Any:
    """The work of a thread: the hard choices of rows, for k of each or one number."""
    size, kth = np.dtype(number).itemsize, kth_of(number)

    @plain
    def abreast(x, own, start, count, n, k, whole, kept, lowest, outs):
        """Rows for one k: those that a threshold decides; the others one by one."""
        at = kth(x + start * n * size, n, count - 1, whole, kept, own)
        thresholds = carray(pointer(at), ROWS, number)
        xs = carray(pointer(x), (start + count) * n, number)
        for r in range(count):
            first = (start + r) * n
            row, out, t = xs[first : first + n], outs[first : first + n], thresholds[r]
            reached, bad = _tell(row, t, lowest, out)
            if bad or k != k or not k > 0:
                _choose(row, x + first * size, k, lowest, out)
            elif t > lowest and (reached != whole or k < whole):
                _ranked(row, x + first * size, t, real(lowest, k - count_above(row, t)), out)

    @plain
    def work(job, own, first, last, k):
        words = carray(pointer(job), WORDS, np.int64)
        n, rows = words[N], words[COUNT]
        xs = carray(pointer(words[X]), rows * n, number)
        outs = carray(pointer(words[OUT]), rows * n, number)
        ks, lowest = carray(pointer(words[K]), rows, number), lowest_of(xs)
        one = np.float64(real(lowest, k))
        whole = min(max(np.int64(math.ceil(one)), 1), n) if one > 0 else 1
        kept = _kept_of(n, whole) if words[K] == 0 else 0
        if kept:
            for r in range(first, last, ROWS):
                count = min(ROWS, last - r)
                abreast(words[X], own, r, count, n, one, whole, kept, lowest, outs)
            return
        for r in range(first, last):
            here = np.float64(ks[r]) if words[K] != 0 else one
            x, at = xs[r * n : r * n + n], words[X] + r * n * size
            _choose(x, at, here, lowest, outs[r * n : r * n + n])

    return served(work)
