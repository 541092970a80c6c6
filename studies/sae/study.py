"""The study of sparse autoencoders: how they are trained, and what is reported."""

import math
from statistics import fmean
from typing import Any, ClassVar, NamedTuple

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn import functional

from kofn.commands.results import entitled
from studies.frame import pictures, report, run
from studies.sae.methods import METHODS, Sizes, unexplained
from studies.sae.tasks import TASKS, Features

BATCH = 256
SAMPLE = 4096
"""Number of inputs that an autoencoder may start from."""
COOLED = 0.2
"""Share of the steps, at the end, in which the learning rate falls to 0."""
SHOWN, EXAMPLES = 10, 16
"""Latents that are drawn, and held-out inputs of each."""
BINS = 8
"""Of the frequencies of features."""


class Measured(NamedTuple):
    """What held-out inputs show after some steps."""

    steps: int
    explained: float
    """Share of the variance."""
    l0: float
    """Latents per input."""
    dead: float
    """Share of latents that fire for no held-out input."""
    mcc: float
    """Mean cosine of true features and decoder rows, matched at best; NaN where none are known."""


class Run(run.Run):
    """One method on one task with one seed."""

    PART = 500
    SHOWN = "{0.explained:.1%} explained"
    Measurement = Measured

    def build(self, task: str, method: str) -> None:
        self.task = TASKS[task](self.seed)
        self.generator = self.task.generator
        sizes = Sizes(self.task.D_IN, self.task.D_SAE, self.task.K, self.settings.steps)
        self.model = METHODS[method].make(sizes)
        if self.model.initialized:
            before = self.generator.get_state()  # all methods train on the same inputs
            self.model.sae.initialize(self.task.batch(SAMPLE))
            self.generator.set_state(before)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=self.task.RATE)

    def step(self) -> None:
        left = (self.settings.steps - self.steps) / (COOLED * self.settings.steps)
        self.optimizer.param_groups[0]["lr"] = self.task.RATE * min(1.0, left)
        self.descend(self.model.loss(self.task.batch(BATCH)))
        self.model.step()

    @torch.no_grad()
    def code(self) -> Tensor:
        """Return the code of the held-out inputs, as in use."""
        self.model.eval()
        code = self.model.encode(self.task.held_out)
        self.model.train()
        return code

    @torch.no_grad()
    def measured(self) -> Measured:
        x, code = self.task.held_out, self.code()
        return Measured(
            self.steps,
            1 - unexplained(x, self.model.decode(code)).item(),
            (code != 0).float().sum(-1).mean().item(),
            (code == 0).all(0).float().mean().item(),
            math.nan if not isinstance(self.task, Features) else self.cosines().mean().item(),
        )

    @torch.no_grad()
    def cosines(self) -> Tensor:
        """Return the cosine of each true feature and the decoder row that it is matched with.

        A row whose latent has signs stands for both directions.
        """
        return matched(self.task.directions, self.model.directions(), self.model.sae.signed)

    def result(self) -> dict[str, Any]:
        """Return the results of a finished run, with what the pictures show."""
        found = super().result()
        if isinstance(self.task, Features):
            return {**found, "frequency": self.task.frequency, "cosines": self.cosines()}
        code = self.code().float()
        latents = (code != 0).sum(0).topk(SHOWN).indices
        examples = code[:, latents].topk(EXAMPLES, 0).indices
        return {**found, "features": self.task.held_out_images[examples].mean(0)}

    def state(self) -> dict[str, Any]:
        return {**super().state(), "counts": [each.clone() for each in self._counts()]}

    def load(self, state: dict[str, Any]) -> None:
        super().load(state)
        for each, counts in zip(self._counts(), state["counts"], strict=True):
            each.copy_(counts)

    def _counts(self) -> list[Tensor]:
        """Return the counts of a TopKSAE that are not in its state dict: when latents fired."""
        found = (getattr(each, "counts", None) for each in self.model.modules())
        return [each for each in found if isinstance(each, Tensor)]


def matched(features: Tensor, directions: Tensor, signed: bool = False) -> Tensor:
    """Return the cosine of each feature and its direction: one each, at the largest sum."""
    found = functional.normalize(features, dim=-1) @ functional.normalize(directions, dim=-1).T
    found = found.abs() if signed else found
    return found[linear_sum_assignment(-found.numpy())]


def binned(runs: list[dict[str, Any]], figure: str) -> list[float]:
    """Return the mean of a figure per bin of features, from frequent ones to rare ones."""
    bins = (run[figure][run["frequency"].argsort(descending=True)].chunk(BINS) for run in runs)
    return [fmean(each.mean().item() for each in part) for part in zip(*bins, strict=True)]


class Report(report.Report):
    """Variance explained, and which features were found."""

    PICTURES = ("recovery", "features")
    TITLE = "sparse autoencoders"
    CAPTION = (
        "{steps:,} steps, {seeds}, held-out data, thresholds as in use.\n"
        "explained: share of the variance.\n"
        "mcc: mean cosine of true features and decoder rows, matched at best.\n"
        "dead: share of latents that fire for no held-out input.\n"
        "L0: latents per input. seconds: CPU time of the training."
    )
    FIRST = "autoencoder"
    SHOWN: ClassVar = {
        "explained": ("explained", ".4f±"),
        "mcc": ("mcc", ".3f±"),
        "dead": ("dead", ".3f±"),
        "l0": ("L0", ".2f"),
        "seconds": ("seconds", ".1f"),
    }
    BEST = "-explained"
    Measurement = Measured

    def summary_of(self, figures: report.Figures, **key: Any) -> dict[str, Any]:
        found = super().summary_of(figures, **key)
        seconds = round(found.pop("seconds")["mean"], 2)
        return {**found, "l0_asked": TASKS[key["task"]].K, "training_seconds": seconds}

    def heading(self, **group: Any) -> str:
        return f"{group['task']}, target L0 = {TASKS[group['task']].K}"

    def recovery(self) -> Any:
        """Draw how well features are found, by how often they are present."""
        figure, ((panel,),) = pictures.panels(8.5, 4.5)
        for name in self.methods(task="features"):
            runs = self.of(task="features", method=name)
            x, y = (binned(runs, of) for of in ("frequency", "cosines"))
            panel.plot(x, y, lw=1.6, marker="o", ms=3, label=name, **METHODS[name].ink)
        pictures.plain(panel, "")
        panel.set(xscale="log", xlabel="share of inputs that have the feature", ylim=(0, 1.02))
        panel.set_ylabel("cosine of feature and decoder row")
        pictures.legend(figure)
        entitled(figure, "which features are found: rare ones to the left")
        return figure

    def features(self) -> Any:
        """Draw the mean of the images for which a latent fires most, for the most used latents."""
        first = {name: self.of(task="digits", method=name) for name in self.methods(task="digits")}
        columns = max((len(runs[0]["features"]) for runs in first.values()), default=1)
        rows = max(len(first), 1)
        figure, axes = pictures.panels(columns + 2.6, 0.95 * rows + 0.4, rows, columns, dpi=100)
        for axis in axes.flat:
            axis.set_axis_off()
        for line, (name, runs) in zip(axes, first.items(), strict=False):
            line[0].text(-0.2, 0.5, name, transform=line[0].transAxes, ha="right", va="center")
            for axis, image in zip(line, runs[0]["features"], strict=True):
                axis.imshow(image.numpy(), cmap="Greys")
        entitled(figure, "the digits for which the most used latents fire most")
        return figure
