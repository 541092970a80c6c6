"""A small causal transformer, and the kinds of attention that are compared in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from kofn.commands.train.attention.tasks import VOCABULARY
from kofn.nn import sparse_attention
from kofn.nn.attention.per_head import PerHead

WIDTH, HEADS, LAYERS = 64, 4, 2


class Softmax(nn.Module):
    """Weights by softmax."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        weights = (q @ k.mT * q.shape[-1] ** -0.5 + mask).softmax(-1)
        return weights @ v, weights


class Sparse(nn.Module):
    """Weights by `sparse_attention`; the numbers in `learned` are learned, one per head."""

    def __init__(self, weights: str, learned: tuple[str, ...] = (), **numbers: float) -> None:
        super().__init__()
        self.weights = weights
        for name, value in numbers.items():
            self.add_module(name, PerHead(name, value, HEADS, name in learned, None))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        numbers: dict[str, Any] = {name: each() for name, each in self.named_children()}
        how: dict[str, Any] = {"weights": self.weights, "temperature": self.temperature(mask)}
        return sparse_attention(q, k, v, mask, need_weights=True, **how, **numbers)

    def temperature(self, mask: Tensor) -> float | Tensor:
        return 1.0


class Scaled(Sparse):
    """The same at a temperature 1/(1 + β log n), for n positions to choose from; β per head.

    Source: Vasylenko et al., "Long-Context Generalization with Sparse Attention" (2025).
    """

    def __init__(self, weights: str, **numbers: float) -> None:
        super().__init__(weights, (), **numbers)
        self.raw = nn.Parameter(torch.full((HEADS, 1), -3.0))

    def temperature(self, mask: Tensor) -> Tensor:
        visible = torch.arange(1, mask.shape[-1] + 1)
        return 1 / (1 + functional.softplus(self.raw) * visible.log())


class Method(NamedTuple):
    name: str
    about: str
    make: Callable[[], nn.Module]


METHODS = {
    method.name: method
    for method in (
        Method("softmax", "softmax", Softmax),
        Method("entmax", "entmax, α = 1.5", lambda: Sparse("entmax", alpha=1.5)),
        Method(
            "entmax-learned",
            "entmax, α learned per head, from 1.5 on",
            lambda: Sparse("entmax", ("alpha",), alpha=1.5),
        ),
        Method(
            "entmax-scaled",
            "entmax, α = 1.5, temperature 1/(1 + β log n), β learned per head",
            lambda: Scaled("entmax", alpha=1.5),
        ),
        Method("soft-topk", "soft top-k, k = 4", lambda: Sparse("soft_topk", k=4.0)),
        Method(
            "soft-topk-learned",
            "soft top-k, k learned per head, from 4 on",
            lambda: Sparse("soft_topk", ("k",), k=4.0),
        ),
    )
}


class Layer(nn.Module):
    """Causal attention, then two linear layers, each added to what comes in."""

    def __init__(self, kind: nn.Module) -> None:
        super().__init__()
        self.kind = kind
        self.before, self.within = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        heads = self.attention(self.before(x)).unflatten(-1, (3, HEADS, -1)).movedim(-3, 0)
        mixed, weights = self.kind(*heads.transpose(-3, -2), mask)
        x = x + self.out(mixed.transpose(-3, -2).flatten(-2))
        return x + self.down(self.up(self.within(x)).relu()), weights


class Transformer(nn.Module):
    """Symbols in, logits of symbols out.

    Half of the heads see the order of positions only through the causal mask, the others through
    a penalty on distance (ALiBi): neither depends on the lengths seen in training.
    """

    def __init__(self, method: str) -> None:
        super().__init__()
        self.symbols = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer(METHODS[method].make()) for _ in range(LAYERS))
        self.after, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, inputs: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the logits, and the weights [sequences, heads, length, length] of each layer."""
        x, maps, mask = self.symbols(inputs), [], distances(inputs.shape[-1])
        for layer in self.layers:
            x, weights = layer(x, mask)
            maps.append(weights)
        return self.out(self.after(x)), maps


def distances(length: int) -> Tensor:
    """Return what is added to scores [heads, length, length]: −∞ for later positions."""
    place = torch.arange(length)
    apart = (place[:, None] - place).float()
    slopes = torch.tensor([1.0, 0.25] + [0.0] * (HEADS - 2))
    return (-slopes[:, None, None] * apart).masked_fill(apart < 0, float("-inf"))
