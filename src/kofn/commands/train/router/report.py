"""Output of `kofn train router`: a table, a JSON file and the held-out losses as curves."""

from __future__ import annotations

import math
from dataclasses import asdict
from statistics import fmean
from typing import Any

from rich.markup import escape
from rich.table import Table

from kofn.commands.results import add_figures, json_bytes, picture, png, spread, table
from kofn.commands.train.router.routers import METHODS
from kofn.commands.train.router.tasks import TASKS
from kofn.commands.train.router.training import Measured, Settings
from kofn.commands.train.study import Results

FILES = ("router.json", "curves.png")
INKS = {
    "kofn": ("#0072B2", "-"),
    "kofn-balanced": ("#0072B2", "--"),
    "kofn-unnormalized": ("#0072B2", ":"),
    "kofn-topk": ("#56B4E9", "-"),
    "kofn-topk-normalized": ("#56B4E9", ":"),
    "softmax-topk": ("#D55E00", "-"),
    "topk-softmax": ("#D55E00", "--"),
    "sigmoid-bias": ("#009E73", "-"),
    "relu-l1": ("#CC79A7", "-"),
}
SHOWN = ("loss", "accuracy", "experts_per_token", "in_use", "dead", "gradient")


def ends(results: Results, task: str, method: str, k: int) -> list[Measured]:
    """Return the last measurement of each seed; the gradient is the mean over all measurements.

    The gradient vanishes where the loss does; its mean says what the router learned from.
    """
    found = []
    for each in results:
        if tuple(each["key"][:3]) == (task, method, k):
            history = [Measured(*one) for one in each["history"]]
            mean = fmean(one.gradient for one in history)
            found.append(history[-1]._replace(gradient=mean))
    return found


def groups(settings: Settings) -> list[tuple[str, int]]:
    return [(task, k) for task in settings.tasks for k in settings.ks]


def best_first(settings: Settings, results: Results, task: str, k: int) -> list[str]:
    """Sort the methods by their mean held-out loss."""
    losses = {name: ends(results, task, name, k) for name in settings.methods}
    taken = [name for name in settings.methods if losses[name]]
    return sorted(taken, key=lambda name: fmean(each.loss for each in losses[name]))


def summary(runs: list[Measured]) -> dict[str, Any]:
    """Return mean and standard deviation of every figure that is defined."""
    found: dict[str, Any] = {}
    for name in SHOWN:
        values = [float(getattr(each, name)) for each in runs]
        if not any(map(math.isnan, values)):
            mean, deviation = spread(values)
            found[name] = {"mean": mean, "standard_deviation": deviation}
    return found


def as_json(settings: Settings, results: Results, seconds: float) -> bytes:
    """Return all figures of every run as indented UTF-8 JSON."""

    def one(each: dict[str, Any]) -> dict[str, Any]:
        history = [dict(zip(Measured._fields, part, strict=True)) for part in each["history"]]
        for part in history:
            if math.isnan(part["accuracy"]):
                del part["accuracy"]
        key = dict(zip(("task", "method", "k", "seed"), each["key"], strict=True))
        return {**key, "seconds": each["seconds"], "history": history}

    return json_bytes(
        {
            "tasks": {name: TASKS[name] for name in settings.tasks},
            "methods": {name: METHODS[name].about for name in settings.methods},
            "settings": asdict(settings),
            "summary": [
                {"task": task, "k": k, "method": name, **summary(ends(results, task, name, k))}
                for task, k in groups(settings)
                for name in best_first(settings, results, task, k)
            ],
            "runs": [one(each) for each in results],
            "seconds": round(seconds, 1),
        }
    )


def contents(settings: Settings, results: Results, seconds: float) -> tuple[bytes, ...]:
    """Return what is in each of FILES."""
    return as_json(settings, results, seconds), curves(settings, results)


def as_rich(settings: Settings, results: Results) -> Table:
    """Return a table: a section for each task and k, best first."""
    seeds = "one seed" if settings.seeds == 1 else f"mean ± deviation of {settings.seeds} seeds"
    shown = table(
        title="routers of a mixture of experts",
        caption=(
            f"{settings.steps:,} steps, {seeds}, held-out data.\n"
            "loss: squared error over variance, or nats per character.\n"
            "right: share of tokens at their group's expert.\n"
            "experts: of a token, in the mean. in use: e^entropy of the load.\n"
            "dead: experts without a token.\n"
            "gradient: its norm at the router's weight, mean over training."
        ),
    )
    shown.add_column("router", no_wrap=True)
    add_figures(shown, "loss", "right", "experts", "in use", "dead", "gradient")
    for task, k in groups(settings):
        names = best_first(settings, results, task, k)
        if names:
            shown.add_section()
            shown.add_row(f"[bold]{task}, k = {k}[/bold]")
        for name in names:
            shown.add_row(escape(name), *_cells(ends(results, task, name, k)))
    return shown


def _cells(runs: list[Measured]) -> list[str]:
    cells = []
    for name, form in zip(SHOWN, (".3f", ".2f", ".1f", ".1f", ".1f", ".0e"), strict=True):
        mean, deviation = spread([float(getattr(each, name)) for each in runs])
        more = f" ± {deviation:{form}}" if len(runs) > 1 and name in ("loss", "right") else ""
        cells.append("–" if math.isnan(mean) else f"{mean:{form}}{more}")
    return cells


def curves(settings: Settings, results: Results) -> bytes:
    """Draw the held-out loss per step, a panel for each task and k."""
    panels = groups(settings)
    columns = len(settings.ks)
    figure, axes = picture(
        *(5.2 * columns + 2.4, 3.0 * len(settings.tasks)),
        *(len(settings.tasks), columns),
        dpi=140,
        squeeze=False,
    )
    labels: dict[str, Any] = {}
    for one, (task, k) in zip(axes.flat, panels, strict=True):
        for name in best_first(settings, results, task, k):
            runs = [e["history"] for e in results if tuple(e["key"][:3]) == (task, name, k)]
            colour, style = INKS[name]
            steps = [part[0] for part in runs[0]]
            means = [fmean(run[i][1] for run in runs) for i in range(len(steps))]
            (line,) = one.plot(steps, means, style, color=colour, lw=1.5)
            line.set_marker("o" if len(steps) == 1 else "")
            labels.setdefault(name, line)
        one.set_title(f"{task}, k = {k}", loc="left", fontsize=10)
        one.set_yscale("linear" if task == "text" else "log")
        one.grid(axis="y", color="#e6e6e6")
        one.spines[["top", "right"]].set_visible(False)
        one.set(
            xlabel="step", ylabel="nats per character" if task == "text" else "error / variance"
        )
    order = [name for name in INKS if name in labels]
    figure.legend(
        [labels[name] for name in order], order, loc="outside right center", frameon=False
    )
    return png(figure)
