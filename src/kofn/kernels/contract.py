"""Numbers that name the sums and links in calls of the kernels."""

from __future__ import annotations

import math

LOG_COUNT, TAILS, MARGINALS, COVARIANCE = range(4)
"""What a kernel that adds up the sums of k-subsets may be asked for."""


def splits(n: int) -> int:
    """How many uniform numbers the drawing of a k-subset takes from a row of n coins."""
    return 0 if n < 2 else (n + 1) // 2 + splits((n + 1) // 2)


def window_of(size: int, double: bool) -> int:
    """How many numbers of heads are kept: a deviation is at most ½√size, and what is beyond 8 of
    them, or 6 in float32, is below rounding.
    """
    return 2 * math.ceil((8 if double else 6) * math.sqrt(size) / 2) + 1
