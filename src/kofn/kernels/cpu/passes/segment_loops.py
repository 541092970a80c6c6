"""Segments of one long axis: counted, sorted, copied to dense rows of one length and back.

Memory sets the speed, so one thread does all of it. What is made for a `number` (np.float32 or
np.float64) takes addresses: of the entries; of their places in the order of the segments, 0 if they
are sorted; of where each segment begins in that order, and its length; of the numbers of those to
copy; and of the rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from kofn.kernels.cpu.runtime.intrinsics import pointer

SORTED, LEAST, GREATEST, FOUND = range(4)
"""The answers of `statistics`: whether ids are sorted, and their least and greatest."""


def statistics(ids, size, answers):
    """Look at ids of 64 bits, one at least."""
    numbers = carray(pointer(ids), size, np.int64)
    known = carray(pointer(answers), FOUND, np.int64)
    least = greatest = last = numbers[0]
    falls = 0
    for i in range(size):
        each = numbers[i]
        falls += each < last
        least, greatest = min(least, each), max(greatest, each)
        last = each
    known[SORTED], known[LEAST], known[GREATEST] = falls == 0, least, greatest


def lengths_of(ids, size, counts):
    """Add up how many entries each segment has; ids are in range."""
    numbers = carray(pointer(ids), size, np.int64)
    for i in range(size):
        carray(pointer(counts + 8 * numbers[i]), 1, np.int64)[0] += 1


def sort(ids, size, ends, places):
    """Write the places of the entries by segment, from `ends` on, which move to the ends."""
    numbers = carray(pointer(ids), size, np.int64)
    for i in range(size):
        end = carray(pointer(ends + 8 * numbers[i]), 1, np.int64)
        carray(pointer(places + 8 * end[0]), 1, np.int64)[0] = i
        end[0] += 1


def pack(kind: int, number: Any) -> Any:
    """Make the function that copies segments to rows of one length, and fills these up."""
    return _copy(number, True)


def unpack(kind: int, number: Any) -> Any:
    """Make the function that copies rows of one length back to the segments."""
    return _copy(number, False)


def _copy(number: Any, packs: bool) -> Any:
    bytes_of = np.dtype(number).itemsize

    def work(entries, places, starts, lengths, which, count, length, rows, fill):
        chosen = carray(pointer(which), count, np.int64)
        value = number(fill)
        for i in range(count):
            s = 8 * chosen[i]
            n = carray(pointer(lengths + s), 1, np.int64)[0]
            first = carray(pointer(starts + s), 1, np.int64)[0]
            row = carray(pointer(rows + bytes_of * length * i), length, number)
            if places == 0:
                part = carray(pointer(entries + bytes_of * first), n, number)
                for j in range(n):
                    if packs:
                        row[j] = part[j]
                    else:
                        part[j] = row[j]
            else:
                at = carray(pointer(places + 8 * first), n, np.int64)
                for j in range(n):
                    entry = carray(pointer(entries + bytes_of * at[j]), 1, number)
                    if packs:
                        row[j] = entry[0]
                    else:
                        entry[0] = row[j]
            if packs:
                for j in range(n, length):
                    row[j] = value

    return work
