"""Numbers that `largest`, `ranked` and their callers agree on; nothing here needs a compiler."""

from __future__ import annotations

# A job, the integers that every thread on it reads: those of shares.py first. Of the numbers, the
# answers and the mask the addresses, 0 for no mask; k answers per row; then how numbers are taken,
# as contract.py has it, or the address of k ranks per row.
N, X, K, OUT, MASK, WAY = range(4, 10)
RANKS = WAY
WORDS = 10

LANES = 16  # numbers that are compared at once
FEWEST = 32  # parts of a row


def parts_of(n: int, k: int) -> int:
    """Return in how many parts a row is taken, four times k or more; 0 where that is too many."""
    parts = FEWEST
    while parts < 4 * k:
        parts *= 2
    return parts if 2 * parts <= n else 0


def candidates_of(k: int) -> int:
    """Return how many numbers are copied out at most: of four parts for each of k, 1.2 k."""
    return 4 * k + 2 * FEWEST


def room_of(n: int, k: int) -> int:
    """Return the words that a thread needs: keys of a row, maxima, candidates and two copies."""
    return n + LANES + parts_of(n, k) + 4 * candidates_of(k) + LANES
