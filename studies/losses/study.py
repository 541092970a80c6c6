"""The study of losses: what each finds in few steps and many, and how sure of it it is."""

from statistics import fmean
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from studies.frame import pictures, report, run
from studies.frame.options import Settings
from studies.losses.data import images_of
from studies.losses.methods import CE, METHODS, Way

BATCH, HIDDEN, CLASSES = 128, 64, 10
RATES = {"scratch": 1e-3, "after": 1e-3, "noisy": 3e-3}
"""With noisy labels the larger one, by which a network begins to learn them by heart."""
FEW = 40
"""The steps after which accuracies are compared for the first time."""
BINS = 10
"""Of confidences, for the calibration."""


class Model(nn.Module):
    """A perceptron with one hidden layer."""

    def __init__(self, pixels: int) -> None:
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(pixels, HIDDEN), nn.ReLU())
        self.last = nn.Linear(HIDDEN, CLASSES)

    def forward(self, images: Tensor, way: Way) -> Tensor:
        return way.scores(self.hidden(images), self.last.weight, self.last.bias)


class Measured(NamedTuple):
    """What is measured after some steps, held out, where all labels are right."""

    steps: int
    accuracy: float
    over: float
    """The mean confidence, which is the largest weight, less the accuracy."""
    error: float
    """The expected calibration error: Σ share of a bin · |confidence − accuracy|."""


class Run(run.Run):
    """One network that learns one data set by one loss, with one seed."""

    PART = 20
    TITLE = "{0}, {1}, {2}, seed {3}"
    SHOWN = "accuracy {0.accuracy:.3f}"
    Measurement = Measured

    @classmethod
    def runs(cls, settings: Settings) -> list[run.Key]:
        return [
            (dataset, task, method, seed)
            for seed in settings.every_seed
            for dataset in settings.datasets
            for task in settings.tasks
            for method in settings.methods
        ]

    def build(self, dataset: str, task: str, method: str) -> None:
        self.data = images_of(dataset, self.seed)
        self.way: Way = METHODS[method].make()
        self.before = self.settings.steps // 2 if task == "after" else 0
        self.labels = self.data.labels
        if task == "noisy":
            of_run = torch.Generator().manual_seed(self.seed)
            lost = torch.rand(len(self.labels), generator=of_run) < 0.5
            others = torch.randint(CLASSES, self.labels.shape, generator=of_run)
            self.labels = torch.where(lost, others, self.labels)
        self.model = Model(self.data.training.shape[1])
        self.optimizer = torch.optim.Adam(self.model.parameters(), RATES[task])

    @property
    def now(self) -> Way:
        """The loss of this step."""
        return CE if self.steps < self.before else self.way

    def step(self) -> None:
        rows = torch.randint(len(self.labels), (BATCH,), generator=self.generator)
        scores = self.model(self.data.training[rows], self.now)
        self.descend(self.now.loss(scores, self.labels[rows]))

    @torch.no_grad()
    def measured(self) -> Measured:
        way = CE if self.steps <= self.before else self.way
        confidence, found = way.weights(self.model(self.data.held_out, way)).max(-1)
        right = (found == self.data.answers).float()
        return Measured(self.steps, right.mean().item(), *calibration(confidence, right))


def calibration(confidence: Tensor, right: Tensor) -> tuple[float, float]:
    """Return the mean of confidence − right, and the expected calibration error."""
    gap = confidence - right
    bins = (confidence * BINS).long().clamp(0, BINS - 1)
    sums = gap.new_zeros(BINS).index_add(0, bins, gap)
    return gap.mean().item(), sums.abs().sum().item() / len(gap)


class Report(report.Report):
    """Held-out accuracies after few steps and all, and the calibration."""

    KEY = ("dataset", "task", "method", "seed")
    GROUP = ("dataset", "task")
    HEADING = "{dataset}, {task}"
    TITLE = "held-out accuracy, by the loss"
    CAPTION = (
        f"{{steps:,}} steps, {{seeds}}; few: after {FEW} steps by this loss.\nover: mean "
        "confidence less accuracy. error: expected calibration error."
    )
    FIRST = "loss"
    SHOWN: ClassVar = {
        "few": ("few", ".3f±"),
        "accuracy": ("accuracy", ".3f±"),
        "over": ("over", "+.3f±"),
        "error": ("error", ".3f"),
    }
    BEST = "-accuracy"
    Measurement = Measured

    def figures(self, **key: Any) -> report.Figures:
        """Return what is measured at the end, and the accuracies after few steps."""
        found = super().figures(**key)
        found["few"] = [self.few(each) for each in self.of(**key)]
        return found

    def few(self, each: dict[str, Any]) -> float:
        """Return the accuracy after few steps by the loss of the run."""
        after = self.key(each)["task"] == "after"
        wanted = FEW + (self.settings.steps // 2 if after else 0)
        history = self.history(each)
        return next((p.accuracy for p in history if p.steps >= wanted), history[-1].accuracy)

    def curves(self) -> Any:
        """Draw the accuracy by steps."""
        datasets, tasks = self.settings.datasets, self.settings.tasks
        size = 4.2 * len(tasks) + 1.8, 3.2 * len(datasets)
        figure, axes = pictures.panels(*size, len(datasets), len(tasks))
        for row, dataset in zip(axes, datasets, strict=True):
            for panel, task in zip(row, tasks, strict=True):
                for name in self.settings.methods:
                    runs = self.of(dataset=dataset, task=task, method=name)
                    parts = [*zip(*map(self.history, runs), strict=True)]
                    y = [fmean(each.accuracy for each in part) for part in parts]
                    steps = [part[0].steps for part in parts]
                    pictures.line(panel, steps, y, label=name, lw=1.4, **METHODS[name].ink)
                pictures.plain(panel, f"{dataset}, {task}", 10)
                panel.set(xlabel="steps", ylim=(0.3 if task == "noisy" else 0.7, 1))
            row[0].set_ylabel("held-out accuracy")
        pictures.legend(figure, fontsize=8)
        return figure
