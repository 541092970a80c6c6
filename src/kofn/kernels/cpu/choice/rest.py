"""The work of one thread: log Σ e^{(x − base)/T} of a row over all but some named entries, and its
way back (test_losses_distillation.py).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import carray

from kofn.kernels.cpu.choice.search import ends
from kofn.kernels.cpu.choice.worker import lowest_of
from kofn.kernels.cpu.rows.frame import BLOCK, loop
from kofn.kernels.cpu.runtime.intrinsics import pointer
from kofn.kernels.cpu.runtime.shares import COUNT, plain, served
from kofn.kernels.cpu.runtime.vector_math import real, widest_vectors
from kofn.kernels.cpu.runtime.words import exponential

# A job, the integers that every thread on it reads: those of shares.py first. M are named in each
# row, at ENTRIES, where n stands for none. OUT is the address of the answers or of the slopes, G
# that of cotangents, IN_T that of slopes in T or 0.
N, X, ENTRIES, M, BASE, T, OUT, REST, G, IN_T = range(4, 14)
WORDS = 14


@plain
def _less(x, start, t):
    """(x − start)/T, apart from the sums, which may be taken in any order."""
    return (x - start) / t


@plain
def _without(x, named, lowest, into):
    """The scores, −∞ where they are named or out of play."""
    widest_vectors()
    for i in range(x.size):
        v = x[i]
        into[i] = real(v, -math.inf) if v <= lowest else v
    for j in range(named.size):
        if named[j] < x.size:
            into[named[j]] = -math.inf


@loop
def _total(x, greatest, t):
    """Σ e^{(x − greatest)/T}."""
    widest_vectors()
    zero, whole = real(greatest, 0.0), 0.0
    for start in range(0, x.size, BLOCK):
        xs, part = x[start : start + BLOCK], zero
        for i in range(xs.size):
            part += exponential(_less(xs[i], greatest, t))
        whole += part
    return whole


@plain
def _shares(x, base, t, rest, by, lowest, out):
    """Shares of the rest, times a number; 0 of entries out of play."""
    widest_vectors()
    for i in range(x.size):
        v = x[i]
        share = by * exponential(_less(v, base, t) - rest)
        out[i] = real(by, 0.0) if v <= lowest else share


@loop
def _turned(x, base, t, slopes):
    """Σ slope·(x − base)/T."""
    widest_vectors()
    zero, whole = real(base, 0.0), 0.0
    for start in range(0, x.size, BLOCK):
        xs, us, part = x[start : start + BLOCK], slopes[start : start + BLOCK], zero
        for i in range(xs.size):
            part += us[i] * _less(xs[i], base, t) if us[i] != zero else zero
        whole += part
    return whole


def rest(kind: int, number: Any) -> Any:
    """The work of a thread: the logarithms; −∞ of none, NaN beside a NaN or +inf."""

    @plain
    def work(job, own, first, last, _):
        words = carray(pointer(job), WORDS, np.int64)
        n, m, rows = words[N], words[M], words[COUNT]
        xs = carray(pointer(words[X]), rows * n, number)
        entries = carray(pointer(words[ENTRIES]), rows * m, np.int64)
        bases = carray(pointer(words[BASE]), rows, number)
        ts = carray(pointer(words[T]), rows, number)
        answers = carray(pointer(words[OUT]), rows, number)
        row, lowest = carray(pointer(own), n, number), lowest_of(xs)
        for r in range(first, last):
            _without(xs[r * n : r * n + n], entries[r * m : r * m + m], lowest, row)
            least, greatest, bad = ends(row, lowest)
            answers[r] = number(math.nan)
            if not bad and greatest < number(math.inf):
                answers[r] = number(-math.inf)
                if least <= greatest:
                    whole = math.log(_total(row, greatest, ts[r]))
                    answers[r] = (greatest - bases[r]) / ts[r] + number(whole)

    return served(work)


def rest_back(kind: int, number: Any) -> Any:
    """The work of a thread: cotangents of scores, and of T if they are wanted."""

    @plain
    def work(job, own, first, last, _):
        words = carray(pointer(job), WORDS, np.int64)
        n, m, rows, turns = words[N], words[M], words[COUNT], words[IN_T] != 0
        xs = carray(pointer(words[X]), rows * n, number)
        entries = carray(pointer(words[ENTRIES]), rows * m, np.int64)
        bases = carray(pointer(words[BASE]), rows, number)
        ts = carray(pointer(words[T]), rows, number)
        known = carray(pointer(words[REST]), rows, number)
        gs = carray(pointer(words[G]), rows, number)
        outs = carray(pointer(words[OUT]), rows * n, number)
        in_t = carray(pointer(words[IN_T] if turns else own), rows, number)
        lowest = lowest_of(xs)
        for r in range(first, last):
            x, out = xs[r * n : r * n + n], outs[r * n : r * n + n]
            whole = known[r] if known[r] > number(-math.inf) else number(0)
            whole = whole if known[r] == known[r] else known[r]
            _shares(x, bases[r], ts[r], whole, gs[r] / ts[r], lowest, out)
            for j in range(r * m, r * m + m):
                if entries[j] < n:
                    out[entries[j]] = 0
            if turns:
                in_t[r] = number(-_turned(x, bases[r], ts[r], out))

    return served(work)
