"""Helpers for the commands' output: JSON, terminal tables and pictures."""

from __future__ import annotations

import io
import json
import math
import warnings
from statistics import fmean, stdev
from typing import Any

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

import kofn

INK = "#222222"
WIDEST = 10_000  # columns of a terminal that cuts nothing
SHORTEST = 12  # columns of names that go on in the next line


def json_bytes(result: dict[str, Any], *, allow_nan: bool = False) -> bytes:
    """Return kofn's version and `result` as indented UTF-8 JSON."""
    whole = {"kofn": kofn.__version__, **result}
    text = json.dumps(whole, indent=2, ensure_ascii=False, allow_nan=allow_nan)
    # A byte of a name that is not UTF-8 is half of a pair; JSON has an escape for it.
    return (text + "\n").encode(errors="backslashreplace")


def spread(values: list[float]) -> tuple[float, float]:
    """Return the mean and the standard deviation (denominator n − 1; 0 for one value)."""
    mean = fmean(values)
    if len(values) == 1:
        return mean, 0.0
    return mean, stdev(values) if math.isfinite(mean) else math.nan


def table(**options: Any) -> Table:
    """Make an empty table with a bold title and a caption aligned to the left."""
    return Table(box=box.SIMPLE_HEAD, caption_justify="left", title_style="bold", **options)


def add_figures(shown: Table, *names: str) -> None:
    """Add columns of numbers to a table."""
    for name in names:
        shown.add_column(name, justify="right", no_wrap=True)


def folded(shown: Table, console: Console) -> list[Any]:
    """Return a table, or, where the terminal is too narrow for it, tables of some columns each.

    In a pipe, title and caption are lines of their own, which need not be as narrow as it. Every
    one of them begins with the first column. No number is cut.
    """
    wide = console.options.update(width=WIDEST)
    for column in shown.columns:
        head = Measurement.get(console, wide, column.header)
        cells = [Measurement.get(console, wide, cell).maximum for cell in column.cells]
        of_head = head.maximum if column.no_wrap or column is shown.columns[0] else head.minimum
        column.min_width = max(of_head, *cells, 0)
    if Measurement.get(console, wide, shown).minimum <= console.width < WIDEST:
        return [shown]
    parts: list[list[int]] = []
    for place in range(1, len(shown.columns)):
        longer = [*(parts[-1] if parts else []), place]
        part = _part(shown, longer)
        if parts and Measurement.get(console, wide, part).minimum <= console.width:
            parts[-1] = longer
        else:
            parts.append([place])
    pieces: list[Any] = []
    if shown.title:
        pieces.append(Text.from_markup(str(shown.title), style=shown.title_style or ""))
    for places in parts:
        piece = _part(shown, places)
        if Measurement.get(console, wide, piece).minimum > console.width:
            names = piece.columns[0]  # long names go on in the next line
            names.min_width = min(names.min_width or 0, SHORTEST)
            names.no_wrap, names.overflow = False, "fold"
        pieces.append(piece)
    if shown.caption:
        pieces.append(Text.from_markup(str(shown.caption), style="table.caption"))
    return pieces


def _part(shown: Table, places: list[int]) -> Table:
    """Return a table of the first column and those in the given places."""
    part = Table(box=shown.box, padding=shown.padding, show_edge=shown.show_edge)
    columns = [shown.columns[place] for place in (0, *places)]
    for column in columns:
        part.add_column(
            column.header,
            justify=column.justify,
            min_width=column.min_width,
            no_wrap=column.no_wrap or column is columns[0],
        )
    for row, *cells in zip(shown.rows, *(column.cells for column in columns), strict=True):
        part.add_row(*cells, style=row.style, end_section=row.end_section)
    return part


def picture(width: float, height: float, *layout: int, dpi: int = 150, **more: Any) -> Any:
    """Return (figure, axes), with sizes in inches; matplotlib is imported here, as it is slow."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=dpi, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(*layout, **more)


def entitled(figure: Any, title: str) -> None:
    """Set a figure's title; escape dollar signs, which start formulas."""
    drawable = title.encode(errors="replace").decode()  # a name may have bytes that are not UTF-8
    figure.suptitle(drawable.replace("$", r"\$"), color=INK)


def png(figure: Any) -> bytes:
    """Return a figure as the bytes of a PNG file."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # the font lacks: it shows a box
        figure.savefig(buffer, format="png", facecolor="white", metadata={"Software": None})
    return buffer.getvalue()
