"""One training run in parts, after each of which it can be stopped and continued."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from kofn.commands.files import InputError


class Run(ABC):
    """A model in training: what every study's runs have in common.

    A study says how a part is trained, what is measured after it, and what else it keeps.
    """

    Figures: type[Any]
    """A NamedTuple of plain values; the second is not finite where training has diverged."""
    model: Any
    optimizer: torch.optim.Optimizer
    generator: torch.Generator

    def __init__(self, settings: Any, *key: Any) -> None:
        self.settings, self.key = settings, key
        self.history: list[Any] = []
        self.steps, self.seconds = 0, 0.0

    @property
    def title(self) -> str:
        """Name the run, for the progress bar and errors."""
        *names, seed = self.key
        return f"{', '.join(names)}, seed {seed}"

    @property
    def done(self) -> int:
        """How many parts are finished."""
        return len(self.history)

    @abstractmethod
    def train(self) -> None:
        """Train until the next measurement."""

    @abstractmethod
    def measured(self) -> Any:
        """Measure the model: `Figures`."""

    @abstractmethod
    def shown(self, measured: Any) -> str:
        """Return what the progress bar shows of a measurement."""

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
            "history": [tuple(each) for each in self.history],
            "seconds": self.seconds,
            "steps": self.steps,
            "model": copied(self.model.state_dict()),
            "optimizer": copied(self.optimizer.state_dict()),
            "generator": self.generator.get_state(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned; training continues exactly as without a stop."""
        self.history = [self.Figures(*each) for each in state["history"]]
        self.seconds, self.steps = state["seconds"], state["steps"]
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.generator.set_state(state["generator"])

    def says(self) -> str:
        """Return what the progress bar shows."""
        last = f" {self.shown(self.history[-1])}" if self.history else ""
        return f"{self.title}:{last}"


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw from PyTorch's own generator, as layers do, without a trace in it."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def copied(state: Any) -> Any:
    """Return a copy that shares no memory with the original."""
    if isinstance(state, torch.Tensor):
        return state.detach().clone()
    if isinstance(state, dict):
        return {key: copied(value) for key, value in state.items()}
    return [copied(value) for value in state] if isinstance(state, list) else state
