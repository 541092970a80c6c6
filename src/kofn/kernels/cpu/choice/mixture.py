"""The work of one thread: the gates of a router, and their way back, each by one call.

The parts that are kernels of their own are called by their addresses: the k largest scores, θ, the
softmax of the largest, and the ways back of the two. Between these stands what torch would take
a few operations for (test_adapters_short.py).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import carray

from kofn.kernels.cpu.choice.layout import (
    BIAS,
    BIASED,
    CHOSEN,
    COPY,
    COUNTS,
    FEW,
    INDICES,
    MIXTURE_WORDS,
    OF_LARGEST,
    OF_SHARES,
    OF_WEIGHTS,
    SHARES,
    SLOPES,
    SPOILT,
    SPREAD,
    K,
    N,
    X,
)
from kofn.kernels.cpu.choice.worker import lowest_of
from kofn.kernels.cpu.rows.layout import GIVEN_UP
from kofn.kernels.cpu.runtime.intrinsics import (
    VECTORS,
    never_unroll,
    pointer,
    run,
    vectors,
)
from kofn.kernels.cpu.runtime.shares import COUNT, plain, served
from kofn.kernels.cpu.runtime.vector_math import real, widest_vectors

_ONLY = 1  # this thread leads, and has no other
_COUNTS, _COUNTS_TOO = COUNTS


@plain
def _has_nan(x):
    widest_vectors()
    bad = np.int32(0)
    for i in range(x.size):
        bad = np.int32(bad | np.int32(x[i] != x[i]))
    return bad != 0


@plain
def _add(x, bias, lowest, into):
    """Scores with a bias; what is out of play stays so."""
    for r in range(x.size // bias.size):
        first = r * bias.size
        for i in range(bias.size):
            v = x[first + i]
            into[first + i] = v + bias[i] if v > lowest else real(v, -math.inf)


@plain
def _largest_of_few(x, n, k, lowest, into):
    """The indices of the k largest of each of rows of few scores: those that fewer come before."""
    widest_vectors()
    zero, one = real(lowest, 0.0), real(lowest, 1.0)
    own = carray(vectors(zero), (VECTORS, FEW), x.dtype)
    for i in range(FEW):
        own[1, i], own[2, i] = real(zero, -math.inf), real(zero, i)
    for r in range(x.size // n):
        row, largest = x[r * n : r * n + n], into[r * k : r * k + k]
        for i in range(n):
            v = row[i]
            own[1, i] = v if v > lowest else real(v, -math.inf)
        for i in range(FEW):
            own[0, i] = zero
        for j in range(n):
            v, place = own[1, j], real(zero, j)
            for i in range(FEW):
                equal = (v == own[1, i]) & (place < own[2, i])  # no branch, as `or` would be
                own[0, i] += one if (v > own[1, i]) | equal else zero
        for i in range(n):
            rank = np.int64(own[0, i])
            if rank < k:
                largest[rank] = i
    never_unroll()


@plain
def _gave_up(words, which):
    """Whether a kernel of rows, which stands there, gave up on one."""
    return carray(pointer(words[which + 1]), GIVEN_UP + 1, np.int64)[GIVEN_UP] != 0


@plain
def _count(indices, at, n):
    """Add to the counts at an address, if there is one, how often each is named."""
    if at:
        counts = carray(pointer(at), n, np.int64)
        for i in range(indices.size):
            counts[indices[i]] += 1


@plain
def _call(words, which, number):
    """Call what stands there: the address of a function, of its job, and of its memory."""
    run(words[which], words[which + 1], words[which + 2], number, _ONLY)


def mixture(kind: int, number: Any) -> Any:
    """The work of a thread: indices, θ, and the softmax of the largest scores, twice."""

    @plain
    def work(job, own, first, last, alpha):
        words = carray(pointer(job), MIXTURE_WORDS, np.int64)
        n, k, rows = words[N], words[K], words[COUNT]
        xs = carray(pointer(words[X]), rows * n, number)
        if _has_nan(xs):
            words[SPOILT] = 1
            return
        indices, compared = carray(pointer(words[INDICES]), rows * k, np.int64), xs
        if words[BIAS]:
            bias = carray(pointer(words[BIAS]), n, number)
            compared = carray(pointer(words[BIASED]), rows * n, number)
            _add(xs, bias, lowest_of(xs), compared)
        if words[OF_LARGEST]:
            _call(words, OF_LARGEST, 0.0)
        else:
            _largest_of_few(compared, n, k, lowest_of(xs), indices)
        _call(words, OF_WEIGHTS, alpha)
        chosen = carray(pointer(words[CHOSEN]), rows * k, number)
        for r in range(rows):
            for i in range(r * k, r * k + k):
                chosen[i] = xs[r * n + indices[i]]
        _call(words, OF_SHARES, 0.0)
        shares = carray(pointer(words[SHARES]), rows * k, number)
        copy = carray(pointer(words[COPY]), rows * k, number)
        for i in range(shares.size):
            copy[i] = shares[i]
        if _gave_up(words, OF_WEIGHTS) or _gave_up(words, OF_SHARES):
            words[SPOILT] = 1
            return
        _count(indices, words[_COUNTS], n)
        _count(indices, words[_COUNTS_TOO], n)

    return served(work)


def mixture_back(kind: int, number: Any) -> Any:
    """The work of a thread: cotangents of scores for those of the gates, which are at X."""

    @plain
    def work(job, own, first, last, alpha):
        words = carray(pointer(job), MIXTURE_WORDS, np.int64)
        n, k, rows = words[N], words[K], words[COUNT]
        cotangents = carray(pointer(words[X]), rows * k, number)
        indices = carray(pointer(words[INDICES]), rows * k, np.int64)
        shares = carray(pointer(words[SHARES]), rows * k, number)
        spread = carray(pointer(words[SPREAD]), rows * n, number)
        slopes = carray(pointer(words[SLOPES]), rows * n, number)
        own_slopes = carray(pointer(words[CHOSEN]), rows * k, number)
        for i in range(spread.size):
            spread[i] = 0
        for r in range(rows):
            for i in range(r * k, r * k + k):
                spread[r * n + indices[i]] = cotangents[i] * shares[i]
        _call(words, OF_WEIGHTS, alpha)
        _call(words, OF_SHARES, 0.0)
        for r in range(rows):
            for i in range(r * k, r * k + k):
                slopes[r * n + indices[i]] += own_slopes[i]

    return served(work)


def tally(kind: int, number: Any) -> Any:
    """The work of a thread: how many of the indices at X name each of N, added to counts."""

    @plain
    def work(job, own, first, last, _):
        words = carray(pointer(job), MIXTURE_WORDS, np.int64)
        indices = carray(pointer(words[X]), words[COUNT], np.int64)
        _count(indices[first:last], words[INDICES], words[N])

    return served(work)
