"""The study of attention: how transformers are trained and tested, and what is reported."""

from itertools import product
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from kofn.commands.results import spread
from studies.attention.model import METHODS, Transformer
from studies.attention.tasks import TASKS, Batch
from studies.frame import pictures, report, run

BATCH, RATE = 32, 2e-3
SHORTEST, LONGEST = 33, 64  # in training
TESTED = 16_384  # positions of the test at each length
AT_ONCE = 2**21  # pairs of positions, in a test
DRAWN = 48  # length of the sequence whose attention is drawn


class Measured(NamedTuple):
    """What a test at a length of training shows."""

    steps: int
    loss: float
    accuracy: float


class Run(run.Run):
    """One method on one task with one seed."""

    Measurement = Measured

    def build(self, task: str, method: str) -> None:
        self.task = TASKS[task]
        self.model = Transformer(method)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=RATE)

    def step(self) -> None:
        length = int(torch.randint(SHORTEST, LONGEST + 1, (), generator=self.generator))
        loss, _ = self._judged(self.task(BATCH, length, self.generator))
        self.descend(loss, longest=1.0)

    def measured(self) -> Measured:
        return Measured(self.steps, *self.tested(LONGEST))

    @torch.no_grad()
    def tested(self, length: int) -> tuple[float, float]:
        """Return the loss and the share of right symbols at a length."""
        generator = torch.Generator().manual_seed(self.seed)  # the same for all methods
        count = max(1, TESTED // length)
        batch = self.task(count, length, generator)
        at_once = max(1, AT_ONCE // length**2)
        inputs, targets = (torch.split(each, at_once) for each in batch)
        parts = map(Batch, inputs, targets)
        losses, right = zip(*map(self._judged, parts), strict=True)
        sizes = torch.tensor([len(each) for each in right], dtype=torch.float64)
        loss = (torch.stack(losses).double() * sizes).sum() / sizes.sum()
        return float(loss), float(torch.cat(right).double().mean())

    def _judged(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the mean loss, and for each predicted symbol whether it is right."""
        predicted = batch.targets >= 0
        logits = self.model(batch.inputs)[0][predicted]
        wanted = batch.targets[predicted]
        return functional.cross_entropy(logits, wanted), logits.argmax(-1) == wanted

    @torch.no_grad()
    def drawn(self) -> Tensor:
        """Return the weights [DRAWN, DRAWN] of the head of the last layer that is most certain."""
        generator = torch.Generator().manual_seed(self.seed)
        inputs, targets = self.task(1, DRAWN, generator)
        weights = self.model(inputs)[1][-1][0]
        predicted = targets[0] >= 0
        return weights[weights[:, predicted].amax(-1).mean(-1).argmax()].clone()

    def result(self) -> dict[str, Any]:
        """Return the results of a finished run: also at lengths beyond those trained at."""
        return {
            **super().result(),
            "lengths": [(length, *self.tested(length)) for length in self.settings.lengths],
            "map": self.drawn() if self.seed == self.settings.seed else None,
        }


class Report(report.Report):
    """Shares of right symbols by length."""

    PICTURES = ("curves", "maps")
    TITLE = "attention beyond the lengths trained at"
    CAPTION = (
        "Right symbols in percent by length; {seeds}, {steps:,} steps at lengths "
        f"up to {LONGEST}."
    )
    FIRST = "attention"
    SEEDS = "mean"
    Measurement = Measured

    def figures(self, **key: Any) -> report.Figures:
        """Return the share of right symbols by length."""
        runs = [each["lengths"] for each in self.of(**key)]
        return {str(each[0][0]): [share for *_, share in each] for each in zip(*runs, strict=True)}

    def shown(self) -> dict[str, tuple[str, str]]:
        return {str(length): (str(length), ".0f") for length in self.settings.lengths}

    def cells(self, figures: report.Figures) -> list[str]:
        return [f"{100 * fmean(values):.0f}" for values in figures.values()]

    def summary(self) -> dict[str, Any]:
        return {**super().summary(), "longest_in_training": LONGEST}

    def summary_of(self, figures: report.Figures, **key: Any) -> dict[str, Any]:
        pairs = figures.items()
        return {"accuracy": [{"length": int(n), **report.mean_of(values)} for n, values in pairs]}

    def run(self, each: dict[str, Any]) -> dict[str, Any]:
        names = ("length", "loss", "accuracy")
        lengths = [dict(zip(names, length, strict=True)) for length in each["lengths"]]
        return {**super().run(each), "lengths": lengths}

    def curves(self) -> Any:
        """Draw the share of right symbols by length, a panel for each task."""
        tasks, lengths = self.settings.tasks, self.settings.lengths
        figure, (axes,) = pictures.panels(3.4 * len(tasks) + 2.2, 3.2, 1, len(tasks), sharey=True)
        for panel, task in zip(axes, tasks, strict=True):
            for name, figures in self.methods(task=task).items():
                points = [spread(values) for values in figures.values()]
                middle, low, high = zip(*((m, m - d, m + d) for m, d in points), strict=True)
                panel.plot(lengths, middle, marker=".", label=name, **METHODS[name].ink)
                if low != high:
                    colour = METHODS[name].colour
                    panel.fill_between(lengths, low, high, color=colour, alpha=0.12, lw=0)
            panel.axvline(LONGEST, color="#8a8a8a", lw=0.8, ls=":")
            panel.set_xscale("log", base=2)
            pictures.plain(panel, task, 10, grid=False)
            panel.set(xlabel="length", ylim=(0, 1.02))
        axes[0].set_ylabel("right symbols")
        pictures.legend(figure)
        return figure

    def maps(self) -> Any:
        """Draw an attention map per task and method: rows are queries, columns keys."""
        tasks, methods = self.settings.tasks, self.settings.methods
        figure, axes = pictures.panels(
            1.9 * len(methods), 2.0 * len(tasks), len(tasks), len(methods)
        )
        for panel, (task, name) in zip(axes.flat, product(tasks, methods), strict=True):
            run = self.of(task=task, method=name, seed=self.settings.seed)[0]
            pictures.image(panel, run["map"], cmap="Blues")
        for panel, task in zip(axes[:, 0], tasks, strict=True):
            panel.set_ylabel(task)
        for panel, name in zip(axes[0], methods, strict=True):
            panel.set_title(name, fontsize=8)
        return figure
