"""One training run of a router with its experts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from kofn.commands.train import run
from kofn.commands.train.router.routers import METHODS, penalty_of, step
from kofn.commands.train.router.tasks import Batch, Mixture, task_of

PART = 50
"""Steps between two measurements."""


@dataclass(frozen=True)
class Settings:
    """All options that determine a result."""

    tasks: tuple[str, ...]
    methods: tuple[str, ...]
    ks: tuple[int, ...]
    steps: int
    seeds: int
    seed: int

    @property
    def parts(self) -> int:
        return -(-self.steps // PART)

    def runs(self) -> list[tuple[str, str, int, int]]:
        """Return (task, method, k, seed) of every run; a seed fixes data and initial weights."""
        return [
            (task, method, k, self.seed + i)
            for i in range(self.seeds)
            for task in self.tasks
            for k in self.ks
            for method in self.methods
            if k >= METHODS[method].least_k
        ]


class Measured(NamedTuple):
    """What the held-out batch shows after some steps."""

    steps: int
    loss: float
    accuracy: float
    """Share of tokens at their group's expert; NaN where there is no right expert."""
    in_use: float
    """e^entropy of the load."""
    dead: int
    """Experts that no token was sent to."""
    gradient: float
    """Norm of the loss's gradient for the router's weight."""
    experts_per_token: float


class Run(run.Run):
    """One method on one task with one k and one seed."""

    Figures = Measured

    def __init__(self, settings: Settings, task: str, method: str, k: int, seed: int) -> None:
        super().__init__(settings, task, method, k, seed)
        self.task = task_of(task, seed)
        self.generator = self.task.generator
        with run.seeded(seed):
            self.model = self.task.model(method, k)
        parameters = [each for each in self.model.parameters() if each.requires_grad]
        self.optimizer = torch.optim.Adam(parameters, lr=self.task.RATE)

    @property
    def title(self) -> str:
        task, method, k, seed = self.key
        return f"{task}, k = {k}, {method}, seed {seed}"

    @property
    def mixture(self) -> Mixture:
        return self.task.mixture(self.model)

    def train(self) -> None:
        for _ in range(min(PART, self.settings.steps - self.steps)):
            self.descend(self.task.loss(self.model, self.task.batch()) + penalty_of(self.model))
            step(self.model)

    def measured(self) -> Measured:
        self.model.eval()
        held_out = self.task.held_out
        loss = self.task.loss(self.model, held_out)
        weight: Any = self.mixture.router.weight
        (gradient,) = torch.autograd.grad(loss, [weight], allow_unused=True)
        load = self.mixture.load()
        share = load / load.sum().clamp(min=1)
        self.model.train()
        return Measured(
            self.steps,
            loss.item(),
            right_share(held_out, self.mixture),
            torch.special.entr(share).sum().exp().item(),
            int((load == 0).sum()),
            0.0 if gradient is None else gradient.norm().item(),
            self.mixture.chosen.float().sum(-1).mean().item(),
        )

    def shown(self, measured: Measured) -> str:
        return f"loss {measured.loss:.3f}"


def right_share(batch: Batch, mixture: Mixture) -> float:
    """Return the share of tokens whose first expert is that of their group.

    Groups and experts are matched as well as possible.
    """
    if batch.groups is None:
        return math.nan
    experts = len(mixture.experts)
    uses = torch.zeros(experts, experts)
    first: Tensor = mixture.indices[:, 0]
    uses.index_put_((batch.groups, first), torch.ones(()), accumulate=True)
    return float(uses.numpy()[linear_sum_assignment(-uses.numpy())].sum() / len(batch.groups))
