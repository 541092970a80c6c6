"""The study of routers: how mixtures of experts are trained, and what is reported."""

import math
from itertools import product
from statistics import fmean
from typing import Any, ClassVar, NamedTuple

import torch
from scipy.optimize import linear_sum_assignment

from kofn.commands.files import InputError
from studies.frame import pictures, report, run
from studies.frame.options import Settings
from studies.router.routers import METHODS, NOT_FOR_ONE, after_step, penalty_of
from studies.router.tasks import TASKS, Batch, Mixture, Regression


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

    TITLE = "{0}, k = {2}, {1}, seed {3}"
    Measurement = Measured

    @classmethod
    def runs(cls, settings: Settings) -> list[run.Key]:
        for k in settings.ks:
            if not 1 <= k < Regression.GROUPS:
                raise InputError(f"-k must be in 1..{Regression.GROUPS - 1}; got {k}")
        keys = [
            (task, method, k, seed)
            for seed in settings.every_seed
            for task, k, method in product(settings.tasks, settings.ks, settings.methods)
            if k > 1 or method not in NOT_FOR_ONE
        ]
        if not keys:
            raise InputError(f"--method {settings.methods[0]} needs -k of at least 2")
        return keys

    def build(self, task: str, method: str, k: int) -> None:
        self.task = TASKS[task](self.seed)
        self.generator = self.task.generator
        self.model = self.task.model(method, k)
        parameters = [each for each in self.model.parameters() if each.requires_grad]
        self.optimizer = torch.optim.Adam(parameters, lr=self.task.RATE)
        (self.mixture,) = (each for each in self.model.modules() if isinstance(each, Mixture))

    def step(self) -> None:
        self.descend(self.task.loss(self.model, self.task.batch()) + penalty_of(self.model))
        after_step(self.model)

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


def right_share(batch: Batch, mixture: Mixture) -> float:
    """Return the share of tokens whose first expert is that of their group.

    Groups and experts are matched as well as possible.
    """
    if batch.groups is None:
        return math.nan
    experts = len(mixture.experts)
    uses = torch.zeros(experts, experts)
    uses.index_put_((batch.groups, mixture.indices[:, 0]), torch.ones(()), accumulate=True)
    return float(uses.numpy()[linear_sum_assignment(-uses.numpy())].sum() / len(batch.groups))


class Report(report.Report):
    """Held-out losses, and what the routers did."""

    KEY = ("task", "method", "k", "seed")
    GROUP = ("task", "k")
    HEADING = "{task}, k = {k}"
    TITLE = "routers of a mixture of experts"
    CAPTION = (
        "{steps:,} steps, {seeds}, held-out data.\n"
        "loss: squared error over variance, or nats per character.\n"
        "right: share of tokens at their group's expert.\n"
        "experts: of a token, in the mean. in use: e^entropy of the load.\n"
        "dead: experts without a token.\n"
        "gradient: its norm at the router's weight, mean over training."
    )
    FIRST = "router"
    SHOWN: ClassVar = {
        "loss": ("loss", ".3f±"),
        "accuracy": ("right", ".2f"),
        "experts_per_token": ("experts", ".1f"),
        "in_use": ("in use", ".1f"),
        "dead": ("dead", ".1f"),
        "gradient": ("gradient", ".0e"),
    }
    BEST = "loss"
    Measurement = Measured

    def figures(self, **key: Any) -> report.Figures:
        """Return the last figures of each seed, but the mean of all its gradients.

        The gradient vanishes where the loss does; its mean says what the router learned from.
        """
        histories = map(self.history, self.of(**key))
        gradients = [fmean(each.gradient for each in history) for history in histories]
        return {**super().figures(**key), "gradient": gradients}

    def curves(self) -> Any:
        """Draw the held-out loss per step, a panel for each task and k."""
        rows, columns = len(self.settings.tasks), len(self.settings.ks)
        figure, axes = pictures.panels(5.2 * columns + 2.4, 3.0 * rows, rows, columns)
        for panel, group in zip(axes.flat, self.groups(), strict=True):
            for name in self.methods(**group):
                histories = map(self.history, self.of(method=name, **group))
                parts = list(zip(*histories, strict=True))
                losses = [fmean(each.loss for each in part) for part in parts]
                steps = [part[0].steps for part in parts]
                pictures.line(panel, steps, losses, label=name, lw=1.5, **METHODS[name].ink)
            pictures.plain(panel, self.heading(**group), 10)
            text = group["task"] == "text"
            panel.set_yscale("linear" if text else "log")
            panel.set(xlabel="step", ylabel="nats per character" if text else "error / variance")
        pictures.legend(figure, METHODS)
        return figure
