"""The work of one thread: the bias that tokens require of experts, and the mean of its quantiles.

They are, bit by bit, those of maps/balance.py (`required_bias`, `bias_of_share`) and of
nn/routing/quantile.py, for tokens whose numbers are all finite. Requirements become keys, those of
an expert side by side, and the key of a rank is found between two others, by counting
(test_nn_router_quantile_limits.py).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import carray

from kofn.kernels.cpu.choice.abreast import kth_of
from kofn.kernels.cpu.choice.keys import HALVE
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
    apart_of,
    kept_of,
)
from kofn.kernels.cpu.choice.search import least_above, middle
from kofn.kernels.cpu.choice.worker import lowest_of
from kofn.kernels.cpu.runtime.intrinsics import never_unroll, pointer, vectors
from kofn.kernels.cpu.runtime.layout import REGISTER
from kofn.kernels.cpu.runtime.registers import turn
from kofn.kernels.cpu.runtime.shares import COUNT, plain, served
from kofn.kernels.cpu.runtime.vector_math import ordered, real, unordered, widest_vectors

_kept_of, _apart_of = plain(kept_of), plain(apart_of)


@plain
def _ends(keys):
    widest_vectors()
    least, greatest = keys[0], keys[0]
    for i in range(keys.size):
        least, greatest = min(least, keys[i]), max(greatest, keys[i])
    return least, greatest


@plain
def _parted(keys, t, low, high):
    """(how many keys are at most t, the greatest of these, the least of the others), where `low`
    is one of these and `high` one of the others.
    """
    widest_vectors()
    count, greatest, least = np.int32(0), low, high
    for i in range(keys.size):
        key, below = keys[i], keys[i] <= t
        count = np.int32(count + np.int32(below))
        greatest = max(greatest, key if below else low)
        least = min(least, high if below else key)
    return np.int64(count), greatest, least


@plain
def _between(low, high, share, like):
    """A key from `low` on and below `high`, by the numbers that they stand for."""
    start, end = unordered(low, like), unordered(high, like)
    t = ordered(start + (end - start) * real(like, share))
    return t if low <= t < high else middle(low, high)


@plain
def _neighbours(keys, first, last, like):
    """The keys of two ranks, from 0 for the least on, of which the second is at most one more."""
    low, high = _ends(keys)
    below, reach = np.int64(0), np.int64(keys.size)  # how many are less than low, and up to high
    step = 0
    while low < high:  # both are keys, and the one of rank `first` is not outside of them
        step += 1
        if step % HALVE == 0:
            t = middle(low, high)
        else:
            share = (first + 0.5 - below) / (reach - below)
            t = _between(low, high, share, like)
        count, greatest, least = _parted(keys, t, low, high)
        if count > first:
            high, reach = greatest, count
        else:
            low, below = least, count
    return high, high if reach > last else least_above(keys, high, _ends(keys)[1])


@plain
def add(x, bias, into):
    widest_vectors()
    for i in range(bias.size):
        into[i] = x[i] + bias[i]


@plain
def _need(x, cutoffs, lowest, keys, start, some):
    """Write keys of what tokens require, expert by expert; return whether all of it is finite."""
    experts, bad = keys.shape[0], np.int32(0)
    for j in range(experts):
        for i in range(some):
            v = x[i * experts + j]
            needed = cutoffs[i] - v
            bad = np.int32(bad | np.int32(not (abs(needed) < math.inf and v > lowest)))
            keys[j, start + i] = ordered(needed + real(needed, 0.0))  # −0 is 0
    return bad == 0


@plain
def _need_of_columns(columns, cutoffs, lowest, keys, start):
    """The same of a few experts and ROWS tokens, whose scores are columns."""
    widest_vectors()
    zero, one = real(lowest, 0.0), real(lowest, 1.0)
    strange = carray(vectors(zero), ROWS, columns.dtype)
    for r in range(ROWS):
        strange[r] = zero
    for j in range(columns.shape[0]):
        into = keys[j, start : start + ROWS]
        for r in range(ROWS):
            v = columns[j, r]
            needed = cutoffs[r] - v
            strange[r] += zero if abs(needed) < math.inf and v > lowest else one
            into[r] = ordered(needed + zero)  # −0 is 0
    total = zero
    for r in range(ROWS):
        total += strange[r]
    never_unroll()
    return total == 0


def required(kind: int, number: Any) -> Any:
    """The work of a thread: all tokens. It changes nothing where numbers are not finite."""
    size, kth = np.dtype(number).itemsize, kth_of(number)
    integer = np.int32 if size == 4 else np.int64
    wide, step = REGISTER // size, ROWS * size

    @plain
    def need(x, n, cutoffs, lowest, keys, start, into):
        """`_need` of ROWS tokens from the address x on, a few experts at a time."""
        zero, finite = number(0), True
        columns = carray(pointer(into), (wide, ROWS), number)
        for each in range(0, n, wide):
            i = min(each, n - wide)
            for r in range(0, ROWS, wide):
                source, to = x + (r * n + i) * size, into + r * size
                turn(zero, source, n * size, ROWS - 1 - r, to, step, wide)
            some = keys[i : i + wide]
            finite = _need_of_columns(columns, cutoffs, lowest, some, start) and finite
        return finite

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
                add(x[i * n : i * n + n], bias, biased[i * n : i * n + n])
            at = kth(biased_at, n, some - 1, k, kept, own)
            cutoffs = carray(pointer(at), ROWS, number)
            lowest = lowest_of(xs)
            if some == ROWS and n >= wide:
                at = words[X] + start * n * size
                finite = need(at, n, cutoffs, lowest, keys, start, biased_at) and finite
            else:
                finite = _need(x, cutoffs, lowest, keys, start, some) and finite
        return finite

    @plain
    def settle(words, n, count, share, keys, found):
        """The number at a place between two ranks, of each expert."""
        finite = True
        for j in range(n):
            keys_of_two = _neighbours(keys[j, :count], words[FIRST], words[LAST], share)
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
        keys = carray(pointer(at + n * size), (n, _apart_of(count)), integer)
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
