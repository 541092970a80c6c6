"""A number that is fixed, or one per head, or learned per head."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from kofn.arrays.checks import check_number, shown

Numbers = float | Sequence[float] | Tensor
"""A number, or one per head."""


class Range(NamedTuple):
    """The range of a number, and the map to it from real numbers when it is learned."""

    low: float
    strict: bool
    learned: tuple[float, float]
    """The ends of what it may be when it is learned; neither is reached."""
    of_real: Callable[[Tensor], Tensor]
    to_real: Callable[[Tensor], Tensor]


RANGES = {
    "alpha": Range(1.0, False, (1.0, 2.0), lambda a: 1 + a.sigmoid(), lambda x: (x - 1).logit()),
    "k": Range(
        0.0,
        True,
        (1.0, float("inf")),
        lambda a: 1 + functional.softplus(a),
        lambda x: (x - 1).expm1().log(),
    ),
    "temperature": Range(0.0, True, (0.0, float("inf")), Tensor.exp, Tensor.log),
}


class PerHead(nn.Module):
    """The alpha, k or temperature of an attention's heads; called, it returns a number or [H, 1].

    A fixed number is an argument of the constructor, which a state dict does not hold.
    """

    values: Tensor

    def __init__(self, name: str, value: Any, heads: int, learned: bool, device: Any) -> None:
        super().__init__()
        self.name = name
        numbers = _numbers(name, value, heads, learned)
        self.number = numbers[0] if len(numbers) == 1 and not learned else None
        self.text = repr(self.number)
        self.start = numbers * (heads // len(numbers))
        empty = torch.empty(heads, 1, device=device, dtype=torch.float32)
        if learned:
            self.raw = nn.Parameter(empty)
        elif self.number is None:
            self.register_buffer("values", empty, persistent=False)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Start from the given numbers."""
        start = torch.tensor(self.start, dtype=torch.float64, device="cpu")[:, None]
        if self.is_learned:
            self.raw.copy_(RANGES[self.name].to_real(start))
        elif self.number is None:
            self.values.copy_(start)

    def forward(self) -> float | Tensor:
        if self.number is not None:
            # torch.compile(dynamic=True) makes a symbol of a float that a module holds.
            return float(self.text)
        return RANGES[self.name].of_real(self.raw) if self.is_learned else self.values

    @property
    def is_learned(self) -> bool:
        return "raw" in self._parameters

    def extra_repr(self) -> str:
        if self.number is not None:
            return f"{self.number}"
        return f"one {'learned ' if self.is_learned else ''}per head"


def _numbers(name: str, value: Any, heads: int, learned: bool) -> list[float]:
    given = value.tolist() if isinstance(value, Tensor) else value
    many = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    low, strict, ends = RANGES[name][:3]
    if len(many) not in (1, heads):
        raise ValueError(
            f"{name} must be a number or one per head (here {heads}); got {len(many)} numbers, "
            f"{shown(value)}"
        )
    sign = ">" if strict else "≥"
    allowed = f"a finite number {sign} {low:g}, or one per head"
    numbers = [
        check_number(name, each, low=low, strict=strict, allowed=allowed, arrays=False)
        for each in many
    ]
    if learned and not all(ends[0] < number < ends[1] for number in numbers):
        raise ValueError(
            f"{name} must be between {ends[0]:g} and {ends[1]:g} where it is learned; got {value!r}"
        )
    return numbers
