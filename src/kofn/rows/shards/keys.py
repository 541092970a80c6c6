"""Searches among the entries of all processes by their bits: seven counts a message.

Each round leaves an eighth of the range. No entries are sent.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from kofn.rows.shards.ranks import Ranks


class Cut(NamedTuple):
    """Ends of ranges of keys, in int64: a condition holds at low and does not hold at high."""

    low: Tensor
    high: Tensor
    counts: Tensor  # at high, once it has moved


def searched(
    cut: Cut,
    open_: Tensor,
    ranks: Ranks,
    rounds: int,
    counts_of: Callable[[Tensor], Tensor],
    holds: Callable[[Tensor], Tensor],
    ends: Callable[[Tensor], Tensor] | None = None,
) -> Cut:
    """Return neighbouring integers as ends of the cut, in rows that are open.

    Args:
        cut: where to search. open_: in which rows; the others stay as they are.
        rounds: at most so many messages, such as `most_rounds`.
        counts_of: what this process adds to the counts at some keys.
        holds: whether the condition holds where all processes have these counts.
        ends: whether a low end with these counts is good enough.
    """
    low, high, above = cut
    for _ in range(rounds):
        # From a negative number to a positive one, the difference of keys may wrap around.
        if not bool((open_ & (high - low != 1)).any()):
            break
        pivots = _pivots_of(low, high)
        counts = ranks.sum(torch.stack([counts_of(one) for one in pivots]))
        for pivot, count, is_low in zip(pivots, counts, holds(counts), strict=True):
            low = torch.where(open_ & is_low & (pivot > low), pivot, low)
            nearer = open_ & ~is_low & (pivot < high)
            high, above = torch.where(nearer, pivot, high), torch.where(nearer, count, above)
        if ends is not None:
            open_ = open_ & ~((torch.stack(pivots) == low) & ends(counts)).any(0)
    return Cut(low, high, above)


def most_rounds(keys: Tensor) -> int:
    """Return a bound on the messages of a search: each leaves an eighth of the range of the keys.

    A range of w integers becomes one of ⌈w/8⌉, so the range of all keys comes down to one integer.
    """
    return -(-torch.iinfo(keys.dtype).bits // 3)


def _pivots_of(low: Tensor, high: Tensor) -> list[Tensor]:
    """Return seven integers that cut the range in eighths; no sum of them overflows."""

    def middle(a: Tensor, b: Tensor) -> Tensor:
        return (a >> 1) + (b >> 1) + (a & b & 1)

    half = middle(low, high)
    quarters = middle(low, half), middle(half, high)
    ends = low, quarters[0], half, quarters[1], high
    eighths = [middle(a, b) for a, b in pairwise(ends)]
    return [half, *quarters, *eighths]
