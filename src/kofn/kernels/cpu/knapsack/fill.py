"""The work of one thread on hard choices of rows with costs: by density, up to what does not fit.

The density of the first entry that does not fit, or of the last one if the budget is spent, is
found without a sort, as a nucleus is: a bracket, narrowed by adding up costs. Sums that differ from
the budget by rounding errors, in another order, decide nothing: such rows are given up, and those
that contain a NaN.
"""

from __future__ import annotations

import math

import numpy as np
from numba import carray

from kofn.kernels.cpu.choice.search import least_from
from kofn.kernels.cpu.choice.truncated import mass_from, reaching
from kofn.kernels.cpu.choice.worker import lowest_of
from kofn.kernels.cpu.knapsack.layout import APART, COSTS, WORDS
from kofn.kernels.cpu.rows.frame import loop
from kofn.kernels.cpu.rows.layout import GIVEN_UP, HI, OUT, TEMPERATURE, K, N, X
from kofn.kernels.cpu.runtime.intrinsics import fetch_add, pointer
from kofn.kernels.cpu.runtime.layout import COUNT
from kofn.kernels.cpu.runtime.shares import served
from kofn.kernels.cpu.runtime.vector_math import ordered, unordered, widest_vectors

MOST = float(np.finfo(np.float64).max)


@loop
def _densities(x, costs, lowest, densities):
    """x/c of entries that may be bought, −∞ of others; the least and the greatest of the former;
    whether all is ordinary.
    """
    widest_vectors()
    bad, least, greatest = np.int32(0), ordered(math.inf), ordered(-math.inf)
    for i in range(x.size):
        v, cost = np.float64(x[i]), np.float64(costs[i])
        playing = not x[i] <= lowest
        ordinary = (v == v) & (cost >= 0) & (cost < math.inf)
        bad = np.int32(bad | np.int32(playing & (not ordinary)))
        pays = playing & (cost > 0)
        density = v / (cost if pays else 1.0)
        density = min(max(density, -MOST), MOST) if abs(v) < math.inf else v
        densities[i] = density if pays else -math.inf
        key = ordered(density)
        least = min(least, key if pays else ordered(math.inf))
        greatest = max(greatest, key if pays else ordered(-math.inf))
    return unordered(least, 0.0), unordered(greatest, 0.0), bad == 0


@loop
def _cost_above(densities, costs, t):
    """Add up the costs of the entries whose density is greater than t."""
    widest_vectors()
    whole = 0.0
    for i in range(densities.size):
        whole += np.float64(costs[i]) if densities[i] > t else 0.0
    return whole


@loop
def _is_close(cost, budget, n, exact):
    """Whether another order of a sum might decide otherwise: not where sums of costs are exact."""
    return not (exact and cost == budget) and abs(cost - budget) <= n * 2.0**-51 * cost


@loop
def _buy(x, costs, budget, lowest, densities, out):
    """Write the choice of a row; whether it is not given up."""
    least, greatest, ordinary = _densities(x, costs, lowest, densities)
    if not (ordinary and budget == budget):
        return False
    n, last, left, ties, exact = x.size, -math.inf, 0.0, False, x.itemsize == 4
    total = mass_from(densities, costs, least)
    if total > budget:
        last = least_from(densities, reaching(densities, costs, budget, least, greatest))
        above = _cost_above(densities, costs, last)
        if above > 0 and _is_close(above, budget, n, exact):
            return False
        left, ties = budget - above, True
        if _is_close(mass_from(densities, costs, last), budget, n, exact):
            return False
    elif _is_close(total, budget, n, exact):
        return False
    for i in range(n):
        v, density, cost = x[i], densities[i], np.float64(costs[i])
        bought = density > last
        if density == last and ties:
            if _is_close((budget - left) + cost, budget, n, exact):
                return False
            ties = cost <= left
            left -= cost
            bought = ties
        free = cost == 0 and not v <= lowest and v > 0
        out[i] = 1.0 if bought or free else 0.0
    return True


def fill(kind, number):
    """The work of a thread: write the bought shares, and NaN in place of θ in rows given up."""

    @loop
    def work(job, own, first, last, alpha):
        words = carray(pointer(job), WORDS, np.int64)
        n, rows = words[N], words[COUNT]
        xs = carray(pointer(words[X]), rows * n, number)
        outs = carray(pointer(words[OUT]), rows * n, number)
        budgets = carray(pointer(words[K]), rows, number)
        temperatures = carray(pointer(words[TEMPERATURE]), rows, number)
        lost = carray(pointer(words[HI]), rows, number)
        densities, lowest = carray(pointer(own), n, np.float64), lowest_of(xs)
        for r in range(first, last):
            at, stop = r * n, r * n + n
            costs = carray(pointer(words[COSTS] + r * words[APART]), n, number)
            budget = np.float64(budgets[r] + temperatures[r] * number(0))
            is_sure = _buy(xs[at:stop], costs, budget, lowest, densities, outs[at:stop])
            lost[r] = number(0.0 if is_sure else math.nan)
            if not is_sure:
                fetch_add(job + 8 * GIVEN_UP, 1)

    return served(work)
