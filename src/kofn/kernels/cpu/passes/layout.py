"""Numbers that sum_loops.py and sums.py agree on; nothing here needs a compiler."""

from __future__ import annotations

# A job, after the first words of shares.py: the pass; entries of a row, bytes of each, parts of a
# row and sums; the addresses of weights, cotangents, answers and the numbers of the formulas.
RUN, N, SIZE, PARTS, SUMS, X, G, OUT, GIVEN = range(4, 13)
WORDS = 13
FIVE = 5
"""Numbers that a pass takes."""
