"""The work of one thread: the histogram of the bias that tokens require of experts, in two calls.

The first finds what is subtracted from, per token, and the range of what is required; between them
the caller chooses the bins. Counts are those of nn/routing/histogram.py, for tokens whose numbers
are all finite and near each other (test_nn_router_quantile_limits.py).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import carray

from kofn.kernels.cpu.choice.abreast import kth_of
from kofn.kernels.cpu.choice.layout import (
    BIAS,
    BINS,
    CUTOFFS,
    HISTOGRAM,
    LEFT_OUT,
    REQUIRED_WORDS,
    ROWS,
    SETTLED,
    SPAN,
    K,
    N,
    X,
    kept_of,
)
from kofn.kernels.cpu.choice.required import add
from kofn.kernels.cpu.choice.worker import lowest_of
from kofn.kernels.cpu.runtime.intrinsics import never_unroll, pointer
from kofn.kernels.cpu.runtime.shares import COUNT, plain, served
from kofn.kernels.cpu.runtime.vector_math import ordered, real, unordered, widest_vectors

_kept_of = plain(kept_of)


@plain
def _range(x, cutoff, lowest, bias, least, greatest):
    """(whether all that a token requires is finite, the keys of the least and the greatest such
    number, or of those given, and of the greatest distance from the bias).
    """
    widest_vectors()
    bad, farthest = np.int32(0), ordered(real(cutoff, 0.0))
    for i in range(x.size):
        needed = cutoff - x[i]
        bad = np.int32(bad | np.int32(not (abs(needed) < math.inf and x[i] > lowest)))
        key = ordered(needed)
        least, greatest = min(least, key), max(greatest, key)
        farthest = max(farthest, ordered(abs(needed - bias[i])))
    return bad == 0, least, greatest, farthest


@plain
def _near(x, cutoff, bias, far, farthest):
    """How many distances from the bias are not much below the greatest."""
    widest_vectors()
    count = np.int32(0)
    for i in range(x.size):
        count = np.int32(count + np.int32(abs((cutoff - x[i]) - bias[i]) * far >= farthest))
    return count


def cutoffs(kind: int, number: Any) -> Any:
    """The work of a thread: all tokens. It says whether all numbers are finite and near."""
    size, kth = np.dtype(number).itemsize, kth_of(number)

    @plain
    def work(job, own, first, last, far):
        words = carray(pointer(job), REQUIRED_WORDS, np.int64)
        n, count, k, left_out = words[N], words[COUNT], words[K], words[LEFT_OUT]
        kept, limit = _kept_of(n, k), number(far)
        biased_at = own + 2 * kept * ROWS * size
        biased = carray(pointer(biased_at), ROWS * n, number)
        xs = carray(pointer(words[X]), count * n, number)
        bias = carray(pointer(words[BIAS]), n, number)
        found = carray(pointer(words[CUTOFFS]), count, number)
        span, lowest = carray(pointer(words[SPAN]), 2, np.float64), lowest_of(xs)
        least, greatest = ordered(number(math.inf)), ordered(number(-math.inf))
        for start in range(0, count, ROWS):
            some = min(ROWS, count - start)
            for i in range(some):
                add(xs[(start + i) * n : (start + i + 1) * n], bias, biased[i * n : i * n + n])
            at = kth(biased_at, n, some - 1, k, kept, own)
            few = carray(pointer(at), ROWS, number)
            for i in range(some):
                x, cutoff = xs[(start + i) * n : (start + i + 1) * n], few[i]
                found[start + i] = cutoff
                seen = _range(x, cutoff, lowest, bias, least, greatest)
                finite, least, greatest, key = seen
                if not finite:
                    return
                if left_out and _near(x, cutoff, bias, limit, unordered(key, limit)) <= left_out:
                    return
            never_unroll()
        span[0], span[1] = unordered(least, limit), unordered(greatest, limit)
        words[SETTLED] = 1

    return served(work)


@plain
def _places(x, cutoff, per_width, first, last, places):
    """The bins of what a token requires of a few experts. To divide by a width is exact."""
    widest_vectors()
    for i in range(x.size):
        place = np.floor(np.float64(cutoff - x[i]) * per_width) - first
        places[i] = np.int32(min(max(place, 0.0), last))


def binned(kind: int, number: Any) -> Any:
    """The work of a thread: it counts what all tokens require, a few experts at a time, whose bins
    stay in a near cache.
    """

    @plain
    def work(job, own, first, last, unused):
        words = carray(pointer(job), REQUIRED_WORDS, np.int64)
        n, count, bins = words[N], words[COUNT], words[BINS]
        xs = carray(pointer(words[X]), count * n, number)
        found = carray(pointer(words[CUTOFFS]), count, number)
        span = carray(pointer(words[SPAN]), 2, np.float64)  # to unpack it might raise an error
        counts = carray(pointer(words[HISTOGRAM]), (n, bins), np.int64)
        places = carray(pointer(own), ROWS, np.int32)
        per_width, start, most = 1.0 / span[0], span[1], np.float64(bins - 1)
        for j in range(0, n, ROWS):
            some = min(ROWS, n - j)
            for i in range(count):
                x = xs[i * n + j : i * n + j + some]
                _places(x, found[i], per_width, start, most, places)
                for r in range(some):
                    counts[j + r, places[r]] += 1

    return served(work)
