"""Copies of segments, one after another: memory sets the speed, so one thread does all of it.

Each function here makes, for a `number` (np.float32 or np.float64), one function of addresses: of
the entries, sorted by segment; of the first place and the length of each segment; of the numbers of
those to copy; and of the dense rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from kofn.kernels.cpu.runtime.intrinsics import pointer


def pack(kind: int, number: Any) -> Any:
    """Make the function that copies segments to rows of one length, and fills these up."""

    def work(entries, starts, lengths, which, count, length, rows, fill):
        whole = carray(pointer(rows), count * length, number)
        chosen = carray(pointer(which), count, np.int64)
        value = number(fill)
        for i in range(count):
            s = 8 * chosen[i]
            n = carray(pointer(lengths + s), 1, np.int64)[0]
            first = carray(pointer(starts + s), 1, np.int64)[0]
            part = carray(pointer(entries + first * whole.itemsize), n, number)
            at = i * length
            for j in range(n):
                whole[at + j] = part[j]
            for j in range(n, length):
                whole[at + j] = value

    return work


def unpack(kind: int, number: Any) -> Any:
    """Make the function that copies rows of one length back to the segments."""

    def work(entries, starts, lengths, which, count, length, rows, fill):
        whole = carray(pointer(rows), count * length, number)
        chosen = carray(pointer(which), count, np.int64)
        for i in range(count):
            s = 8 * chosen[i]
            n = carray(pointer(lengths + s), 1, np.int64)[0]
            first = carray(pointer(starts + s), 1, np.int64)[0]
            part = carray(pointer(entries + first * whole.itemsize), n, number)
            at = i * length
            for j in range(n):
                part[j] = whole[at + j]

    return work
