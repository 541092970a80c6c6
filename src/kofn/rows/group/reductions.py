"""Reductions of rows of which every process holds a part: local ones, and an all-reduce of each.

What there is per row is replicated: every rank has the same number, and the same cotangent of it,
as it computes the same loss from it. So the derivative of a sum hands a cotangent to each part as
it is, and what the parts hand to a row's number is summed over the ranks.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from kofn.rows.group.ranks import Ranks


class GroupRows:
    """The `Reductions` of rows along the last axis, whose parts lie in the processes of `ranks`.

    An all-reduce sums in float64, whose rounding no number of ranks makes visible. `sums` and
    `maxima` put several numbers per row into one message.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks

    def min(self, values: Tensor) -> Tensor:
        return -self.max(-values)

    def max(self, values: Tensor) -> Tensor:
        return self.maxima(values)[0]

    def maxima(self, *values: Tensor) -> tuple[Tensor, ...]:
        """Return the maximum of each array; a NaN is the greatest of its row."""
        each = [one.detach().amax(-1) for one in values]
        wide = torch.stack([one.double() for one in each])
        # Backends compare NaN as they like.
        bad = wide.isnan()
        message = torch.stack([wide.masked_fill(bad, -math.inf), bad.double()])
        found, spoiled = self.ranks.max(message)
        found = found.masked_fill(spoiled > 0, math.nan)
        return tuple(one.to(like.dtype) for one, like in zip(found, each, strict=True))

    def sum(self, values: Tensor) -> Tensor:
        return _sum_of_ranks(self.ranks, values.sum(-1))

    def sums(self, *values: Tensor) -> tuple[Tensor, ...]:
        """Return the sum of each array, by one message."""
        each = [one.sum(-1) for one in values]
        like: Any = sum(torch.zeros_like(one) for one in each)
        local = torch.stack([one.expand(like.shape) for one in each])
        return tuple(_sum_of_ranks(self.ranks, local))

    def count(self, flags: Tensor) -> Tensor:
        return self.ranks.sum(flags.sum(-1))

    def any(self, flags: Tensor) -> Tensor:
        return self.ranks.max(flags.any().reshape(1).to(torch.int32)) > 0

    def expand(self, per_row: Tensor) -> Tensor:
        if per_row.requires_grad and torch.is_grad_enabled():
            per_row = _Copied.apply(per_row, self.ranks)  # type: ignore[no-untyped-call]
        return per_row[..., None]


def _sum_of_ranks(ranks: Ranks, local: Tensor) -> Tensor:
    if local.requires_grad and torch.is_grad_enabled():
        return _Summed.apply(local, ranks)  # type: ignore[no-untyped-call]
    return _all_reduced(local, ranks)


def _all_reduced(local: Tensor, ranks: Ranks) -> Tensor:
    message = local.detach().to(torch.float64, copy=True, memory_format=torch.contiguous_format)
    return ranks.sum(message).to(local.dtype)


class _Summed(torch.autograd.Function):
    """The sum over the ranks of a number that each has; a copy of the cotangent goes to each."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return _all_reduced(local, ranks)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        return _Copied.apply(cotangent, ctx.ranks), None  # type: ignore[no-untyped-call]


class _Copied(torch.autograd.Function):
    """A number that all ranks have, for the entries of each; their cotangents are summed."""

    @staticmethod
    def forward(ctx: Any, per_row: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return per_row.view_as(per_row)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        return _Summed.apply(cotangent, ctx.ranks), None  # type: ignore[no-untyped-call]
