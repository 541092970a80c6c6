"""Slow and certain: prices by bisection in 80 bits or with mpmath, and the greedy knapsack."""

from __future__ import annotations

import mpmath
import numpy as np

from oracles import CDF, LD


def weights(
    x: np.ndarray, costs: np.ndarray, budget: np.ndarray, link: str, halvings: int = 260
) -> np.ndarray:
    """Weights at temperature 1 of every row of x (…, n), by bisection in 80 bits."""
    x, c, b = (np.asarray(a, LD) for a in (x, costs, budget))
    high = np.full(x.shape[:-1], LD(1e30))
    low = -high
    for _ in range(halvings):
        middle = (low + high) / 2
        if ((middle == low) | (middle == high)).all():
            break
        with np.errstate(all="ignore"):
            above = (c * CDF[link](x - middle[..., None] * c)).sum(-1) > b
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    with np.errstate(all="ignore"):
        return CDF[link](x - ((low + high) / 2)[..., None] * c)


def plateau(x: list[float], costs: list[float], budget: float, temperature: float) -> float:
    """The price of one row with logistic weights, whose tails may have any exponent."""
    with mpmath.workdps(40):
        row = [(mpmath.mpf(v), mpmath.mpf(c)) for v, c in zip(x, costs, strict=True)]

        def excess(theta: mpmath.mpf) -> mpmath.mpf:
            z = [((v - theta * c) / temperature, c) for v, c in row]
            tails = [(mpmath.exp(-abs(v)) / (1 + mpmath.exp(-abs(v))), c, v > 0) for v, c in z]
            whole = mpmath.fsum(c for _, c, upper in tails if upper) - mpmath.mpf(budget)
            return whole + mpmath.fsum(-c * t if upper else c * t for t, c, upper in tails)

        low, high = mpmath.mpf(-1000), mpmath.mpf(1000)
        for _ in range(120):
            middle = (low + high) / 2
            low, high = (middle, high) if excess(middle) > 0 else (low, middle)
        return float(low)


def fractional(x: np.ndarray, costs: np.ndarray, budget: float) -> np.ndarray:
    """The fractional knapsack of one row of positive costs: by density, the last one in part."""
    chosen, left = np.zeros(len(x)), budget
    for i in np.argsort(-x / costs, kind="stable"):
        chosen[i] = min(1.0, left / costs[i])
        left -= chosen[i] * costs[i]
    return chosen


def rows(
    rng: np.random.Generator, count: int, n: int, dtype: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores, costs and budgets: spreads of 1e-6 to 1e6, near ties, integer costs, plateaus."""
    x = rng.standard_normal((count, n)) * 10.0 ** rng.uniform(-6, 6, (count, 1))
    tied = x[:, :1] * (1 + 1e-6 * rng.integers(-1, 2, x.shape))
    x = np.where(rng.random((count, 1)) < 0.2, tied, x).astype(dtype)
    wide = 10.0 ** (rng.uniform(-3, 3, x.shape) * rng.uniform(0, 1, (count, 1)))
    whole = rng.integers(0, 6, x.shape)
    integer = rng.random((count, 1)) < 0.3
    costs = np.where(integer, whole, wide).astype(dtype)
    costs[:, 0] = np.maximum(costs[:, 0], 1e-3)
    total = costs.sum(-1, dtype=np.float64)
    budget = np.where(
        integer[:, 0],
        np.clip(rng.integers(1, 30, count), 0.5, total - 0.5),
        total * 10.0 ** rng.uniform(-6, 0, count),
    )
    return x, costs, np.clip(budget, 1e-3 * total, None).astype(dtype)
