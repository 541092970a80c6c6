"""Output of `kofn select`: a table on the terminal, a JSON file and a picture."""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.markup import escape
from rich.table import Table as RichTable

from kofn.commands.files import shortened
from kofn.commands.results import INK, add_figures, entitled, json_bytes, picture, png
from kofn.commands.results import table as shown_as
from kofn.commands.select.compare import OURS, Comparison, Method, spread
from kofn.commands.select.table import HELD_OUT, Table
from kofn.feature_selection import SoftTopKSelector

FILES = ("selection.json", "selection.png")
QUIET, ACCENT = "#9aa0a6", "#d1495b"
MOST_BARS = 40
LONGEST = 40  # most characters of a name in a title


def ranked(selector: SoftTopKSelector) -> list[int]:
    """Return the indices of the chosen columns, best first."""
    return [int(i) for i in selector.order_[: selector.n_features_]]


def as_json(
    table: Table, selector: SoftTopKSelector, comparison: Comparison, *, seed: int, seconds: float
) -> bytes:
    """Return the result, with every score of every split, as indented UTF-8 JSON."""

    def column(i: int) -> dict[str, Any]:
        return {
            "column": table.columns[i],
            "index": i,
            "weight": float(selector.weights_[i]),
            "score": float(selector.scores_[i]),
        }

    def method(each: Method) -> dict[str, Any]:
        held_out = {}
        for judge, scores in each.scores.items():
            differences = comparison.differences(each, judge)
            held_out[judge] = {
                "mean": comparison.mean(each, judge),
                "spread": spread(scores),
                "minus_soft_topk": {
                    "mean": float(differences.mean()),
                    "spread": spread(differences),
                },
                "splits": scores,
            }
        return {"method": each.name, "detail": each.detail, "held_out": held_out}

    settings = {
        name: value if isinstance(value, (int, float, str)) else repr(value)
        for name, value in selector.get_params().items()
        if name not in ("callback", "random_state")
    }
    result = {
        "table": table.name,
        "rows": len(table.y),
        "columns": len(table.columns),
        "target": table.target,
        "task": table.task,
        "classes": table.classes,
        "k": int(selector.n_features_),
        "seed": seed,
        "selector": settings,
        "chosen": [column(i) for i in ranked(selector)],
        "chosen_from": "a fit on all rows; the scores below come from fits on training rows only",
        "all_columns": [column(i) for i in range(len(table.columns))],
        "score": comparison.score_name,
        "judges": comparison.judges,
        "splits": len(next(iter(comparison.methods[0].scores.values()))),
        "training_rows": comparison.training_rows,
        "testing_rows": comparison.testing_rows,
        "spread": "standard deviation over the splits",
        "methods": [method(each) for each in comparison.methods],
        "seconds": round(seconds, 1),
    }
    return json_bytes(result)


def as_rich(table: Table, k: int, comparison: Comparison) -> RichTable:
    """Return a table of mean held-out scores, and their paired differences to soft_topk."""
    judges = list(comparison.judges)
    splits = len(comparison.methods[0].scores[judges[0]])
    drawn = "one split" if splits == 1 else f"mean of {splits} splits"
    told = "" if splits == 1 else ", mean ± standard deviation"
    title = f"{_name(table)}: {k} of {len(table.columns)} columns to predict {_target(table)}"
    shown = shown_as(
        title=escape(title),
        caption=(
            f"Held-out {comparison.score_name}, {drawn}, {HELD_OUT:.0%} held out "
            f"({comparison.training_rows:,} rows for training, {comparison.testing_rows:,} for "
            f"testing).\nΔ: method − soft_topk on the same split{told}."
        ),
    )
    shown.add_column("columns by")
    for judge in judges:
        add_figures(shown, judge, "Δ")
    for method in comparison.methods:
        cells = [method.name]
        for judge in judges:
            differences = comparison.differences(method, judge)
            cells.append(f"{comparison.mean(method, judge):.3f}")
            ours = method.name == OURS
            mean = round(float(differences.mean()), 3) + 0.0  # avoid "-0"
            plus = "" if splits == 1 else f" ± {spread(differences):.3f}"
            cells.append("" if ours else f"{mean:+.3f}{plus}")
        shown.add_row(*cells, style="bold green" if method.name == OURS else None)
    return shown


def as_png(table: Table, selector: SoftTopKSelector, comparison: Comparison) -> bytes:
    """Draw the chosen columns (left) and every method's score on every split (right)."""
    bars = min(len(table.columns), MOST_BARS)
    height = 5.0 if table.image_shape else max(4.0, 1.4 + 0.24 * bars)
    figure, (left, right) = picture(11.5, height, 1, 2, width_ratios=(1.0, 1.25))
    (_draw_pixels if table.image_shape else _draw_bars)(left, table, selector)
    _draw_scores(right, comparison)
    entitled(figure, f"{_name(table)}: columns to predict {_target(table)}")
    return png(figure)


def _name(table: Table) -> str:
    return shortened(table.name, LONGEST)


def _target(table: Table) -> str:
    return shortened(table.target, LONGEST)


def _draw_pixels(axes: Any, table: Table, selector: SoftTopKSelector) -> None:
    from matplotlib.patches import Rectangle

    assert table.image_shape is not None
    rows, columns = table.image_shape
    axes.imshow(table.X.mean(0).reshape(rows, columns), cmap="Greys", vmin=0)
    for place, i in enumerate(ranked(selector), start=1):
        row, column = divmod(i, columns)
        corner = (column - 0.44, row - 0.44)
        frame = Rectangle(corner, 0.88, 0.88, fill=False, edgecolor=ACCENT, linewidth=2.5)
        axes.add_patch(frame)
        badge = {"boxstyle": "circle,pad=0.18", "facecolor": ACCENT, "edgecolor": "none"}
        style = {"color": "white", "fontsize": 7, "ha": "center", "va": "center", "bbox": badge}
        axes.text(column, row, str(place), **style)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_color(QUIET)
    axes.set_title(
        f"{selector.n_features_} of {rows * columns} pixels over the mean image", color=INK
    )
    axes.set_xlabel("numbered by weight, then score: best first", color=INK)


def _draw_bars(axes: Any, table: Table, selector: SoftTopKSelector) -> None:
    order = selector.order_[:MOST_BARS]
    colours = [ACCENT if selector.support_[i] else QUIET for i in order]
    places = np.arange(len(order))
    axes.barh(places, selector.weights_[order], color=colours, height=0.7)
    names = [
        table.columns[i] if len(table.columns[i]) <= 28 else table.columns[i][:27] + "…"
        for i in order
    ]
    # Matplotlib reads a dollar sign as the start of a formula.
    axes.set_yticks(places, [name.replace("$", r"\$") for name in names], fontsize=8)
    axes.set(xlim=(0, 1.02), ylim=(len(order) - 0.4, -0.6))
    axes.set_xlabel("weight: share of the networks' votes", color=INK)
    shown = "" if len(order) == len(table.columns) else f" (the first {len(order)} shown)"
    title = f"{selector.n_features_} of {len(table.columns)} columns chosen{shown}"
    axes.set_title(title, color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="y", length=0)


def _draw_scores(axes: Any, comparison: Comparison) -> None:
    judges = list(comparison.judges)
    for number, method in enumerate(comparison.methods):
        colour = ACCENT if method.name == OURS else INK
        for judge, shift, marker in zip(judges, (-0.16, 0.16), ("o", "s"), strict=True):
            scores = method.scores[judge]
            faint = {"color": colour, "alpha": 0.25, "s": 14, "linewidths": 0}
            axes.scatter(scores, np.full(len(scores), number + shift), marker=marker, **faint)
            solid = {"facecolor": colour if marker == "o" else "white", "edgecolor": colour}
            label = f"{judge} (mean; pale: each split)" if number == 0 else None
            axes.scatter(
                [np.mean(scores)],
                [number + shift],
                marker=marker,
                s=46,
                zorder=3,
                linewidths=1.5,
                label=label,
                **solid,
            )
    axes.set_yticks(range(len(comparison.methods)), [each.name for each in comparison.methods])
    axes.set_ylim(len(comparison.methods) - 0.4, -0.6)
    axes.grid(axis="x", color="#e6e6e6")
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(f"held-out {comparison.score_name}", color=INK)
    axes.set_title("every method on the same splits", color=INK)
    axes.figure.legend(loc="outside lower right", ncols=2, frameon=False, fontsize=8)
