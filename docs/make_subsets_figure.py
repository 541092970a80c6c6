"""Draw the picture of docs/subsets.md, the error of marginals against k, and print its table."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from kofn import KSubset, soft_topk

IMAGES = Path(__file__).parent / "images"
INK, FAINT = "#222222", "#8a8a8a"
N = 1000
SIZES = [1, 2, 3, 5, 8, 12, 20, 30, 50, 80, 130, 200, 300, 450, 600, 750, 870, 940, 980, 998]
WAYS = {
    ("recursion", "float64"): ("#D55E00", "-"),
    ("recursion", "float32"): ("#D55E00", ":"),
    ("table, O(nk)", "float32"): ("#0072B2", ":"),
    ("KSubset", "float64"): ("#009E73", "-"),
    ("KSubset", "float32"): ("#009E73", ":"),
}


def recursion(y: np.ndarray, k: int) -> np.ndarray:
    """The articles' GradTopK: π_k,i = e^{y_i}(Z_{k−1} − Z_{k−1,i})/Z_k, in logarithms."""
    log_zs, log_z = y, np.logaddexp.reduce(y)
    for size in range(2, k + 1):
        log_zs = y + log_z + np.log(1 - np.exp(log_zs - log_z))
        log_z = np.logaddexp.reduce(log_zs) - np.log(y.dtype.type(size))
    return np.exp(log_zs - log_z)


def table(y: np.ndarray, k: int, dtype: Any) -> np.ndarray:
    """Dynamic programming: log Σ over subsets of size j of the first i entries, and of the rest."""
    y = y.astype(dtype)

    def sizes(y: np.ndarray) -> np.ndarray:
        log_e = np.full((N + 1, k + 1), -np.inf, dtype)
        log_e[0, 0] = 0
        for i in range(N):
            log_e[i + 1] = log_e[i]
            log_e[i + 1, 1:] = np.logaddexp(log_e[i, 1:], log_e[i, :-1] + y[i])
        return log_e

    before, after = sizes(y), sizes(y[::-1])[::-1]
    joint = before[:-1, :k] + after[1:, :k][:, ::-1] + y[:, None] - before[N, k]
    return np.exp(joint).sum(axis=1)


def errors(std: float) -> dict[tuple[str, str], list[float]]:
    """The largest error of a marginal at each k; NaN where the way gives that."""
    y = (np.random.default_rng(1).standard_normal(N) * std).astype(np.float32)
    found: dict[tuple[str, str], list[float]] = {way: [] for way in WAYS}
    for k in SIZES:
        exact = table(y, k, np.longdouble)
        for name, dtype in WAYS:
            x = y.astype(dtype)
            if name == "recursion":
                got = recursion(x, k)
            else:
                got = KSubset(x, k).marginals() if name == "KSubset" else table(x, k, np.float32)
            error = float(np.abs(got - exact).max())
            found[name, dtype].append(max(error, 1e-17) if error < 1e3 else np.nan)
    return found


def draw(axes: Axes, std: float) -> None:
    for (name, dtype), values in errors(std).items():
        colour, style = WAYS[name, dtype]
        axes.plot(SIZES, values, style, color=colour, lw=2, label=f"{name}, {dtype}")
        known = np.flatnonzero(np.isfinite(values))
        if known.size < len(SIZES):  # where it ends in NaN
            axes.plot(SIZES[known[-1]], values[known[-1]], "x", color=colour, ms=8, mew=2)
    axes.axhline(1, color=FAINT, lw=0.6, zorder=0)
    axes.set(xscale="log", yscale="log", ylim=(3e-17, 1e3), xlabel="k")
    axes.set_title(f"n = {N}, standard deviation {std:g}", loc="left")


def first_failures() -> list[int]:
    """The least k at which the recursion gives NaN in float64, for 20 rows."""
    rng = np.random.default_rng(0)
    rows = 5 * rng.standard_normal((20, N))
    return [next(k for k in range(2, N) if np.isnan(recursion(y, k)).any()) for y in rows]


def differences() -> None:
    """Print max |π − soft_topk|, its mean over rows of normal scores, and that times V."""
    print("| n, k | standard deviation 1 | 5 | times V |\n| --- | --- | --- | --- |")
    for n, k in ((4, 2), (10, 5), (64, 8), (1000, 100), (1000, 500)):
        cells, scaled = [], []
        for std in (1.0, 5.0):
            shape = (20_000 if n < 1000 else 500, n)
            y = np.random.default_rng(0).standard_normal(shape) * std
            p = soft_topk(y, k)
            gap = np.abs(KSubset(y, k).marginals() - p).max(-1)
            cells.append(f"{gap.mean():.2g}")
            scaled.append(f"{(gap * (p * (1 - p)).sum(-1)).mean():.2g}")
        print(f"| {n:,}, {k} | {' | '.join(cells)} | {', '.join(scaled)} |")


def main() -> None:
    plt.rcParams.update({"font.size": 11, "text.color": INK, "axes.spines.top": False})
    plt.rcParams.update({"axes.spines.right": False})
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(11.4, 4.4), sharey=True, layout="constrained"
    )
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        draw(left, 1.0)
        draw(right, 5.0)
        fails = first_failures()
    print(
        f"the recursion first gives NaN at k = {min(fails)} to {max(fails)}, in {len(fails)} rows\n"
    )
    differences()
    left.set_ylabel("largest error of a marginal")
    left.legend(edgecolor="none", framealpha=1, fontsize=9, loc="upper right")
    IMAGES.mkdir(exist_ok=True)
    path = IMAGES / "subsets.png"
    figure.savefig(path, dpi=140, facecolor="white", metadata={"Software": None})
    print(f"\nwrote {path}")


if __name__ == "__main__":
    main()
