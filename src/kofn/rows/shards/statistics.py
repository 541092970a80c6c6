"""What all ranks know of every row before the search for θ: one maximum and one sum of messages."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from kofn.arrays.checks import check_k
from kofn.rows.settled import Rows, k_and_top_weight
from kofn.rows.shards.given import Shards
from kofn.rows.shards.ranks import Ranks
from kofn.solver.bracket import WIDE


class Counts(NamedTuple):
    """What a derivative needs to know of them, per row."""

    live: Tensor
    top: Tensor


class Statistics(NamedTuple):
    """Numbers per row in float64, the same on every rank."""

    greatest: Tensor  # of the available scores; −inf if there are none
    least: Tensor
    has_nan: Tensor  # whether an available score is NaN
    live: Tensor  # how many are available, NaN included
    top: Tensor  # how many are +inf
    near: Tensor  # how many are less than WIDE temperatures below the greatest
    near_moments: Tensor  # Σd and Σd² of these, d = (x − greatest)/T
    moments: Tensor  # of all available ones
    size: int  # entries of a row on all ranks, excluded ones too


def gathered(shards: Shards) -> tuple[Statistics, Rows]:
    """Return the rows' statistics and their special cases, as `settled.rows_of` does.

    Raises:
        ValueError: k is a number, and there are fewer entries in a row. On every rank.
    """
    x = shards.scores.detach()
    live, top = _in_play(x)
    statistics = statistics_of(x, live, top, shards.temperature, shards.ranks, shards.size)
    if shards.k_number is not None:
        check_k(shards.k_number, statistics.size)
    k = torch.where(shards.k <= max(statistics.size, 1), shards.k, math.nan)
    return statistics, rows_of(shards._replace(k=k), statistics)


def rows_of(shards: Shards, known: Statistics | Counts) -> Rows:
    """Return the rows with what all ranks know of them."""
    x = shards.scores
    live, top = _in_play(x.detach())
    both = k_and_top_weight(shards.k, known.top)
    k, weight = (one.to(x.dtype) for one in both)  # type: ignore[attr-defined]  # of torch
    scores = torch.where(live, x, -math.inf)
    return Rows(scores, live, top, k, weight, shards.temperature, shards.link, known)


def settled(shards: Shards) -> Rows:
    """Return the rows, after one message that counts their kinds of entries."""
    return rows_of(shards, Counts(*shards.over.wide_sums(*_in_play(shards.scores.detach()))))


def _in_play(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return which scores are available, and which are +inf."""
    top = x == math.inf
    return ~(top | (x == -math.inf)), top


def statistics_of(
    x: Tensor, live: Tensor, top: Tensor, temperature: Tensor, ranks: Ranks, size: int
) -> Statistics:
    """Return what the ranks know of rows; this one has `size` of their entries."""
    greatest, least, has_nan = _ends(x, live, ranks)
    t = temperature.detach()
    distance = torch.where(live, x - greatest.to(x.dtype)[..., None], 0.0) / t[..., None]
    near = live
    if bool((greatest - least >= WIDE * t).any()):  # by reduced numbers, alike on all ranks
        near = live & (distance > -WIDE)
    close = torch.where(near, distance, 0.0)
    parts = [live.sum(-1), top.sum(-1), near.sum(-1), *_moments(close)]
    if near is live:
        parts += parts[3:]
    else:
        parts += _moments(distance.double())
    numbers = torch.stack([part.double() for part in parts]).flatten()
    totals = ranks.sum(torch.cat([numbers, numbers.new_full((1,), size)]))
    each = totals[:-1].reshape(7, *greatest.shape)
    counts = each[0], each[1], each[2]
    return Statistics(greatest, least, has_nan, *counts, each[3:5], each[5:7], int(totals[-1]))


def _ends(x: Tensor, live: Tensor, ranks: Ranks) -> tuple[Tensor, Tensor, Tensor]:
    bad = x.isnan()
    known = live & ~bad
    message = torch.stack(
        [
            torch.where(known, x, -math.inf).amax(-1).double(),
            torch.where(known, -x, -math.inf).amax(-1).double(),
            bad.any(-1).double(),
        ]
    )
    greatest, least, has_nan = ranks.max(message)
    return greatest, -least, has_nan > 0


def _moments(distance: Tensor) -> list[Tensor]:
    return [distance.sum(-1), (distance * distance).sum(-1)]
