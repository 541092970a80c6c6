"""The tasks: a batch to train on, a batch held out, a model, and its loss."""

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from kofn.nn import dispatch_plan
from studies.frame.data import Task
from studies.router.routers import METHODS
from studies.router.text import ALPHABET, Grammar


class Batch(NamedTuple):
    inputs: Tensor
    targets: Tensor
    groups: Tensor | None
    """The group of each token, where there is a right expert."""


class Mixture(nn.Module):
    """Experts behind a router: weights of the chosen experts times what these make of a token."""

    def __init__(self, router: nn.Module, experts: Tensor, down: Tensor | None = None) -> None:
        super().__init__()
        self.router = router
        self.experts = nn.Parameter(experts)  # [E, width, width or inner]
        self.down = None if down is None else nn.Parameter(down)  # [E, inner, width]
        self.logits, self.indices, self.chosen = (torch.zeros(0, 1) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        self.logits, weights, self.indices = self.router(x)
        self.chosen = weights.detach() > 0
        plan = dispatch_plan(self.indices, len(self.experts), mask=weights > 0)
        outputs = functional.grouped_mm(plan.gather(x), self.experts, offs=plan.offsets)
        if self.down is not None:
            outputs = functional.grouped_mm(outputs.relu(), self.down, offs=plan.offsets)
        return plan.combine(outputs, weights)

    def load(self) -> Tensor:
        """Return how many tokens of the last call each expert got."""
        zeros = torch.zeros(len(self.experts))
        return zeros.index_add(0, self.indices[self.chosen], self.chosen[self.chosen].float())


class Regression(Task):
    """Tokens of eight groups, each with a linear map of its own.

    An expert is a linear map, too. It is learned, or, where the experts are `known`, each is the
    map of its group, and only the router learns. The loss is the squared error divided by the
    variance of the targets.
    """

    GROUPS, WIDTH, RATE, HELD_OUT = 8, 16, 1e-2, 2048

    def __init__(self, seed: int, known: bool = False) -> None:
        super().__init__(seed)
        self.known = known
        self.maps = self.normal(self.GROUPS, self.WIDTH, self.WIDTH) / self.WIDTH**0.5
        self.centres = 2 * functional.normalize(self.normal(self.GROUPS, self.WIDTH), dim=-1)
        self.held_out = self.batch(self.HELD_OUT)

    def model(self, method: str, k: int) -> Mixture:
        experts = self.normal(self.GROUPS, self.WIDTH, self.WIDTH) / self.WIDTH**0.5
        router = METHODS[method].make(self.WIDTH, self.GROUPS, k)
        mixture = Mixture(router, self.maps.clone() if self.known else experts)
        mixture.experts.requires_grad_(not self.known)
        return mixture

    def loss(self, model: Any, batch: Batch) -> Tensor:
        error = (model(batch.inputs) - batch.targets).square().mean()
        return error / batch.targets.var()

    def batch(self, size: int = 256) -> Batch:
        groups = torch.randint(self.GROUPS, (size,), generator=self.generator)
        x = self.centres[groups] + self.normal(size, self.WIDTH) / 2
        return Batch(x, torch.einsum("bh,bhi->bi", x, self.maps[groups]), groups)


class Language(nn.Module):
    """Characters in, logits of the next character out: causal attention, then a mixture."""

    def __init__(self, mixture: Mixture, width: int, context: int) -> None:
        super().__init__()
        self.letters = nn.Embedding(len(ALPHABET), width)
        self.places = nn.Embedding(context, width)
        self.before, self.within = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width)
        self.mixture = mixture
        self.after, self.out = nn.LayerNorm(width), nn.Linear(width, len(ALPHABET))

    def forward(self, letters: Tensor) -> Tensor:
        x = self.letters(letters) + self.places.weight[: letters.shape[-1]]
        heads = self.attention(self.before(x)).unflatten(-1, (3, 4, -1)).movedim(-3, 0)
        q, k, v = heads.transpose(-3, -2)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + mixed.transpose(-3, -2).flatten(-2)
        x = x + self.mixture(self.within(x).flatten(0, -2)).view_as(x)
        return self.out(self.after(x))


class Text(Task):
    """The next character of a grammar's text; the loss is in nats per character."""

    EXPERTS, WIDTH, INNER = 16, 64, 64
    BATCH, CONTEXT = 16, 64
    RATE, LENGTH, HELD_OUT = 3e-3, 200_000, 16_385

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        grammar = Grammar(seed)
        self.letters = grammar.text(self.LENGTH)
        held_out = grammar.text(self.HELD_OUT)
        shape = (-1, self.CONTEXT)
        self.held_out = Batch(held_out[:-1].view(shape), held_out[1:].view(shape), None)

    def model(self, method: str, k: int) -> Language:
        return self.language(METHODS[method].make(self.WIDTH, self.EXPERTS, k))

    def language(self, router: nn.Module) -> Language:
        """Return a model whose experts are behind a router."""
        up = self.normal(self.EXPERTS, self.WIDTH, self.INNER) / self.WIDTH**0.5
        down = self.normal(self.EXPERTS, self.INNER, self.WIDTH) / self.INNER**0.5
        return Language(Mixture(router, up, down), self.WIDTH, self.CONTEXT)

    def batch(self) -> Batch:
        last = len(self.letters) - self.CONTEXT
        starts = torch.randint(last, (self.BATCH, 1), generator=self.generator)
        window = self.letters[starts + torch.arange(self.CONTEXT + 1)]
        return Batch(window[:, :-1], window[:, 1:], None)

    def loss(self, model: Any, batch: Batch) -> Tensor:
        return functional.cross_entropy(model(batch.inputs).flatten(0, 1), batch.targets.flatten())


TASKS: dict[str, Any] = {
    "known": partial(Regression, known=True),
    "regression": Regression,
    "text": Text,
}
