"""One training run in parts, after each of which it can be stopped and continued."""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import deepcopy
from typing import Any, ClassVar, NamedTuple

import torch

from kofn.commands.files import InputError
from studies.frame.data import seeded
from studies.frame.options import Settings

Key = tuple[Any, ...]
"""What a run is: its method, its seed and so on, as plain values."""


class Method(NamedTuple):
    """How a method is made, and how its curve is drawn."""

    make: Callable[..., Any]
    colour: str
    style: str = "-"

    @property
    def ink(self) -> dict[str, str]:
        return {"color": self.colour, "ls": self.style}


class Run(ABC):
    """A model in training: what every study's runs have in common.

    A study says how a model is trained, what is measured after each part, and what else is kept.
    """

    PART: ClassVar[int] = 50
    """Steps of a part."""
    TITLE: ClassVar[str] = "{}, {}, seed {}"
    """Names a run by its key, for the progress bar and errors."""
    SHOWN: ClassVar[str] = "loss {0.loss:.3f}"
    """What the progress bar shows of a measurement."""
    Measurement: type[Any]
    """A NamedTuple of plain values; the second is not finite where training has diverged."""
    model: Any
    optimizer: torch.optim.Optimizer

    def __init__(self, settings: Settings, *key: Any) -> None:
        self.settings, self.key, self.seed = settings, key, key[-1]
        self.generator = torch.Generator().manual_seed(self.seed)
        self.history: list[Any] = []
        self.steps, self.seconds = 0, 0.0
        with seeded(self.seed):
            self.build(*key[:-1])

    @abstractmethod
    def build(self, *key: Any) -> None:
        """Make data, model and optimizer of a run; `key` is that of the run without the seed.

        PyTorch's own generator, from which layers draw their weights, has the seed meanwhile.
        """

    @classmethod
    def parts(cls, settings: Settings) -> int:
        """Return how many parts a run has."""
        return -(-settings.steps // cls.PART)

    @classmethod
    def runs(cls, settings: Settings) -> list[Key]:
        """Return the key of every run, whose seed fixes data and initial weights.

        Raises InputError where settings do not go together.
        """
        return [
            (task, method, seed)
            for seed in settings.every_seed
            for task in settings.tasks
            for method in settings.methods
        ]

    @property
    def title(self) -> str:
        return self.TITLE.format(*self.key)

    @property
    def done(self) -> int:
        """How many parts are finished."""
        return len(self.history)

    def train(self) -> None:
        """Train until the next measurement."""
        for _ in range(min(self.PART, self.settings.steps - self.steps)):
            self.step()

    @abstractmethod
    def step(self) -> None:
        """Train for a step, by `descend`."""

    @abstractmethod
    def measured(self) -> Any:
        """Measure the model: `Measurement`."""

    def descend(self, loss: torch.Tensor, longest: float = math.inf) -> None:
        """Take one step of the optimizer, with a gradient that is clipped to `longest`."""
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if longest < math.inf:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), longest)
        self.optimizer.step()
        self.steps += 1

    def part(self) -> None:
        """Train for one part more, then measure."""
        began = time.process_time()
        self.train()
        self.seconds += time.process_time() - began
        found = self.measured()
        if not math.isfinite(found[1]):
            raise InputError(f"{self.title} diverged in step {self.steps}")
        self.history.append(found)

    def result(self) -> dict[str, Any]:
        """Return the results of a finished run: tensors and plain values."""
        return {"history": [tuple(each) for each in self.history], "seconds": self.seconds}

    def state(self) -> dict[str, Any]:
        """Return a copy of all that the next part depends on: tensors and plain values."""
        return {
            **Run.result(self),
            "steps": self.steps,
            "model": deepcopy(self.model.state_dict()),
            "optimizer": deepcopy(self.optimizer.state_dict()),
            "generator": self.generator.get_state(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned; training continues exactly as without a stop."""
        self.history = [self.Measurement(*each) for each in state["history"]]
        self.seconds, self.steps = state["seconds"], state["steps"]
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.generator.set_state(state["generator"])

    def says(self) -> str:
        """Return what the progress bar shows."""
        last = f" {self.SHOWN.format(self.history[-1])}" if self.history else ""
        return f"{self.title}:{last}"
