"""The state of a sparse autoencoder between steps: a threshold, and which latents fire."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from kofn.nn.routing.state import Counting, once


class RunningCut(nn.Module):
    """A running mean of the cut between kept and other scores, +inf before the first update.

    The cut lies halfway between the least kept score and the greatest other one.
    """

    RATE = 0.02
    """Weight of a new value; of the first 100, value n has weight 2/(n + 1), as cuts drift most at
    the start of a training."""

    cut: Tensor
    updates: Tensor

    def __init__(self, device: Any = None) -> None:
        super().__init__()
        self.register_buffer("cut", torch.full((), math.inf, dtype=torch.float32, device=device))
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64, device=device))

    def reset_parameters(self) -> None:
        self.cut.fill_(math.inf)
        self.updates.zero_()

    @torch.no_grad()
    def update(self, least: Tensor, greatest: Tensor) -> None:
        """Average in a new cut; NaN and infinity are left out."""
        # In place: a compiled program may do so inside a checkpoint.
        new = ((least.float() + greatest.float()) / 2).clamp(min=0).reshape(())
        first = once(new.isfinite().to(self.updates.dtype))
        self.updates.add_(first)
        number = (self.updates + 1).to(self.cut.dtype)
        rate = (2 / number).clamp(min=self.RATE, max=1)
        averaged = torch.where(self.updates > 1, self.cut + rate * (new - self.cut), new)
        self.cut.copy_(torch.where(first > 0, averaged, self.cut))

    @torch.no_grad()
    def fix(self, cut: Tensor) -> None:
        """Take a cut that is known; later updates move it at the usual rate."""
        self.cut.copy_(cut)
        self.updates.fill_(round(2 / self.RATE))

    def _apply(self, fn: Any, recurse: bool = True) -> RunningCut:
        # A mean in bfloat16 would stand still: it stays float32 when the model is cast.
        before = self.cut
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.cut.dtype != torch.float32:
            self.cut = before.to(self.cut.device)
        return self


class Firing(nn.Module):
    """Counts of how often each latent fires, and how many calls it has been silent; not saved."""

    def __init__(self, d_sae: int, silent_after: int, device: Any) -> None:
        super().__init__()
        self.fired = Counting(d_sae + 1, device)  # tokens per latent; the last entry is all tokens
        self.silence = Counting(d_sae, device)  # calls since a latent fired last
        self.silent_after = silent_after
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Forget all. A latent that never fired is silent."""
        self.fired.counts.zero_()
        self.silence.counts.fill_(self.silent_after)

    @torch.no_grad()
    def add(self, code: Tensor, tokens: Tensor) -> None:
        """Count the code [T, n] of a training call."""
        counts = torch.cat([(code.abs() > 0).sum(0), tokens.to(torch.int64).reshape(1)])
        self.fired.add(once(counts))
        before = self.silence.counts.to(counts.device)
        self.silence.add(once(torch.where(counts[:-1] > 0, -before, torch.ones_like(before))))

    def silent(self) -> Tensor:
        """Return which latents have not fired in the last `silent_after` training calls."""
        return self.silence.counts >= self.silent_after

    def statistics(self, reset: bool) -> dict[str, Tensor]:
        counts, tokens = self.fired.counts[:-1].clone(), self.fired.counts[-1].clone()
        if reset:
            self.fired.counts.zero_()
        frequency = counts.to(torch.float32) / tokens.clamp(min=1)
        return {
            "tokens": tokens,
            "l0": frequency.sum(),
            "frequency": frequency,
            "dead_latents": (counts == 0).sum(),
            "silent_calls": self.silence.counts.clone(),
        }


def cut_below(parts: Iterable[Tensor], wanted: int) -> Tensor:
    """Return a cut that `wanted` of all scores exceed; where several tie with the next, fewer."""
    largest = torch.zeros(0, dtype=torch.float32, device="cpu")
    for part in parts:
        joined = torch.cat([largest.to(part.device), part.float().flatten()])
        largest = joined.topk(min(wanted + 1, len(joined))).values
    least, following = largest[-2].clamp(min=0), largest[-1].clamp(min=0)
    middle = (least + following) / 2
    return torch.where(middle < least, middle, following)
