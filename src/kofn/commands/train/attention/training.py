"""One training run of a transformer with one kind of attention on one task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from kofn.commands.train import run
from kofn.commands.train.attention.model import Transformer
from kofn.commands.train.attention.tasks import TASKS, Batch

PART = 50
"""Steps between two measurements."""
BATCH, RATE = 32, 2e-3
SHORTEST, LONGEST = 33, 64  # in training
TESTED = 16_384  # positions of the test at each length
AT_ONCE = 2**21  # pairs of positions, in a test
DRAWN = 48  # length of the sequence whose attention is drawn


@dataclass(frozen=True)
class Settings:
    """All options that determine a result."""

    tasks: tuple[str, ...]
    methods: tuple[str, ...]
    steps: int
    lengths: tuple[int, ...]
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
    """What a test at a length of training shows."""

    steps: int
    loss: float
    accuracy: float


class Run(run.Run):
    """One method on one task with one seed."""

    Figures = Measured

    def __init__(self, settings: Settings, task: str, method: str, seed: int) -> None:
        super().__init__(settings, task, method, seed)
        self.task, self.seed = TASKS[task], seed
        self.generator = torch.Generator().manual_seed(seed)
        with run.seeded(seed):
            self.model = Transformer(method)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=RATE)

    def train(self) -> None:
        for _ in range(min(PART, self.settings.steps - self.steps)):
            length = int(torch.randint(SHORTEST, LONGEST + 1, (), generator=self.generator))
            loss, _ = self._judged(self.task(BATCH, length, self.generator))
            self.descend(loss, longest=1.0)

    def measured(self) -> Measured:
        return Measured(self.steps, *self.tested(LONGEST))

    def shown(self, measured: Measured) -> str:
        return f"loss {measured.loss:.3f}"

    @torch.no_grad()
    def tested(self, length: int) -> tuple[float, float]:
        """Return the loss and the share of right symbols at a length."""
        generator = torch.Generator().manual_seed(self.seed)  # the same for all methods
        count = max(1, TESTED // length)
        batch = self.task(count, length, generator)
        at_once = max(1, AT_ONCE // length**2)
        inputs, targets = (torch.split(each, at_once) for each in batch)
        parts = [self._judged(Batch(*part)) for part in zip(inputs, targets, strict=True)]
        sizes = torch.tensor([len(right) for _, right in parts], dtype=torch.float64)
        losses = torch.stack([loss for loss, _ in parts]).double()
        right = torch.cat([right for _, right in parts])
        return float((losses * sizes).sum() / sizes.sum()), float(right.double().mean())

    def _judged(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the mean loss, and for each predicted symbol whether it is right."""
        asked = batch.targets >= 0
        logits = self.model(batch.inputs)[0][asked]
        wanted = batch.targets[asked]
        return functional.cross_entropy(logits, wanted), logits.argmax(-1) == wanted

    @torch.no_grad()
    def drawn(self) -> Tensor:
        """Return the weights [DRAWN, DRAWN] of the head of the last layer that is most certain."""
        generator = torch.Generator().manual_seed(self.seed)
        inputs, targets = self.task(1, DRAWN, generator)
        weights = self.model(inputs)[1][-1][0]
        asked = targets[0] >= 0
        return weights[weights[:, asked].amax(-1).mean(-1).argmax()].clone()

    def result(self) -> dict[str, Any]:
        """Return the results of a finished run: also at lengths beyond those trained at."""
        return {
            **super().result(),
            "lengths": [(length, *self.tested(length)) for length in self.settings.lengths],
            "map": self.drawn() if self.seed == self.settings.seed else None,
        }
