"""One training run of a router with its experts."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from kofn.commands.files import InputError
from kofn.commands.train.checkpoint import copied
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


class Run:
    """One method on one task with one k and one seed."""

    def __init__(self, settings: Settings, task: str, method: str, k: int, seed: int) -> None:
        self.settings, self.name, self.method, self.k, self.seed = settings, task, method, k, seed
        self.task = task_of(task, seed)
        with torch.random.fork_rng():  # layers draw from PyTorch's own generator
            torch.manual_seed(seed)
            self.model = self.task.model(method, k)
        self.parameters = [each for each in self.model.parameters() if each.requires_grad]
        self.optimizer = torch.optim.Adam(self.parameters, lr=self.task.RATE)
        self.history: list[Measured] = []
        self.steps, self.seconds = 0, 0.0

    @property
    def done(self) -> int:
        return len(self.history)

    @property
    def mixture(self) -> Mixture:
        return self.task.mixture(self.model)

    def part(self) -> None:
        """Train for some steps, then measure."""
        began = time.monotonic()
        for _ in range(min(PART, self.settings.steps - self.steps)):
            loss = self.task.loss(self.model, self.task.batch()) + penalty_of(self.model)
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            step(self.model)
            self.steps += 1
        self.seconds += time.monotonic() - began
        found = self._measured()
        if not math.isfinite(found.loss):
            raise InputError(f"{self.method} diverged on {self.name} in step {self.steps}")
        self.history.append(found)

    def _measured(self) -> Measured:
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

    def result(self) -> dict[str, Any]:
        """Return the results of a finished run."""
        return {"history": [tuple(each) for each in self.history], "seconds": self.seconds}

    def state(self) -> dict[str, Any]:
        """Return a copy of all that the next part depends on."""
        return {
            **self.result(),
            "steps": self.steps,
            "model": copied(self.model.state_dict()),
            "optimizer": copied(self.optimizer.state_dict()),
            "generator": self.task.generator.get_state(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned; training continues exactly as without a stop."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.task.generator.set_state(state["generator"])
        self.history = [Measured(*each) for each in state["history"]]
        self.steps, self.seconds = state["steps"], state["seconds"]

    def says(self) -> str:
        loss = f" loss {self.history[-1].loss:.3f}" if self.history else ""
        return f"{self.name}, k = {self.k}, {self.method}, seed {self.seed}:{loss}"


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
