"""Output of `kofn train sae`: a table, a JSON file, and pictures of what was found."""

from __future__ import annotations

import math
from dataclasses import asdict
from statistics import fmean
from typing import Any

from rich.markup import escape
from rich.table import Table

from kofn.commands.results import add_figures, entitled, json_bytes, picture, png, spread, table
from kofn.commands.train.sae.methods import METHODS
from kofn.commands.train.sae.tasks import TASKS, task_class
from kofn.commands.train.sae.training import Measured, Settings
from kofn.commands.train.study import Results

FILES = ("sae.json", "recovery.png", "features.png")
SHOWN = {"explained": ".4f", "mcc": ".3f", "dead": ".3f", "l0": ".2f"}
SPREAD = ("explained", "mcc", "dead")
INKS = {
    "kofn-token": ("#0072B2", "-"),
    "kofn-token-all": ("#0072B2", ":"),
    "kofn-batch": ("#56B4E9", "-"),
    "kofn-batch-annealed": ("#56B4E9", "--"),
    "kofn-batch-learned": ("#56B4E9", "-."),
    "topk": ("#D55E00", ":"),
    "topk-auxk": ("#D55E00", "-"),
    "batchtopk": ("#E69F00", ":"),
    "batchtopk-auxk": ("#E69F00", "-"),
    "jumprelu": ("#009E73", "-"),
    "gated": ("#CC79A7", "-"),
    "kofn-batch-bf16": ("#56B4E9", ":"),
    "batchtopk-bf16": ("#999999", ":"),
}
BINS = 8


def of(results: Results, task: str, method: str) -> Results:
    """Return the runs of a method on a task, one per seed."""
    return [each for each in results if tuple(each["key"][:2]) == (task, method)]


def ends(results: Results, task: str, method: str) -> list[Measured]:
    """Return the last measurement of each seed."""
    return [Measured(*each["history"][-1]) for each in of(results, task, method)]


def best_first(settings: Settings, results: Results, task: str) -> list[str]:
    """Sort the methods by the variance that they explain."""
    return sorted(
        settings.methods,
        key=lambda name: -fmean(each.explained for each in ends(results, task, name)),
    )


def summary(results: Results, task: str, method: str) -> dict[str, Any]:
    """Return mean and standard deviation of every figure that is defined."""
    found: dict[str, Any] = {}
    for name in SHOWN:
        values = [float(getattr(each, name)) for each in ends(results, task, method)]
        if not any(map(math.isnan, values)):
            mean, deviation = spread(values)
            found[name] = {"mean": mean, "standard_deviation": deviation}
    seconds = fmean(each["seconds"] for each in of(results, task, method))
    return {**found, "l0_asked": task_class(task).K, "training_seconds": round(seconds, 2)}


def as_json(settings: Settings, results: Results, seconds: float) -> bytes:
    """Return all figures of every run as indented UTF-8 JSON."""

    def one(each: dict[str, Any]) -> dict[str, Any]:
        history = [dict(zip(Measured._fields, part, strict=True)) for part in each["history"]]
        for part in history:
            if math.isnan(part["mcc"]):
                del part["mcc"]
        key = dict(zip(("task", "method", "seed"), each["key"], strict=True))
        return {**key, "seconds": each["seconds"], "history": history}

    return json_bytes(
        {
            "tasks": {name: TASKS[name] for name in settings.tasks},
            "methods": {name: METHODS[name].about for name in settings.methods},
            "settings": asdict(settings),
            "summary": [
                {"task": task, "method": name, **summary(results, task, name)}
                for task in settings.tasks
                for name in best_first(settings, results, task)
            ],
            "runs": [one(each) for each in results],
            "seconds": round(seconds, 1),
        }
    )


def contents(settings: Settings, results: Results, seconds: float) -> tuple[bytes, ...]:
    """Return what is in each of FILES."""
    pictures = recovery(settings, results), features(settings, results)
    return as_json(settings, results, seconds), *pictures


def as_rich(settings: Settings, results: Results) -> Table:
    """Return a table: a section for each task, best first."""
    seeds = "one seed" if settings.seeds == 1 else f"mean ± deviation of {settings.seeds} seeds"
    shown = table(
        title="sparse autoencoders",
        caption=(
            f"{settings.steps:,} steps, {seeds}, held-out data, thresholds as in use.\n"
            "explained: share of the variance.\n"
            "mcc: mean cosine of true features and decoder rows, matched at best.\n"
            "dead: share of latents that fire for no held-out input.\n"
            "L0: latents per input. seconds: CPU time of the training."
        ),
    )
    shown.add_column("autoencoder", no_wrap=True)
    add_figures(shown, "explained", "mcc", "dead", "L0", "seconds")
    for task in settings.tasks:
        shown.add_section()
        shown.add_row(f"[bold]{task}, L0 = {task_class(task).K} asked[/bold]")
        for name in best_first(settings, results, task):
            seconds = fmean(each["seconds"] for each in of(results, task, name))
            cells = _cells(ends(results, task, name))
            shown.add_row(escape(name), *cells, f"{seconds:.1f}")
    return shown


def _cells(runs: list[Measured]) -> list[str]:
    cells = []
    for name, form in SHOWN.items():
        mean, deviation = spread([float(getattr(each, name)) for each in runs])
        more = f" ± {deviation:{form}}" if len(runs) > 1 and name in SPREAD else ""
        cells.append("–" if math.isnan(mean) else f"{mean:{form}}{more}")
    return cells


def recovery(settings: Settings, results: Results) -> bytes:
    """Draw how well features are found, by how often they are present."""
    figure, axis = picture(8.5, 4.5, dpi=140)
    for name in best_first(settings, results, "features") if "features" in settings.tasks else ():
        runs = of(results, "features", name)
        colour, style = INKS[name]
        order = [each["frequency"].argsort(descending=True).chunk(BINS) for each in runs]
        shares = zip(*order, strict=True)
        pairs = [list(zip(runs, part, strict=True)) for part in shares]
        x = [fmean(each["frequency"][i].mean().item() for each, i in part) for part in pairs]
        y = [fmean(each["cosines"][i].mean().item() for each, i in part) for part in pairs]
        axis.plot(x, y, style, color=colour, lw=1.6, marker="o", ms=3, label=name)
    axis.set(xscale="log", xlabel="share of inputs that have the feature", ylim=(0, 1.02))
    axis.set_ylabel("cosine of feature and decoder row")
    axis.grid(axis="y", color="#e6e6e6")
    axis.spines[["top", "right"]].set_visible(False)
    if axis.lines:
        figure.legend(loc="outside right center", frameon=False)
    entitled(figure, "which features are found: rare ones to the left")
    return png(figure)


def features(settings: Settings, results: Results) -> bytes:
    """Draw the mean of the images for which a latent fires most, for the most used latents."""
    names = best_first(settings, results, "digits") if "digits" in settings.tasks else ["–"]
    first = [of(results, "digits", name)[:1] for name in names]
    columns = max((len(each["features"]) for runs in first for each in runs), default=1)
    size = (columns + 2.6, 0.95 * len(names) + 0.4)
    figure, axes = picture(*size, len(names), columns, dpi=100, squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    for row, name, runs in zip(axes, names, first, strict=True):
        row[0].text(-0.2, 0.5, name, transform=row[0].transAxes, ha="right", va="center")
        for axis, image in zip(row, runs[0]["features"] if runs else (), strict=False):
            axis.imshow(image.numpy(), cmap="Greys")
    entitled(figure, "the digits for which the most used latents fire most")
    return png(figure)
