"""The study of balance: how even the load is over a training run, and what the evenness costs."""

from functools import partial
from statistics import fmean
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from kofn.nn import TopKRouter, load_balancing_loss, step_routers
from studies.frame import pictures, report, run
from studies.frame.run import Method
from studies.router.tasks import Mixture, Text

K = 2
WEIGHT = 1e-2  # of the auxiliary loss, as in Switch Transformers
METHODS = {
    "none": Method(TopKRouter, "#888888"),
    "auxiliary": Method(TopKRouter, "#D55E00"),
    "sign-slow": Method(partial(TopKRouter, balance=1e-3), "#009E73", ":"),
    "sign": Method(partial(TopKRouter, balance=1e-2), "#009E73"),
    "quantile": Method(partial(TopKRouter, balance="quantile"), "#0072B2"),
    "quantile-bins": Method(partial(TopKRouter, balance="quantile", bins=1000), "#0072B2", "--"),
    "quantile-ema": Method(partial(TopKRouter, balance="quantile", ema=0.9), "#56B4E9"),
    "quantile-sequence": Method(
        partial(TopKRouter, balance="quantile", per_sequence=True), "#CC79A7"
    ),
}
"""Each takes the width, the number of experts and k."""
SEQUENCES = {"text": 4, "small": 1}
"""How many sequences a step has, by task."""


class Batches(Text):
    """Text in sequences that are long enough for a balance of their own."""

    CONTEXT = 256

    def __init__(self, seed: int, sequences: int) -> None:
        super().__init__(seed)
        self.BATCH = sequences


class Measured(NamedTuple):
    """What the held-out text, and the steps since the last measurement, show."""

    steps: int
    loss: float
    violation: float
    """The largest load of a training batch over the mean, less 1; mean over the steps."""
    worst: float
    """The same, of the worst step."""
    sequence: float
    """The same of each sequence of a training batch; mean over sequences and steps."""
    held_out: float
    """The same of the held-out text."""
    drift: float
    """By how much a step moves the biases, as a root mean square, in logits."""
    changed: float
    """Share of the held-out choices that the last step changed."""


class Run(run.Run):
    """One method on one task with one seed."""

    TITLE = "{0}, {1}, seed {2}"
    Measurement = Measured

    def build(self, task: str, method: str) -> None:
        self.method, self.task = method, Batches(self.seed, SEQUENCES[task])
        self.generator = self.task.generator
        made = METHODS[method].make(self.task.WIDTH, self.task.EXPERTS, K)
        self.model = self.task.language(made)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=self.task.RATE)
        (self.mixture,) = (each for each in self.model.modules() if isinstance(each, Mixture))
        self.seen: list[tuple[float, float, float]] = []

    def step(self) -> None:
        router: Any = self.mixture.router
        if len(self.seen) + 1 == min(self.PART, self.settings.steps - self.steps + len(self.seen)):
            self.before = self.held_out()[1]  # the last step of a part
        loss = self.task.loss(self.model, self.task.batch())
        indices = self.mixture.indices
        if self.method == "auxiliary":
            loss = loss + WEIGHT * load_balancing_loss(self.mixture.logits, indices)
        self.descend(loss)
        bias = self.bias()
        step_routers(self.model)
        drift = (self.bias() - bias).square().mean().sqrt().item()
        within = violations(indices.reshape(self.task.BATCH, -1), self.task.EXPERTS)
        violation = router.statistics()["max_violation"].item()
        self.seen.append((violation, within.mean().item(), drift))

    def bias(self) -> Tensor:
        """Return a copy of the balancing bias."""
        balance: Any = self.mixture.router.balance
        return torch.zeros(()) if balance is None else balance().clone()

    @torch.no_grad()
    def held_out(self) -> tuple[float, Tensor]:
        """Return loss and choices of the held-out text."""
        self.model.eval()
        loss = self.task.loss(self.model, self.task.held_out).item()
        self.model.train()
        return loss, one_hot(self.mixture.indices, self.task.EXPERTS).sum(1)

    def measured(self) -> Measured:
        loss, chosen = self.held_out()
        violation, within, drift = zip(*self.seen, strict=True)
        self.seen = []
        load = chosen.sum(0).float()
        return Measured(
            self.steps,
            loss,
            fmean(violation),
            max(violation),
            fmean(within),
            (load.max() / load.mean() - 1).item(),
            fmean(drift),
            (chosen - self.before).clamp(min=0).sum().item() / chosen.sum().item(),
        )


def violations(indices: Tensor, experts: int) -> Tensor:
    """Return the largest load over the mean, less 1, of the choices in each row."""
    load = one_hot(indices, experts).sum(1).float()
    return load.amax(-1) / load.mean(-1) - 1


class Report(report.Report):
    """Held-out loss, and how even the load was."""

    TITLE = "balance of a mixture of experts"
    CAPTION = (
        "{steps:,} steps, {seeds}; violation: the largest load over the mean, less 1,\n"
        "in training (second half of the steps: mean, worst, within sequences) and held out.\n"
        "drift: how far a step moves the biases. changed: held-out choices that a step changes."
    )
    FIRST = "balance"
    SHOWN: ClassVar = {
        "loss": ("loss", ".3f±"),
        "violation": ("violation", ".2f"),
        "worst": ("worst", ".2f"),
        "sequence": ("sequences", ".2f"),
        "held_out": ("held out", ".2f"),
        "drift": ("drift", ".3f"),
        "changed": ("changed", ".3f"),
    }
    HEADING = "{task}"
    Measurement = Measured

    def figures(self, **key: Any) -> report.Figures:
        """Return the last loss of each seed, and means over the second half of its steps."""
        found = super().figures(**key)
        halves = [each[len(each) // 2 :] for each in map(self.history, self.of(**key))]
        for name in ("violation", "sequence", "held_out", "drift", "changed"):
            found[name] = [fmean(getattr(part, name) for part in half) for half in halves]
        found["worst"] = [max(part.worst for part in half) for half in halves]
        return found

    def curves(self) -> Any:
        """Draw the violation in training per step, a panel for each task."""
        tasks = self.settings.tasks
        figure, axes = pictures.panels(5.2 * len(tasks) + 2.4, 3.4, 1, len(tasks))
        for panel, group in zip(axes.flat, self.groups(), strict=True):
            for name in self.methods(**group):
                histories = map(self.history, self.of(method=name, **group))
                parts = list(zip(*histories, strict=True))
                mean = [fmean(each.violation for each in part) for part in parts]
                steps = [part[0].steps for part in parts]
                pictures.line(panel, steps, mean, label=name, lw=1.5, **METHODS[name].ink)
            pictures.plain(panel, self.heading(**group), 10)
            panel.set_yscale("log")
            panel.set(xlabel="step", ylabel="violation, mean of a part")
        pictures.legend(figure, METHODS)
        return figure
