"""A small causal transformer, and the kinds of attention that are compared in it."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from kofn.nn import sparse_attention
from studies.attention.tasks import VOCABULARY
from studies.frame.run import Method

WIDTH, HEADS, LAYERS = 64, 4, 2


LEARNED: dict[str, Any] = {
    "alpha": (Tensor.sigmoid, Tensor.logit),
    "k": (functional.softplus, lambda x: x.expm1().log()),
}
"""What makes a real number positive, or one in (0, 1), to which 1 is added; and its inverse."""


class Softmax(nn.Module):
    """Weights by softmax."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        weights = (q @ k.mT * q.shape[-1] ** -0.5 + mask).softmax(-1)
        return weights @ v, weights


class Sparse(nn.Module):
    """Weights by `sparse_attention`, with a fixed alpha or k, or one per head that is learned."""

    def __init__(self, weights: Any, learned: bool = False, **number: float) -> None:
        super().__init__()
        self.weights = weights
        ((self.name, self.start),) = number.items()
        if learned:
            real = LEARNED[self.name][1](torch.tensor(self.start - 1, dtype=torch.float64))
            self.raw = nn.Parameter(real.float().expand(HEADS, 1).clone())

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        how: dict[str, Any] = {self.name: self.number(), "temperature": self.temperature(mask)}
        return sparse_attention(q, k, v, mask, weights=self.weights, need_weights=True, **how)

    def number(self) -> float | Tensor:
        return 1 + LEARNED[self.name][0](self.raw) if hasattr(self, "raw") else self.start

    def temperature(self, mask: Tensor) -> float | Tensor:
        return 1.0


class Scaled(Sparse):
    """The same at a temperature 1/(1 + β log n), for n positions to choose from; β per head.

    Source: Vasylenko et al., "Long-Context Generalization with Sparse Attention" (2025).
    """

    def __init__(self, weights: Any, **number: float) -> None:
        super().__init__(weights, False, **number)
        self.slope = nn.Parameter(torch.full((HEADS, 1), -3.0))

    def temperature(self, mask: Tensor) -> Tensor:
        visible = torch.arange(1, mask.shape[-1] + 1)
        return 1 / (1 + functional.softplus(self.slope) * visible.log())


METHODS = {
    "softmax": Method(Softmax, "#222222"),
    "entmax": Method(partial(Sparse, "entmax", alpha=1.5), "#D55E00"),
    "entmax-learned": Method(partial(Sparse, "entmax", learned=True, alpha=1.5), "#D55E00", "--"),
    "entmax-scaled": Method(partial(Scaled, "entmax", alpha=1.5), "#E69F00"),
    "soft-topk": Method(partial(Sparse, "soft_topk", k=4.0), "#0072B2"),
    "soft-topk-learned": Method(partial(Sparse, "soft_topk", learned=True, k=4.0), "#0072B2", "--"),
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
