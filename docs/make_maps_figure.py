"""Draw the pictures of docs/maps.md and print its tables: `make docs`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes

from kofn import hard_topk, metrics, schedules, soft_topk, temperature_for
from kofn.commands.compare.report import FAINT
from kofn.commands.results import INK
from kofn.links import table

IMAGES = Path(__file__).parent / "images"
COLOURS = {name: link.colour or FAINT for name, link in table.TABLE.items()}
N, K = 32, 4
ROWS = np.random.default_rng(0).normal(size=(100, N))
CONSTANT = (0.03, 0.1, 0.3, 1.0, 3.0)
# The experiment: which 5 of 40 columns make y, learned with the regression that uses them.
RUNS, COLUMNS, PLANTED, SAMPLES, STEPS = 32, 40, 5, 100, 300


def boundary(rows: np.ndarray) -> np.ndarray:
    """Δ, the gap between the k-th largest score of each row and the next."""
    ordered = -np.sort(-rows, axis=-1)
    return ordered[:, K - 1] - ordered[:, K]


def draw_gap(axes: Axes) -> None:
    """The squared error against Δ/T, each row with its own Δ; the median over the rows."""
    ratio = np.linspace(0.2, 24, 120)
    delta = boundary(ROWS)
    for name, colour in COLOURS.items():
        t = delta[:, None] / ratio
        many = np.broadcast_to(ROWS[:, None], (*t.shape, N))
        p = soft_topk(many, K, link=name, temperature=t)
        squared = np.median(((p - hard_topk(many, K)) ** 2).sum(-1), axis=0)
        squared[squared < 1e-14] = np.nan
        axes.plot(ratio, squared, color=colour, lw=2, label=name)
    axes.plot(ratio, 2 * K * (N - K) * np.exp(-ratio), ":", color=FAINT, lw=1.5)
    axes.text(11, 6e-2, "2k(n − k) e^(−Δ/T)", color=FAINT, fontsize=9)
    axes.set(yscale="log", ylim=(1e-12, 1e2), xlabel="Δ / T", ylabel="‖p − hard top-k‖²")
    axes.set_title("How fast weights become hard", loc="left")
    axes.legend(frameon=False, fontsize=8.5, loc="lower left")


def draw_slope(axes: Axes) -> None:
    """The size of the gradient, at temperatures at which all links are equally soft."""
    shares = np.geomspace(1e-3, 0.85, 20)
    for name, colour in COLOURS.items():
        slopes = []
        for share in shares:
            t = temperature_for(ROWS, K, link=name, support=K + share * (N - K), per_row=True)
            norm = metrics.jacobian_norm(ROWS, K, link=name, temperature=t, norm="l1") / t
            slopes.append(np.median(norm))
        axes.plot(K + shares * (N - K), slopes, color=colour, lw=2)
    axes.set(xscale="log", yscale="log", xlabel="effective support", ylabel="½ Σ |∂p/∂x|")
    ticks = [4, 5, 6, 8, 12, 20]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_yticks([2, 3, 5, 10], ["2", "3", "5", "10"])
    axes.minorticks_off()
    axes.set_title("How much gradient is left", loc="left")


def learned(link: str, cool: Callable[[int], float]) -> np.ndarray:
    """The share of the true columns among the chosen ones, per run."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(RUNS, SAMPLES, COLUMNS, generator=rng)
    x[..., 1::2] = 0.7 * x[..., ::2] + 0.51**0.5 * x[..., 1::2]  # each has a neighbour like it
    truth = torch.argsort(torch.rand(RUNS, COLUMNS, generator=rng))[:, :PLANTED]
    effect = torch.zeros(RUNS, COLUMNS).scatter(1, truth, 1.0)
    effect *= torch.randn(RUNS, COLUMNS, generator=rng).sign()
    y = torch.einsum("rsc,rc->rs", x, effect) + torch.randn(RUNS, SAMPLES, generator=rng)
    scores = (0.01 * torch.randn(RUNS, COLUMNS, generator=rng)).requires_grad_()
    slopes = torch.zeros(RUNS, COLUMNS, requires_grad=True)
    adam = torch.optim.Adam([{"params": [scores], "lr": 0.05}, {"params": [slopes], "lr": 0.05}])
    for step in range(STEPS):
        weights = soft_topk(scores, PLANTED, link=link, temperature=cool(step))
        error = torch.einsum("rsc,rc->rs", x, weights * slopes) - y
        # What noise of 0.3 on the weighted columns adds: a small weight then costs information,
        # which the slopes could undo without it.
        blur = 0.09 * slopes.square().sum()
        loss = error.square().mean(-1).sum() + blur
        adam.zero_grad()
        loss.backward()
        adam.step()
    chosen = hard_topk(scores.detach(), PLANTED)
    return (chosen.gather(1, truth).sum(-1) / PLANTED).numpy()


def draw_learned(axes: Axes) -> dict[str, list[float]]:
    """The share of true columns found, at constant temperatures and with a schedule."""
    cooled = schedules.exponential(1.0, 0.03, steps=STEPS - 1)
    found = {}
    for name, colour in COLOURS.items():
        shares = [learned(name, schedules.constant(t)).mean() for t in CONSTANT]
        axes.plot(CONSTANT, shares, "o-", color=colour, lw=2, ms=4)
        found[name] = [*shares, learned(name, cooled).mean()]
        axes.plot(8, found[name][-1], "D", color=colour, ms=6, mec="white", clip_on=False)
    axes.set(xscale="log", xlim=(0.024, 11), ylim=(0, 1.02), xlabel="temperature")
    axes.set_xticks([0.03, 0.1, 0.3, 1, 3, 8], ["0.03", "0.1", "0.3", "1", "3", "1→0.03"])
    axes.minorticks_off()
    axes.set_ylabel("share of the true columns found")
    axes.set_title("What a training run finds", loc="left")
    return found


def tables(found: dict[str, list[float]]) -> None:
    """The rows of the tables of docs/maps.md."""
    print("\n| link | " + " | ".join(f"T = {t:g}" for t in CONSTANT) + " | 1 → 0.03 |")
    for name, shares in found.items():
        print(f"| `{name}` | " + " | ".join(f"{share:.2f}" for share in shares) + " |")
    print("\n| link | support 1.05k | 1.25k | 2k | 4k |")
    for name in COLOURS:
        cells = []
        for share in (1.05, 1.25, 2, 4):
            t = [
                temperature_for(ROWS, K, link=each, support=share * K)
                for each in (name, "logistic")
            ]
            cells.append(f"{float(t[0] / t[1]):.2f}")
        print(f"| `{name}` | " + " | ".join(cells) + " |")


def main() -> None:
    torch.set_num_threads(1)
    plt.rcParams.update({"font.size": 10.5, "text.color": INK, "axes.spines.top": False})
    plt.rcParams.update({"axes.spines.right": False, "axes.titleweight": "bold"})
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 4.2), layout="constrained")
    draw_gap(left)
    draw_slope(middle)
    tables(draw_learned(right))
    IMAGES.mkdir(exist_ok=True)
    path = IMAGES / "maps.png"
    figure.savefig(path, dpi=140, facecolor="white", metadata={"Software": None})
    print(f"\nwrote {path}")


if __name__ == "__main__":
    main()
