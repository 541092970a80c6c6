"""Draw the rooms of src/kofn, floor above floor, and what imports what: `make docs`.

The arrows come from the code: `tests/layers.py` reads the imports. Only places and captions of the
boxes are written here.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle
from matplotlib.path import Path as Curve

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from layers import FLOORS, LEVEL, SOURCES, rooms_below, without_detours

IMAGE = Path(__file__).parent / "images" / "rooms.png"
INK, QUIET, LINE, BANDS = "#222222", "#6b6b6b", "#8fa3b8", ("#f3f5f8", "#e9edf2")
PUBLIC, INTERNAL = "#0072B2", "#5f6b76"
STEP, HEIGHT = 1.36, 0.74  # of a floor, and of a box on it


class Box(NamedTuple):
    """Where a room stands, from left to right, and what is said of it."""

    middle: float
    width: float
    caption: str
    public: bool = True


BOXES = {
    "__main__": Box(5.0, 2.3, "python -m kofn"),
    "commands": Box(5.0, 4.6, "kofn select, compare, apply, bench"),
    "feature_selection": Box(10.75, 2.5, "SoftTopKSelector"),
    "onnx": Box(8.45, 1.4, "for torch.onnx"),
    "integrations": Box(6.7, 2.0, "for transformers"),
    "nn": Box(6.47, 2.5, "TopKRouter, SparseAttention"),
    "distributed": Box(5.0, 2.7, "rows in several processes"),
    "estimators": Box(1.9, 2.7, "gradients of E f(S)"),
    "distributions": Box(1.9, 2.7, "KSubset, Categorical, …"),
    "losses": Box(5.0, 2.7, "topk_loss, softmax_loss, …"),
    "metrics": Box(7.9, 2.6, "softness, temperature_for"),
    "projections": Box(9.33, 1.65, "simplices, balls, …"),
    "balance": Box(7.4, 1.7, "even loads"),
    "subsets": Box(1.9, 2.7, "probabilities of k-subsets", public=False),
    "maps": Box(5.0, 2.7, "soft_topk, softmax, …"),
    "classic": Box(7.9, 2.6, "older maps, to compare"),
    "streaming": Box(10.75, 2.6, "rows in files"),
    "adapters": Box(5.0, 2.7, "θ and answers, by framework", public=False),
    "operations": Box(5.0, 2.7, "declared, each once", public=False),
    "formulas": Box(5.0, 2.7, "answers at θ, in array code", public=False),
    "rows": Box(5.0, 2.7, "what a caller gives, checked", public=False),
    "solver": Box(2.1, 2.6, "θ, in array code", public=False),
    "kernels": Box(5.0, 2.6, "θ and weights, compiled", public=False),
    "links": Box(5.0, 2.5, "the functions F"),
    "schedules": Box(10.5, 2.9, "T over a training run"),
    "arrays": Box(6.25, 11.4, "what NumPy, PyTorch and JAX do differently", public=False),
}


def base(room: str) -> float:
    """The height of the lower edge of a room's box."""
    return STEP * LEVEL[room]


def spread(room: str, others: set[str], width: float) -> dict[str, float]:
    """Where arrows to or from other rooms meet an edge of a box: in the order of those rooms."""
    box = BOXES[room]
    if box.width > 6:  # straight down on a wide box
        return {other: BOXES[other].middle for other in others}
    order = sorted(others, key=lambda other: (BOXES[other].middle, -LEVEL[other]))
    gap = width * box.width / max(len(order), 2)
    return {other: box.middle + gap * (i - (len(order) - 1) / 2) for i, other in enumerate(order)}


def draw_floor(axes: Axes, level: int) -> None:
    low = STEP * level - (STEP - HEIGHT) / 2
    axes.add_patch(Rectangle((-0.6, low), 12.9, STEP, color=BANDS[level % 2], lw=0, zorder=0))
    axes.text(
        -0.15, low + STEP / 2, str(level + 1), color=QUIET, fontsize=15, ha="center", va="center"
    )


def draw_box(axes: Axes, room: str) -> None:
    box, low = BOXES[room], base(room)
    colour = PUBLIC if box.public else INTERNAL
    corner, size = (box.middle - box.width / 2 + 0.1, low + 0.1), (box.width - 0.2, HEIGHT - 0.2)
    shape = FancyBboxPatch(
        corner, *size, boxstyle="round,pad=0.1", fc="white", ec=colour, lw=1.5, zorder=3
    )
    axes.add_patch(shape)
    place = {"ha": "center", "va": "center", "zorder": 4}
    name = {"fontfamily": "DejaVu Sans Mono", "fontsize": 12, "weight": "bold", "color": colour}
    axes.text(box.middle, low + 0.66 * HEIGHT, room, **name, **place)
    axes.text(box.middle, low + 0.27 * HEIGHT, box.caption, fontsize=9, color=INK, **place)


def draw_arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    """Straight down to the floor above the target, then a curve that arrives upright."""
    turn = end[1] + STEP - HEIGHT
    bend = 0.5 * (turn - end[1])
    points = [start, (start[0], turn), (start[0], turn - bend), (end[0], end[1] + bend), end]
    curve = Curve(points, [Curve.MOVETO, Curve.LINETO, *3 * [Curve.CURVE4]])
    head = "-|>,head_length=5,head_width=2.8"
    axes.add_patch(FancyArrowPatch(path=curve, arrowstyle=head, color=LINE, lw=1.5, zorder=2))


def draw(image: Path) -> None:
    graph = without_detours(rooms_below(SOURCES))
    figure, axes = plt.subplots(figsize=(11, 12.2))
    for level in range(len(FLOORS)):
        draw_floor(axes, level)
    for room in graph:
        draw_box(axes, room)
    starts = {room: spread(room, below, 0.8) for room, below in graph.items()}
    for room in graph:
        above = {other for other, below in graph.items() if room in below}
        for other, x in spread(room, above, 0.8).items():
            draw_arrow(axes, (starts[other][room], base(other)), (x, base(room) + HEIGHT))
    legend = {"ha": "right", "va": "center", "fontsize": 10.5}
    top = base("__main__") + HEIGHT / 2
    axes.text(12.0, top + 0.16, "blue: public", color=PUBLIC, weight="bold", **legend)
    axes.text(12.0, top - 0.16, "grey: internal", color=INTERNAL, weight="bold", **legend)
    axes.set(xlim=(-0.6, 12.3), ylim=(-0.31, STEP * len(FLOORS) - 0.31))
    axes.axis("off")
    figure.subplots_adjust(0, 0, 1, 1)
    figure.savefig(image, dpi=140, facecolor="white", metadata={"Software": None})
    plt.close(figure)


def main() -> None:
    IMAGE.parent.mkdir(exist_ok=True)
    draw(IMAGE)
    print(f"wrote {IMAGE}")


if __name__ == "__main__":
    main()
