"""One training run of a sparse autoencoder."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch.nn import functional

from kofn.commands.train import run
from kofn.commands.train.sae.methods import METHODS, Sizes, unexplained
from kofn.commands.train.sae.tasks import Features, task_of
from kofn.nn.routing.state import Counting

PART = 500
"""Steps between two measurements."""
BATCH = 256
COOLED = 0.2
"""Share of the steps, at the end, in which the learning rate falls to 0."""
SHOWN, EXAMPLES = 10, 16
"""Latents that are drawn, and held-out inputs of each."""


@dataclass(frozen=True)
class Settings:
    """All options that determine a result."""

    tasks: tuple[str, ...]
    methods: tuple[str, ...]
    steps: int
    seeds: int
    seed: int

    @property
    def parts(self) -> int:
        return -(-self.steps // PART)

    def runs(self) -> list[tuple[str, str, int]]:
        """Return (task, method, seed) of every run; a seed fixes data and initial weights."""
        return [
            (task, method, self.seed + i)
            for i in range(self.seeds)
            for task in self.tasks
            for method in self.methods
        ]


class Measured(NamedTuple):
    """What held-out inputs show after some steps."""

    steps: int
    explained: float
    """Share of the variance."""
    l0: float
    """Latents per input."""
    dead: float
    """Share of latents that fire for no held-out input."""
    mcc: float
    """Mean cosine of true features and decoder rows, matched at best; NaN where none are known."""


class Run(run.Run):
    """One method on one task with one seed."""

    Figures = Measured

    def __init__(self, settings: Settings, task: str, method: str, seed: int) -> None:
        super().__init__(settings, task, method, seed)
        self.task = task_of(task, seed)
        self.generator = self.task.generator
        sizes = Sizes(self.task.D_IN, self.task.D_SAE, self.task.K, settings.steps)
        with run.seeded(seed):
            self.model = METHODS[method].make(sizes)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=self.task.RATE)

    def train(self) -> None:
        for _ in range(min(PART, self.settings.steps - self.steps)):
            left = (self.settings.steps - self.steps) / (COOLED * self.settings.steps)
            self.optimizer.param_groups[0]["lr"] = self.task.RATE * min(1.0, left)
            self.descend(self.model.loss(self.task.batch(BATCH)))
            self.model.step()

    @torch.no_grad()
    def code(self) -> Tensor:
        """Return the code of the held-out inputs, as in use."""
        self.model.eval()
        code: Tensor = self.model.encode(self.task.held_out)
        self.model.train()
        return code

    @torch.no_grad()
    def measured(self) -> Measured:
        x, code = self.task.held_out, self.code()
        return Measured(
            self.steps,
            1 - unexplained(x, self.model.decode(code)).item(),
            (code > 0).float().sum(-1).mean().item(),
            (code == 0).all(0).float().mean().item(),
            math.nan if not isinstance(self.task, Features) else self.cosines().mean().item(),
        )

    @torch.no_grad()
    def cosines(self) -> Tensor:
        """Return the cosine of each true feature and the decoder row that it is matched with."""
        assert isinstance(self.task, Features)
        return matched(self.task.directions, self.model.directions())

    def result(self) -> dict[str, Any]:
        """Return the results of a finished run."""
        found = super().result()
        if self.done == self.settings.parts:
            found |= self._drawn()
        return found

    def _drawn(self) -> dict[str, Any]:
        """Return what the pictures show."""
        if isinstance(self.task, Features):
            return {"frequency": self.task.frequency, "cosines": self.cosines()}
        code = self.code().float()
        latents = (code > 0).sum(0).topk(SHOWN).indices
        examples = code[:, latents].topk(EXAMPLES, 0).indices
        return {"features": self.task.held_out_images[examples].mean(0)}

    def state(self) -> dict[str, Any]:
        counts = [each.counts.clone() for each in _counters(self.model)]
        return {**super().state(), "counts": counts}

    def load(self, state: dict[str, Any]) -> None:
        super().load(state)
        for each, counts in zip(_counters(self.model), state["counts"], strict=True):
            each.counts.copy_(counts)

    def shown(self, measured: Measured) -> str:
        return f"{measured.explained:.1%} explained"


def _counters(model: nn.Module) -> list[Counting]:
    return [each for each in model.modules() if isinstance(each, Counting)]


def matched(features: Tensor, directions: Tensor) -> Tensor:
    """Return the cosine of each feature and its direction: one each, at the largest sum."""
    found = functional.normalize(features, dim=-1) @ functional.normalize(directions, dim=-1).T
    return found[linear_sum_assignment(-found.numpy())]
