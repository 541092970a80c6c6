"""The hard choice of rows with costs: by density x/c, up to the first entry that does not fit.

There are no gradients here.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.kinds import Array, cast, most_precise_dtype, namespace
from kofn.arrays.operations import (
    cumulative_sums,
    divided_as,
    put_along_last,
    take_along_last,
    top_indices,
    with_undivided_rows,
)
from kofn.rows.given import Given, with_costs
from kofn.rows.settled import rows_of
from kofn.solver.reductions import DENSE, Reductions


def fill(given: Given, over: Reductions = DENSE, buy: Callable[..., Array] | None = None) -> Array:
    """Return 1 where an entry is bought and 0 elsewhere; NaN in rows that contain one.

    The densest entry comes first, equal ones from the lowest index on. What costs nothing is taken
    if its score is above 0. `buy` is `_bought` of rows that are not dense.
    """
    x, budget, temperature, link, _, costs = given
    given = with_costs(map(stop_gradient, (x, costs, budget, temperature)), link)
    rows, xp = rows_of(given, over), namespace(x)
    known = xp.where(xp.isnan(given.scores), -math.inf, given.scores)
    playing = rows.live | rows.top
    assert rows.costs is not None
    pays = playing & (rows.costs > 0)
    bought = (buy or _bought)(known, xp.where(pays, rows.costs, 0.0), pays, given.k)
    chosen = xp.where(pays, bought, cast(playing & (known > 0), x.dtype))
    unknown = xp.isnan(rows.k) | xp.isnan(given.temperature)
    if link.alpha is not None:
        unknown = unknown | xp.isnan(stop_gradient(link.alpha) + rows.k)
    has_nan = unknown | (over.count(rows.live & xp.isnan(given.scores)) > 0)
    chosen = xp.where(rows.live & over.expand(has_nan), math.nan, chosen)
    return xp.where(rows.top & pays & over.expand(xp.isnan(rows.k)), math.nan, chosen)


def _bought(x: Array, costs: Array, pays: Array, budget: Array) -> Array:
    """Return 1 for the entries that fit into the budget in the order of their densities."""
    like, (x, costs, pays) = x, map(with_undivided_rows, (x, costs, pays))
    xp, (density, price) = namespace(x), densities(x, costs, pays)
    limit = cast(budget, price.dtype)[..., None]
    order = top_indices(density, x.shape[-1])
    spent = cumulative_sums(take_along_last(price, order))
    fits = (spent <= limit) | (xp.sum(price, axis=-1)[..., None] <= limit)
    return divided_as(put_along_last(x, order, cast(fits, x.dtype)), like)


def densities(x: Array, costs: Array, pays: Array) -> tuple[Array, Array]:
    """Return x/c, −inf where nothing is paid, and the costs, in the most precise dtype."""
    xp, wide = namespace(x), most_precise_dtype(x)
    price = cast(costs, wide)
    density = cast(x, wide) / xp.where(pays, price, 1.0)
    # +inf comes before a density that overflows.
    largest = float(xp.finfo(wide).max)
    density = xp.where(xp.isfinite(x), xp.clip(density, -largest, largest), cast(x, wide))
    return xp.where(pays, density, -math.inf), price
