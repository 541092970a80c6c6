"""Output of `kofn select`: a table on the terminal, a JSON file and a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from rich.markup import escape

from kofn.commands.files import shortened
from kofn.commands.results import INK, add_figures, entitled, json_bytes, picture, png
from kofn.commands.results import table as shown_as
from kofn.commands.select.compare import OURS, Comparison, Method, Outcome, spread
from kofn.commands.select.table import HELD_OUT, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from kofn.feature_selection import SoftTopKSelector

FILES = ("selection.json", "selection.png")
QUIET, ACCENT = "#9aa0a6", "#d1495b"
MOST_BARS, BARS_OF_MANY = 40, 16  # the fewer where a picture shows several tables
SEEN = 0.005  # a bar that can be seen
LONGEST = 40  # most characters of a name in a title


def ordered(outcome: Outcome) -> list[int]:
    """Return the columns, best first; a column of words counts once."""
    return list(dict.fromkeys(outcome.table.groups[outcome.selector.order_].tolist()))


def ranked(outcome: Outcome) -> list[int]:
    """Return the chosen columns, best first."""
    return ordered(outcome)[: _chosen(outcome)]


def _chosen(outcome: Outcome) -> int:
    return len(np.unique(outcome.table.groups[outcome.selector.support_]))


def _of_columns(outcome: Outcome, values: np.ndarray) -> np.ndarray:
    """Return what a fitted selector has of each column; of columns chosen together it is equal."""
    return values[np.unique(outcome.table.groups, return_index=True)[1]]


def as_json(outcomes: list[Outcome], *, seed: int, missing: str, seconds: float) -> bytes:
    """Return the results, with every score of every split, as indented UTF-8 JSON.

    One table's are at the top; several tables' are in a list under "tables".
    """
    about = {"seed": seed, "missing": missing, "seconds": round(seconds, 1)}
    tables = [_outcome(outcome) for outcome in outcomes]
    return json_bytes(about | (tables[0] if len(tables) == 1 else {"tables": tables}))


def _outcome(outcome: Outcome) -> dict[str, Any]:
    table, selector, comparison = outcome.table, outcome.selector, outcome.comparison
    weights, scores = (_of_columns(outcome, each) for each in (selector.weights_, selector.scores_))

    def column(i: int) -> dict[str, Any]:
        return {
            "column": table.columns[i],
            "index": i,
            "weight": float(weights[i]),
            "score": float(scores[i]) if np.isfinite(scores[i]) else None,  # not trained on
        }

    return {
        "table": table.name,
        "rows": len(table.y),
        "rows_dropped": table.dropped,
        "columns": len(table.columns),
        "target": table.target,
        "task": table.task,
        "classes": table.classes,
        "planted": [table.columns[i] for i in table.planted],
        "k": _chosen(outcome),
        "selector": _settings(selector),
        "chosen": [column(i) for i in ranked(outcome)],
        "chosen_from": "a fit on all rows; the scores below come from fits on training rows only",
        "all_columns": [column(i) for i in range(len(table.columns))],
        "score": comparison.score_name,
        "majority": comparison.majority,
        "judges": comparison.judges,
        "splits": len(next(iter(comparison.methods[0].scores.values()))),
        "training_rows": comparison.training_rows,
        "testing_rows": comparison.testing_rows,
        "spread": "standard deviation over the splits",
        "methods": [_method(each, outcome) for each in comparison.methods],
    }


def _settings(selector: SoftTopKSelector) -> dict[str, Any]:
    return {
        name: value if isinstance(value, (int, float, str, list, type(None))) else repr(value)
        for name, value in selector.get_params().items()
        if name not in ("callback", "random_state")
    }


def _method(method: Method, outcome: Outcome) -> dict[str, Any]:
    held_out = {}
    for judge, scores in method.scores.items():
        differences = outcome.comparison.differences(method, judge)
        held_out[judge] = {
            "mean": outcome.comparison.mean(method, judge),
            "spread": spread(scores),
            "minus_soft_topk": {"mean": float(differences.mean()), "spread": spread(differences)},
            "splits": scores,
        }
    planted = {"planted_found": method.found} if outcome.table.planted else {}
    return {"method": method.name, "detail": method.detail, **planted, "held_out": held_out}


def as_rich(outcome: Outcome) -> list[Any]:
    """Return a table of held-out scores, with paired differences to soft_topk, and the choice."""
    table, comparison = outcome.table, outcome.comparison
    judges = list(comparison.judges)
    splits = len(comparison.methods[0].scores[judges[0]])
    drawn = "one split" if splits == 1 else f"mean of {splits} splits"
    spread = "" if splits == 1 else ", mean ± standard deviation"
    count = f"{_chosen(outcome)} of {len(table.columns)} columns"
    title = f"{_name(table)}: {count} to predict {_target(table)}"
    without = f" {table.dropped:,} rows with missing values dropped." if table.dropped else ""
    planted = f"\nfound: of the {len(table.planted)} columns that decide the target, mean."
    shown = shown_as(
        title=escape(title),
        caption=(
            f"Held-out {comparison.score_name}, {drawn}, {HELD_OUT:.0%} held out "
            f"({comparison.training_rows:,} rows for training, {comparison.testing_rows:,} for "
            f"testing).{without}\nlinear head: soft_topk with linear models, hidden=0.\n"
            f"Δ: method − soft_topk on the same split{spread}.{_majority(comparison)}"
            f"{planted if table.planted else ''}"
        ),
    )
    shown.add_column("columns by")
    if table.planted:
        add_figures(shown, "found")
    for judge in judges:
        add_figures(shown, judge, f"Δ {judge}")
    for method in comparison.methods:
        style = "bold green" if method.name == OURS else None
        shown.add_row(*_cells(method, outcome), style=style)
    names = ", ".join(escape(table.columns[i]) for i in ranked(outcome))
    best = f"[bold]Chosen[/bold] (fitted on all {len(table.y):,} rows, best first): {names}"
    return [shown, *_warnings(table, comparison), best]


def _majority(comparison: Comparison) -> str:
    if comparison.majority is None:
        return ""
    return f"\nAlways the most frequent class: {comparison.score_name} {comparison.majority:.3f}."


def _warnings(table: Table, comparison: Comparison) -> list[str]:
    said = []
    if table.alike:
        names, they = ", ".join(map(repr, table.alike)), "has" if len(table.alike) == 1 else "have"
        said.append(
            f"{names} {they} another whole number in each row, as ids have; --drop leaves such out."
        )
    if comparison.is_uneven:
        said.append(
            f"one class has {comparison.majority:.0%} of the rows, and always naming it is as "
            "accurate; --metric balanced compares by the classes."
        )
    return [f"[bold yellow]Warning[/bold yellow]: {escape(each)}" for each in said]


def _cells(method: Method, outcome: Outcome) -> list[str]:
    cells = [method.name]
    if outcome.table.planted:
        cells.append(f"{np.mean(method.found):.1f}")
    for judge in outcome.comparison.judges:
        differences = outcome.comparison.differences(method, judge)
        cells.append(f"{outcome.comparison.mean(method, judge):.3f}")
        mean = round(float(differences.mean()), 3) + 0.0  # avoid "-0"
        plus = "" if len(differences) == 1 else f" ± {spread(differences):.3f}"
        cells.append("" if method.name == OURS else f"{mean:+.3f}{plus}")
    return cells


def as_png(outcomes: list[Outcome]) -> bytes:
    """Draw, for each table, the chosen columns (left) and every method's scores (right)."""
    most = MOST_BARS if len(outcomes) == 1 else BARS_OF_MANY
    heights = [_height(outcome, most) for outcome in outcomes]
    ratios = {"width_ratios": (1.0, 1.25), "height_ratios": heights}
    layout = len(outcomes), 2
    figure, axes = picture(11.5, sum(heights), *layout, squeeze=False, gridspec_kw=ratios)
    for (left, right), outcome in zip(axes, outcomes, strict=True):
        table = outcome.table
        if table.image_shape:
            _draw_pixels(left, outcome)
        else:
            _draw_bars(left, outcome, most)
        _draw_scores(right, outcome.comparison)
        if len(outcomes) > 1:
            right.set_title(f"{_name(table)}: every method on the same splits", color=INK)
    handles, labels = axes[0, 1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower right", ncols=2, frameon=False, fontsize=8)
    if len(outcomes) == 1:
        entitled(figure, f"{_name(table)}: columns to predict {_target(table)}")
    return png(figure)


def _height(outcome: Outcome, most: int) -> float:
    """Return the height of a table's part of the picture, in inches."""
    if outcome.table.image_shape:
        return 5.0
    return max(4.0, 1.4 + 0.24 * len(_barred(outcome, most)))


def _barred(outcome: Outcome, most: int) -> list[int]:
    """Return the columns whose bars are drawn: the chosen ones, and others with a weight."""
    weights = _of_columns(outcome, outcome.selector.weights_)
    chosen = _chosen(outcome)
    order = ordered(outcome)
    return [i for n, i in enumerate(order) if n < chosen or weights[i] >= SEEN][:most]


def _name(table: Table) -> str:
    return shortened(table.name, LONGEST)


def _target(table: Table) -> str:
    return shortened(table.target, LONGEST)


def _draw_pixels(axes: Any, outcome: Outcome) -> None:
    from matplotlib.patches import Rectangle

    table = outcome.table
    assert table.image_shape is not None
    rows, columns = table.image_shape
    axes.imshow(table.X.mean(0).reshape(rows, columns), cmap="Greys", vmin=0)
    for place, i in enumerate(ranked(outcome), start=1):
        row, column = divmod(i, columns)
        corner = (column - 0.44, row - 0.44)
        frame = Rectangle(corner, 0.88, 0.88, fill=False, edgecolor=ACCENT, linewidth=2.5)
        axes.add_patch(frame)
        badge = {"boxstyle": "circle,pad=0.18", "facecolor": ACCENT, "edgecolor": "none"}
        style = {"color": "white", "fontsize": 7, "ha": "center", "va": "center", "bbox": badge}
        axes.text(column, row, str(place), **style)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_color(QUIET)
    axes.set_title(f"{_chosen(outcome)} of {rows * columns} pixels over the mean image", color=INK)
    axes.set_xlabel("numbered by weight, then score: best first", color=INK)


def _draw_bars(axes: Axes, outcome: Outcome, most: int) -> None:
    columns, chosen, order = outcome.table.columns, _chosen(outcome), _barred(outcome, most)
    colours = [ACCENT if place < chosen else QUIET for place in range(len(order))]
    places = np.arange(len(order))
    weights = _of_columns(outcome, outcome.selector.weights_)
    axes.barh(places, weights[order], color=colours, height=0.7)
    names = [name if len(name) <= 28 else name[:27] + "…" for name in (columns[i] for i in order)]
    # Matplotlib reads a dollar sign as the start of a formula.
    axes.set_yticks(places, [name.replace("$", r"\$") for name in names], fontsize=8)
    axes.set(xlim=(0, 1.02), ylim=(len(order) - 0.4, -0.6))
    axes.set_xlabel("weight: share of the networks' votes", color=INK)
    shown = "" if len(order) == len(columns) else f" (the first {len(order)} shown)"
    title = f"{chosen} of {len(columns)} columns chosen{shown}"
    axes.set_title(title, color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="y", length=0)


def _draw_scores(axes: Axes, comparison: Comparison) -> None:
    judges = list(comparison.judges)
    for number, method in enumerate(comparison.methods):
        colour = ACCENT if method.name == OURS else INK
        for judge, shift, marker in zip(judges, (-0.16, 0.16), ("o", "s"), strict=True):
            scores = method.scores[judge]
            faint: Any = {"color": colour, "alpha": 0.25, "s": 14, "linewidths": 0}
            axes.scatter(scores, np.full(len(scores), number + shift), marker=marker, **faint)
            face = colour if marker == "o" else "white"
            solid: Any = {"s": 46, "linewidths": 1.5, "facecolor": face, "edgecolor": colour}
            label = f"{judge} (mean; pale: each split)" if number == 0 else None
            place = [np.mean(scores)], [number + shift]
            axes.scatter(*place, marker=marker, label=label, zorder=3, **solid)
    axes.set_yticks(range(len(comparison.methods)), [each.name for each in comparison.methods])
    axes.set_ylim(len(comparison.methods) - 0.4, -0.6)
    axes.grid(axis="x", color="#e6e6e6")
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(f"held-out {comparison.score_name}", color=INK)
    axes.set_title("every method on the same splits", color=INK)
