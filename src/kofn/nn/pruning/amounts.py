"""The kept amount, from the amount that is removed or the budget."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from kofn.arrays.checks import check_number
from kofn.nn.pruning.layout import Groups, Layout
from kofn.nn.pruning.targets import Target
from kofn.streaming.tensors import Cost, Over


def kept_of(
    amount: Any,
    budget: Any,
    totals: list[float],
    layout: Layout,
    scope: str,
    has_costs: bool,
) -> list[float]:
    """Return what each row keeps, in the units of its costs; of one row for scope="global".

    `totals` are the sums of the costs of each tensor.
    """
    if isinstance(layout, Groups):
        _check_groups(amount, budget, layout)
        return []
    if (amount is None) == (budget is None):
        raise ValueError("give one of amount (what is removed) and budget (what is kept)")
    if scope == "layer":
        if budget is not None:
            raise ValueError('budget needs scope="global"; give amount for each layer')
        return [_kept(amount, total, layout.size, False) for total in totals]
    total = sum(totals)
    if budget is None:
        return [_kept(amount, total, layout.size, has_costs)]
    if not has_costs and (isinstance(budget, bool) or not isinstance(budget, Integral)):
        raise TypeError(
            "budget is a number of weights, an integer; for a share, give amount, what is removed, "
            f"such as amount=0.9; got {budget!r}"
        )
    kept = check_number(
        "budget", budget, low=0.0, high=total, allowed=f"in [0, {total:g}]", arrays=False
    )
    return [kept if has_costs else float(kept // layout.size * layout.size)]


def _check_groups(amount: object, budget: object, layout: Groups) -> None:
    removed = 1 - layout.n / layout.m
    given = budget if amount is None else amount
    same = isinstance(amount, Real) and abs(float(amount) - removed) < 1e-9
    if given is not None and not (same and budget is None):
        raise ValueError(
            f"pattern='{layout.n}:{layout.m}' removes {removed:g}; leave out amount and budget; "
            f"got {given!r}"
        )


def _kept(amount: object, total: float, size: int, has_costs: bool) -> float:
    """Return how much is kept, in the units of the costs; a number of weights is of whole blocks.

    Without costs of the caller's, the cost of a block is its number of weights.
    """
    if isinstance(amount, Integral) and not isinstance(amount, bool):
        allowed = f"an integer in [0, {total:g}], or a share such as 0.95, a float"
        removed = check_number("amount", amount, low=0.0, high=total, allowed=allowed)
        return total - (removed if has_costs else round(removed / size) * size)
    allowed = "a share in [0, 1], a float, or an integer"
    share = check_number("amount", amount, low=0.0, high=1.0, allowed=allowed, arrays=False)
    return (1 - share) * total if has_costs else total - round(share * total)


def totals_of(targets: list[Target], prices: list[Cost], layout: Layout, over: Over) -> list[float]:
    """Return the sum of the costs of each tensor, over all processes that have a part of it."""
    totals = [
        price.sum(dtype=torch.float64).item()
        if isinstance(price, Tensor)
        else 0.0
        if over.rank
        else float(price * math.prod(layout.shape(target.weight.shape)))
        for target, price in zip(targets, prices, strict=True)
    ]
    return over.sum(totals)
