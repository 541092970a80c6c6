"""The k-th largest score of a long row: a sample tells between which scores it is, or, of a shorter
one, mean and variance, as if scores were normal.

Those between are copied, others above them counted, and only the copies are searched: a few in a
hundred by a sample, up to a quarter by mean and variance. If it is not among them, all are searched
as if nothing had been told.
"""

from __future__ import annotations

import math

import numpy as np

from kofn.kernels.cpu.choice.search import count_above, count_from, ends, kth_largest
from kofn.kernels.cpu.rows.frame import loop
from kofn.kernels.cpu.runtime.layout import AT_ONCE
from kofn.kernels.cpu.runtime.registers import (
    above,
    compress,
    lowest,
    ones,
    reaching,
    registers_are_wide,
)
from kofn.kernels.cpu.runtime.shares import plain
from kofn.kernels.cpu.runtime.vector_math import ordered, real, unordered, widest_vectors

SHARE, MOST = 32, 4096
"""A sample has one score of so many, and no more than the most."""
SHORTEST = 16_384
"""The shortest row of which a sample is taken."""
APART, TAIL = 0.3, 0.125
"""Of a row without a sample, how many standard deviations from where normal scores would have the
k-th largest the scores that are copied begin, and end; up to which k/n all that are greater are."""
LEAST, LEAST_OF_MANY = 512, 2048
"""The shortest rows for that: where registers are wide and k/n is in the tail, and where one of
both holds. In shorter ones so many are copied that searching all takes no longer."""
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
def _normal(share):
    """How many deviations above the mean so large a share of normal scores is, to 5e-4: Abramowitz
    and Stegun (1964), 26.2.23.
    """
    t = math.sqrt(-2 * math.log(min(share, 1 - share)))
    over, under = 2.515517 + t * (0.802853 + t * 0.010328), t * (0.189269 + t * 0.001308)
    z = t - over / (1 + t * (1.432788 + under))
    return z if share < 0.5 else -z


@loop
def _moments(x):
    """Mean and variance of a row, neither finite unless all scores are."""
    widest_vectors()
    total, squares, pivot = real(x[0], 0.0), real(x[0], 0.0), x[0]
    for i in range(x.size):
        d = x[i] - pivot
        total += d
        squares += d * d
    mean = np.float64(total) / x.size
    return pivot + mean, np.float64(squares) / x.size - mean * mean


@plain
def _bracket_of_normal(x, k, least, wide):
    """The same as `_bracket` by mean and variance, if it is worth it by registers that are wide."""
    share, infinite = k / x.size, real(least, math.inf)
    in_tail = share <= TAIL
    if not (in_tail or wide) or (x.size < LEAST_OF_MANY and not (in_tail and wide)):
        return infinite, least
    mean, variance = _moments(x)
    if not (0 < variance < math.inf and share < 1):
        return infinite, least
    deviation = math.sqrt(variance)
    theta, apart = mean + _normal(share) * deviation, APART * deviation
    high = infinite if in_tail else real(least, theta + apart)
    return real(least, theta - apart), high


@plain
def _sift(x, address, low, high, into, finite):
    """Copy the scores from low to high, in their order, and fill up with −∞.

    (copied, above, bad): how many those are, or −1 if there is no room for them; how many are
    greater; whether one is NaN, unless there was no room. If all are known to be `finite`, none is,
    and more than a few lie between.
    """
    widest_vectors()
    size, room, least = x.itemsize, into.size - AT_ONCE, real(low, -math.inf)
    copied, greater, missing = np.int64(0), np.int64(0), np.int64(0)
    whole, together = x.size // AT_ONCE * AT_ONCE, finite and registers_are_wide()
    if together and high < real(low, math.inf):
        greater = count_above(x[:whole], high)
    into_at = into.ctypes.data
    for start in range(0, whole, AT_ONCE):
        at = address + start * size
        if together:
            if copied > room:
                return np.int64(-1), greater, False
            copied += compress(at, low, high, into_at + copied * size, 0, 0)
            continue
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
            if copied >= room:
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
    while row.size >= (LEAST if row.size == x.size else SHORTEST) and k - greater < row.size:
        finite = row.size < SHORTEST
        if finite:
            low, high = _bracket_of_normal(row, k, lowest, registers_are_wide())
        else:
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
        copied, more, missing = _sift(row, address, low, high, room, finite)
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
