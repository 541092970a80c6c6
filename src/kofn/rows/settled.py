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
    k: Array  # how many of the live entries to choose
    top_weight: Array  # the weight of each score of +inf
    temperature: Array
    link: Any  # an inner Link; its parameter is a number or per row


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

    wanted = xp.where(count_top > 0, k / xp.where(count_top > 0, count_top, 1.0), 0.0)
    top_weight = xp.where(k <= count_top, wanted, xp.where(xp.isnan(k), k, 1.0))
    return Rows(
        scores=x,
        live=live,
        top=top,
        k=k - count_top,
        top_weight=top_weight,
        temperature=temperature,
        link=link,
    )
