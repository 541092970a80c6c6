"""The k-th largest score of a long row: a sample tells between which scores it is.

One pass counts the scores above these and copies those between them, a few in a hundred, and only
they are searched. A sample that misleads costs that pass, and no more.
"""

from __future__ import annotations

import math

import numpy as np

from kofn.kernels.cpu.choice.search import count_above, count_from, ends, kth_largest
from kofn.kernels.cpu.runtime.layout import AT_ONCE
from kofn.kernels.cpu.runtime.registers import above, lowest, ones, reaching
from kofn.kernels.cpu.runtime.shares import plain
from kofn.kernels.cpu.runtime.vector_math import ordered, real, unordered, widest_vectors

SHARE, MOST = 32, 4096
"""A sample has one score of so many, and no more than the most."""
SHORTEST = 16_384
"""The shortest row of which a sample is taken."""
DEVIATIONS = 2.5
"""How far from the rank that is wanted, in the sample, a bracket begins and ends."""
PLACES, GOLDEN = 16, 40503
"""The i-th part of a row, of 2^PLACES places, has its score at i golden sections, less the whole:
the parts of a row that repeats itself do not all have the same."""
FEW = 4
"""Scores that are copied at once: some more than wanted, which are written over."""


@plain
def place_of(i, n, size):
    """The place of the i-th of so many scores of a sample."""
    part = (1 << PLACES) - 1
    return (i * n + ((i * GOLDEN & part) * n >> PLACES)) // size


@plain
def ranks_of(n, k, size):
    """Two ranks in a sample, between which the k-th largest of n is likely to be."""
    rank, apart = size * k / n, DEVIATIONS * math.sqrt(size * k / n * (1 - k / n)) + 1
    return np.int64(math.floor(rank - apart)), np.int64(math.ceil(rank + apart))


@plain
def _bracket(x, k, least, sample):
    """(low, high), between which the k-th largest is likely to be: low ≤ t ≤ high, or, where there
    are hardly so many scores in play, low > high.
    """
    for i in range(sample.size):
        sample[i] = x[place_of(i, x.size, sample.size)]
    most, fewest = ranks_of(x.size, k, sample.size)
    key = ordered(least)
    low, high = unordered(real(key, key + 1), least), real(least, math.inf)
    first, last, _ = ends(sample, least)
    reach = count_from(sample, first)
    if most > reach:
        return high, low
    if fewest <= reach:
        low, _ = kth_largest(sample, fewest, first, last)
    if most > 0:
        high, _ = kth_largest(sample, most, first, last)
    return low, high


@plain
def _sift(x, address, low, high, into):
    """Copy the scores from low to high, in their order, and fill up with −∞.

    (copied, above, bad): how many those are, or −1 if there is no room for them; how many are
    greater; whether one is NaN, unless there was no room.
    """
    widest_vectors()
    size, room, least = x.itemsize, into.size - AT_ONCE, real(low, -math.inf)
    copied, greater, missing = np.int64(0), np.int64(0), np.int64(0)
    whole = x.size // AT_ONCE * AT_ONCE
    for start in range(0, whole, AT_ONCE):
        at = address + start * size
        over = above(at, high)
        bits = reaching(at, low) & ~over
        missing |= ~reaching(at, least)
        greater += ones(over)
        end = copied + ones(bits)
        if end > room:
            return np.int64(-1), greater, False
        for first in range(copied, end, FEW):
            for j in range(first, first + FEW):
                into[j] = x[min(start + lowest(bits), x.size - 1)]
                bits &= bits - 1
        copied = end
    for i in range(whole, x.size):
        v = x[i]
        greater += v > high
        missing |= v != v
        if low <= v <= high:
            if copied == room:
                return np.int64(-1), greater, False
            into[copied] = v
            copied += 1
    for i in range(copied, (copied + AT_ONCE - 1) // AT_ONCE * AT_ONCE):
        into[i] = least
    return copied, greater, missing != 0


@plain
def kth_of_row(x, address, k, lowest, spare):
    """(t, above, bad): as kth_largest, of the scores above `lowest`; whether a score is NaN.

    If none is above it, t is ∞. `spare` has room for as many scores as x.
    """
    row, room, greater, bad = x, spare, np.int64(0), False
    while row.size >= SHORTEST and k - greater < row.size:
        size = min(row.size // SHARE // AT_ONCE * AT_ONCE, MOST)
        low, high = _bracket(row, k - greater, lowest, room[:size])
        if low > high:
            break
        if low == high:  # of many equal scores
            more = count_above(row, high)
            if more < k - greater <= count_from(row, high):
                _, _, missing = ends(row, lowest)
                return high, more + greater, bad or missing
            break
        copied, more, missing = _sift(row, address, low, high, room)
        if not more < k - greater <= more + copied:
            break
        bad, greater, halved = bad or missing, greater + more, 2 * copied < row.size
        copied = (copied + AT_ONCE - 1) // AT_ONCE * AT_ONCE
        row, room, address = room[:copied], room[copied:], room.ctypes.data
        if not halved:
            break
    least, greatest, missing = ends(row, lowest)
    t, more = kth_largest(row, k - greater, least, greatest)
    return t, (more if more < 0 else more + greater), bad or missing
