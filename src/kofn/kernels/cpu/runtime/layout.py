"""Numbers that compiled code and its callers in Python agree on; nothing here needs a compiler."""

from __future__ import annotations

REGISTER = 64  # bytes of the widest vector

# The first integers of a job: the next row, how many are done, how many there are, and how many are
# taken at once.
NEXT, DONE, COUNT, CHUNK = range(4)

PART = 1 << 16  # entries of a long row that are visited together
SUMS = 8  # numbers that a visit may add up

# What a team shares: nine integers, five numbers, then the sums of each part.
NUMBERS = 9
HEAD = NUMBERS + 5


def room(n: int) -> int:
    """Words of memory a team needs for rows of n."""
    return HEAD + SUMS * -(-n // PART) if n > PART else 0
