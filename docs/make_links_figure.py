"""Draw the picture of the README: `make docs`."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from table_of_links import ROWS

from kofn import soft_topk
from kofn.commands.compare.report import FAINT
from kofn.commands.results import INK
from kofn.links import table

COLOURS = {name: link.colour or FAINT for name, link in table.TABLE.items()}
IMAGES = Path(__file__).parent / "images"

SCORES = np.array([3.1, 2.5, 1.7, 1.5, 1.0, 0.7, 0.3, -0.1, -0.5, -1.2, -1.8, -2.6])
K = 3


def draw_links(axes: Axes) -> None:
    """F(z) of every link; the kinks and tails are what tells them apart."""
    z = np.linspace(-3.2, 3.2, 1281)
    for name, link in table.TABLE.items():
        axes.plot(z, link.cdf(z), color=COLOURS[name], lw=2.2, solid_capstyle="round")
    for height in (0, 1):
        axes.axhline(height, color=FAINT, lw=0.6, zorder=0)
    for name, row in ROWS.items():
        at, place, align = row.label
        point = (at, float(table.TABLE[name].cdf(np.array(at))))
        axes.annotate(
            name,
            xy=point,
            xytext=place,
            color=COLOURS[name],
            weight="bold",
            ha=align,
            va="center",
            arrowprops={"arrowstyle": "-", "color": COLOURS[name], "lw": 1, "shrinkA": 1},
        )
        axes.plot(*point, "o", color=COLOURS[name], ms=4)
    axes.set(xlim=(-3.2, 3.2), ylim=(-0.06, 1.16), yticks=[0, 0.5, 1], xticks=[-2, 0, 2])
    axes.set_yticklabels(["0", "½", "1"])
    axes.set_xlabel("z = (x − θ) / T")
    axes.set_title("The links F(z)", loc="left")
    axes.tick_params(length=0)


def draw_weights(axes: Axes) -> None:
    """One row of scores through each link: bars as high as the weight, circles where it is 0."""
    places = np.arange(len(SCORES))
    names = list(table.TABLE)
    for row, name in enumerate(names):
        weights = soft_topk(SCORES, K, link=name)
        base, height = len(names) - 1 - row, 0.76
        axes.bar(places, height * weights, bottom=base, width=0.72, color=COLOURS[name])
        axes.axhline(base, color=FAINT, lw=0.6, zorder=0)
        for place in places[weights == 0]:
            axes.plot(place, base + 0.11, "o", ms=4.5, mfc="white", mec=COLOURS[name], mew=1)
        for place in places[weights == 1]:
            axes.text(place, base + height - 0.1, "1", color="white", ha="center", va="top")
        axes.text(-0.8, base + 0.06, name, color=COLOURS[name], ha="right", weight="bold")
    axes.set_title(f"F((x − θ) / T) for twelve scores, k = {K}", loc="left")
    axes.set_xticks(places, [f"{score:.1f}".replace("-", "−") for score in SCORES])
    axes.set(yticks=[], xlim=(-0.7, len(SCORES) - 0.4), ylim=(-0.3, len(names) - 0.05))
    axes.set_xlabel(f"scores x    (each row of weights sums to {K};  ○ is exactly 0)")
    axes.tick_params(length=0)


def main() -> None:
    plt.rcParams.update(
        {
            "font.family": "DejaVu Sans",
            "font.size": 11,
            "axes.titlesize": 12.5,
            "axes.titleweight": "bold",
            "axes.titlepad": 12,
            "text.color": INK,
            "axes.labelcolor": INK,
            "axes.titlecolor": INK,
            "xtick.color": INK,
            "ytick.color": INK,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.spines.left": False,
            "axes.spines.bottom": False,
        }
    )
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(11.4, 4.6), width_ratios=[1, 1.22], layout="constrained"
    )
    figure.get_layout_engine().set(wspace=0.08, w_pad=0.15, h_pad=0.15)
    draw_links(left)
    draw_weights(right)
    IMAGES.mkdir(exist_ok=True)
    figure.savefig(IMAGES / "links.png", dpi=160, facecolor="white", metadata={"Software": None})
    print(f"wrote {IMAGES / 'links.png'}")


if __name__ == "__main__":
    main()
