"""The hard choice of a row that is held as several tensors: no sort, and no copy of the row.

Entries are bought in the order of their density x/c, equal ones by their place in the row, until
one does not fit into the budget. `cut.py` finds the density of the first that does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from kofn.arrays.keys import keys_of
from kofn.streaming.cut import cut
from kofn.streaming.tensors import Chunk, Pieces, parts, wide

DIGIT = 11
"""Bits per pass; a histogram has 2¹¹ places."""

SLACK = 1e-12
"""The part of the budget that may be spent beyond it: the rounding errors of sums of costs."""


def choose(pieces: Pieces, budget: float) -> list[Tensor]:
    """Return which entries are bought, as boolean tensors. With costs of 1, that is the top k.

    Equal densities are bought in the order of the tensors, and within one in the order of the
    processes. Costs that sum to the budget but for rounding errors fit. A NaN counts as the
    greatest number.
    """
    has_costs = any(isinstance(cost, Tensor) or cost != pieces.costs[0] for cost in pieces.costs)
    ended = _cut(pieces, budget * (1 + SLACK), has_costs)
    if ended is None:
        return [torch.ones_like(x, dtype=torch.bool) for x in pieces.tensors]
    key, left = ended
    starts = None if pieces.over.size == 1 else _starts(pieces, ended, has_costs)
    masks = []
    for place, (x, cost) in enumerate(zip(pieces.tensors, pieces.costs, strict=True)):
        left = left if starts is None else starts[place]
        mask = torch.empty(x.shape, dtype=torch.bool, device=x.device)
        flat, done = mask.view(-1), 0
        for part, price in parts(x, cost):
            keys = _keys(Chunk(wide(part), price), has_costs)
            tied = keys == key
            number = int(tied.sum())
            taken = tied
            if number:
                taken, left = _first(tied, price, number, left)
            flat[done : done + len(part)] = taken.logical_or_(keys > key)
            done += len(part)
        masks.append(mask)
    return masks


def _starts(pieces: Pieces, ended: tuple[int, float], has_costs: bool) -> list[float]:
    """Return the rest of the budget for the ties of each tensor in this process."""
    (key, left), number, over = ended, len(pieces.tensors), pieces.over
    costs, own = [0.0] * (over.size * number), over.rank * number
    for place, (x, cost) in enumerate(zip(pieces.tensors, pieces.costs, strict=True), own):
        for part, price in parts(x, cost):
            tied = _keys(Chunk(wide(part), price), has_costs) == key
            costs[place] += _spent(tied, price)
    costs = over.sum(costs)
    rests = []
    for place in range(number):
        column = costs[place::number]
        rests.append(left - sum(column[: over.rank]))
        left -= sum(column)
    return rests


def _spent(tied: Tensor, cost: float | Tensor) -> float:
    if isinstance(cost, Tensor):
        return float((tied * cost).sum(dtype=torch.float64))
    return float(tied.sum()) * cost


def _first(tied: Tensor, cost: float | Tensor, number: int, left: float) -> tuple[Tensor, float]:
    """Return the first of the tied entries that fit, and what of the budget is left then.

    It is −∞ from the first on that does not fit.
    """
    if isinstance(cost, Tensor):
        spent = tied.double().mul_(cost).cumsum(0)
    else:  # a sum of many equal costs would drift
        spent = tied.cumsum(0).double().mul_(cost)
    fits = tied & (spent <= left)
    taken = int(fits.sum())
    if taken < number:
        return fits, -math.inf
    return fits, left - float(spent[-1])


def _cut(pieces: Pieces, budget: float, has_costs: bool) -> tuple[int, float] | None:
    """Return the density, as a key, at which the budget ends, and the rest of it for ties."""
    bits = 64 if has_costs or any(x.dtype == torch.float64 for x in pieces.tensors) else 32

    def histogram(prefix: int, below: int, width: int) -> Sequence[float]:
        costs = _histogram(pieces, has_costs, prefix, below, width, signed=below + width == bits)
        return pieces.over.sum(costs)

    return cut(bits, DIGIT, budget, histogram)


def _histogram(
    pieces: Pieces, has_costs: bool, prefix: int, below: int, width: int, signed: bool
) -> Sequence[float]:
    """Return the costs of the entries whose key starts with `prefix`, by its next digit."""
    size = 1 << width
    costs = torch.zeros(size, dtype=torch.float64, device=pieces.tensors[0].device)
    for chunk in pieces.chunks():
        keys = _keys(chunk, has_costs)
        digits = keys >> below
        if signed:
            digits = digits + size // 2
        else:
            among = digits >> width == prefix
            digits = digits[among] & (size - 1)
        c = chunk.cost
        if isinstance(c, Tensor):
            c = c.double() if signed else c.double()[among]
            costs += torch.bincount(digits, c, minlength=size).to(costs)
        else:
            costs += torch.bincount(digits, minlength=size).to(costs) * c
    return costs.tolist()


def _keys(chunk: Chunk, has_costs: bool) -> Tensor:
    """Return integers in the order of the densities; 0 and −0 are equal, NaN is the greatest."""
    x = chunk.x.double() / chunk.cost if has_costs else chunk.x
    return keys_of(torch.nan_to_num(x, math.nan, math.inf, -math.inf)).long()
