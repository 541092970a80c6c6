"""The k-th largest score of each row, which a truncated softmax keeps last."""

from __future__ import annotations

import math

import numpy as np
from numba import carray

from kofn.kernels.cpu.choice.search import each, ends, kth_largest, least_from
from kofn.kernels.cpu.choice.worker import OUT, WORDS, N, X, _lowest
from kofn.kernels.cpu.runtime.intrinsics import pointer
from kofn.kernels.cpu.runtime.shares import COUNT, joined, report, take, wait
from kofn.kernels.cpu.runtime.vector_math import real


@each
def _kth(x, k, lowest):
    """The k-th largest score; −∞, which is below all, if there is a NaN or nothing to choose."""
    least, greatest, bad = ends(x, lowest)
    if bad or least > greatest:
        return real(lowest, -math.inf)
    return least_from(x, kth_largest(x, k, least, greatest)[0])


@each
def _cut(job, k, leads, number):
    if not joined(job, leads):
        return
    words = carray(pointer(job), WORDS, np.int64)
    n, rows = words[N], words[COUNT]
    xs = carray(pointer(words[X]), rows * n, number)
    outs = carray(pointer(words[OUT]), rows, number)
    lowest = _lowest(xs)
    first, last = take(job)
    while first < last:
        for r in range(first, last):
            outs[r] = _kth(xs[r * n : r * n + n], k, lowest)
        report(job, last - first)
        first, last = take(job)
    if leads:
        wait(job)


def cut_single(job, own, k, leads):
    """Take rows of float32 until there are none; write the k-th largest score of each."""
    _cut(job, k, leads, np.float32)


def cut_double(job, own, k, leads):
    """The same for float64."""
    _cut(job, k, leads, np.float64)
