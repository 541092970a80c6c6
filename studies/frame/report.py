"""What a study writes and prints of its results: a JSON file, pictures and a table."""

import math
from collections.abc import Iterator
from itertools import product
from statistics import fmean
from typing import Any, ClassVar

from rich.markup import escape
from rich.table import Table

from kofn.commands.results import add_figures, json_bytes, png, spread, table
from studies.frame.options import Settings, Study

Figures = dict[str, list[Any]]
"""Figures by name, each of all seeds."""


class Report:
    """The results of a study. The table has a section for each group, and a row per method."""

    KEY: ClassVar[tuple[str, ...]] = ("task", "method", "seed")
    """The names of what a run's key consists of."""
    GROUP: ClassVar[tuple[str, ...]] = ("task",)
    PICTURES: ClassVar[tuple[str, ...]] = ("curves",)
    """Methods that return pictures; each is a file."""
    TITLE: ClassVar[str]
    CAPTION: ClassVar[str]
    """What is below the table; may contain settings, and {seeds}."""
    FIRST: ClassVar[str]
    """Head of the column of methods."""
    SHOWN: ClassVar[dict[str, tuple[str, str]]] = {}
    """The figures in the table, each with its head and its format."""
    SEEDS: ClassVar[str] = "mean ± deviation"
    """What the figures of several seeds are."""
    BEST: ClassVar[str] = ""
    """The figure by which methods are sorted, the least first; with a minus, the greatest."""
    Measurement: type[Any]
    """A NamedTuple of what was measured after each part."""
    HEADING: ClassVar[str] = "{task}"

    results: list[dict[str, Any]]

    def __init__(self, study: Study, settings: Settings) -> None:
        self.study, self.settings = study, settings

    # --- files ---

    def files(self) -> list[str]:
        return [f"{self.study.name}.json", *(f"{name}.png" for name in self.PICTURES)]

    def contents(self, seconds: float) -> dict[str, bytes]:
        """Return what is in each file, for a study that took so many seconds."""
        runs = [self.run(each) for each in self.results]
        whole = {**self.summary(), "runs": runs, "seconds": round(seconds, 1)}
        pictures = [png(getattr(self, name)()) for name in self.PICTURES]
        return dict(zip(self.files(), [json_bytes(whole), *pictures], strict=True))

    def summary(self) -> dict[str, Any]:
        """Return what is in the JSON file beside the runs."""
        about, settings = self.study.about(self.settings), vars(self.settings)
        return {**about, "settings": settings, "summary": list(self.summaries())}

    def summaries(self) -> Iterator[dict[str, Any]]:
        """Yield what is said of each method."""
        for group in self.groups():
            for name, figures in self.methods(**group).items():
                key = {**group, "method": name}
                yield {**key, **self.summary_of(figures, **key)}

    def summary_of(self, figures: Figures, **key: Any) -> dict[str, Any]:
        """Return mean and standard deviation of the figures that all runs have."""
        return means({name: figures[name] for name in self.shown()})

    def run(self, each: dict[str, Any]) -> dict[str, Any]:
        """Return what is in the JSON file of a run; figures that are NaN are left out."""
        history = [
            {name: x for name, x in part._asdict().items() if is_defined(x)}
            for part in self.history(each)
        ]
        return {**self.key(each), "seconds": each["seconds"], "history": history}

    # --- the table ---

    def table(self) -> Table:
        number = self.settings.seeds
        seeds = "one seed" if number == 1 else f"{self.SEEDS} of {number} seeds"
        caption = self.CAPTION.format(**{**vars(self.settings), "seeds": seeds})
        made = table(title=self.TITLE, caption=caption)
        made.add_column(self.FIRST, no_wrap=True)
        add_figures(made, *(head for head, _ in self.shown().values()))
        for group in self.groups():
            methods = self.methods(**group)
            if group and methods:
                made.add_section()
                made.add_row(f"[bold]{self.heading(**group)}[/bold]")
            for name, figures in methods.items():
                made.add_row(escape(name), *self.cells(figures))
        return made

    def heading(self, **group: Any) -> str:
        return self.HEADING.format(**group)

    def shown(self) -> dict[str, tuple[str, str]]:
        return self.SHOWN

    def cells(self, figures: Figures) -> list[str]:
        return [cell(figures[name], form) for name, (_, form) in self.shown().items()]

    # --- the results ---

    def of(self, **key: Any) -> list[dict[str, Any]]:
        """Return the runs with these values in their keys."""
        return [each for each in self.results if key.items() <= self.key(each).items()]

    def key(self, each: dict[str, Any]) -> dict[str, Any]:
        """Return the key of a run, by the names of its parts."""
        return dict(zip(self.KEY, each["key"], strict=True))

    def history(self, each: dict[str, Any]) -> list[Any]:
        """Return what was measured of a run."""
        return [self.Measurement(*part) for part in each["history"]]

    def figures(self, **key: Any) -> Figures:
        """Return the last measurement of each of these runs and its seconds, as lists by name."""
        runs = self.of(**key)
        ends = [{**self.history(run)[-1]._asdict(), "seconds": run["seconds"]} for run in runs]
        return {
            name: [end[name] for end in ends] for name in (*self.Measurement._fields, "seconds")
        }

    def groups(self) -> list[dict[str, Any]]:
        """Return the part of the keys that is the same in a section of the table."""
        values = product(*(getattr(self.settings, f"{name}s") for name in self.GROUP))
        return [dict(zip(self.GROUP, each, strict=True)) for each in values]

    def methods(self, **group: Any) -> dict[str, Figures]:
        """Return the figures of the methods that a group has, best first."""
        names = [name for name in self.names() if self.of(method=name, **group)]
        found = {name: self.figures(method=name, **group) for name in names}
        if not self.BEST:
            return found
        best = self.BEST.removeprefix("-")
        sign = 1 if best == self.BEST else -1
        return dict(sorted(found.items(), key=lambda item: sign * fmean(item[1][best])))

    def names(self) -> tuple[str, ...]:
        return tuple(self.settings.methods)


def is_defined(value: float | None) -> bool:
    return value is not None and not math.isnan(value)


def means(figures: Figures) -> dict[str, dict[str, float]]:
    """Return mean and standard deviation of the figures that are defined."""
    return {name: mean_of(each) for name, each in figures.items() if all(map(is_defined, each))}


def mean_of(values: list[Any]) -> dict[str, float]:
    return dict(zip(("mean", "standard_deviation"), spread([*map(float, values)]), strict=True))


def cell(values: list[Any], form: str) -> str:
    """Return the mean in a format; with "±" in it, the deviation, too, of several values."""
    form, more, _ = form.partition("±")
    if not values or not all(map(is_defined, values)):
        return "–"
    mean, deviation = spread([*map(float, values)])
    return f"{mean:{form}}" + (f" ± {deviation:{form}}" if more and len(values) > 1 else "")
