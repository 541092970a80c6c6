"""The hard choice of rows in several processes: exactly k, and of equal scores the first ones.

The k-th largest score is found by its bits, as `keys.py` searches.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from kofn.adapters.shards.ranked import shares
from kofn.arrays.checks import check_k
from kofn.arrays.keys import keys_of
from kofn.rows.shards.given import Shards
from kofn.rows.shards.keys import Cut, most_rounds, searched
from kofn.rows.shards.ranks import Ranks


class _Keyed(NamedTuple):
    """Scores as integers in the same order."""

    keys: Tensor  # the least integer where a score cannot be chosen
    chosen: Tensor  # how many scores to choose, ⌈k⌉ at most, per row
    low: Tensor  # per row: at least `chosen` keys are ≥ low
    high: Tensor  # fewer are ≥ high


def hard(shards: Shards) -> Tensor:
    """Return this rank's entries of `formulas.choice.hard`, without a gradient."""
    x, k = shards.scores.detach(), shards.k.detach()
    playing, bad = x != -math.inf, x.isnan()
    keys = keys_of(x)
    keys = keys.masked_fill(~playing | bad, torch.iinfo(keys.dtype).min)
    keyed, has_nan, size = _gathered(shards, keys, bad, k)
    if shards.k_number is not None:
        check_k(shards.k_number, size)
    k = torch.where(k <= size, k, math.nan)
    last = _last(keyed, shards.ranks)
    some = (keyed.chosen > 0)[..., None]
    chosen = shares(keys > last, (keys == last) & some, k, shards.over).to(x.dtype)
    chosen = torch.where(playing & ~bad & some, chosen, 0.0)
    unknown = k.isnan()[..., None]
    lost = playing & (unknown | (has_nan[..., None] & (x != math.inf)))
    return torch.where(lost, math.nan, chosen)


def _gathered(shards: Shards, keys: Tensor, bad: Tensor, k: Tensor) -> tuple[_Keyed, Tensor, int]:
    least = torch.iinfo(keys.dtype).min
    known = keys != least
    lowest = torch.where(known, keys, torch.iinfo(keys.dtype).max).amin(-1).long()
    ends = torch.stack([keys.amax(-1).long(), -lowest, bad.any(-1).long()])
    high, low, has_nan = shards.ranks.max(ends)
    counts = known.sum(-1).flatten()
    counted = shards.ranks.sum(torch.cat([counts, counts.new_full((1,), shards.size)]))
    number = counted[:-1].reshape(k.shape)
    chosen = torch.minimum(k.nan_to_num().ceil().long(), number)
    return _Keyed(keys, chosen, -low, high + 1), has_nan > 0, int(counted[-1])


def _searched(p: _Keyed, ranks: Ranks) -> Tensor:
    """Return a key that just `chosen` keys reach, or, among equal ones, the last that enough do."""

    def reached(keys: Tensor) -> Tensor:
        return (p.keys >= keys.to(p.keys.dtype)[..., None]).sum(-1)

    open_ = (p.chosen > 0) & (p.low < p.high)
    cut = Cut(torch.where(open_, p.low, 0), torch.where(open_, p.high, 1), p.chosen)
    return searched(
        cut,
        open_,
        ranks,
        most_rounds(p.keys),
        counts_of=reached,
        holds=lambda counts: counts >= p.chosen,
        ends=lambda counts: counts == p.chosen,
    ).low


def _last(p: _Keyed, ranks: Ranks) -> Tensor:
    """Return the key of the last score that is chosen, (…, 1)."""
    cut = _searched(p, ranks).to(p.keys.dtype)[..., None]
    most = torch.iinfo(p.keys.dtype).max
    nearest = torch.where(p.keys >= cut, p.keys, most).amin(-1).long()
    return (-ranks.max(-nearest)).to(p.keys.dtype)[..., None]
