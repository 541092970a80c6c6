"""One training run of an autoencoder, epoch by epoch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from kofn import schedules
from kofn.commands.train import run
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


class Run(run.Run):
    """One method with one seed; a part is an epoch."""

    Figures = Bounds

    def __init__(self, settings: Settings, data: Data, name: str, seed: int) -> None:
        super().__init__(settings, name, seed)
        self.data, self.method, self.seed = data, METHODS[name], seed
        self.generator = torch.Generator().manual_seed(seed)
        self.model = Autoencoder(settings.latent(name), data.training, self.generator)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=RATE)
        self.in_epoch = -(-len(data.training) // BATCH)
        cooling = max(1, round(ANNEALED * self.in_epoch * settings.epochs))
        self.temperature = schedules.exponential(1.0, COLD, steps=cooling)

    def train(self) -> None:
        """Train on every image once."""
        order = torch.randperm(len(self.data.training), generator=self.generator)
        for part in torch.split(order, BATCH):
            images = self.data.training[part]
            temperature = self.temperature(self.steps)
            choice = self.model.choice(images, temperature if self.method.cools else 1.0)

            def cost(z: torch.Tensor, images: torch.Tensor = images) -> torch.Tensor:
                return -self.model.log_likelihood(images, z)

            expected = self.method.estimate(
                choice, cost, self.generator, temperature, self.settings.samples
            )
            self.descend((expected + self.model.divergence(choice)).mean())

    def measured(self) -> Bounds:
        done = self.done + 1
        held_out, held_out_tight = self._bounds(self.data.held_out, done)
        some = self.data.training[: len(self.data.held_out)]
        training, training_tight = self._bounds(some, done)
        return Bounds(done, training, held_out, training_tight, held_out_tight)

    def shown(self, measured: Bounds) -> str:
        return f"bound {measured.held_out:.1f}"

    def result(self) -> dict[str, Any]:
        """Return the results of a finished run, and its model."""
        end = {"epochs": len(self.history), "samples": SAMPLES_AT_THE_END}
        held_out, held_out_tight = self._bounds(self.data.held_out, **end)
        training, training_tight = self._bounds(self.data.training, **end)
        latent = self.model.latent
        first = self.seed == self.settings.seed
        few = latent.log_size <= math.log(MOST_CHOICES) + 1e-9
        return {
            "method": self.method.name,
            "seed": self.seed,
            **super().result(),
            "calls": self.method.calls(self.settings.samples, round(math.exp(latent.log_size))),
            "held_out": held_out,
            "held_out_tight": held_out_tight,
            "training": training,
            "training_tight": training_tight,
            "held_out_evidence": self.model.evidence(self.data.held_out) if few else None,
            "training_evidence": self.model.evidence(self.data.training) if few else None,
            # One model per method is enough to generate digits.
            "model": run.copied(self.model.state_dict()) if first else None,
        }

    def _bounds(
        self, images: torch.Tensor, epochs: int, samples: int | None = None
    ) -> tuple[float, float]:
        samples = SAMPLES_PER_EPOCH if samples is None else samples
        # Its own generator: how often the bounds are measured does not change the training.
        generator = torch.Generator().manual_seed(self.seed)
        reached = self.temperature(epochs * self.in_epoch) if self.method.cools else 1.0
        parts = torch.split(images, 256)
        found = [self.model.bounds(part, samples, generator, reached) for part in parts]
        sizes = [len(part) / len(images) for part in parts]
        loose, tight = (
            sum(s * bound for s, bound in zip(sizes, each, strict=True))
            for each in zip(*found, strict=True)
        )
        return loose, tight
