"""The order in which tokens go to experts, for grouped matrix products."""

from __future__ import annotations

from typing import NamedTuple, Never

import torch
from torch import Tensor

from kofn.arrays.checks import check_broadcasts, check_integer
from kofn.arrays.names import unknown_keyword
from kofn.nn.routing.state import counts_of
from kofn.nn.tensors import check_boolean, check_tensors


class DispatchPlan(NamedTuple):
    """Pairs (token, slot) sorted by expert, as `dispatch_plan` returns them.

    N = T·k pairs are numbered token·k + slot. Pairs that no expert takes come last.
    """

    permutation: Tensor
    """[N] int64: the pairs in the order of their experts, in token order within an expert."""
    inverse: Tensor
    """[N] int64: where each pair is in that order."""
    tokens: Tensor
    """[N] int64: the token of each pair in that order, permutation // k."""
    offsets: Tensor
    """[num_experts] int32: where each expert's pairs end, as `grouped_mm` takes it as `offs`."""
    counts: Tensor
    """[num_experts] int32: how many pairs each expert takes."""
    kept: Tensor
    """[T, k] boolean: whether an expert takes the pair."""
    dropped: Tensor
    """[num_experts] int32: how many pairs each expert had to drop, being at capacity."""

    def gather(self, hidden_states: Tensor) -> Tensor:
        """Return the hidden states [T, H] of the pairs in expert order, [N, H].

        It is 0 for pairs that were not kept. Raises a ValueError if the shape is another.
        """
        check_tensors(hidden_states=hidden_states)
        if hidden_states.ndim != 2 or len(hidden_states) != len(self.kept):
            tokens = hidden_states.shape[:-1].numel()
            flat = hidden_states.ndim > 2 and tokens == len(self.kept)
            raise ValueError(
                f"hidden_states must have shape [T, H] with T = {len(self.kept)}; "
                f"got {tuple(hidden_states.shape)}"
                + "; give their flatten(0, -2), as routers number tokens"
                * flat
            )
        taken = torch.arange(len(self.tokens), device=self.tokens.device) < self.offsets[-1]
        # grouped_mm leaves the gradients of rows beyond the last group as it finds the memory.
        return hidden_states[self.tokens].masked_fill(~taken[:, None], 0.0)

    def combine(self, outputs: Tensor, weights: Tensor) -> Tensor:
        """Return Σ over slots of weights·outputs, [T, H], for outputs [N, H] in expert order.

        Pairs that were not kept count as 0, whatever is in their rows. The sum is taken in the
        wider dtype of the two; the result has the dtype of `outputs`.
        """
        check_tensors(outputs=outputs, weights=weights)
        if outputs.ndim != 2 or len(outputs) != len(self.inverse):
            raise ValueError(
                f"outputs must have shape [N, H] with N = {len(self.inverse)}; "
                f"got {tuple(outputs.shape)}"
            )
        if weights.shape != self.kept.shape:
            raise ValueError(
                f"weights must have the shape of indices, {tuple(self.kept.shape)}; "
                f"got {tuple(weights.shape)}"
            )
        each = outputs[self.inverse].reshape(*self.kept.shape, outputs.shape[-1])
        each = each.masked_fill(~self.kept[..., None], 0.0)
        return (each * weights[..., None]).sum(1).to(outputs.dtype)


def dispatch_plan(
    indices: Tensor,
    num_experts: int,
    *,
    mask: Tensor | None = None,
    capacity: int | None = None,
    **others: Never,
) -> DispatchPlan:
    """Return the pairs (token, expert) sorted by expert, with the sizes of the groups.

    Args:
        indices: [T, k] integers, the experts of each token, as a router returns them. What is
            outside [0, num_experts) is not dispatched.
        num_experts: an integer ≥ 1.
        mask: boolean, broadcasts to `indices`; False where a pair is not to be dispatched, such as
            weights > 0 for a router with padded rows.
        capacity: the most pairs of an expert; of more, the first tokens keep their places.

    Returns:
        A `DispatchPlan`: permutation, inverse, tokens, offsets, counts, kept, dropped. Every shape
        depends on the shape of `indices` alone, so it works in compiled programs.

    Raises:
        TypeError, ValueError: an argument has the wrong type, dtype or shape.

    Example:
        >>> import torch
        >>> from torch.nn.functional import grouped_mm
        >>> from kofn import nn
        >>> plan = nn.dispatch_plan(torch.tensor([[2, 0], [0, 1], [2, 1]]), 3)
        >>> plan.permutation, plan.offsets
        (tensor([1, 2, 3, 5, 0, 4]), tensor([2, 4, 6], dtype=torch.int32))
        >>> tokens, experts = torch.randn(3, 16), torch.randn(3, 16, 16)
        >>> outputs = grouped_mm(plan.gather(tokens), experts, offs=plan.offsets)
        >>> plan.combine(outputs, torch.full((3, 2), 0.5)).shape
        torch.Size([3, 16])
    """
    if others:
        raise unknown_keyword(dispatch_plan, others)
    n = check_integer("num_experts", num_experts, "an integer ≥ 1", 1)
    check_tensors(indices=indices, integers=True)
    if indices.ndim != 2 or indices.is_floating_point() or indices.dtype == torch.bool:
        raise TypeError(
            f"indices must be integers of shape [T, k]; got {indices.dtype} of shape "
            f"{tuple(indices.shape)}"
        )
    experts = indices.to(torch.int64)
    wanted = (experts >= 0) & (experts < n)
    wanted = wanted if mask is None else wanted & _mask(mask, indices)
    experts = torch.where(wanted, experts, n).flatten()
    order, counts = _sorted(experts, n)
    dropped = torch.zeros_like(counts)
    if capacity is not None:
        most = check_integer("capacity", capacity, "None or an integer ≥ 0", 0)
        place = _places(experts, order, counts)
        dropped = (counts - most).clamp(min=0)
        experts = torch.where(place < most, experts, n)
        order, counts = _sorted(experts, n)
    kept = (experts < n).reshape(indices.shape)
    inverse = torch.empty_like(order).scatter(0, order, _numbers(order))
    offsets = counts.cumsum(0).to(torch.int32)
    tokens = order // max(1, indices.shape[1])
    return DispatchPlan(order, inverse, tokens, offsets, counts.int(), kept, dropped.int())


def _sorted(experts: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Return the stable order of the pairs by expert, and the counts of experts 0 … n − 1."""
    return torch.argsort(experts, stable=True), counts_of(experts, None, n + 1)[:n]


def _places(experts: Tensor, order: Tensor, counts: Tensor) -> Tensor:
    """Return how many earlier pairs each pair's expert has."""
    starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    ranks = _numbers(order) - starts[experts[order]]
    return torch.empty_like(order).scatter(0, order, ranks)


def _numbers(order: Tensor) -> Tensor:
    return torch.arange(len(order), device=order.device)


def _mask(mask: Tensor, indices: Tensor) -> Tensor:
    check_boolean(mask, "True for pairs to dispatch")
    check_broadcasts("mask", tuple(mask.shape), tuple(indices.shape), "the shape of indices")
    return mask
