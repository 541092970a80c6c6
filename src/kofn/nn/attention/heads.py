"""The kind of weights of an attention's heads, with its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from kofn.arrays.checks import check_choice
from kofn.links import Link, table
from kofn.nn.attention.function import ALL, check_hard, sparse_attention
from kofn.nn.attention.per_head import PerHead

USED = {
    "entmax": ("alpha", "temperature"),
    "sparsemax": ("temperature",),
    "soft_topk": ("k", "temperature"),
    "taylor": ("temperature",),
}
"""The numbers that each kind of weights needs."""


class SparseHeads(nn.Module):
    """`sparse_attention` with weights of one kind; its numbers may be learned."""

    def __init__(
        self,
        num_heads: int,
        weights: str,
        numbers: dict[str, Any],
        learned: Sequence[str],
        link: str | Link,
        hard: bool,
        device: Any,
    ) -> None:
        super().__init__()
        check_choice("weights", weights, ALL)
        check_hard(hard, weights)
        self.weights, self.hard = weights, hard
        self.link = link if isinstance(link, Link) else table.resolve(link).name
        used = USED[weights]
        if isinstance(learned, str) or not set(learned) <= set(used):
            raise ValueError(
                f"learned must be a sequence of names out of {used} for weights={weights!r}; "
                f"got {learned!r}"
            )
        for name in used:
            self.add_module(name, PerHead(name, numbers[name], num_heads, name in learned, device))

    def reset_parameters(self) -> None:
        for each in self.children():
            each.reset_parameters()  # type: ignore[operator]

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        dropout: float,
        is_causal: bool,
        need_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the output, and the weights of every head if they are needed."""
        numbers: dict[str, Any] = {name: each() for name, each in self.named_children()}
        kind: dict[str, Any] = dict(weights=self.weights, link=self.link, hard=self.hard)
        kind["need_weights"] = need_weights
        answer = sparse_attention(query, key, value, mask, dropout, is_causal, **kind, **numbers)
        return answer if need_weights else (answer, None)

    def extra_repr(self) -> str:
        if self.weights != "soft_topk":
            return repr(self.weights)
        return f"{self.weights!r}, link={self.link!r}" + (", hard=True" if self.hard else "")
