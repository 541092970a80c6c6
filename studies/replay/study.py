"""The study of replays: ratios, rewards and divergences with and without what was sampled."""

from __future__ import annotations

from math import nan
from statistics import fmean
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from kofn.nn import record_routing, step_routers
from studies.frame import pictures, report, run
from studies.frame.options import Settings
from studies.replay import policies, teachers

RATES = {"tokens": 2e-3, "experts": 2e-3, "distillation": 1e-2}


class Method(NamedTuple):
    """What a method is one of, and how its curve is drawn."""

    task: str
    colour: str


METHODS = {
    "whole": Method("tokens", "#D55E00"),
    "recomputed": Method("tokens", "#E69F00"),
    "kept": Method("tokens", "#0072B2"),
    "own": Method("experts", "#D55E00"),
    "experts": Method("experts", "#0072B2"),
    "full": Method("distillation", "#222222"),
    "truncated": Method("distillation", "#E69F00"),
    "clamped": Method("distillation", "#D55E00"),
    "renormalised": Method("distillation", "#CC79A7"),
    "bucket": Method("distillation", "#0072B2"),
}


class Measured(NamedTuple):
    """Means over the steps since the last measurement; NaN where a task has no such number."""

    steps: int
    score: float
    """Reward per token; for a student, the whole KL(p‖q) of held-out points."""
    ratio: float
    """Of probabilities, the trainer's over the sampler's, before the update."""
    outside: float
    """The share of these ratios below .9 or above 1.1."""
    entropy: float
    """Of the distributions that are sampled from."""
    differ: float
    """The share of tokens that the trainer sends to other experts in some layer."""
    mass: float
    """What the student gives to the named tokens, less what the teacher does."""
    negative: float
    """The share of rows whose sum over the named tokens is negative."""


class Run(run.Run):
    """One model, by one method of one task, with one seed."""

    PART = 10
    TITLE = "{0}, {1}, seed {2}"
    SHOWN = "score {0.score:.3f}"
    Measurement = Measured

    @classmethod
    def runs(cls, settings: Settings) -> list[run.Key]:
        return [
            (task, method, seed)
            for seed in settings.every_seed
            for task in settings.tasks
            for method in settings.methods
            if METHODS[method].task == task
        ]

    def build(self, task: str, method: str) -> None:
        self.task, self.method = task, method
        self.seen: list[tuple[float, ...]] = []
        if task == "distillation":
            self.teacher = teachers.Teacher().requires_grad_(False)
            self.model: Any = teachers.student()
            self.held_out = torch.randn(1024, 8)
        else:
            self.model = policies.Model(mixture=task == "experts")
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=RATES[task])

    def step(self) -> None:
        if self.task == "distillation":
            for update in range(teachers.UPDATES):
                points = torch.randn(teachers.BATCH, 8, generator=self.generator)
                found = teachers.costs(self.method, self.model(points), self.teacher(points))
                self.descend(found.mean())
                self.steps -= update < teachers.UPDATES - 1  # a step has several updates
            return
        mixture = self.task == "experts"
        seen = policies.sampled(self.model, self.generator, truncated=not mixture, mixture=mixture)
        weights = policies.advantages(seen.rewards)
        self.differ = self.differing(seen) if mixture else nan
        for update in range(policies.UPDATES):
            found = policies.log_probs(self.model, seen, self.method)
            loss, ratios = policies.surrogate(found, seen, weights)
            if not update:
                self.note(seen, ratios)
            self.descend(loss)
            self.steps -= update < policies.UPDATES - 1
        if mixture:
            step_routers(self.model)

    @torch.no_grad()
    def differing(self, seen: policies.Sampled) -> float:
        """Return the share of tokens that the trainer would send to other experts."""
        with record_routing(self.model.eval()) as record:
            self.model(seen.pairs)
        self.model.train()
        same = record.indices.sort(-1).values == seen.experts.sort(-1).values  # type: ignore[union-attr]
        return 1 - same.all(-1).all(-1).float().mean().item()

    def note(self, seen: policies.Sampled, ratios: Tensor) -> None:
        """Note what a step shows before its update."""
        outside = ((ratios < 0.9) | (ratios > 1.1)).float().mean().item()
        reward, ratio = seen.rewards.mean().item(), ratios.mean().item()
        self.seen.append((reward, ratio, outside, seen.entropy, self.differ, nan, nan))

    @torch.no_grad()
    def measured(self) -> Measured:
        if self.task != "distillation":
            parts, self.seen = zip(*self.seen, strict=True), []
            return Measured(self.steps, *map(fmean, parts))
        scores, log_p = self.model(self.held_out), self.teacher(self.held_out)
        named, ids = log_p.topk(teachers.NAMED)
        mass = scores.softmax(-1).gather(-1, ids).sum(-1) - named.exp().sum(-1)
        negative = (teachers.truncated(scores, ids, named) < 0).float().mean().item()
        whole = teachers.full(scores, log_p).mean().item()
        return Measured(self.steps, whole, nan, nan, nan, nan, mass.mean().item(), negative)


class Report(report.Report):
    """Rewards and ratios, and the whole divergence of students."""

    TITLE = "training on what was sampled"
    CAPTION = (
        "{steps:,} steps, {seeds}. score: reward per token in the last ten steps; for\n"
        "distillation, the KL of held-out points at the end. ratio, outside [.9, 1.1], entropy\n"
        "and differ (tokens with other experts in some layer): means over all steps, before\n"
        "the update. mass: on the teacher's tokens, less its own. negative: rows whose sum\n"
        "over these tokens is negative."
    )
    FIRST = "trained on"
    SHOWN: ClassVar = {
        "score": ("score", ".3f±"),
        "ratio": ("ratio", ".3f"),
        "outside": ("outside", ".3f"),
        "entropy": ("entropy", ".2f"),
        "differ": ("differ", ".3f"),
        "mass": ("mass", ".3f"),
        "negative": ("negative", ".2f"),
    }
    Measurement = Measured

    def figures(self, **key: Any) -> report.Figures:
        """Return the score of the end, and for policies means over the steps."""
        found = super().figures(**key)
        histories = [*map(self.history, self.of(**key))]
        if key["task"] == "distillation":
            return found
        for name in ("ratio", "outside", "entropy", "differ"):
            found[name] = [fmean(getattr(part, name) for part in each) for each in histories]
        return found

    def curves(self) -> Any:
        """Draw the score over the steps, a panel for each task."""
        tasks = self.settings.tasks
        figure, (axes,) = pictures.panels(4.2 * len(tasks) + 2.0, 3.4, 1, len(tasks))
        for panel, task in zip(axes, tasks, strict=True):
            for name in self.methods(task=task):
                parts = [*zip(*map(self.history, self.of(task=task, method=name)), strict=True)]
                steps = [part[0].steps for part in parts]
                score = [fmean(each.score for each in part) for part in parts]
                colour = METHODS[name].colour
                pictures.line(panel, steps, score, label=name, lw=1.5, color=colour)
            pictures.plain(panel, task, 10)
            what = "KL, held out" if task == "distillation" else "reward per token"
            panel.set(xlabel="step", ylabel=what)
            if task == "distillation":
                panel.set_yscale("log")
            panel.legend(frameon=False, fontsize=8)
        return figure
