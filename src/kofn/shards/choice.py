"""The hard choice of rows in several processes: exactly k, and of equal scores the first ones.

The k-th largest score is found by its bits: seven counts a message, of which each round leaves an
eighth of the range. No scores are sent.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from kofn.arrays.checks import check_k
from kofn.shards.given import Shards
from kofn.shards.ranks import Ranks


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
    keys = keys_of(x).masked_fill(~playing | bad, torch.iinfo(_integers(x)).min)
    keyed, has_nan, size = _gathered(shards, keys, bad, k)
    if shards.k_number is not None:
        check_k(shards.k_number, size)
    k = torch.where(k <= size, k, math.nan)
    cut = _searched(keyed, shards.ranks)
    found = _weights(keyed, cut, k, shards.ranks, x.dtype)
    found = torch.where(playing & ~bad & (keyed.chosen > 0)[..., None], found, 0.0)
    unknown = k.isnan()[..., None]
    lost = playing & (unknown | (has_nan[..., None] & (x != math.inf)))
    return torch.where(lost, math.nan, found)


def _integers(x: Tensor) -> torch.dtype:
    return torch.int64 if x.dtype == torch.float64 else torch.int32


def keys_of(x: Tensor) -> Tensor:
    """Return integers in the order of the scores; 0 and −0 have the same."""
    bits = (x + 0.0).contiguous().view(_integers(x))
    last = torch.iinfo(bits.dtype).bits - 1
    return bits ^ ((bits >> last) & torch.iinfo(bits.dtype).max)


def _gathered(shards: Shards, keys: Tensor, bad: Tensor, k: Tensor) -> tuple[_Keyed, Tensor, int]:
    least = torch.iinfo(keys.dtype).min
    known = keys != least
    lowest = torch.where(known, keys, torch.iinfo(keys.dtype).max).amin(-1).long()
    ends = torch.stack([keys.amax(-1).long(), -lowest, bad.any(-1).long()])
    high, low, has_nan = shards.ranks.max(ends)
    counts = known.sum(-1).flatten()
    found = shards.ranks.sum(torch.cat([counts, counts.new_full((1,), shards.size)]))
    number = found[:-1].reshape(k.shape)
    chosen = torch.minimum(k.nan_to_num().ceil().long(), number)
    return _Keyed(keys, chosen, -low, high + 1), has_nan > 0, int(found[-1])


def _searched(p: _Keyed, ranks: Ranks) -> Tensor:
    """Return a key that just `chosen` keys reach, or, among equal ones, the last that enough do."""
    low, high = p.low, p.high
    open_ = (p.chosen > 0) & (low < high)
    low = torch.where(open_, low, 0)
    high = torch.where(open_, high, 1)
    for _ in range(most_rounds(p.keys)):
        if not bool(open_.any()):
            break
        pivots = pivots_of(low, high)
        counts = torch.stack(
            [(p.keys >= one.to(p.keys.dtype)[..., None]).sum(-1) for one in pivots]
        )
        counts = ranks.sum(counts)
        for pivot, count in zip(pivots, counts, strict=True):
            enough = open_ & (count >= p.chosen)
            low = torch.where(enough & (pivot > low), pivot, low)
            high = torch.where(open_ & ~enough & (pivot < high), pivot, high)
        exact = (torch.stack(pivots) == low) & (counts == p.chosen)
        open_ = open_ & ~exact.any(0) & (high - low != 1)
    return low


def most_rounds(keys: Tensor) -> int:
    """Return a bound on the messages of a search: each leaves an eighth of the range of the keys.

    A range of w integers becomes one of ⌈w/8⌉, so that of all keys comes down to one integer.
    """
    return -(-torch.iinfo(keys.dtype).bits // 3)


def pivots_of(low: Tensor, high: Tensor) -> list[Tensor]:
    """Return seven integers that cut the range in eighths; no sum of them overflows."""

    def middle(a: Tensor, b: Tensor) -> Tensor:
        return (a >> 1) + (b >> 1) + (a & b & 1)

    half = middle(low, high)
    quarters = middle(low, half), middle(half, high)
    ends = low, quarters[0], half, quarters[1], high
    eighths = [middle(a, b) for a, b in pairwise(ends)]
    return [half, *quarters, *eighths]


def _weights(p: _Keyed, cut: Tensor, k: Tensor, ranks: Ranks, dtype: torch.dtype) -> Tensor:
    """Return clip(k − rank, 0, 1), where equal scores are ranked by their index in the row."""
    cut = cut.to(p.keys.dtype)[..., None]
    most = torch.iinfo(p.keys.dtype).max
    nearest = torch.where(p.keys >= cut, p.keys, most).amin(-1).long()
    last = (-ranks.max(-nearest)).to(p.keys.dtype)[..., None]
    above, equal = p.keys > last, p.keys == last
    before, ties = ranks.sum(torch.stack([above.sum(-1), equal.sum(-1)]))
    left = k - before
    place = torch.zeros_like(p.keys)
    if bool(((left < ties) & (ties > 1) & (p.chosen > 0)).any()):
        place = _places(equal, ranks)
    share = (left[..., None] - place).clamp(0, 1)
    return torch.where(above, 1.0, torch.where(equal, share, 0.0)).to(dtype)


def _places(equal: Tensor, ranks: Ranks) -> Tensor:
    """Return how many equal scores of a row come before each, on ranks before this one too."""
    counts = ranks.gathered(equal.sum(-1).contiguous())
    return counts[: ranks.place].sum(0)[..., None] + equal.cumsum(-1) - 1
