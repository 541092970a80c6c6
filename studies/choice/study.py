"""The study of choices: what closes a soft choice, and how well the hard one does."""

from collections.abc import Callable
from functools import partial
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from kofn import hard_topk, schedules, soft_topk
from studies.frame import data, pictures, report, run
from studies.frame.options import Settings
from studies.frame.run import Method

RATE, BATCH, HIDDEN = 3e-3, 128, 64
COOLING, WHOLE = 0.9, 0.7
"""The shares of the steps after which the temperature is the last one, and a choice is whole."""

Weights = Callable[[Tensor, int, float], Tensor]
"""Of scores, k, and the share of the steps that is over."""


def temperature(done: float, end: float = 0.01, after: float = COOLING) -> float:
    """Return the temperature after a share of the steps: from 1 down to `end`."""
    return schedules.exponential(1.0, end, 1)(done / after)


def straight_through(scores: Tensor, k: int, done: float) -> Tensor:
    soft = scores.softmax(-1)
    return hard_topk(scores.detach(), k) + (soft - soft.detach())


def hard(scores: Tensor, k: int, done: float) -> Tensor:
    return soft_topk(scores, k, temperature=temperature(done), hard=True)


def cooled(scores: Tensor, k: int, done: float, end: float = 0.01) -> Tensor:
    return soft_topk(scores, k, temperature=temperature(done, end))


def whole(scores: Tensor, k: int, done: float) -> Tensor:
    if done >= WHOLE:  # the scores have no gradient any more
        return hard_topk(scores, k)
    return soft_topk(scores, k, temperature=temperature(done, after=WHOLE))


METHODS = {
    "straight-through": Method(lambda: straight_through, "#888888"),
    "hard": Method(lambda: hard, "#D55E00"),
    "cooled": Method(lambda: cooled, "#56B4E9"),
    "colder": Method(lambda: partial(cooled, end=1e-4), "#0072B2"),
    "whole": Method(lambda: whole, "#009E73"),
}


class Model(nn.Module):
    """A perceptron, and a score for each pixel that it may see."""

    def __init__(self) -> None:
        super().__init__()
        pixels = data.SIDE**2
        self.network = nn.Sequential(nn.Linear(pixels, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10))
        self.scores = nn.Parameter(0.01 * torch.randn(pixels))

    def forward(self, images: Tensor, weights: Tensor) -> Tensor:
        logits: Tensor = self.network(images / data.INK * weights)
        return logits


class Measured(NamedTuple):
    """What is measured after some steps."""

    steps: int
    accuracy: float
    """Held out, with the hard choice."""
    soft: float
    """Held out, with the weights of training."""
    open: float
    """Σ p(1 − p)/k of these weights: 0 once they are 0 and 1."""


class Run(run.Run):
    """One network that learns what it sees, by one method at one rate, with one seed."""

    PART = 100
    TITLE = "{1}, k = {0}, rate {2}, seed {3}"
    SHOWN = "accuracy {0.accuracy:.3f}"
    Measurement = Measured

    @classmethod
    def runs(cls, settings: Settings) -> list[run.Key]:
        return [
            (k, method, rate, seed)
            for seed in settings.every_seed
            for rate in settings.rates
            for k in settings.ks
            for method in settings.methods
        ]

    def build(self, k: int, method: str, rate: int) -> None:
        self.data, self.k = data.digits(self.seed), k
        self.way: Weights = METHODS[method].make()
        self.model = Model()
        scores = {"params": [self.model.scores], "lr": rate * RATE}
        self.optimizer = torch.optim.Adam(
            [{"params": self.model.network.parameters()}, scores], RATE
        )

    def weights(self) -> Tensor:
        """Return the weights of this step."""
        return self.way(self.model.scores, self.k, self.steps / self.settings.steps)

    def step(self) -> None:
        rows = torch.randint(len(self.data.labels), (BATCH,), generator=self.generator)
        logits = self.model(self.data.training[rows], self.weights())
        self.descend(cross_entropy(logits, self.data.labels[rows]))

    @torch.no_grad()
    def measured(self) -> Measured:
        soft = self.weights()
        right = [
            (self.model(self.data.held_out, weights).argmax(-1) == self.data.answers)
            for weights in (hard_topk(self.model.scores, self.k), soft)
        ]
        hard, mixed = (each.float().mean().item() for each in right)
        return Measured(self.steps, hard, mixed, (soft * (1 - soft)).sum().item() / self.k)


class Report(report.Report):
    """Held-out accuracies with the hard choice, and how open it was."""

    KEY = ("k", "method", "rate", "seed")
    GROUP = ("rate",)
    HEADING = "rate of the scores: {rate} times the network's"
    TITLE = "held-out accuracy with k of 64 pixels, by k"
    CAPTION = "{steps:,} steps, {seeds}; open: mean of Σ p(1 − p)/k at the end."
    FIRST = "method"
    Measurement = Measured

    def figures(self, **key: Any) -> report.Figures:
        """Return the accuracies by k, and how open the choices were."""
        ends = [(k, super(Report, self).figures(k=k, **key)) for k in self.settings.ks]
        accuracies = {str(k): end["accuracy"] for k, end in ends}
        return {**accuracies, "open": [each for _, end in ends for each in end["open"]]}

    def shown(self) -> dict[str, tuple[str, str]]:
        return {**{str(k): (str(k), ".3f±") for k in self.settings.ks}, "open": ("open", ".2f")}

    def curves(self) -> Any:
        """Draw how open the choice is against the scores' step in temperatures."""
        ks = self.settings.ks
        figure, (axes,) = pictures.panels(4.2 * len(ks) + 2.4, 3.4, 1, len(ks))
        for panel, k in zip(axes, ks, strict=True):
            for name in ("cooled", "colder"):
                for rate, style in zip(self.settings.rates, ("-", "--", ":"), strict=False):
                    runs = self.of(k=k, method=name, rate=rate)
                    parts = [*zip(*map(self.history, runs), strict=True)]
                    end = 0.01 if name == "cooled" else 1e-4
                    done = [part[0].steps / self.settings.steps for part in parts]
                    x = [rate * RATE / temperature(share, end) for share in done]
                    y = [fmean(each.open for each in part) for part in parts]
                    how = {"color": METHODS[name].colour, "ls": style}
                    pictures.line(panel, x, y, label=f"{name}, rate {rate}", lw=1.5, **how)
            pictures.plain(panel, f"k = {k}", 10)
            panel.set_xscale("log")
            panel.set(xlabel="rate of the scores, in temperatures", ylabel="Σ p(1 − p)/k")
        pictures.legend(figure, fontsize=8)
        return figure
