"""Where a budget ends among the entries of a row that is never held as one array: no sort.

Entries are bought from the greatest key down. The key of the first that does not fit is found
digit by digit, by histograms of what the entries cost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Histogram = Callable[[int, int, int], Sequence[float]]
"""(prefix, below, width) -> the costs of the entries whose key >> (below + width) is the prefix,
by their next digit, of `width` bits. In the first digit that of the least key is 0.
"""


def cut(bits: int, digit: int, budget: float, histogram: Histogram) -> tuple[int, float] | None:
    """Return the key at which the budget ends, and what is left of it for entries with that key.

    Keys are signed integers of so many bits; a digit has `digit` of them. None: everything fits.
    """
    prefix, left, done = 0, budget, 0
    while done < bits:
        width = (bits - done) % digit or digit
        costs = histogram(prefix, bits - done - width, width)
        place, left = _ends(costs, left)
        if place < 0:
            if done == 0:
                return None
            raise AssertionError("a histogram has lost entries")
        offset = place - (1 << (width - 1)) if done == 0 else place
        prefix, done = (prefix << width) + offset, done + width
    return prefix, left


def _ends(costs: Sequence[float], left: float) -> tuple[int, float]:
    """Return the digit in which the budget ends, −1 if in none, and what is left of it there."""
    spent = 0.0
    for place in range(len(costs) - 1, -1, -1):
        if spent + costs[place] > left:
            return place, left - spent
        spent += costs[place]
    return -1, left - spent
