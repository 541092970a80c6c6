"""Output of `kofn compare`: two tables on the terminal, a JSON file and a picture."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.markup import escape
from rich.table import Table as RichTable

from kofn.commands.compare.compare import Comparison, Measured
from kofn.commands.compare.table import Scores
from kofn.commands.files import shortened
from kofn.commands.results import INK, add_figures, entitled, json_bytes, picture, png
from kofn.commands.results import table as shown_as
from kofn.links.table import TABLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FILES = ("compare.json", "compare.png")
SHOWN, DRAWN = 7, 24  # most scores of the first row to show
FAINT = "#8a8a8a"
COLOURS = {name: link.colour for name, link in TABLE.items() if link.colour}
COLOURS["KSubset"] = "#B8860B"
"""Okabe and Ito's palette, as in the documentation; maps beyond this list get the rest."""
FURTHER = ("#7B5EA7", "#6B8E23", "#A0522D", "#708090")


def colour(measured: Measured, place: int) -> str:
    """Return a map's colour, the same in every picture."""
    return COLOURS.get(measured.map.name, FURTHER[place % len(FURTHER)])


def around_the_boundary(comparison: Comparison, most: int) -> np.ndarray:
    """Return `most` indices of the first row, by falling score, with the k-th in the middle."""
    order = np.argsort(-comparison.scores[0], kind="stable")
    start = max(0, min(math.ceil(comparison.k) - most // 2, len(order) - most))
    return order[start : start + most]


def weights_table(comparison: Comparison, scores: Scores) -> RichTable:
    """Return a table of each map's weights for the first row's scores around the k-th largest."""
    shown = around_the_boundary(comparison, SHOWN)
    first = comparison.scores[0]
    rows = "" if comparison.rows == 1 else f", row 1 of {comparison.rows:,}"
    part = "" if len(shown) == len(first) else f" ({len(shown)} around the boundary)"
    title = f"{shortened(scores.name, 60)}: {_k(comparison)} of {len(first)} scores{rows}{part}"
    table = shown_as(title=escape(title))
    table.add_column("scores", no_wrap=True)
    for i in shown:
        name = f"{scores.columns[i]}\n" if scores.columns and not scores.one_column else ""
        table.add_column(escape(f"{name}{first[i]:.4g}"), justify="right")
    for each in comparison.maps:
        table.add_row(each.name, *(_weight(each.weights[i]) for i in shown))
    return table


def metrics_table(comparison: Comparison) -> RichTable:
    """Return a table of the metrics of `kofn.metrics`, averaged over the rows."""
    looked = len(comparison.scores)
    part = "" if looked == comparison.rows else f" of {comparison.rows:,}"
    over = "" if looked == 1 else f"Means over {looked:,}{part} rows. "
    table = shown_as(
        caption=(
            f"{over}Support: number of weights above 0.\n"
            "Effective: number of entries that share the weight.\n"
            "Gap: ‖p − hard top-k‖₁. Slope: ‖∂p/∂scores‖₂.\n"
            "Weights of 0 and 1 without decimals are exact."
        ),
    )
    table.add_column("map")
    add_figures(table, "T", "sum", "support", "effective", "gap", "slope")
    for each in comparison.maps:
        m = each.means
        table.add_row(
            each.name,
            f"{each.temperature:.4g}",
            f"{m['sum']:.6g}",
            f"{m['support']:.4g}",
            f"{m['effective support']:.2f}",
            _weight(m["gap"]),
            f"{m['slope']:.3g}",
        )
    return table


def as_json(comparison: Comparison, scores: Scores) -> bytes:
    """Return all results as indented UTF-8 JSON, with the weights of the first row."""

    def one(each: Measured) -> dict[str, Any]:
        return {
            "map": each.name,
            "temperature": each.temperature,
            "means": each.means,
            "weights": each.weights.tolist(),
            "over_temperature": [
                dict(zip(("temperature", "effective support", "slope"), point, strict=True))
                for point in each.curve
            ],
        }

    result = {
        "scores": scores.name,
        "rows": comparison.rows,
        "rows_measured": len(comparison.scores),
        "n": comparison.scores.shape[-1],
        "k": comparison.k,
        "at": {comparison.measure: comparison.value},
        "slope": "the spectral norm of the derivatives of the weights in the scores",
        "first_row": [x if math.isfinite(x) else str(x) for x in comparison.scores[0].tolist()],
        "maps": [one(each) for each in comparison.maps],
    }
    return json_bytes(result, allow_nan=True)


def as_png(comparison: Comparison, scores: Scores) -> bytes:
    """Draw the weights of each map (left) and its smoothness against its sparsity (right)."""
    height = 1.2 + 0.62 * max(6, len(comparison.maps))
    figure, (left, right) = picture(11.5, height, 1, 2, width_ratios=(1.2, 1.0))
    figure.set_layout_engine("constrained", wspace=0.08, w_pad=0.12, h_pad=0.12)
    _draw_weights(left, comparison)
    _draw_curves(right, comparison)
    n = comparison.scores.shape[-1]
    entitled(figure, f"{shortened(scores.name, 60)}: {_k(comparison)} of {n}")
    return png(figure)


def _draw_weights(axes: Axes, comparison: Comparison) -> None:
    """Draw weights as bars, and exact zeros as circles."""
    shown = around_the_boundary(comparison, DRAWN)
    places, height = np.arange(len(shown)), 0.76
    for row, each in enumerate(comparison.maps):
        weights, base = each.weights[shown], len(comparison.maps) - 1 - row
        ink = colour(each, row)
        axes.bar(places, height * weights, bottom=base, width=0.72, color=ink)
        axes.axhline(base, color=FAINT, lw=0.6, zorder=0)
        none = places[weights == 0]
        size = 4.5 if len(shown) <= 14 else 3
        axes.plot(none, np.full(len(none), base + 0.11), "o", ms=size, mfc="white", mec=ink, mew=1)
        axes.text(-0.9, base + 0.2, each.name, color=ink, ha="right", weight="bold")
        axes.text(-0.9, base - 0.04, f"T = {each.temperature:.3g}", color=FAINT, ha="right", size=8)
    labels = [f"{score:.3g}".replace("-", "−") for score in comparison.scores[0][shown]]
    crowded = len(shown) > 12
    axes.set_xticks(places, labels, rotation=90 if crowded else 0, fontsize=8 if crowded else 9)
    axes.set(yticks=[], xlim=(-0.7, len(shown) - 0.3), ylim=(-0.25, len(comparison.maps) - 0.1))
    rows = "scores" if comparison.rows == 1 else "scores of row 1"
    axes.set_xlabel(f"{rows}    (○ is exactly 0)", color=INK)
    axes.set_title(f"weights, k = {_k(comparison)}", loc="left", color=INK, weight="bold")
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)


def _draw_curves(axes: Axes, comparison: Comparison) -> None:
    """Draw curves over the temperature; a dot marks the temperature of the weights on the left."""
    for row, each in enumerate(comparison.maps):
        _, spread, slope = np.array(each.curve).T
        ink = colour(each, row)
        axes.plot(spread, _seen(slope), color=ink, lw=2, solid_capstyle="round", label=each.name)
        here = each.means["effective support"], _seen(each.means["slope"])
        axes.plot(*here, "o", color=ink, ms=6, mec="white", mew=1, zorder=3)
    if not any(np.isfinite(line.get_ydata()).any() for line in axes.lines):
        axes.set_ylim(1, 10)  # a logarithmic axis finds no ends for nothing
    axes.set(xscale="log", yscale="log")
    ticks = [t for t in np.geomspace(comparison.k, comparison.scores.shape[-1], 5) if t > 0]
    axes.set_xticks(ticks, [f"{t:.2g}" if t < 100 else f"{t:.0f}" for t in ticks])
    low, high = axes.get_ylim()
    if high < 300 * low:  # powers of ten alone would give one or two ticks
        ticks = [
            m * 10.0**e for e in range(-30, 30) for m in (1, 2, 5) if low <= m * 10.0**e <= high
        ]
        axes.set_yticks(ticks, [f"{t:g}" for t in ticks])
    axes.minorticks_off()
    axes.grid(color="#e6e6e6", lw=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(length=0, colors=INK)
    axes.set_xlabel("effective support: sparse ← → spread out", color=INK)
    axes.set_ylabel("‖∂p/∂scores‖₂: smooth ↓  steep ↑", color=INK)
    axes.set_title("smoothness against sparsity, over T", loc="left", color=INK, weight="bold")
    axes.legend(frameon=False, fontsize=8, loc="best")


def _seen(slope: Any) -> Any:
    """Return NaN for slopes that a logarithmic axis cannot show: 0, and where its ends overflow."""
    return np.where((slope > 1e-150) & (slope < 1e150), slope, np.nan)


def _k(comparison: Comparison) -> str:
    return f"{comparison.k:g}"


def _weight(weight: float) -> str:
    """Format with three digits; exact zeros and ones without a decimal point."""
    if weight in (0.0, 1.0):
        return f"{weight:.0f}"
    return f"{weight:.3f}" if weight >= 5e-4 else f"{weight:.0e}"
