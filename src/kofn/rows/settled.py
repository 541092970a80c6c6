"""Rows with the special cases resolved: available, always chosen and never chosen entries."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from kofn.arrays.autodiff import nan_where, stop_gradient
from kofn.arrays.flow import only_if
from kofn.arrays.kinds import Array, cast, deleted, namespace
from kofn.links.link import Link
from kofn.rows.given import Given
from kofn.solver.reductions import Reductions


class Rows(NamedTuple):
    """The rows of a map; arrays in the compute dtype, per entry (…, n) or per row (…)."""

    scores: Array  # −inf where not live
    live: Array
    top: Array
    k: Array  # how many of the live entries to choose, or the rest to spend on them
    top_weight: Array  # the weight of each score of +inf: per row, or per entry with costs
    temperature: Array
    link: Link  # an inner one; its parameter is a number or per row
    known: Any = None  # of rows in several processes: what rows/shards/statistics.py has counted
    costs: Array | None = None  # per entry, ≥ 0, and 0 where excluded; or None

    def number(self, over: Reductions, live: bool = True, top: bool = True) -> Array:
        """Return how many entries of each row are live, or top, or either."""
        if self.known is None:
            flags = self.live | self.top if live and top else self.live if live else self.top
            return over.count(flags)
        number: Array = self.known.live * live + self.known.top * top
        return number


def rows_of(given: Given, over: Reductions | None = None) -> Rows:
    """Split the entries of rows into available, always chosen and never chosen ones."""
    over = given.over if over is None else over
    if given.costs is not None:
        return _with_costs(given, over)
    x, k, temperature, link = given.per_row()[:4]
    xp = namespace(x)
    top = x == math.inf
    live = ~(top | deleted(x))
    some_top = ~(over.max(stop_gradient(x)) < math.inf)
    x = xp.where(live, x, -math.inf)
    count_top = only_if(
        some_top,
        lambda: over.sum(cast(top, x.dtype)),
        xp.zeros_like(k),
    )

    return Rows(x, live, top, *k_and_top_weight(k, count_top), temperature, link)


def _with_costs(given: Given, over: Reductions) -> Rows:
    """Split entries with costs; what +inf costs comes off the budget, or shares it if it is more.

    A NaN is in each score, cost and number of its row.
    """
    x, budget, temperature, link, _, costs = given
    xp = namespace(x)
    top, excluded = x == math.inf, deleted(x)
    bad = ~excluded & ~((costs >= 0) & (costs < math.inf))
    costs = xp.where(excluded | bad, 0.0, costs)
    budget = xp.where(over.count(bad) > 0, math.nan, budget)

    price = over.sum(xp.where(top, costs, 0.0))
    over_budget = price > budget
    # Infinite budgets buy all; the difference of two infinities would be NaN.
    left = xp.where(over_budget, 0.0, budget) - xp.where(over_budget, 0.0, price)
    share = xp.where(over_budget, budget, 0.0) / xp.where(over_budget, price, 1.0)
    share = xp.where(over.expand(over_budget) & (costs > 0), over.expand(share), 1.0)
    weight = xp.where(over.expand(xp.isnan(budget)), math.nan, share)

    live = ~(top | excluded)
    numbers = over.max(stop_gradient(x)), stop_gradient(budget), stop_gradient(temperature)
    has_nan = xp.isnan(numbers[0]) | xp.isnan(numbers[1]) | xp.isnan(numbers[2])
    inside = over.expand(has_nan) & ~excluded
    left, temperature = nan_where(left, has_nan), nan_where(temperature, has_nan)
    x, costs = xp.where(live, nan_where(x, inside), -math.inf), nan_where(costs, inside)
    return Rows(x, live, top, left, weight, temperature, link, costs=costs)


def uncounted(given: Given) -> Rows:
    """Return rows whose scores of +inf are not counted: k is for all, their weight is none."""
    x, k, temperature, link = given[:4]
    top = x == math.inf
    none: Any = None
    return Rows(x, ~(top | deleted(x)), top, k, none, temperature, link)


def k_and_top_weight(k: Array, tops: Array) -> tuple[Array, Array]:
    """Return how many live entries to choose, and the weight of each score of +inf.

    There are `tops` of these. If k is less, they share it, and the former number is below 0.
    """
    xp = namespace(k)
    wanted = xp.where(tops > 0, k / xp.where(tops > 0, tops, 1.0), 0.0)
    weight = xp.where(k <= tops, wanted, xp.where(xp.isnan(k), k, 1.0))
    return k - tops, weight
