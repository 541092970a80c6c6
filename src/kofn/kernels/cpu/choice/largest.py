"""The work of one thread: the indices of the k largest numbers of its rows, largest first.

Numbers become keys, integers in their order. The row is taken in parts, each so many places apart,
and the k-th largest of the parts' maxima is a bound: at least k numbers reach it, and hardly more
where there are four times as many parts. Those are copied out, and the place of each is how many
come before it. So a row is passed over three times, whatever its numbers; where the bound lets too
many through, as it does among equal numbers, it is narrowed by counting.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from kofn.kernels.contract import ANY_ORDER
from kofn.kernels.cpu.choice.keys import above, bound, leave_out, lowest, ones, reaching, types_of
from kofn.kernels.cpu.choice.layout import (
    LANES,
    MASK,
    OUT,
    WAY,
    WORDS,
    K,
    N,
    X,
    candidates_of,
    parts_of,
)
from kofn.kernels.cpu.choice.search import count_above
from kofn.kernels.cpu.runtime.intrinsics import pointer
from kofn.kernels.cpu.runtime.shares import COUNT, plain, served
from kofn.kernels.cpu.runtime.vector_math import real, widest_vectors

RUN = 4 * LANES  # candidates that are sorted by counting; longer runs are merged

_parts_of, _candidates_of = plain(parts_of), plain(candidates_of)


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
def _copy_out(row, address, size, t, ties, keys, indices):
    """Copy the keys of a row that reach t, and their indices; of those equal to t only so many.

    Return how many they are: one more than there is room for if they do not fit.
    """
    found, room, limited = np.int64(0), indices.size, ties < row.size
    for start in range(0, row.size, LANES):
        at = address + start * size
        bits = reaching(at, t)
        while bits != 0:
            i = start + lowest(bits)
            bits &= bits - 1
            if limited and row[i] == t:
                ties -= 1
                if ties < 0:
                    continue
            if found == room:
                return found + 1
            keys[found], indices[found] = row[i], i
            found += 1
    return found


@plain
def _candidates(row, address, size, k, out, best, best_at, keys, indices):
    """Copy the k largest of a row and perhaps some more, in the order of the row; how many."""
    first = real(out, out + 1)
    if row.size <= RUN and best.size == 0:
        return _copy_out(row, address, size, first, row.size, keys, indices)
    if best.size > 0:
        _maxima(row, out, best)
        t, _ = bound(best, best_at, size, k, out, k >> 2)
        found = _copy_out(row, address, size, t, row.size, keys, indices)
        if found <= indices.size:
            return found
    t, reach = bound(row, address, size, k, out, 0)
    ties = row.size if reach <= k else k - count_above(row, t)
    return _copy_out(row, address, size, t, ties, keys, indices)


@plain
def _rank(key, i, address, size, count):
    """How many of `count` keys come before the one at i: larger ones, and equal ones before it."""
    at, rank, own = address, np.int64(0), i // LANES
    for _ in range(own):
        rank += ones(reaching(at, key))
        at += LANES * size
    before = (np.int64(1) << (i % LANES)) - 1
    rank += ones(reaching(at, key) & before) + ones(above(at, key) & ~before)
    for _ in range((count - 1) // LANES - own):
        at += LANES * size
        rank += ones(above(at, key))
    return rank


@plain
def _merge(keys, indices, middle, into, indices_into):
    """The two sorted parts, before `middle` and from it on, as one; without a branch."""
    a, b, last = np.int64(0), middle, np.int64(keys.size - 1)
    for i in range(keys.size):
        left, right = min(a, middle - 1), min(b, last)
        second = (np.int64(keys[right] > keys[left]) & (b <= last)) | (a >= middle)
        j = right if second else left
        into[i], indices_into[i] = keys[j], indices[j]
        b += second
        a += 1 - second


@plain
def _sort(keys, address, size, indices, spare, spare_indices, k, into):
    """Write the indices of the first k by falling keys: runs are sorted by counting, and merged.

    All but the first `indices.size` keys are not in play.
    """
    n, width = indices.size, RUN
    for start in range(0, n, RUN):
        count = min(RUN, n - start)
        at = address + start * size
        for i in range(count):
            place = start + _rank(keys[start + i], i, at, size, count)
            spare[place], spare_indices[place] = keys[start + i], indices[start + i]
    while width < n:
        _copy(spare, keys)
        _copy(spare_indices, indices)
        for i in range(0, n, 2 * width):
            end, middle = min(i + 2 * width, n), min(width, n - i)
            part, places = keys[i:end], indices[i:end]
            _merge(part, places, middle, spare[i:end], spare_indices[i:end])
        width *= 2
    _copy(spare_indices[: min(k, n)], into)


@plain
def _fill(row, mask, out, into, found):
    """The lowest indices of what is not in play, after those found: of masked entries at last."""
    for masked in range(2):
        i = 0
        while found < into.size and i < row.size:
            if row[i] == out and (mask.size > 0 and not mask[i]) == (masked == 1):
                into[found] = i
                found += 1
            i += 1


def largest(kind: int, number: Any) -> Any:
    """The work of a thread: the indices of the k largest numbers of rows."""
    size, (integer, least, keys_of) = np.dtype(number).itemsize, types_of(number)

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
        best_at = own + 8 * (n + LANES)
        best, at = carray(pointer(best_at), parts, integer), best_at + 8 * parts
        chosen = carray(pointer(at), room + LANES, integer)
        places = carray(pointer(at + 8 * (room + LANES)), room, np.int64)
        spare = carray(pointer(at + 8 * (2 * room + LANES)), room, integer)
        spare_places = carray(pointer(at + 8 * (3 * room + LANES)), room, np.int64)
        _set(keys[n:], out)
        for r in range(first, last):
            x, into = xs[r * n : r * n + n], outs[r * k : r * k + k]
            keys_of(x, way, out, row)
            mask = masks[r * n : r * n + n] if masks.size else masks
            if masks.size:
                leave_out(mask, out, row)
            found = _candidates(row, own, size, k, out, best, best_at, chosen, places[:room])
            if way & ANY_ORDER and found <= k:
                _copy(places[:found], into)
            else:
                _set(chosen[found : found + LANES], out)
                some = chosen, at, size, places[:found]
                _sort(*some, spare[:found], spare_places[:found], k, into)
            if found < k:
                _fill(row, mask, out, into, found)

    return served(work)
