"""Numbers of rows in several processes by their rank: exact, by counts, and no numbers are sent.

Each process sorts its part once. A number is found by its bits, as `keys.py` searches.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from kofn.rows.shards.keys import Cut, keys_of, most_rounds, numbers_of, searched
from kofn.rows.shards.ranks import Ranks


class Found(NamedTuple):
    """Numbers by their rank, (…, m), the same in all processes, and which process has them."""

    numbers: Tensor
    entries: Tensor  # of this process's part
    mine: Tensor  # whether that is the entry


def ranked(x: Tensor, playing: Tensor | None, ranks: Tensor, group: Ranks) -> Found:
    """Return the numbers of these ranks, 0 for the smallest; equal ones are ranked by their index.

    Args:
        x: (…, n), this process's part, without a gradient. playing: which of them count.
        ranks: (…, m), int64, each below the number of those that count in the whole row.
    """
    keys = keys_of(x)
    last = keys_of(x.new_full((1,), torch.inf)) + 1
    keys = torch.where(x.isnan(), last, keys)  # NaN is the largest, whatever its sign
    left_out = torch.iinfo(keys.dtype).max
    if playing is not None:
        keys = keys.masked_fill(~playing, left_out)
    ordered, order = keys.sort(dim=-1, stable=True)
    count = (ordered < left_out).sum(-1, keepdim=True)
    own = _Own(ordered, count)
    low = _searched(own, ranks, group)
    below, through = own.below(low), own.below(low + 1)
    total = group.sum(torch.stack([below, through - below]))
    ties = group.gathered((through - below).contiguous())
    place = ranks - total[0] - ties[: group.place].sum(0)
    mine = (place >= 0) & (place < through - below)
    if x.shape[-1] == 0:
        return Found(_numbers_of(low, last, x), torch.zeros_like(ranks), mine)
    at = (below + place).clamp(0, x.shape[-1] - 1)
    return Found(_numbers_of(low, last, x), order.gather(-1, at), mine)


class _Own(NamedTuple):
    """This process's keys in their order, and how many of them count."""

    ordered: Tensor
    size: Tensor

    def below(self, keys: Tensor) -> Tensor:
        """Return how many are less."""
        wanted = keys.to(self.ordered.dtype).contiguous()
        found = torch.searchsorted(self.ordered, wanted)
        return torch.minimum(found, self.size)


def _searched(own: _Own, ranks: Tensor, group: Ranks) -> Tensor:
    """Return the keys of these ranks: at most so many are less, and more are not greater."""
    keys = own.ordered
    info = torch.iinfo(keys.dtype)
    if keys.shape[-1]:
        some = own.size > 0
        least = torch.where(some, keys[..., :1], info.max)
        end = (own.size - 1).clamp(min=0)
        greatest = torch.where(some, keys.gather(-1, end), info.min)
    else:
        least, greatest = (keys.new_full((*keys.shape[:-1], 1), e) for e in (info.max, info.min))
    # ~ in place of −, which the least integer has not.
    high, low = group.max(torch.stack([greatest.long(), ~least.long()]))
    low, high = (each.expand_as(ranks) for each in (~low, high + 1))
    open_ = low < high
    cut = Cut(torch.where(open_, low, 0), torch.where(open_, high, 1), ranks)
    rounds = most_rounds(keys)
    return searched(cut, open_, group, rounds, own.below, lambda counts: counts <= ranks).low


def _numbers_of(keys: Tensor, nan: Tensor, like: Tensor) -> Tensor:
    """Return the numbers of keys in the dtype of `like`; that of NaN is `nan`."""
    return torch.where(keys >= nan, torch.nan, numbers_of(keys, like))
