"""The work of one thread: the indices of numbers of its rows by their ranks, as order statistics.

Rank 0 is the smallest number, and of equal ones the first; NaN is the largest. A masked entry
has no rank; its key is the least, which is also the key of the least integer of its type.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from kofn.kernels.cpu.choice.keys import (
    bound,
    half_way,
    leave_out,
    types_of,
)
from kofn.kernels.cpu.choice.layout import (
    BETWEEN,
    HIGH,
    IN_EACH,
    LANES,
    LOW,
    MASK,
    OUT,
    PLACES,
    QUANTILE_WORDS,
    RANKS,
    WORDS,
    K,
    N,
    X,
    ranks_from,
)
from kofn.kernels.cpu.choice.search import count_above, count_from, least_above
from kofn.kernels.cpu.runtime.intrinsics import pointer
from kofn.kernels.cpu.runtime.registers import above, lowest, ones, reaching
from kofn.kernels.cpu.runtime.shares import COUNT, plain, served
from kofn.kernels.cpu.runtime.vector_math import real, widest_vectors

_ranks_from = plain(ranks_from)


@plain
def _least_from(row, t, most):
    """Return the least key from t on; `most` if there is none."""
    widest_vectors()
    least = most
    for i in range(row.size):
        least = min(least, row[i] if row[i] >= t else most)
    return least


@plain
def _index(address, size, n, key, number):
    """The place of the key that has so many equal ones before it."""
    for start in range(0, n, LANES):
        at = address + start * size
        bits = reaching(at, key) & ~above(at, key)
        here = ones(bits)
        if number < here:
            for _ in range(number):
                bits &= bits - 1
            return start + lowest(bits)
        number -= here
    return np.int64(0)


@plain
def _index_of_least(row, mask, out, number):
    """The place of the least key that is in play and has so many such ones before it."""
    for i in range(row.size):
        if row[i] == out and (mask.size == 0 or mask[i]):
            if number == 0:
                return np.int64(i)
            number -= 1
    return np.int64(0)


@plain
def _in_play(mask, n):
    widest_vectors()
    if mask.size == 0:
        return np.int64(n)
    count = np.int32(0)
    for i in range(mask.size):
        count = np.int32(count + np.int32(mask[i]))
    return np.int64(count)


@plain
def _find(row, mask, address, size, ranks, out, most, between, into):
    """Write the indices of some ranks, each limited to those that there are."""
    live = _in_play(mask, row.size)
    key, below, equal = out, np.int64(0), live - count_above(row, out)
    for i in range(ranks.size):
        rank = max(min(ranks[i], live - 1), np.int64(0))
        if rank == below + equal and equal > 0:
            key, below = least_above(row, key, most), below + equal
            equal = live - below - count_above(row, key)
        elif not below <= rank < below + equal:
            t, _ = bound(row, address, size, live - rank, out, 0, between)
            key = _least_from(row, t, most)
            reach = count_from(row, key)
            below, equal = live - reach, reach - count_above(row, key)
        if key == out:
            into[i] = _index_of_least(row, mask, out, rank - below)
        else:
            into[i] = _index(address, size, row.size, key, rank - below)


def ranked(kind: int, number: Any) -> Any:
    """The work of a thread: the indices of numbers of some ranks, of each row."""
    size, (integer, least, keys_of) = np.dtype(number).itemsize, types_of(number)
    between = half_way(number)

    @plain
    def work(job, own, first, last, _):
        words = carray(pointer(job), WORDS, np.int64)
        n, k, rows = words[N], words[K], words[COUNT]
        xs = carray(pointer(words[X]), rows * n, number)
        outs = carray(pointer(words[OUT]), rows * k, np.int64)
        ranks = carray(pointer(words[RANKS]), rows * k, np.int64)
        masks = carray(pointer(words[MASK]), rows * n if words[MASK] != 0 else 0, np.bool_)
        keys = carray(pointer(own), (n + LANES - 1) // LANES * LANES, integer)
        row, out, most = keys[:n], integer(least), integer(-1 - least)
        for i in range(n, keys.size):
            keys[i] = out
        for r in range(first, last):
            keys_of(xs[r * n : r * n + n], 0, out, row)
            mask = masks[r * n : r * n + n] if masks.size else masks
            leave_out(mask, out, row)
            here = slice(r * k, r * k + k)
            _find(row, mask, own, size, ranks[here], out, most, between, outs[here])

    return served(work)


@plain
def _has_nan(x):
    widest_vectors()
    bad = np.int32(0)
    for i in range(x.size):
        bad = np.int32(bad | np.int32(x[i] != x[i]))
    return bad != 0


@plain
def _mix(a, b, share):
    """The number at a share of the way from a to b, and its slopes in these.

    An infinite number wins, if it has a share, unless both do.
    """
    if abs(a) < np.inf and abs(b) < np.inf:
        apart, rest = b - a, real(a, 1) - share
        return a + share * apart if abs(apart) < np.inf else a * rest + b * share, rest, share
    if share > 0 and a != b:
        return a + b, real(a, 1), real(a, 1)
    return a, real(a, 1), real(a, 0)


def quantile(kind: int, number: Any) -> Any:
    """The work of a thread: a number between those of two ranks, of each row."""
    size, (integer, least, keys_of) = np.dtype(number).itemsize, types_of(number)
    between = half_way(number)

    @plain
    def work(job, own, first, last, share):
        words = carray(pointer(job), QUANTILE_WORDS, np.int64)
        n, rows = words[N], words[COUNT]
        xs = carray(pointer(words[X]), rows * n, number)
        answers = carray(pointer(words[BETWEEN]), rows, number)
        slopes = carray(pointer(words[IN_EACH]), (2, rows), number)
        places = carray(pointer(words[PLACES]), (2, rows), np.int64)
        no_mask = carray(pointer(words[X]), 0, np.bool_)
        keys = carray(pointer(own), (n + LANES - 1) // LANES * LANES, integer)
        ranks_at = own + 8 * _ranks_from(n)
        ranks = carray(pointer(ranks_at), 2, np.int64)
        found = carray(pointer(ranks_at + 16), 2, np.int64)
        row, out, most = keys[:n], integer(least), integer(-1 - least)
        for i in range(n, keys.size):
            keys[i] = out
        ranks[0], ranks[1] = words[LOW], words[HIGH]
        for r in range(first, last):
            x = xs[r * n : r * n + n]
            if _has_nan(x):
                answers[r] = slopes[0, r] = slopes[1, r] = number(np.nan)
                places[0, r] = places[1, r] = 0
                continue
            keys_of(x, 0, out, row)
            _find(row, no_mask, own, size, ranks, out, most, between, found)
            places[0, r], places[1, r] = found[0], found[1]
            a, b = x[found[0]], x[found[1]]
            answers[r], slopes[0, r], slopes[1, r] = _mix(a, b, real(a, share))

    return served(work)


def quantile_back(kind: int, number: Any) -> Any:
    """The work of a thread: the cotangents of numbers, of which two of each row may move it."""

    @plain
    def work(job, own, first, last, _):
        words = carray(pointer(job), QUANTILE_WORDS, np.int64)
        n, rows = words[N], words[COUNT]
        outs = carray(pointer(words[X]), rows * n, number)
        cotangents = carray(pointer(words[BETWEEN]), rows, number)
        slopes = carray(pointer(words[IN_EACH]), (2, rows), number)
        places = carray(pointer(words[PLACES]), (2, rows), np.int64)
        for r in range(first, last):
            out, bad = outs[r * n : r * n + n], slopes[0, r] != slopes[0, r]
            for i in range(n):
                out[i] = number(np.nan) if bad else number(0)
            for j in range(2):
                if slopes[j, r] != 0:  # times a cotangent that is infinite it is NaN
                    out[places[j, r]] += cotangents[r] * slopes[j, r]

    return served(work)
