"""Draw the idea of kofn in one picture, for the first page of the documentation: `make docs`."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patheffects import withStroke

from kofn import links, soft_topk, soft_topk_threshold

IMAGE = Path(__file__).parent / "images" / "idea.png"
INK, FAINT, BLUE, ORANGE = "#222222", "#9aa4ae", "#0072B2", "#D55E00"
SCORES = np.array([-2.3, -1.5, -0.7, -0.2, 0.5, 1.2, 1.6, 2.7])
K, T = 3, 0.5


def draw(axes: plt.Axes) -> None:
    """The link at the threshold where the weights sum to k, and at two where they do not."""
    x = np.linspace(-3.4, 3.6, 800)
    level = float(soft_topk_threshold(SCORES, K, temperature=T))
    weights = soft_topk(SCORES, K, temperature=T)
    for shift, beside, height, side in ((-1.5, -0.1, 0.52, "right"), (1.5, -0.46, 0.21, "left")):
        other = level + shift
        total = links.logistic.cdf((SCORES - other) / T).sum()
        axes.plot(x, links.logistic.cdf((x - other) / T), color=FAINT, lw=1.3, ls="--", zorder=1)
        said = {"color": "#6b6b6b", "ha": side, "va": "center"}
        axes.text(other + beside, height, f"sum {total:.1f}", **said)
    axes.plot(x, links.logistic.cdf((x - level) / T), color=BLUE, lw=2.4, zorder=2)
    axes.vlines(SCORES, 0, weights, color=BLUE, lw=7, alpha=0.3, zorder=1)
    axes.plot(SCORES, weights, "o", color=BLUE, ms=8, zorder=3)
    axes.plot(SCORES, 0 * SCORES, "|", color=INK, ms=12, mew=1.6, zorder=3, clip_on=False)
    for score, weight in zip(SCORES, weights, strict=True):
        shift, align = ((10, -13), "left") if weight > 0.5 else ((-8, 4), "right")
        said = {"color": BLUE, "weight": "bold", "ha": align, "textcoords": "offset points"}
        around = [withStroke(linewidth=3, foreground="white")]
        axes.annotate(f"{weight:.2f}", (score, weight), shift, path_effects=around, **said)
    axes.axvline(level, color=ORANGE, lw=1.4, ymax=0.9, zorder=0)
    said = {"color": ORANGE, "weight": "bold", "ha": "center"}
    axes.text(level, 1.1, f"θ: here the weights sum to {K}", **said)
    axes.set(xlim=(-3.4, 3.6), ylim=(0, 1.16), yticks=[0, 0.5, 1], xticks=[])
    axes.set_yticklabels(["0", "½", "1"])
    axes.set_xlabel("scores x", labelpad=10)
    axes.set_ylabel("weight F((x − θ)/T)")


def main() -> None:
    style = {"font.size": 11, "text.color": INK, "axes.labelcolor": INK, "ytick.color": INK}
    plt.rcParams.update({**style, "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = plt.subplots(figsize=(8, 3.7), layout="constrained")
    draw(axes)
    IMAGE.parent.mkdir(exist_ok=True)
    figure.savefig(IMAGE, dpi=170, facecolor="white", metadata={"Software": None})
    print(f"wrote {IMAGE}")


if __name__ == "__main__":
    main()
