"""What a router keeps between steps: the bias that evens the load, and running thresholds.

All counters are whole numbers, so that casting a model to bfloat16 does not change them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from kofn.arrays.torch.operator import define
from kofn.arrays.torch.private import backward_pass
from kofn.nn.tensors import check_tensors


def is_recomputing() -> bool:
    """Return whether the caller runs inside a backward pass, as activation checkpointing does."""
    return not torch.compiler.is_compiling() and backward_pass() != -1


def _is_first(like: Tensor) -> Tensor:
    """Return 1 on the device of `like`, or 0 inside a backward pass; compiled code asks each time.

    `is_recomputing` would be answered once, when the code is compiled.
    """
    return like.new_full((), backward_pass() == -1, dtype=torch.int64)


_first_run = define(
    "first_run", "Tensor like", "Tensor", lambda like: like.new_empty((), dtype=torch.int64)
)(_is_first)


def once(counts: Tensor) -> Tensor:
    """Return counts, or zeros where compiled code runs a second time, for a checkpoint."""
    compiled = torch.compiler.is_compiling() and not torch.compiler.is_exporting()
    return counts * _first_run(counts) if compiled else counts


class Tally(nn.Module):
    """Sums that a process keeps as tensors outside of the buffers.

    DistributedDataParallel gives each process the buffers of the first one before a forward pass,
    but the load of a process is its own. A cast of the model does not change their dtypes.
    """

    SUMS: tuple[str, ...] = ()
    """Names of the attributes."""

    def _forget(self) -> None:
        """Clear the sums in place, as before the first token."""
        for name in self.SUMS:
            getattr(self, name).zero_()

    def _settle(self, device: torch.device) -> None:
        """Go to a device, with the sums of no token if it is another.

        fully_shard and transformers move what they know of, which is not this.
        """
        if all(getattr(self, name).device == device for name in self.SUMS):
            return
        for name in self.SUMS:
            setattr(self, name, torch.empty_like(getattr(self, name), device=device))
        self._forget()

    def _load_from_state_dict(self, state: Any, prefix: str, *others: Any) -> None:
        super()._load_from_state_dict(state, prefix, *others)
        # With assign=True, a module that was made on the device "meta" is on another now.
        for each in (*self.parameters(recurse=False), *self.buffers(recurse=False)):
            self._settle(each.device)

    def reset_parameters(self) -> None:
        """Forget all: a module that was made on the device "meta" needs this after `to_empty`."""
        self._forget()
        for each in self.buffers(recurse=False):
            each.zero_()
        for part in self.children():
            part.reset_parameters()  # type: ignore[operator]

    def _apply(self, fn: Any, recurse: bool = True) -> Tally:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name in self.SUMS:
            setattr(self, name, moved(getattr(self, name), fn))
        return self


def moved(kept: Tensor, fn: Any) -> Tensor:
    """Return fn(kept), in its own dtype: it is not cast with the model."""
    now: Tensor = fn(kept)
    return now if now.dtype == kept.dtype else kept.to(now.device)


class Counting(Tally):
    """Tokens per expert, whole numbers."""

    SUMS: tuple[str, ...] = ("counts",)
    counts: Tensor

    def __init__(self, num_experts: int, device: Any) -> None:
        super().__init__()
        self.counts = zero_counts(num_experts, device)

    def add(self, counts: Tensor) -> None:
        """Add to the counts; a compiled program may do so inside a checkpoint."""
        check_tensors(counts=counts, integers=True)
        self._settle(counts.device)
        self.counts.add_(counts if counts.dtype == torch.int64 else counts.to(torch.int64))


def load_statistics(counts: Tensor) -> dict[str, Tensor]:
    """Return the shares of a load and what describes their spread."""
    total = counts.sum()
    load = counts.to(torch.float32) / total.clamp(min=1)
    entropy = torch.special.entr(load).sum()
    return {
        "assignments": total,
        "load": load,
        "entropy": entropy,
        "experts_in_use": entropy.exp() * (total > 0),
        "dead_experts": (counts == 0).sum(),
        "max_violation": load.max() * len(load) - 1,
    }


class SelectionBias(Counting):
    """A bias per expert, rate·(n − mean n): n rises by 1 in a step that the expert is underused in.

    n falls by 1 where the expert is overused. It is saved as whole numbers, and the bias is
    computed from it, because small steps of a bfloat16 number would be lost.

    Source: Wang et al., "Auxiliary-Loss-Free Load Balancing Strategy for Mixture-of-Experts"
    (2024).
    """

    net_steps: Tensor

    def __init__(self, num_experts: int, rate: float, device: Any = None) -> None:
        super().__init__(num_experts, device)  # the load since the last step
        self.rate = rate
        self.register_buffer("net_steps", zero_counts(num_experts, device))

    def _load_from_state_dict(self, state: Any, prefix: str, *others: Any) -> None:
        # A linear layer's state has no bias; the state of quantiles has one, in logits.
        bias, name = state.pop(f"{prefix}bias", None), f"{prefix}net_steps"
        if bias is not None and self.rate > 0:
            state.setdefault(name, (bias / self.rate).round().to(torch.int64))
        if name not in state:
            state[name] = torch.zeros(self.net_steps.shape, dtype=torch.int64, device="cpu")
        super()._load_from_state_dict(state, prefix, *others)

    def forward(self) -> Tensor:
        """Return the bias [num_experts] in float32."""
        return self.rate * (self.net_steps - self.net_steps.mean(dtype=torch.float32))

    def span(self) -> None:
        """Return what has to be the same in all processes before: nothing."""

    def load(self) -> Tensor:
        """Return the numbers to sum over processes: the load since the last step."""
        return self.counts

    def move(self, counts: Tensor) -> None:
        """Move n by the load since the last step, in this process or in several."""
        # In whole numbers: counts below the mean get +1, those above −1.
        self.net_steps += torch.sign(counts.sum() - counts * len(counts))
        self._forget()

    def described(self) -> str:
        """Return the settings, in words that are the same where the loads fit."""
        return f"balance={self.rate:g}"

    def extra_repr(self) -> str:
        return f"{len(self.net_steps)} experts, rate={self.rate}"


class RunningThreshold(nn.Module):
    """Running means of a selection's cut and of θ, for choosing without seeing other tokens.

    The cut lies halfway between the least chosen score (with its bias) and the greatest other.
    """

    RATE = 0.01
    """Weight of a new value; the first 100 values have equal weights."""

    cut: Tensor
    threshold: Tensor
    updates: Tensor

    def __init__(self, shape: tuple[int, ...], device: Any = None) -> None:
        super().__init__()
        for name in ("cut", "threshold"):
            zeros = torch.zeros(shape, dtype=torch.float32, device=device)
            self.register_buffer(name, zeros)
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64, device=device))

    def reset_parameters(self) -> None:
        for each in self.buffers():
            each.zero_()

    @torch.no_grad()
    def update(self, cut: Tensor, threshold: Tensor) -> None:
        """Average in new values; infinite ones and NaN are left out."""
        # In place: a compiled program may do so inside a checkpoint.
        first = once(torch.ones_like(self.updates))
        self.updates.add_(first)
        rate = first * (1 / self.updates.to(torch.float32)).clamp(min=self.RATE)
        for mean, new in ((self.cut, cut), (self.threshold, threshold)):
            new = torch.where(new.isfinite(), new.to(mean.dtype), mean)
            mean.add_(rate.to(mean.dtype) * (new - mean))

    def _apply(self, fn: Any, recurse: bool = True) -> RunningThreshold:
        # A mean in bfloat16 would stand still: it stays float32 when the model is cast.
        before = {name: getattr(self, name) for name in ("cut", "threshold")}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, kept in before.items():
            now = getattr(self, name)
            if now.dtype != torch.float32:
                setattr(self, name, kept.to(now.device))
        return self


def zero_counts(num_experts: int, device: Any) -> Tensor:
    return torch.zeros(num_experts, dtype=torch.int64, device=device)


def counts_of(
    indices: Tensor, taken: Tensor | None, num_experts: int, at_hand: bool = False
) -> Tensor:
    """Return how many of the indices that are taken name each expert.

    To count is quicker than to scatter, but waits for a device, and no compiler follows it.
    """
    if at_hand and taken is None:
        return indices.flatten().bincount(minlength=num_experts)
    indices = indices if indices.dtype == torch.int64 else indices.to(torch.int64)
    ones = torch.ones_like(indices) if taken is None else taken.to(torch.int64)
    zeros = indices.new_zeros(num_experts)
    return zeros.scatter_add(0, indices.flatten(), ones.expand_as(indices).flatten())
