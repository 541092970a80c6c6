"""Output of `kofn train attention`: a table, a JSON file, curves and attention maps."""

from __future__ import annotations

from dataclasses import asdict
from statistics import fmean
from typing import Any

from rich.markup import escape
from rich.table import Table

from kofn.commands.results import add_figures, json_bytes, picture, png, spread, table
from kofn.commands.train.attention.model import METHODS
from kofn.commands.train.attention.training import LONGEST, Measured, Settings
from kofn.commands.train.study import Results

FILES = ("attention.json", "curves.png", "maps.png")
INKS = {
    "softmax": ("#222222", "-"),
    "entmax": ("#D55E00", "-"),
    "entmax-learned": ("#D55E00", "--"),
    "entmax-scaled": ("#E69F00", "-"),
    "soft-topk": ("#0072B2", "-"),
    "soft-topk-learned": ("#0072B2", "--"),
}


def of(results: Results, task: str, method: str) -> Results:
    return [each for each in results if tuple(each["key"][:2]) == (task, method)]


def accuracies(runs: Results, index: int) -> list[float]:
    """Return each seed's share of right symbols at a length."""
    return [each["lengths"][index][2] for each in runs]


def as_json(settings: Settings, results: Results, seconds: float) -> bytes:
    """Return all figures of every run as indented UTF-8 JSON."""

    def one(each: dict[str, Any]) -> dict[str, Any]:
        return {
            **dict(zip(("task", "method", "seed"), each["key"], strict=True)),
            "seconds": each["seconds"],
            "history": [dict(zip(Measured._fields, part, strict=True)) for part in each["history"]],
            "lengths": [
                dict(zip(("length", "loss", "accuracy"), length, strict=True))
                for length in each["lengths"]
            ],
        }

    def summary(task: str, method: str) -> dict[str, Any]:
        runs = of(results, task, method)
        found = []
        for index, length in enumerate(settings.lengths):
            mean, deviation = spread(accuracies(runs, index))
            found.append({"length": length, "mean": mean, "standard_deviation": deviation})
        return {"task": task, "method": method, "accuracy": found}

    return json_bytes(
        {
            "methods": {name: METHODS[name].about for name in settings.methods},
            "settings": asdict(settings),
            "longest_in_training": LONGEST,
            "summary": [
                summary(task, name) for task in settings.tasks for name in settings.methods
            ],
            "runs": [one(each) for each in results],
            "seconds": round(seconds, 1),
        }
    )


def contents(settings: Settings, results: Results, seconds: float) -> tuple[bytes, ...]:
    """Return what is in each of FILES."""
    return as_json(settings, results, seconds), curves(settings, results), maps(settings, results)


def as_rich(settings: Settings, results: Results) -> Table:
    """Return a table of right symbols by length, a section for each task."""
    seeds = "one seed" if settings.seeds == 1 else f"mean of {settings.seeds} seeds"
    shown = table(
        title="attention beyond the lengths trained at",
        caption=(
            f"Right symbols in percent by length; {seeds}, {settings.steps:,} steps at lengths "
            f"up to {LONGEST}."
        ),
    )
    shown.add_column("attention", no_wrap=True)
    add_figures(shown, *map(str, settings.lengths))
    for task in settings.tasks:
        shown.add_section()
        shown.add_row(f"[bold]{task}[/bold]")
        for name in settings.methods:
            runs = of(results, task, name)
            means = [fmean(accuracies(runs, index)) for index in range(len(settings.lengths))]
            shown.add_row(escape(name), *(f"{100 * mean:.0f}" for mean in means))
    return shown


def curves(settings: Settings, results: Results) -> bytes:
    """Draw the share of right symbols by length, a panel for each task."""
    width = 3.4 * len(settings.tasks) + 2.2
    figure, axes = picture(width, 3.2, 1, len(settings.tasks), dpi=140, squeeze=False, sharey=True)
    for panel, task in zip(axes[0], settings.tasks, strict=True):
        for name in settings.methods:
            runs = of(results, task, name)
            colour, style = INKS[name]
            points = [spread(accuracies(runs, index)) for index in range(len(settings.lengths))]
            means, deviations = zip(*points, strict=True)
            low = [mean - each for mean, each in points]
            high = [mean + each for mean, each in points]
            label = name if panel is axes[0][0] else None
            panel.plot(settings.lengths, means, style, marker=".", color=colour, label=label)
            if any(deviations):
                panel.fill_between(settings.lengths, low, high, color=colour, alpha=0.12, lw=0)
        panel.axvline(LONGEST, color="#8a8a8a", lw=0.8, ls=":")
        panel.set_xscale("log", base=2)
        panel.set_title(task, loc="left", fontsize=10)
        panel.set(xlabel="length", ylim=(0, 1.02))
        panel.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel("right symbols")
    figure.legend(loc="outside right center", frameon=False)
    return png(figure)


def maps(settings: Settings, results: Results) -> bytes:
    """Draw an attention map per task and method: rows are queries, columns keys."""
    rows, columns = len(settings.tasks), len(settings.methods)
    figure, axes = picture(1.9 * columns, 2.0 * rows, rows, columns, dpi=140, squeeze=False)
    for line, task in zip(axes, settings.tasks, strict=True):
        for panel, name in zip(line, settings.methods, strict=True):
            weights = next(e["map"] for e in of(results, task, name) if e["map"] is not None)
            panel.imshow(weights.numpy(), cmap="Blues", vmin=0, vmax=1)
            panel.set(xticks=[], yticks=[])
            if panel is line[0]:
                panel.set_ylabel(task)
            if task == settings.tasks[0]:
                panel.set_title(name, fontsize=8)
    return png(figure)
