"""Output of `kofn train prune`: a table, a JSON file and accuracy against weights kept."""

from __future__ import annotations

from dataclasses import asdict
from statistics import fmean
from typing import Any

from rich.markup import escape
from rich.table import Table

from kofn.commands.results import add_figures, json_bytes, picture, png, spread, table
from kofn.commands.train.prune.methods import METHODS
from kofn.commands.train.prune.tasks import MODELS
from kofn.commands.train.prune.training import Measured, Settings
from kofn.commands.train.study import Results

FILES = ("prune.json", "curves.png")
INKS = {
    "kofn": "#0072B2",
    "kofn-subsets": "#56B4E9",
    "gradual": "#D55E00",
    "magnitude": "#E69F00",
    "spartan": "#009E73",
    "straight-through": "#CC79A7",
    "gumbel": "#999999",
}


def ends(results: Results, model: str, method: str, removed: str) -> list[Measured]:
    """Return what every seed measured."""
    wanted = (model, method, removed)
    return [Measured(*each["measured"]) for each in results if tuple(each["key"][:3]) == wanted]


def seconds_of(results: Results, model: str, method: str) -> float:
    """Return the mean CPU time of a run."""
    found = [each["seconds"] for each in results if tuple(each["key"][:2]) == (model, method)]
    return fmean(found)


def named(settings: Settings) -> list[str]:
    """Return the methods in the order of the table."""
    return ["dense", *settings.methods]


def columns(settings: Settings) -> list[str]:
    return list(settings.removed)


def as_json(settings: Settings, results: Results, seconds: float) -> bytes:
    """Return all figures of every run as indented UTF-8 JSON."""
    summary = []
    for model in settings.models:
        for method in named(settings):
            for removed in ("0", *settings.removed):
                runs = ends(results, model, method, removed)
                if runs:
                    mean, deviation = spread([each.accuracy for each in runs])
                    accuracy = {"mean": mean, "standard_deviation": deviation}
                    kept = fmean(each.kept for each in runs)
                    key = {"model": model, "method": method, "removed": removed}
                    summary.append({**key, "accuracy": accuracy, "kept": kept})
    every = [
        {
            **dict(zip(("model", "method", "removed", "seed"), each["key"], strict=True)),
            **dict(zip(Measured._fields, each["measured"], strict=True)),
            "seconds": each["seconds"],
            "losses": [loss for _, loss in each["history"]],
        }
        for each in results
    ]
    about = {name: METHODS[name].about for name in settings.methods}
    return json_bytes(
        {
            "models": {name: MODELS[name] for name in settings.models},
            "methods": {"dense": "nothing is removed", **about},
            "settings": asdict(settings),
            "summary": summary,
            "runs": every,
            "seconds": round(seconds, 1),
        }
    )


def contents(settings: Settings, results: Results, seconds: float) -> tuple[bytes, ...]:
    """Return what is in each of FILES."""
    return as_json(settings, results, seconds), curves(settings, results)


def as_rich(settings: Settings, results: Results) -> Table:
    """Return a table: a section for each network, a column for each share."""
    seeds = "one seed" if settings.seeds == 1 else f"mean ± deviation of {settings.seeds} seeds"
    shown = table(
        title="held-out accuracy on handwritten digits, by the share of weights removed",
        caption=f"{settings.steps:,} steps, {seeds}. CPU: seconds of a run.",
    )
    shown.add_column("method", no_wrap=True)
    add_figures(shown, *columns(settings), "CPU")
    for model in settings.models:
        shown.add_section()
        shown.add_row(f"[bold]{model}[/bold]")
        for method in named(settings):
            if any(tuple(each["key"][:2]) == (model, method) for each in results):
                shown.add_row(escape(method), *_cells(settings, results, model, method))
    return shown


def _cells(settings: Settings, results: Results, model: str, method: str) -> list[str]:
    cells = []
    for removed in columns(settings):
        runs = ends(results, model, method, "0" if method == "dense" else removed)
        mean, deviation = spread([each.accuracy for each in runs]) if runs else (0.0, 0.0)
        more = f"\n± {deviation:.3f}" if len(runs) > 1 else ""  # 80 columns hold seven cells
        cells.append(f"{mean:.3f}{more}" if runs else "–")
    return [*cells, f"{seconds_of(results, model, method):.1f}"]


def curves(settings: Settings, results: Results) -> bytes:
    """Draw accuracy against the share of weights kept, a panel for each network."""
    number = len(settings.models)
    figure, axes = picture(5.0 * number + 2.4, 3.8, 1, number, dpi=140, squeeze=False)
    labels: dict[str, Any] = {}
    shares = sorted((float(each) for each in settings.removed if each != "2:4"), reverse=True)
    for one, model in zip(axes.flat, settings.models, strict=True):
        dense = fmean(each.accuracy for each in ends(results, model, "dense", "0"))
        labels.setdefault("dense", one.axhline(dense, color="#333333", lw=1, ls=":"))
        for method in settings.methods:
            _draw(one, results, model, method, shares, labels)
            pairs = ends(results, model, method, "2:4")
            if pairs:
                mean = fmean(each.accuracy for each in pairs)
                dot = one.plot([50], [mean], "D", color=INKS[method], ms=5)[0]
                labels.setdefault(f"{method}, 2:4", dot)
        one.set_title(MODELS[model], loc="left", fontsize=9)
        one.set_xscale("log")
        ticks = [100 * (1 - share) for share in shares] + (
            [50] if "2:4" in settings.removed else []
        )
        one.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        one.minorticks_off()
        one.grid(axis="y", color="#e6e6e6")
        one.spines[["top", "right"]].set_visible(False)
        one.set(xlabel="weights kept, %", ylabel="held-out accuracy")
    figure.legend(labels.values(), labels, loc="outside right center", frameon=False, fontsize=8)
    return png(figure)


def _draw(
    one: Any, results: Results, model: str, method: str, shares: list[float], labels: dict[str, Any]
) -> None:
    """Draw the curve of one method, with the spread of its seeds."""
    found = {
        share: [each.accuracy for each in ends(results, model, method, f"{share:g}")]
        for share in shares
    }
    kept = [100 * (1 - share) for share in shares if found[share]]
    if not kept:
        return
    means = [fmean(found[share]) for share in shares if found[share]]
    (line,) = one.plot(kept, means, "-o", color=INKS[method], lw=1.5, ms=3)
    low = [min(found[share]) for share in shares if found[share]]
    high = [max(found[share]) for share in shares if found[share]]
    one.fill_between(kept, low, high, color=INKS[method], alpha=0.15, lw=0)
    labels.setdefault(method, line)
