"""Counts of a block's entries by digit, from which a choice is made without a sort.

The key of a score is an integer of as many bits, in the order of the scores; 0 and −0 have one
key.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from kofn.kernels.cpu.runtime.intrinsics import pointer


def histogram(kind: int, number: Any) -> Any:
    """Make the function that counts digits of numbers of that type."""
    whole = np.dtype(f"i{np.dtype(number).itemsize}").type
    sign, least = np.iinfo(whole).bits - 1, np.int64(np.iinfo(whole).min)
    rest = np.int64(np.iinfo(whole).max)

    def count(x, n, counts, prefix, below, width, first):
        """Count the entries whose key >> (below + width) is the prefix, by the next digit.

        In the `first` digit there is no prefix, and the least key's is 0.
        """
        bits, into = carray(pointer(x), n, whole), carray(pointer(counts), 1 << width, np.int64)
        last = np.int64((1 << width) - 1)
        flip = np.int64(1 << (width - 1)) if first else np.int64(0)
        for i in range(n):
            key = np.int64(bits[i])
            key = np.int64(0) if key == least else key
            key = (key ^ ((key >> sign) & rest)) >> below
            if first or key >> width == prefix:
                into[(key & last) ^ flip] += 1

    return count
