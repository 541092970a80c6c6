"""Checked costs and budgets, and rows with them: the special cases of `settled.py`, with costs.

A row has available entries (`live`), of which some cost nothing, scores of +inf (`top`), and
excluded entries. What +inf costs comes off the budget; if it costs more, it shares the budget.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from kofn.arrays.autodiff import spoil, stop_gradient
from kofn.arrays.checks import (
    check_broadcasts,
    check_number,
    check_real,
    check_same_kind,
)
from kofn.arrays.flow import alike
from kofn.arrays.form import Form
from kofn.arrays.kinds import (
    Array,
    adopt,
    cast_like,
    deleted,
    framework,
    full_like,
    move_axis,
    namespace,
)
from kofn.links.link import Link
from kofn.rows.given import Given, _per_row, _spread, given
from kofn.rows.settled import Rows
from kofn.solver.reductions import DENSE, Reductions


class PricedGiven(NamedTuple):
    """The checked arguments of a map with costs, `dim` last, in the compute dtype."""

    scores: Array  # −inf where masked, or so low that they count as masked
    costs: Array  # as given: NaN, < 0 and inf included
    budget: Array  # per row, NaN where out of range
    temperature: Array
    link: Any  # an inner Link; its parameter is a number or per row


def with_link(arrays: Iterable[Array], link: Any) -> PricedGiven:
    """Return scores, costs, budget and temperature with a link."""
    x, costs, budget, temperature = arrays
    return PricedGiven(x, costs, budget, temperature, link)


def priced_given(
    scores: Array,
    costs: Any,
    budget: Any,
    link: Link,
    temperature: Any,
    dim: int,
    mask: Any,
) -> tuple[PricedGiven, Form]:
    """Check the arguments and bring them to a common form; that of the scores is the second."""
    checked = given(scores, 0.0, link, temperature, dim, mask, for_kernels=True)
    form = checked.form
    costs, budget = costs_of(costs, scores, checked), budget_of(budget, checked)
    x, _, temperature, link, _ = checked.per_row()
    if form.kind == "jax":
        x, budget, temperature, *_ = alike(x, budget, temperature, form.xp.max(costs, axis=-1))
        costs = costs + form.xp.zeros_like(budget)[..., None]
    return PricedGiven(x, costs, budget, temperature, link), form


def costs_of(costs: Any, scores: Array, checked: Given) -> Array:
    x, form = checked.scores, checked.form
    if framework(costs) is None:
        number = check_number("costs", costs, low=0.0, allowed="a finite number ≥ 0")
        return full_like(x, tuple(x.shape), number)
    check_same_kind("costs", costs, scores)
    check_real("costs", costs)
    shape = tuple(scores.shape)
    check_broadcasts("costs", tuple(costs.shape), shape, "the shape of scores")
    spread = form.xp.broadcast_to(cast_like(adopt(costs, scores), x), shape)
    spread = spread if form.dim == -1 else move_axis(spread, form.dim, -1)
    return spread if form.n else full_like(x, tuple(x.shape), 0.0)


def budget_of(budget: Any, checked: Given) -> Array:
    x, form = checked.scores, checked.form
    batch = tuple(x.shape[:-1])
    if framework(budget) is None:
        number = math.inf if _is_infinite(budget) else _number(budget)
        return full_like(x, batch, number)
    one = _per_row("budget", budget, batch, x, form.dim)
    xp = namespace(x)
    return _spread(xp.where(one >= 0, one, math.nan), batch, x)


def _is_infinite(budget: Any) -> bool:
    return isinstance(budget, float) and budget == math.inf


def _number(budget: Any) -> float:
    return check_number("budget", budget, low=0.0, allowed="a number ≥ 0")


def equation(rows: Rows) -> tuple[Array, Array, Array, Array, Any]:
    """Return what `solver.price` takes."""
    return rows.scores, rows.costs, rows.k, rows.temperature, rows.link


def priced_rows(given: PricedGiven, over: Reductions = DENSE) -> Rows:
    """Split the entries of rows into available, always chosen and never chosen ones."""
    x, costs, budget, temperature, link = given
    xp = namespace(x)
    top, excluded = x == math.inf, deleted(x)
    bad = ~excluded & ~((costs >= 0) & (costs < math.inf))
    costs = xp.where(excluded | bad, 0.0, costs)
    budget = xp.where(over.count(bad) > 0, math.nan, budget)

    price = over.sum(xp.where(top, costs, 0.0))
    dear = price > budget
    # Infinite budgets buy all; the difference of two infinities would be NaN.
    left = xp.where(dear, 0.0, budget) - xp.where(dear, 0.0, price)
    share = xp.where(dear, budget, 0.0) / xp.where(dear, price, 1.0)
    live = ~(top | excluded)
    numbers = over.max(stop_gradient(x)), stop_gradient(budget), stop_gradient(temperature)
    spoiled = xp.isnan(numbers[0]) | xp.isnan(numbers[1]) | xp.isnan(numbers[2])
    inside = over.expand(spoiled) & ~excluded
    share = xp.where(over.expand(dear) & (costs > 0), over.expand(share), 1.0)
    return Rows(
        scores=xp.where(live, spoil(x, inside), -math.inf),
        live=live,
        top=top,
        costs=spoil(costs, inside),
        k=spoil(left, spoiled),
        top_weight=xp.where(over.expand(xp.isnan(budget)), math.nan, share),
        temperature=spoil(temperature, spoiled),
        link=link,
    )
