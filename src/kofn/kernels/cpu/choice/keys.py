"""Numbers as keys, integers in their order, and the search for the k-th largest of these.

The least key stands for entries out of play; it is also the least integer of its type, or, where
the smallest come first, the greatest. Integers of any size are halved between until two are
neighbours, so the search ends after a few counts for each bit of a key.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kofn.kernels.contract import OF_SCORES, SMALLEST
from kofn.kernels.cpu.choice.layout import LANES
from kofn.kernels.cpu.choice.search import middle
from kofn.kernels.cpu.choice.worker import lowest_of
from kofn.kernels.cpu.runtime.registers import ones, reaching
from kofn.kernels.cpu.runtime.shares import plain
from kofn.kernels.cpu.runtime.vector_math import ordered, real, unordered, widest_vectors

HALVE = 3
"""One of so many steps halves the keys between two, which ends wherever numbers lie; the others
halve what the keys stand for: few steps where numbers lie about evenly."""
STEPS = HALVE * 64
"""No two keys have more between them than so many steps halve."""


def types_of(number: Any) -> tuple[Any, int, Any]:
    """Return the type of the keys of numbers, the least of them, and what makes keys."""
    integer = np.int32 if np.dtype(number).itemsize == 4 else np.int64
    make = of_floats if issubclass(number, np.floating) else of_integers
    return integer, int(np.iinfo(integer).min), make


def half_way(number: Any) -> Any:
    """Return a function that finds the key of the number half-way between two keys' numbers."""

    @plain
    def of_floats(low, high):
        like = number(0)
        a, b = unordered(low, like), unordered(high, like)
        t = ordered(a + (b - a) * real(like, 0.5))
        return t if low < t < high else middle(low, high)  # not by infinities, nor by NaN

    return of_floats if issubclass(number, np.floating) else middle


@plain
def of_floats(x, way, out, keys):
    """NaN is the largest, or, of scores, out of play."""
    widest_vectors()
    lowest, scores = lowest_of(x), way & OF_SCORES != 0
    turned, bad = real(out, -(way & SMALLEST)), real(out, ~out - 1)
    for i in range(x.size):
        v = x[i]
        key = ordered(v + real(v, 0.0)) if v == v else bad  # −0 is 0
        keys[i] = (key if v > lowest else out) if scores else real(out, key ^ turned)


@plain
def of_integers(x, way, out, keys):
    widest_vectors()
    turned = real(out, -(way & SMALLEST))
    for i in range(x.size):
        keys[i] = real(out, x[i] ^ turned)


@plain
def leave_out(mask, out, keys):
    for i in range(mask.size):
        if not mask[i]:
            keys[i] = out


@plain
def reach_of(address, size, n, t):
    """Count the keys that are at least t: n, and the ones that fill the last LANES behind them."""
    widest_vectors()
    count = np.int64(0)
    for start in range(0, n, LANES):
        count += ones(reaching(address + start * size, t))
    return count


@plain
def _ends(keys, out):
    """The least and the greatest of the keys in play."""
    widest_vectors()
    least, greatest = real(out, ~out), out
    for i in range(keys.size):
        key = keys[i]
        least, greatest = min(least, key if key > out else real(out, ~out)), max(greatest, key)
    return least, greatest


@plain
def bound(keys, address, size, k, out, slack, between):
    """(t, reach): a key that at least k reach, and at most k + slack if such a key is found.

    If fewer than k are in play, the least of these. Keys behind the last ones are out of play.
    `between` is made by `half_way`.
    """
    n = keys.size
    low, high = _ends(keys, out)
    if high == out:
        return real(out, out + 1), np.int64(0)
    reach, top = reach_of(address, size, n, low), reach_of(address, size, n, high)
    if reach <= k + slack:
        return low, reach
    if top >= k:
        return high, top
    for step in range(1, STEPS):
        t = middle(low, high) if step % HALVE == 0 else between(low, high)
        if t == low:  # `low` and `high` are neighbours
            break
        count = reach_of(address, size, n, t)
        if count < k:
            high = t
        else:
            low, reach = t, count
            if count <= k + slack:
                break
    return low, reach
