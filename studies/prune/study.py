"""The study of pruning: how networks are trained and pruned, and what is reported."""

from collections.abc import Iterator
from copy import deepcopy
from itertools import product
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from kofn.commands.files import InputError
from studies.frame import data, pictures, report, run
from studies.frame.options import Settings
from studies.prune.methods import METHODS

RATE, BATCH = 3e-3, 128


def model_of(name: str) -> nn.Sequential:
    """Return a network with new weights."""
    if name == "mlp":
        layers: list[nn.Module] = [nn.Flatten(), nn.Linear(64, 300), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(300, 100), nn.ReLU(), nn.Linear(100, 10))
    convolutions = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1)]
    end = [nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 64), nn.ReLU()]
    return nn.Sequential(*convolutions, *end, nn.Linear(64, 10))


def fits(method: str, removed: str) -> bool:
    """Return whether a method removes this share of the weights, or two of four."""
    if removed == "0":
        return method == "dense"
    return METHODS[method].groups if removed == "2:4" else METHODS[method].free


class Ended(NamedTuple):
    """What is measured at the end."""

    accuracy: float
    kept: int
    """Weights that are not 0, biases apart."""


class Measured(NamedTuple):
    """What is measured after some steps."""

    steps: int
    loss: float
    """Mean of the batches since the last measurement."""


class Run(run.Run):
    """One network, pruned by one method, with one seed."""

    TITLE = "{0}, {2} removed, {1}, seed {3}"
    Measurement = Measured

    @classmethod
    def runs(cls, settings: Settings) -> list[run.Key]:
        for name in settings.methods:
            if not any(fits(name, removed) for removed in settings.removed):
                other = "2:4" if METHODS[name].groups else "a share"
                raise InputError(f"--method {name} needs --removed {other}")
        return [
            (model, method, removed, seed)
            for model in settings.models
            for seed in settings.every_seed
            for removed in ("0", *settings.removed)
            for method in ("dense", *settings.methods)
            if fits(method, removed)
        ]

    def build(self, model: str, method: str, removed: str) -> None:
        self.data, steps = data.digits(self.seed), self.settings.steps
        self.model = model_of(model)
        share = None if removed == "2:4" else float(removed)
        self.way = METHODS[method].make(self.model, share, steps)
        self.optimizer = torch.optim.Adam(self.way.parameters(RATE))
        self.slower = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, steps)
        self.losses: list[float] = []
        self.noise = self.generator.get_state()

    def train(self) -> None:
        self.losses.clear()
        with torch.random.fork_rng():  # Gumbel noise comes from PyTorch's own generator
            torch.set_rng_state(self.noise)
            super().train()
            self.noise = torch.get_rng_state()

    def step(self) -> None:
        rows = torch.randint(len(self.data.labels), (BATCH,), generator=self.generator)
        logits = self.answers(self.data.training[rows], self.way.weights(self.steps))
        loss = cross_entropy(logits, self.data.labels[rows])
        self.descend(loss)
        self.slower.step()
        self.way.after(self.steps - 1)
        self.losses.append(loss.item())

    def answers(self, images: Tensor, weights: dict[str, Tensor]) -> Tensor:
        """Return the logits for images, with some weights in the place of the model's own."""
        pixels = images.view(-1, 1, data.SIDE, data.SIDE) / data.INK
        return functional_call(self.model, weights, (pixels,))

    def measured(self) -> Measured:
        return Measured(self.steps, sum(self.losses) / len(self.losses))

    def result(self) -> dict[str, Any]:
        """Finish the model; return what is left and how well it does."""
        self.way.finish()
        weights = [each for each in self.model.parameters() if each.ndim > 1]
        with torch.no_grad():
            right = self.answers(self.data.held_out, {}).argmax(-1) == self.data.answers
        kept = sum(int(each.count_nonzero()) for each in weights)
        ended = Ended(right.float().mean().item(), kept)
        return {"measured": tuple(ended), **super().result()}

    def state(self) -> dict[str, Any]:
        return {
            **super().state(),
            "memory": deepcopy(self.way.memory),
            "logits": deepcopy(self.way.logits),
            "slower": self.slower.state_dict(),
            "noise": self.noise,
        }

    def load(self, state: dict[str, Any]) -> None:
        super().load(state)
        self.way.memory = deepcopy(state["memory"])
        if self.way.logits is not None:
            self.way.logits.data.copy_(state["logits"])
        self.slower.load_state_dict(state["slower"])
        self.noise = state["noise"]


class Report(report.Report):
    """Held-out accuracies of pruned networks."""

    KEY = ("model", "method", "removed", "seed")
    GROUP = ("model",)
    HEADING = "{model}"
    TITLE = "held-out accuracy on handwritten digits, by the share of weights removed"
    CAPTION = "{steps:,} steps, {seeds}. CPU: seconds of a run."
    FIRST = "method"
    Measurement = Measured

    def accuracies(self, **key: Any) -> list[float]:
        """Return the accuracy of every seed."""
        return [Ended(*each["measured"]).accuracy for each in self.of(**key)]

    def figures(self, **key: Any) -> report.Figures:
        """Return the accuracies by what is removed, and the seconds of every run."""
        found = {
            removed: self.accuracies(removed="0" if key["method"] == "dense" else removed, **key)
            for removed in self.settings.removed
        }
        return {**found, "CPU": [each["seconds"] for each in self.of(**key)]}

    def names(self) -> tuple[str, ...]:
        return "dense", *super().names()

    def summary(self) -> dict[str, Any]:
        found = super().summary()
        found["methods"] = {"dense": "nothing is removed", **found["methods"]}
        return found

    def summaries(self) -> Iterator[dict[str, Any]]:
        removed = ("0", *self.settings.removed)
        for values in product(self.settings.models, self.names(), removed):
            key = dict(zip(self.KEY, values, strict=False))
            kept = [Ended(*each["measured"]).kept for each in self.of(**key)]
            if kept:
                accuracy = report.mean_of(self.accuracies(**key))
                yield {**key, "accuracy": accuracy, "kept": fmean(kept)}

    def run(self, each: dict[str, Any]) -> dict[str, Any]:
        found = super().run(each)
        losses = [part["loss"] for part in found.pop("history")]
        return {**found, **Ended(*each["measured"])._asdict(), "losses": losses}

    def shown(self) -> dict[str, tuple[str, str]]:
        accuracies = {removed: (removed, ".3f±") for removed in self.settings.removed}
        return {**accuracies, "CPU": ("CPU", ".1f")}

    def cells(self, figures: report.Figures) -> list[str]:
        # 80 columns hold seven cells.
        return [cell.replace(" ±", "\n±") for cell in super().cells(figures)]

    def curves(self) -> Any:
        """Draw accuracy against the share of weights kept, a panel for each network.

        A method has a curve with the range of its seeds, and a mark for 2:4.
        """
        about = self.study.about(self.settings)["models"]
        figure, (axes,) = pictures.panels(5.0 * len(about) + 2.4, 3.8, 1, len(about))
        shares = sorted((each for each in self.settings.removed if each != "2:4"), key=float)
        kept = {100 * (1 - float(share)): share for share in reversed(shares)}
        for panel, model in zip(axes, about, strict=True):
            level = fmean(self.accuracies(model=model, method="dense"))
            panel.axhline(level, color=METHODS["dense"].colour, lw=1, ls=":", label="dense")
            for name, figures in list(self.methods(model=model).items())[1:]:
                colour = METHODS[name].colour
                found = {x: figures[share] for x, share in kept.items() if figures[share]}
                if found:
                    x, values = [*found], found.values()
                    middle, low, high = ([*map(of, values)] for of in (fmean, min, max))
                    panel.plot(x, middle, "-o", color=colour, lw=1.5, ms=3, label=name)
                    panel.fill_between(x, low, high, color=colour, alpha=0.15, lw=0)
                if figures.get("2:4"):
                    level = fmean(figures["2:4"])
                    panel.plot([50], [level], "D", color=colour, ms=5, label=f"{name}, 2:4")
            pictures.plain(panel, about[model], 9)
            panel.set_xscale("log")
            ticks = [*kept, *([50] if "2:4" in self.settings.removed else [])]
            panel.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            panel.minorticks_off()
            panel.set(xlabel="weights kept, %", ylabel="held-out accuracy")
        pictures.legend(figure, fontsize=8)
        return figure
