"""Rows with the special cases resolved: available, always chosen and never chosen entries."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.flow import only_if
from kofn.arrays.kinds import (
    Array,
    cast,
    deleted,
    namespace,
)
from kofn.rows.given import Given
from kofn.solver.reductions import Reductions


class Rows(NamedTuple):
    """The rows of a map; arrays in the compute dtype, per entry (…, n) or per row (…)."""

    scores: Array  # −inf where not live
    live: Array
    top: Array
    k: Array  # how many of the live entries to choose, or what is left to spend on them
    top_weight: Array  # the weight of each score of +inf: per row, or per entry with costs
    temperature: Array
    link: Any  # an inner Link; its parameter is a number or per row
    known: Any = None  # of shards: rows/group/survey.py
    costs: Any = None  # per entry, ≥ 0, and 0 where excluded; or None

    def number(self, over: Reductions, live: bool = True, top: bool = True) -> Array:
        """Return how many entries of each row are live, or top, or either."""
        if self.known is None:
            flags = self.live | self.top if live and top else self.live if live else self.top
            return over.count(flags)
        return self.known.live * live + self.known.top * top


def rows_of(given: Given, over: Reductions | None = None) -> Rows:
    """Split the entries of rows into available, always chosen and never chosen ones."""
    over = given.over if over is None else over
    x, k, temperature, link, _ = given.per_row()
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

    return Rows(x, live, top, *shared(k, count_top), temperature, link)


def uncounted(given: Given) -> Rows:
    """Return rows whose scores of +inf are not counted: k is that of all, their weight is none."""
    x, k, temperature, link, _ = given
    top = x == math.inf
    return Rows(x, ~(top | deleted(x)), top, k, None, temperature, link)


def shared(k: Array, tops: Array) -> tuple[Array, Array]:
    """Return how many live entries to choose, and the weight of each of so many scores of +inf."""
    xp = namespace(k)
    wanted = xp.where(tops > 0, k / xp.where(tops > 0, tops, 1.0), 0.0)
    weight = xp.where(k <= tops, wanted, xp.where(xp.isnan(k), k, 1.0))
    return k - tops, weight
