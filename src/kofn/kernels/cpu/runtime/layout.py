"""Numbers that compiled code and its callers in Python agree on; nothing here needs a compiler."""

from __future__ import annotations

REGISTER = 64  # bytes of the widest vector
ASKED = {
    "kofn_wide_registers": {"avx512f"},
    "kofn_converts_halves": {"f16c", "neon"},
}
"""What code may ask about the processor that it is compiled for, by functions that return an answer
known then: the features of which one is needed for a yes.
"""

WIDTH_IF_WIDE = "kofn.loop.vectorize.width"
"""What says how many numbers of a loop are one vector, if registers are as wide."""

AT_ONCE = 64  # numbers that are compared at once: a bit of a word for each

# The first integers of a job: the next row, how many are done, how many there are, and how many are
# taken at once.
NEXT, DONE, COUNT, CHUNK = range(4)

BLOCK = 512  # entries of a row whose sums are in the precision of the scores

PART = 1 << 16  # entries of a long row that one thread takes at a time
SUMS = 8  # numbers that a pass may add up

# What a team shares: nine integers, five numbers, then the sums of each part.
NUMBERS = 9
HEAD = NUMBERS + 5


def room(n: int) -> int:
    """Words of memory a team needs for rows of n."""
    return HEAD + SUMS * -(-n // PART) if n > PART else 0


# Rows of 16-bit numbers (half.py): the job of a thread that has them worked on as float32, after
# the first integers of any job. How many rows were given up; the address of a team, if there is
# one, and the bytes from a thread's memory to its team's; entries of a row; addresses of the
# conversions; bytes from a thread's memory to the job that it makes, and from there to the first
# of the converted arrays, and of each; the addresses of the arrays to convert, 0 where there is
# none; how many jobs to make, and the address of the table of these.
HALF_GIVEN_UP, TEAM, TEAM_AT, ENTRIES, WIDEN, NARROW, MADE, CONVERTED, SLOT = range(4, 13)
SCORES, ANSWERS, COTANGENTS, STEPS, TABLE = range(13, 18)
HALF_WORDS = 18

# A line of that table: the address of a function, how many words its job has, which of them counts
# the rows given up, if one does, and the addresses of these words for all rows and of their modes.
RUN, LENGTH, GIVEN_UP_AT, START, MODES = range(5)
STEP = 5

# The threads of a parallel region (openmp.py): how many have taken a place, how many places there
# are, the address of the number that all works take; then of each place the addresses of a function
# and of its job, and two more of its arguments.
TAKEN, MOST, NUMBER = range(3)
PLACES = 3
PLACE = 4

HALF_TYPES = ("float16", "bfloat16")

COPIED = 0
"""Ways to make a word other than 0 for some of the rows: as it is; by so many bytes more for each
row before them; or, below 0, `in_slot` of a converted array."""


def in_slot(array: int) -> int:
    """Return the mode of a word that is the address of a converted array."""
    return SCORES - 1 - array
