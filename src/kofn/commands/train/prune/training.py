"""One training run of a network that is pruned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from kofn.commands.train import run
from kofn.commands.train.prune.methods import METHODS, way_of
from kofn.commands.train.prune.tasks import digits, model_of

PART = 50
"""Steps between two measurements."""
RATE, BATCH = 3e-3, 128

Key = tuple[str, str, str, int]


@dataclass(frozen=True)
class Settings:
    """All options that determine a result."""

    models: tuple[str, ...]
    methods: tuple[str, ...]
    removed: tuple[str, ...]
    steps: int
    seeds: int
    seed: int

    @property
    def parts(self) -> int:
        return -(-self.steps // PART)

    def runs(self) -> list[Key]:
        """Return (model, method, removed, seed); a seed fixes data, weights and batches."""
        found = []
        for model in self.models:
            for i in range(self.seeds):
                found.append((model, "dense", "0", self.seed + i))
                for removed in self.removed:
                    for name in self.methods:
                        method = METHODS[name]
                        if method.groups if removed == "2:4" else method.free:
                            found.append((model, name, removed, self.seed + i))
        return found


class Measured(NamedTuple):
    """What is measured at the end."""

    accuracy: float
    kept: int
    """Weights that are not 0, biases apart."""


class Trained(NamedTuple):
    """What is measured after some steps."""

    steps: int
    loss: float
    """Mean of the batches since the last measurement."""


class Run(run.Run):
    """One network, pruned by one method, with one seed."""

    Figures = Trained

    def __init__(
        self, settings: Settings, model: str, method: str, removed: str, seed: int
    ) -> None:
        super().__init__(settings, model, method, removed, seed)
        self.data = digits(seed)
        self.generator = torch.Generator().manual_seed(seed)
        with run.seeded(seed):
            self.model = model_of(model)
        self.way = way_of(method, self.model, removed, settings.steps)
        self.optimizer = torch.optim.Adam(self.way.parameters(RATE))
        self.slower = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, settings.steps)
        self.losses: list[float] = []
        self.noise = self.generator.get_state()

    @property
    def title(self) -> str:
        model, method, removed, seed = self.key
        return f"{model}, {removed} removed, {method}, seed {seed}"

    def train(self) -> None:
        with torch.random.fork_rng():  # Gumbel noise comes from PyTorch's own generator
            torch.set_rng_state(self.noise)
            count = min(PART, self.settings.steps - self.steps)
            self.losses = [self._step() for _ in range(count)]
            self.noise = torch.get_rng_state()

    def _step(self) -> float:
        images, labels, *_ = self.data
        rows = torch.randint(len(images), (BATCH,), generator=self.generator)
        weights = self.way.weights(self.steps)
        loss = cross_entropy(self._output(images[rows], weights), labels[rows])
        self.descend(loss)
        self.slower.step()
        self.way.after(self.steps - 1)
        return loss.item()

    def measured(self) -> Trained:
        return Trained(self.steps, sum(self.losses) / len(self.losses))

    def shown(self, measured: Trained) -> str:
        return f"loss {measured.loss:.3f}"

    def _output(self, images: Tensor, weights: dict[str, Tensor]) -> Tensor:
        found: Tensor = (
            functional_call(self.model, weights, (images,)) if weights else self.model(images)
        )
        return found

    def result(self) -> dict[str, Any]:
        """Finish the model; return what is left and how well it does."""
        self.way.finish()
        weights = [each for each in self.model.parameters() if each.ndim > 1]
        with torch.no_grad():
            right = self.model(self.data.held_out).argmax(-1) == self.data.answers
        measured = Measured(
            right.float().mean().item(), sum(int((each != 0).sum()) for each in weights)
        )
        return {"measured": tuple(measured), **super().result()}

    def state(self) -> dict[str, Any]:
        return {
            **super().state(),
            "memory": run.copied(self.way.memory),
            "logits": run.copied(getattr(self.way, "logits", None)),
            "slower": self.slower.state_dict(),
            "noise": self.noise,
        }

    def load(self, state: dict[str, Any]) -> None:
        super().load(state)
        self.way.memory = run.copied(state["memory"])
        if state["logits"] is not None:
            getattr(self.way, "logits").data.copy_(state["logits"])  # noqa: B009
        self.slower.load_state_dict(state["slower"])
        self.noise = state["noise"]
