"""The number of latents per token, or of chosen entries: fixed, from a schedule, or learned."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from kofn.arrays.checks import check_flag, check_integer, check_number


class LatentsPerToken(nn.Module):
    """k; called with the step, it returns a number, or a tensor if it is scheduled or learned.

    A learned k is the exponential of a float32 parameter, which stays float32 when the model is
    cast: the small steps of an optimizer would be lost in bfloat16.
    """

    def __init__(
        self, k: Any, d_sae: int, jointly: bool, learned: bool, device: Any, of: str = "d_sae"
    ) -> None:
        super().__init__()
        self.d_sae, self.least = d_sae, 0.0 if jointly else 1.0
        self.given: Any = _checked(k, d_sae, jointly, check_flag("learned_k", learned), of)
        if learned:
            # fully_shard needs at least one dimension.
            self.log = nn.Parameter(torch.empty(1, device=device, dtype=torch.float32))
        else:
            self.register_parameter("log", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start a learned k from the given number."""
        if self.log is not None:
            nn.init.constant_(self.log, math.log(self.given))

    def forward(self, step: Tensor | None) -> Any:
        if self.log is not None:
            return self.log.exp().clamp(self.least, self.d_sae)
        if not callable(self.given):
            return self.given
        now = self.given(step)
        if isinstance(now, Tensor):
            return now.clamp(self.least, self.d_sae)
        return min(max(now, self.least), self.d_sae)

    def _apply(self, fn: Any, recurse: bool = True) -> LatentsPerToken:
        before = None if self.log is None else self.log.detach()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if before is not None and self.log.dtype != torch.float32:
            self.log.data = before.to(self.log.device)
        return self

    def extra_repr(self) -> str:
        return f"{self.given!r}" + (", learned" if self.log is not None else "")


def _checked(k: Any, n: int, jointly: bool, learned: bool, of: str) -> float | Callable[[Any], Any]:
    low = 0.0 if jointly else 1.0
    sign = "(0" if jointly else "[1"
    allowed = f"a number in {sign}, {of}] (here {of} = {n})"
    if callable(k):
        if learned:
            raise ValueError(f"k must be a number for learned_k=True; got {k!r}")
        at_start = k(0)
        check_number(
            "k(0)", at_start, low=low, high=n, strict=jointly, allowed=allowed, arrays=False
        )
        return k
    if not (jointly or learned):
        return check_integer(
            "k", k, f"an integer in [1, {of}] (here {of} = {n}), or a schedule", 1, n
        )
    return check_number("k", k, low=low, high=n, strict=jointly, allowed=allowed, arrays=False)
