"""Numbers that loops and their launch agree on; nothing here needs a compiler."""

from __future__ import annotations

# A job, after the first words of shares.py: the pass; entries of a row, bytes of each, parts of a
# row and sums; the addresses of weights, cotangents, answers and the numbers of the formulas.
RUN, N, SIZE, PARTS, SUMS, X, G, OUT, GIVEN = range(4, 13)
WORDS = 13
FIVE = 5
"""Numbers that a pass takes."""

# The memory of a thread of lattice_loops.py: points of the two tables, the most bins of a row, what
# there is of these, and of their points.
TABLE, BINS = 1024, 384
MOMENTS, WIDTH = 8 * (BINS + 16), BINS + 8
LATTICE = 8 + 2 * TABLE + 2 * MOMENTS + 4 * WIDTH
