"""The work of one thread: the bias that tokens require of experts, and the mean of its quantiles.

They are, bit by bit, those of maps/balance.py (`required_bias`, `bias_of_share`) and of
nn/routing/quantile.py, for rows of a few tokens whose numbers are all finite. Requirements become
keys, those of an expert side by side, and the key of a rank is found by halving: to count a few
keys takes less time than to choose where to halve (test_nn_router_quantile_limits.py).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import carray

from kofn.kernels.cpu.choice.abreast import kth_of
from kofn.kernels.cpu.choice.layout import (
    BIAS,
    FIRST,
    LAST,
    MEAN,
    REQUIRED_WORDS,
    ROWS,
    SETTLED,
    TOKENS,
    K,
    N,
    X,
    kept_of,
)
from kofn.kernels.cpu.choice.search import least_above, middle
from kofn.kernels.cpu.choice.worker import lowest_of
from kofn.kernels.cpu.runtime.intrinsics import pointer
from kofn.kernels.cpu.runtime.shares import COUNT, plain, served
from kofn.kernels.cpu.runtime.vector_math import ordered, real, unordered, widest_vectors

_kept_of = plain(kept_of)


@plain
def _ends(keys):
    widest_vectors()
    least, greatest = keys[0], keys[0]
    for i in range(keys.size):
        least, greatest = min(least, keys[i]), max(greatest, keys[i])
    return least, greatest


@plain
def _count_to(keys, t):
    """Count the keys that are at most t."""
    widest_vectors()
    count = np.int32(0)
    for i in range(keys.size):
        count = np.int32(count + np.int32(keys[i] <= t))
    return np.int64(count)


@plain
def _neighbours(keys, first, last):
    """The keys of two ranks, from 0 for the least on, of which the second is at most one more."""
    low, high = _ends(keys)
    reach = np.int64(0)
    if _count_to(keys, low) > first:
        high, reach = low, _count_to(keys, low)
    else:  # no more than `first` reach up to `low`, and all up to `high`
        reach = np.int64(keys.size)
        t = middle(low, high)
        while t != low:
            count = _count_to(keys, t)
            if count > first:
                high, reach = t, count
            else:
                low = t
            t = middle(low, high)
    return high, high if reach > last else least_above(keys, high, _ends(keys)[1])


@plain
def _add(x, bias, into):
    for i in range(bias.size):
        into[i] = x[i] + bias[i]


@plain
def _need(x, cutoffs, lowest, keys, start):
    """Write keys of what tokens require, expert by expert; return whether all of it is finite."""
    experts, tokens = keys.shape[0], x.size // keys.shape[0]
    bad = np.int32(0)
    for j in range(experts):
        for i in range(tokens):
            v = x[i * experts + j]
            needed = cutoffs[i] - v
            bad = np.int32(bad | np.int32(not (abs(needed) < math.inf and v > lowest)))
            keys[j, start + i] = ordered(needed + real(needed, 0.0))  # −0 is 0
    return bad == 0


def required(kind: int, number: Any) -> Any:
    """The work of a thread: all tokens. It changes nothing where numbers are not finite."""
    size, kth = np.dtype(number).itemsize, kth_of(number)
    integer = np.int32 if size == 4 else np.int64

    @plain
    def require(words, own, n, count, keys):
        k, kept = words[K], _kept_of(n, words[K])
        biased_at = own + 2 * kept * ROWS * size
        biased = carray(pointer(biased_at), ROWS * n, number)
        xs = carray(pointer(words[X]), count * n, number)
        bias, finite = carray(pointer(words[BIAS]), n, number), True
        for start in range(0, count, ROWS):
            some = min(ROWS, count - start)
            x = xs[start * n : (start + some) * n]
            for i in range(some):
                _add(x[i * n : i * n + n], bias, biased[i * n : i * n + n])
            at = kth(biased_at, n, some - 1, k, kept, own)
            cutoffs = carray(pointer(at), ROWS, number)
            finite = _need(x, cutoffs, lowest_of(xs), keys, start) and finite
        return finite

    @plain
    def settle(words, n, count, share, keys, found):
        """The number at a place between two ranks, of each expert."""
        finite = True
        for j in range(n):
            keys_of_two = _neighbours(keys[j], words[FIRST], words[LAST])
            low, high = unordered(keys_of_two[0], share), unordered(keys_of_two[1], share)
            found[j] = low + (high - low) * share
            finite = finite and abs(found[j]) < math.inf
        return finite

    @plain
    def work(job, own, first, last, share):
        words = carray(pointer(job), REQUIRED_WORDS, np.int64)
        n, count = words[N], words[COUNT]
        at = own + (2 * _kept_of(n, words[K]) + n) * ROWS * size
        found = carray(pointer(at), n, number)
        keys = carray(pointer(at + n * size), (n, count), integer)
        if not require(words, own, n, count, keys):
            return
        if not settle(words, n, count, number(share), keys, found):
            return
        mean = carray(pointer(words[MEAN]), n, number)
        tokens = carray(pointer(words[TOKENS]), n, np.int64)
        for j in range(n):
            tokens[j] += count
            weight = number(count) / number(max(tokens[j], 1))
            mean[j] += weight * (found[j] - mean[j])
        words[SETTLED] = 1

    return served(work)
