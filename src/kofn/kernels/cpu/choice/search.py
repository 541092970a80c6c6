"""The k-th largest score of a row: a bracket, narrowed by counting.

A pass that counts the scores from t on takes a cycle for 16 of them, and some ten passes find the
k-th of thousands; a sort passes each score far more often. Masked scores and NaN are not counted.
"""

from __future__ import annotations

import math

import numpy as np
from llvmlite import ir
from numba.extending import intrinsic

from kofn.kernels.cpu.runtime.shares import plain
from kofn.kernels.cpu.runtime.vector_math import ordered, real, unordered, widest_vectors


@plain
def ends(x, lowest):
    """The least and the greatest of the scores above `lowest`, and whether a score is NaN."""
    widest_vectors()
    least, greatest = ordered(real(lowest, math.inf)), ordered(real(lowest, -math.inf))
    bad = np.int32(0)
    for i in range(x.size):
        v = x[i]
        key, playing = ordered(v), v > lowest
        least = min(least, key if playing else ordered(real(lowest, math.inf)))
        greatest = max(greatest, key if playing else ordered(real(lowest, -math.inf)))
        bad = np.int32(bad | np.int32(v != v))
    return unordered(least, lowest), unordered(greatest, lowest), bad != 0


@plain
def count_from(x, t):
    """Count the scores that are at least t."""
    widest_vectors()
    count = np.int32(0)  # which fills a vector with twice as many as a wider one
    for i in range(x.size):
        count = np.int32(count + np.int32(x[i] >= t))
    return np.int64(count)


@plain
def count_above(x, t):
    """Count the scores that are greater than t."""
    widest_vectors()
    count = np.int32(0)
    for i in range(x.size):
        count = np.int32(count + np.int32(x[i] > t))
    return np.int64(count)


@plain
def _counts(x, low, high):
    """Count the scores that are at least as much as each of two."""
    widest_vectors()
    from_low, from_high = np.int32(0), np.int32(0)
    for i in range(x.size):
        v = x[i]
        from_low = np.int32(from_low + np.int32(v >= low))
        from_high = np.int32(from_high + np.int32(v >= high))
    return np.int64(from_low), np.int64(from_high)


@plain
def least_from(x, t):
    """The least score that is at least t."""
    widest_vectors()
    least = ordered(real(t, math.inf))
    for i in range(x.size):
        key = ordered(x[i])
        least = min(least, key if x[i] >= t else ordered(real(t, math.inf)))
    return unordered(least, t)


@intrinsic
def middle(typingctx, low, high):
    """The float half-way between two, in the order of all floats."""

    def codegen(context, builder, signature, arguments):
        wide = ir.IntType(128)
        low, high = (builder.sext(key, wide) for key in arguments)
        half = builder.ashr(builder.add(low, high), ir.Constant(wide, 1))
        return builder.trunc(half, arguments[0].type)

    return low(low, high), codegen


@plain
def _apart(count, k):
    """Twice the artanh of it is log(count/k), of half a score where there is none."""
    count = max(np.float64(count), 0.5)
    return (count - k) / (count + k)


@plain
def _probe(low, high, more, less, halve):
    """A number in (low, high): by the line through how far counts are from k, or half-way."""
    width = high - low
    if not halve and width < real(low, math.inf):
        t = low + width * real(low, more / (more - less))
        if low < t < high:
            return t
    return unordered(middle(ordered(low), ordered(high)), low)


HALVE = 4
"""One of so many steps halves the bracket, in the order of all floats, whatever the scores."""
STEPS = HALVE * 66
"""More than a search may take, as a bracket holds at most 2⁶⁴ floats."""
SETTLE = 6
"""After so many steps, look whether equal scores are why no t has k scores above it."""


@plain
def kth_largest(x, k, least, greatest):
    """(t, above): the k-th largest score and how many are greater; above = −1 if just k reach t.

    For scores from `least` to `greatest` without those below; 1 ≤ k. If there are fewer, they are
    all chosen.
    """
    low, high = least, greatest
    from_low, from_high = _counts(x, low, high)
    if from_low <= k:
        return low, np.int64(-1)
    if from_high >= k:
        return high, np.int64(0)
    more, less = _apart(from_low, k), _apart(from_high, k)
    for step in range(1, STEPS):
        t = _probe(low, high, more, less, step % HALVE == 0)
        count = count_from(x, t)
        if count == k:
            return t, np.int64(-1)
        if count > k:
            low, more = t, _apart(count, k)
        else:
            high, less = t, _apart(count, k)
        if step % SETTLE == 0:
            low = least_from(x, low)
            above = count_above(x, low)
            if above < k:
                return low, above
    low = least_from(x, low)  # what reaches it, and fewer than k are above
    return low, count_above(x, low)


@plain
def least_above(row, t, most):
    """Return the least key above t; `most` if there is none."""
    widest_vectors()
    least = most
    for i in range(row.size):
        least = min(least, row[i] if row[i] > t else most)
    return least
