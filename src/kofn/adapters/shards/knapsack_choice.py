"""The hard choice of rows with costs in several processes, up to the first entry that does not fit.

The least density from which on all entries fit is found by its bits, as `rows/shards/keys.py`
searches: what it counts are costs.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kofn.arrays.keys import keys_of
from kofn.formulas import knapsack_choice
from kofn.rows.given import Given
from kofn.rows.shards.keys import Cut, most_rounds, searched
from kofn.rows.shards.ranks import Ranks
from kofn.rows.shards.reductions import GroupRows


def fill(given: Given, over: GroupRows) -> Tensor:
    """Return this rank's entries of `formulas.knapsack_choice.fill`."""
    with torch.no_grad():
        shares: Any = knapsack_choice.fill(given, over, partial(_bought, over.ranks))
    return shares


class _Keyed(NamedTuple):
    """Densities as integers in the same order, and what may be spent."""

    keys: Tensor
    price: Tensor  # 0 where nothing is paid
    budget: Tensor  # per row


def _bought(ranks: Ranks, x: Tensor, costs: Tensor, pays: Tensor, budget: Tensor) -> Tensor:
    """Return 1 for the entries that fit into the budget in the order of their densities."""
    density: Any
    price: Any
    density, price = knapsack_choice.densities(x, costs, pays)
    p = _Keyed(keys_of(density), price, budget.double())
    least = torch.iinfo(torch.int64).min
    ends = p.keys.masked_fill(~pays, least).amax(-1), (~p.keys).masked_fill(~pays, least).amax(-1)
    greatest, lowest = ranks.max(torch.stack(ends))
    (total,) = ranks.sum(price.sum(-1)[None])
    start = Cut(~lowest, greatest + 1, torch.zeros_like(total))
    open_ = total > p.budget
    cut = _searched(p, start, open_, ranks)
    fits = (p.keys >= cut.high[..., None]) | _of_equal(p, cut, ranks)
    fits = torch.where(open_[..., None], fits, (total <= p.budget)[..., None])
    return (fits & pays).to(x.dtype)


def _searched(p: _Keyed, cut: Cut, open_: Tensor, ranks: Ranks) -> Cut:
    """Return where the entries fit: those with keys ≥ high do, whose costs are the counts."""

    def costs(keys: Tensor) -> Tensor:
        return torch.where(p.keys >= keys[..., None], p.price, 0.0).sum(-1)

    rounds = most_rounds(p.keys)
    return searched(cut, open_, ranks, rounds, costs, lambda spent: spent > p.budget)


def _of_equal(p: _Keyed, cut: Cut, ranks: Ranks) -> Tensor:
    """Return which of the equally dense entries next to the cut fit, by their index in the row."""
    price = torch.where(p.keys == cut.low[..., None], p.price, 0.0)
    parts = ranks.gathered(price.sum(-1).contiguous())
    before = cut.counts + parts[: ranks.place].sum(0)
    fits = before[..., None] + price.cumsum(-1) <= p.budget[..., None]
    return (price > 0) & fits
