"""Helpers for the commands' output: JSON, terminal tables and pictures."""

from __future__ import annotations

import io
import json
import math
from statistics import fmean, stdev
from typing import Any

from rich import box
from rich.table import Table

import kofn

INK = "#222222"


def json_bytes(result: dict[str, Any], *, allow_nan: bool = False) -> bytes:
    """Return kofn's version and `result` as indented UTF-8 JSON."""
    whole = {"kofn": kofn.__version__, **result}
    text = json.dumps(whole, indent=2, ensure_ascii=False, allow_nan=allow_nan)
    return (text + "\n").encode()


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


def picture(width: float, height: float, *layout: int, dpi: int = 150, **more: Any) -> Any:
    """Return (figure, axes), with sizes in inches; matplotlib is imported here, as it is slow."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=dpi, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(*layout, **more)


def entitled(figure: Any, title: str) -> None:
    """Set a figure's title; escape dollar signs, which start formulas."""
    figure.suptitle(title.replace("$", r"\$"), color=INK)


def png(figure: Any) -> bytes:
    """Return a figure as the bytes of a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", facecolor="white", metadata={"Software": None})
    return buffer.getvalue()
