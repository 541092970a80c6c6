"""Print how far an installed kofn is from the oracles, for each link and dtype.

It needs NumPy, SciPy and mpmath. The figures are the largest error of a weight, and of Σp as a
share of k, in units of the last place of 1.
"""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import oracles
from kofn import soft_topk

SHAPES = [(2, 1), (8, 2), (64, 8), (100, 95), (100, 2.5), (500, 200)]
SPREADS = [0.1, 1.0, 5.0, 50.0]


def errors(link: str, dtype: str) -> tuple[float, float]:
    """Return the largest error of a weight, and of Σp as a share of k."""
    rng = np.random.default_rng(0)
    weight = total = 0.0
    for n, k in SHAPES:
        x = np.concatenate([rng.standard_normal((3, n)) * spread for spread in SPREADS])
        p = soft_topk(x.astype(dtype), k, link=link)
        expected = oracles.soft_topk(x.astype(dtype), k, 1.0, oracles.CDF[link])
        weight = max(weight, float(np.max(np.abs(p - expected))))
        total = max(total, float(np.max(np.abs(p.sum(-1, dtype="float64") / k - 1))))
    last = float(np.finfo(dtype).eps)
    return weight / last, total / last


def main() -> None:
    print(f"{'link':12} {'dtype':8} {'weight':>8} {'sum':>8}")
    for link in oracles.CDF:
        for dtype in ("float32", "float64"):
            weight, total = errors(link, dtype)
            print(f"{link:12} {dtype:8} {weight:8.1f} {total:8.1f}")


if __name__ == "__main__":
    main()
