"""The shape of programs in float64, of rows with costs and others."""

from __future__ import annotations

from functools import lru_cache

REGISTERS = 255  # float64 takes two for a number
BLOCK = 256  # entries at a time of long rows


@lru_cache
def shape_of(n: int) -> tuple[int, int, int]:
    """Return (rows of a program, entries of each at a time, warps): one entry to a thread."""
    block = min(max(4, 1 << (n - 1).bit_length()), BLOCK)
    return max(1, 32 // block), block, max(1, block // 32)
