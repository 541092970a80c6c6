"""The work of one thread: the indices of the k largest numbers of its rows, largest first.

Numbers become keys, integers in their order. The row is taken in parts, each so many places apart,
and the k-th largest of the parts' maxima is a bound: at least k numbers reach it, and hardly more
where there are four times as many parts. A short row is counted itself. What reaches the bound is
copied out and sorted: the place of each of a few is how many come before it. So a row is passed
over three times, whatever its numbers; where the bound lets too many through, as it does among
equal numbers, it is narrowed by counting.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from kofn.kernels.contract import ANY_ORDER, SMALLEST
from kofn.kernels.cpu.choice.abreast import kth_of
from kofn.kernels.cpu.choice.keys import (
    bound,
    half_way,
    leave_out,
    types_of,
)
from kofn.kernels.cpu.choice.layout import (
    LANES,
    MASK,
    OUT,
    ROWS,
    SHORTEST,
    WAY,
    WORDS,
    K,
    N,
    X,
    candidates_of,
    kept_of,
    parts_of,
)
from kofn.kernels.cpu.runtime.intrinsics import VECTORS, never_unroll, pointer, vectors
from kofn.kernels.cpu.runtime.layout import REGISTER
from kofn.kernels.cpu.runtime.registers import above, lowest, ones
from kofn.kernels.cpu.runtime.shares import COUNT, plain, served
from kofn.kernels.cpu.runtime.vector_math import real, widest_vectors

FEW_KEYS = (
    3 * LANES // 2
)  # of fewer, the place of each is counted; others are sorted by their digits
DIGIT = 8  # bits
DIGITS = 1 << DIGIT
ABREAST = 16  # candidates that are counted for at once
FEW = 4  # numbers that are copied at once

_parts_of, _candidates_of, _kept_of = plain(parts_of), plain(candidates_of), plain(kept_of)


@plain
def _set(keys, key):
    for i in range(keys.size):
        keys[i] = key


@plain
def _copy(some, into):
    for i in range(some.size):  # an assignment of whole arrays makes a copy in between
        into[i] = some[i]


@plain
def _maxima(row, out, best):
    """The maxima of parts, each of numbers as far apart as there are parts."""
    widest_vectors()
    parts = best.size
    _set(best, out)
    for start in range(0, row.size, parts):
        here = row[start : min(start + parts, row.size)]
        for i in range(here.size):
            best[i] = max(best[i], here[i])


@plain
def _copy_out(row, address, size, after, last, most, keys, indices):
    """Copy the keys of a row above `after` up to `last`, and their indices, `most` of them.

    Return how many they are: one more than `most` if there are more.
    """
    widest_vectors()
    copied = np.int64(0)
    for start in range(0, row.size, LANES):
        at = address + start * size
        bits = above(at, after) & ~above(at, last)
        here = ones(bits)
        count = min(here, most - copied)
        # Some more are copied, and written over: a branch for each would seldom be foreseen.
        for first in range(copied, copied + count, FEW):
            for j in range(first, first + FEW):
                i = start + lowest(bits)
                bits &= bits - 1
                keys[j], indices[j] = row[i], i
        copied += count
        if count < here:
            return most + 1
    return copied


@plain
def _candidates(row, address, size, k, out, known, between, best, best_at, keys, indices):
    """Copy the k largest of a row and perhaps some more, in the order of the row; count them.

    `known` is the key of the k-th, or of those out of play.
    """
    last, room = real(out, ~out), np.int64(indices.size)
    if known > out:
        copied = _copy_out(row, address, size, real(out, known - 1), last, room, keys, indices)
        if k <= copied <= room:  # else there are few in play, many are equal, or one is NaN
            return copied
    if best.size > 0:
        _maxima(row, out, best)
        t, _ = bound(best, best_at, size, k, out, k >> 2, between)
    else:
        t, _ = bound(row, address, size, k, out, k, between)
    copied = _copy_out(row, address, size, real(t, t - 1), last, room, keys, indices)
    if copied <= room:
        return copied
    t, reach = bound(row, address, size, k, out, 0, between)
    if reach <= k:
        return _copy_out(row, address, size, real(t, t - 1), last, room, keys, indices)
    # The keys above t, and of the keys equal to t the first.
    copied = _copy_out(row, address, size, t, last, room, keys, indices)
    _copy_out(row, address, size, real(t, t - 1), t, k - copied, keys[copied:], indices[copied:])
    return np.int64(k)


@plain
def _rank(keys, count, ranks):
    """Count the keys, of `count`, that come before each: larger ones, and equal ones before it."""
    widest_vectors()
    zero = real(keys[0], 0)
    own = carray(vectors(zero), (VECTORS, ABREAST), ranks.dtype)
    for start in range(0, count, ABREAST):
        for i in range(ABREAST):
            own[0, i], own[1, i], own[2, i] = zero, keys[start + i], real(zero, start + i)
        for j in range(count):
            key, place = keys[j], real(zero, j)
            for i in range(ABREAST):
                least = real(zero, own[1, i] - real(zero, place < own[2, i]))
                own[0, i] += real(zero, key > least)
        for i in range(ABREAST):
            ranks[start + i] = own[0, i]
    never_unroll()


@plain
def _by_digits(keys, indices, spare, spare_indices, last, counts):
    """Sort by falling keys, digit by digit from the lowest; equal ones keep their order.

    Return whether the sorted keys are in the spare memory.
    """
    n, in_spare = indices.size, False
    for shift in range(0, 8 * keys.itemsize, DIGIT):
        for i in range(DIGITS):
            counts[i] = 0
        for i in range(n):
            counts[((keys[i] ^ last) >> shift) & (DIGITS - 1)] += 1
        if counts[((keys[0] ^ last) >> shift) & (DIGITS - 1)] == n:  # all have the same
            continue
        place = np.int64(0)
        for i in range(DIGITS):
            counts[i], place = place, place + counts[i]
        for i in range(n):
            digit = ((keys[i] ^ last) >> shift) & (DIGITS - 1)
            place = counts[digit]
            counts[digit] = place + 1
            spare[place], spare_indices[place] = keys[i], indices[i]
        keys, spare = spare, keys
        indices, spare_indices = spare_indices, indices
        in_spare = not in_spare
    return in_spare


@plain
def _sort(keys, indices, spare, spare_indices, last, counts_at, into):
    """Write the first indices by falling keys; the first of equal ones first."""
    n = indices.size
    if n <= FEW_KEYS:
        ranks = carray(pointer(counts_at), FEW_KEYS, keys.dtype)
        _rank(keys, n, ranks)
        for i in range(n):
            spare_indices[ranks[i]] = indices[i]
        in_spare = True
    else:
        counts = carray(pointer(counts_at), DIGITS, np.int64)
        in_spare = _by_digits(keys, indices, spare, spare_indices, last, counts)
    ordered = spare_indices if in_spare else indices
    _copy(ordered[: min(into.size, n)], into)


@plain
def _fill(row, mask, out, into, filled):
    """Add the lowest indices of entries out of play after the `filled` ones, masked ones last."""
    for masked in range(2):
        i = 0
        while filled < into.size and i < row.size:
            if row[i] == out and (mask.size > 0 and not mask[i]) == (masked == 1):
                into[filled] = i
                filled += 1
            i += 1


def largest(kind: int, number: Any) -> Any:
    """The work of a thread: the indices of the k largest numbers of rows."""
    size, (integer, least, keys_of) = np.dtype(number).itemsize, types_of(number)
    between, floats = half_way(number), issubclass(number, np.floating)
    kth = kth_of(number if floats else np.float32)

    @plain
    def kth_keys(x, n, count, k, way, out, own, keys):
        """Keys of the k-th largest of rows abreast, or of the smallest."""
        k = n + 1 - k if way & SMALLEST else k
        at = kth(x, n, count - 1, k, _kept_of(n, k), own)
        keys_of(carray(pointer(at), ROWS, number), way, out, keys)

    @plain
    def work(job, own, first, last, _):
        words = carray(pointer(job), WORDS, np.int64)
        n, k, rows, way = words[N], words[K], words[COUNT], words[WAY]
        xs = carray(pointer(words[X]), rows * n, number)
        outs = carray(pointer(words[OUT]), rows * k, np.int64)
        masks = carray(pointer(words[MASK]), rows * n if words[MASK] != 0 else 0, np.bool_)
        parts, room, out = _parts_of(n, k), _candidates_of(k), integer(least)
        padded = (n + LANES - 1) // LANES * LANES
        keys = carray(pointer(own), padded, integer)
        row = keys[:n]
        # Of keys, a step may read a number after the last, and write some after the last found.
        best_at = own + 8 * (n + 2 * LANES)
        best, at = carray(pointer(best_at), parts, integer), best_at + 8 * parts
        chosen = carray(pointer(at), room + LANES, integer)
        places = carray(pointer(at + 8 * (room + LANES)), room + LANES, np.int64)
        spare = carray(pointer(at + 16 * (room + LANES)), room, integer)
        spare_places = carray(pointer(at + 8 * (3 * room + 2 * LANES)), room, np.int64)
        counts_at = at + 8 * (4 * room + 2 * LANES)
        known_at = counts_at + 8 * DIGITS
        known = carray(pointer(known_at), ROWS, integer)
        columns = (known_at + 8 * ROWS + REGISTER - 1) // REGISTER * REGISTER
        abreast = floats and masks.size == 0 and k <= n < SHORTEST
        _set(known, out)
        _set(keys[n:], out)
        for r in range(first, last):
            x, into = xs[r * n : r * n + n], outs[r * k : r * k + k]
            if abreast and (r - first) % ROWS == 0:
                at, count = words[X] + r * n * size, min(ROWS, last - r)
                kth_keys(at, n, count, k, way, out, columns, known)
            keys_of(x, way, out, row)
            mask = masks[r * n : r * n + n] if masks.size else masks
            if masks.size:
                leave_out(mask, out, row)
            hint = known[(r - first) % ROWS]
            count = _candidates(
                row, own, size, k, out, hint, between, best, best_at, chosen, places[:room]
            )
            if way & ANY_ORDER and count <= k:
                _copy(places[:count], into)
            else:
                some = chosen, places[:count], spare[:count], spare_places[:count]
                _sort(*some, real(out, ~out), counts_at, into)
            if count < k:
                _fill(row, mask, out, into, count)

    return served(work)
