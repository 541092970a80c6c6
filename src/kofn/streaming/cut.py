"""Where a budget ends among the entries of a row that is never held as one array: no sort.

Entries are bought from the greatest key down. The key of the first that does not fit is found
digit by digit, by histograms of the entries' costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Histogram = Callable[[int, int, int], Sequence[float]]
"""(prefix, below, width) -> the costs of the entries whose key >> (below + width) is the prefix,
by their next digit, of `width` bits. In the first digit the least key's is 0.
"""


def cut(bits: int, digit: int, budget: float, histogram: Histogram) -> tuple[int, float] | None:
    """Return the key at which the budget ends, and the rest of it for entries with that key.

    Keys are signed integers of so many bits; a digit has `digit` of them. None: everything fits.
    """
    prefix, left, done = 0, budget, 0
    while done < bits:
        width = (bits - done) % digit or digit
        costs = histogram(prefix, bits - done - width, width)
        place, left = _ends(costs, left, done > 0)
        if place < 0:
            return None
        offset = place - (1 << (width - 1)) if done == 0 else place
        prefix, done = (prefix << width) + offset, done + width
    return prefix, left


def _ends(costs: Sequence[float], left: float, within: bool) -> tuple[int, float]:
    """Return the digit in which the budget ends, −1 if in none, and the rest of it there.

    It ends `within` them if the sum of the same costs in another order says so: but for rounding
    errors, it is then spent on all of them, down to the last.
    """
    spent, last, before = 0.0, -1, 0.0
    for place in range(len(costs) - 1, -1, -1):
        if spent + costs[place] > left:
            return place, left - spent
        if costs[place] > 0:
            last, before = place, spent
        spent += costs[place]
    return (max(last, 0), left - before) if within else (-1, left - spent)
