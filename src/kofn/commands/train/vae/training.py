"""One training run of an autoencoder, epoch by epoch."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from kofn import schedules
from kofn.commands.files import InputError
from kofn.commands.train.checkpoint import copied
from kofn.commands.train.vae.methods import METHODS
from kofn.commands.train.vae.model import Autoencoder, Data, Latent

BATCH = 64
RATE = 2e-3
COLD = 0.1  # the final temperature of annealed methods
ANNEALED = 0.8  # share of the steps
SAMPLES_PER_EPOCH = 32
SAMPLES_AT_THE_END = 128
MOST_CHOICES = 4096


@dataclass(frozen=True)
class Settings:
    """All options that determine a result."""

    methods: tuple[str, ...]
    epochs: int
    factors: int
    n: int
    items: int
    k: int
    samples: int
    seeds: int
    seed: int

    def latent(self, name: str) -> Latent:
        if METHODS[name].subsets:
            return Latent(1, self.items, self.k)
        return Latent(self.factors, self.n)

    def runs(self) -> list[tuple[str, int]]:
        """Return every method with every seed; a seed fixes the initial weights."""
        return [(m, self.seed + i) for i in range(self.seeds) for m in self.methods]


class Bounds(NamedTuple):
    """Bounds in nats per image: the evidence bound and the importance-weighted bound."""

    epoch: int
    training: float
    held_out: float
    training_tight: float
    held_out_tight: float


class Run:
    """One method with one seed."""

    def __init__(self, settings: Settings, data: Data, name: str, seed: int) -> None:
        self.settings, self.data, self.method, self.seed = settings, data, METHODS[name], seed
        self.generator = torch.Generator().manual_seed(seed)
        self.model = Autoencoder(settings.latent(name), data.training, self.generator)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=RATE)
        self.history: list[Bounds] = []
        self.seconds = 0.0
        self.steps = -(-len(data.training) // BATCH)
        cooling = max(1, round(ANNEALED * self.steps * settings.epochs))
        self.temperature = schedules.exponential(1.0, COLD, steps=cooling)

    @property
    def done(self) -> int:
        return len(self.history)

    def part(self) -> None:
        """Train on every image once, then measure the bounds."""
        began, done = time.monotonic(), len(self.history)
        order = torch.randperm(len(self.data.training), generator=self.generator)
        for step, part in enumerate(torch.split(order, BATCH)):
            images = self.data.training[part]
            temperature = self.temperature(done * self.steps + step)
            choice = self.model.choice(images, temperature if self.method.cools else 1.0)

            def cost(z: torch.Tensor, images: torch.Tensor = images) -> torch.Tensor:
                return -self.model.log_likelihood(images, z)

            expected = self.method.estimate(
                choice, cost, self.generator, temperature, self.settings.samples
            )
            loss = (expected + self.model.divergence(choice)).mean()
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
        self.seconds += time.monotonic() - began
        training, training_tight = self._bounds(
            self.data.training[: len(self.data.held_out)], done + 1
        )
        held_out, held_out_tight = self._bounds(self.data.held_out, done + 1)
        found = Bounds(done + 1, training, held_out, training_tight, held_out_tight)
        if not all(map(math.isfinite, found)):
            raise InputError(f"{self.method.name} diverged in epoch {done + 1}: {found.held_out}")
        self.history.append(found)

    def result(self) -> dict[str, Any]:
        """Return the results of a finished run, and its model."""
        end = {"epochs": len(self.history), "samples": SAMPLES_AT_THE_END}
        held_out, held_out_tight = self._bounds(self.data.held_out, **end)
        training, training_tight = self._bounds(self.data.training, **end)
        latent = self.model.latent
        few = latent.log_size <= math.log(MOST_CHOICES) + 1e-9
        return {
            "method": self.method.name,
            "seed": self.seed,
            "history": [tuple(each) for each in self.history],
            "seconds": self.seconds,
            "calls": self.method.calls(self.settings.samples, round(math.exp(latent.log_size))),
            "held_out": held_out,
            "held_out_tight": held_out_tight,
            "training": training,
            "training_tight": training_tight,
            "held_out_evidence": self.model.evidence(self.data.held_out) if few else None,
            "training_evidence": self.model.evidence(self.data.training) if few else None,
            # One model per method is enough to generate digits.
            "model": copied(self.model.state_dict()) if self.seed == self.settings.seed else None,
        }

    def state(self) -> dict[str, Any]:
        """Return a copy of all state that the next epoch depends on."""
        return {
            "model": copied(self.model.state_dict()),
            "optimizer": copied(self.optimizer.state_dict()),
            "generator": self.generator.get_state(),
            "history": [tuple(each) for each in self.history],
            "seconds": self.seconds,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned; training continues exactly as without a stop."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.generator.set_state(state["generator"])
        self.history = [Bounds(*each) for each in state["history"]]
        self.seconds = state["seconds"]

    def says(self) -> str:
        bound = f" bound {self.history[-1].held_out:.1f}" if self.history else ""
        return f"{self.method.name}, seed {self.seed}:{bound}"

    def _bounds(
        self, images: torch.Tensor, epochs: int, samples: int | None = None
    ) -> tuple[float, float]:
        samples = SAMPLES_PER_EPOCH if samples is None else samples
        # Its own generator: how often the bounds are measured does not change the training.
        generator = torch.Generator().manual_seed(self.seed)
        reached = self.temperature(epochs * self.steps) if self.method.cools else 1.0
        parts = torch.split(images, 256)
        found = [self.model.bounds(part, samples, generator, reached) for part in parts]
        sizes = [len(part) / len(images) for part in parts]
        loose, tight = (
            sum(s * bound for s, bound in zip(sizes, each, strict=True))
            for each in zip(*found, strict=True)
        )
        return loose, tight
