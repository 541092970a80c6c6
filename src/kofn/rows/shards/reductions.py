"""Reductions of rows that lie in parts on processes: each reduces its own, then all of them.

What there is per row is replicated: every rank has the same number, and the same cotangent of it,
as it computes the same loss from it. So the derivative of a sum hands a cotangent to each part as
it is, and what the parts hand to a row's number is summed over the ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from kofn.rows.shards.keys import Cut, most_rounds, searched
from kofn.rows.shards.ranks import Ranks

Counts = Callable[[Tensor], Tensor]


class GroupRows:
    """The `Reductions` of rows along the last axis, whose parts lie in the processes of `ranks`.

    An all-reduce sums in float64, whose rounding no number of ranks makes visible. `sums` and
    `maxima` put several numbers per row into one message.
    """

    counted = torch.int64  # what entries are counted in

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
        greatest, has_nan = self.ranks.max(message)
        greatest = greatest.masked_fill(has_nan > 0, math.nan)
        return tuple(one.to(like.dtype) for one, like in zip(greatest, each, strict=True))

    def sum(self, values: Tensor) -> Tensor:
        return self.sums(values)[0]

    def sums(self, *values: Tensor) -> tuple[Tensor, ...]:
        """Return the sum of each array, of flags their count, by one message."""
        whole = (torch.int64 if one.dtype == torch.bool else one.dtype for one in values)
        pairs = zip(self.wide_sums(*values), whole, strict=True)
        return tuple(one.to(dtype) for one, dtype in pairs)

    def wide_sums(self, *values: Tensor) -> tuple[Tensor, ...]:
        """Return `sums` in float64, as the message has them."""
        each = [one.sum(-1).double() for one in values]
        shape = torch.broadcast_shapes(*(one.shape for one in each))  # type: ignore[no-untyped-call]
        local = [one.expand(shape) for one in each]
        if torch.is_grad_enabled() and any(one.requires_grad for one in local):
            return _Summed.apply(self.ranks, *local)  # type: ignore[no-untyped-call]
        return _all_reduced(self.ranks, local)

    def count(self, flags: Tensor) -> Tensor:
        return self.ranks.sum(flags.sum(-1))

    def any(self, flags: Tensor) -> Tensor:
        return self.ranks.max(flags.any().reshape(1).to(torch.int32)) > 0

    def span(self, count: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return where this rank's `count` entries start in whole rows, and how long these are."""
        sizes = torch.zeros(self.ranks.size, dtype=torch.int64, device=like.device)
        sizes[self.ranks.place] = count
        sizes = self.ranks.sum(sizes)
        return sizes[: self.ranks.place].sum(), sizes.sum()

    @property
    def place(self) -> int:
        """Return this rank's place among the parts of a row."""
        return self.ranks.place

    def shared(self, per_row: Tensor) -> Tensor:
        """Return a number per row that all ranks have as what a caller may give: as it is."""
        return per_row

    def gathered(self, values: Tensor) -> Tensor:
        """Return values (…, m) of all ranks, (…, ranks·m), in the order of the parts."""
        # As bytes: backends lack some of the types.
        parts = self.ranks.gathered(values.resolve_neg().contiguous().view(torch.uint8))
        return torch.cat(list(parts.view(values.dtype)), -1)

    def before(
        self, counts: Tensor, ties: Tensor, due: Callable[[Tensor, Tensor], Tensor] | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the sum of counts, and how many ties there are on the ranks before this one.

        That is None, and spares a message, where it is not `due` of the sums of both.
        """
        total, all_ties = self.ranks.sum(torch.stack([counts, ties]))
        if due is not None and not bool(due(total, all_ties).any()):
            return total, None
        parts = self.ranks.gathered(ties.contiguous())
        return total, parts[: self.place].sum(0)

    def last_key(
        self, like: Tensor, keys: Tensor, count: Tensor, counts_of: Counts, holds: Counts
    ) -> Tensor:
        """Return as many keys as in `like`: the last at which the sums of `counts_of` hold.

        Args:
            keys: this rank's, in their order. count: how many of them count.
        """
        info = torch.iinfo(keys.dtype)
        ends = [keys.new_full((*keys.shape[:-1], 1), end) for end in (info.min, info.max)]
        if keys.shape[-1]:
            own = keys.gather(-1, (count - 1).clamp(min=0)), keys[..., :1]
            ends = [torch.where(count > 0, *pair) for pair in zip(own, ends, strict=True)]
        greatest, least = ends
        # ~ in place of −, which the least integer has not.
        high, low = self.ranks.max(torch.stack([greatest.long(), ~least.long()]))
        low, high = (each.expand_as(like) for each in (~low, high + 1))
        open_ = low < high
        cut = Cut(torch.where(open_, low, 0), torch.where(open_, high, 1), like)
        return searched(cut, open_, self.ranks, most_rounds(keys), counts_of, holds).low

    def expand(self, per_row: Tensor) -> Tensor:
        if per_row.requires_grad and torch.is_grad_enabled():
            (per_row,) = _Copied.apply(self.ranks, per_row)  # type: ignore[no-untyped-call]
        return per_row[..., None]


def _all_reduced(ranks: Ranks, local: Sequence[Tensor]) -> tuple[Tensor, ...]:
    totals = ranks.sum(torch.stack([one.detach().double() for one in local]))
    return tuple(one.to(like.dtype) for one, like in zip(totals, local, strict=True))


class _Summed(torch.autograd.Function):
    """Sums over the ranks, by one message; a copy of each one's cotangent goes to all of them."""

    @staticmethod
    def forward(ctx: Any, ranks: Ranks, *local: Tensor) -> tuple[Tensor, ...]:
        _prepare(ctx, ranks)
        return _all_reduced(ranks, local)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> Any:
        return _pulled(ctx, _Copied, cotangents)


class _Copied(torch.autograd.Function):
    """Numbers that all ranks have, for the entries of each; their cotangents are summed."""

    @staticmethod
    def forward(ctx: Any, ranks: Ranks, *per_row: Tensor) -> tuple[Tensor, ...]:
        _prepare(ctx, ranks)
        return tuple(one.view_as(one) for one in per_row)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> Any:
        return _pulled(ctx, _Summed, cotangents)


def _prepare(ctx: Any, ranks: Ranks) -> None:
    ctx.ranks = ranks
    ctx.set_materialize_grads(False)  # what no one asks for needs no message


def _pulled(ctx: Any, transpose: Any, cotangents: Sequence[Tensor | None]) -> Any:
    """Return the transpose of the cotangents that there are, for the arguments after `ranks`.

    The others are 0, and no message: times the NaN of a row they are NaN, as for whole rows.
    """
    pairs = list(zip(cotangents, ctx.needs_input_grad[1:], strict=True))
    some = [one for one, wanted in pairs if wanted and one is not None]
    pulled = iter(transpose.apply(ctx.ranks, *some) if some else ())
    zero = next(torch.zeros_like(one) for one in cotangents if one is not None)
    each = (zero if one is None else next(pulled) for one, wanted in pairs if wanted)
    return None, *(next(each) if wanted else None for _, wanted in pairs)
