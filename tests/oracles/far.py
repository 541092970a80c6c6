"""Choices among logits however far apart, by enumeration with 70 digits; and such logits."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
from mpmath import mp, mpf, workdps

DIGITS = 70


def far_rows(count: int, dtype: str, most: int = 5, seed: int = 0) -> list[np.ndarray]:
    """Rows of 2 to `most` logits: wide, shifted, nearly tied, with one or all of them far off."""
    rng, rows = np.random.default_rng(seed), []
    for i in range(count):
        n, far = int(rng.integers(2, most + 1)), 10 ** rng.uniform(-3, 30)
        y = rng.standard_normal(n)
        match i % 6:
            case 0:
                y = y * far
            case 1 | 2:
                y[rng.integers(n)] = far * (-1) ** i
            case 3:
                y = y + rng.choice([1e3, 1e5, 1e6, -1e6])
            case 4:
                y = y * 10 ** rng.uniform(-3, 30, n)
            case 5:
                y = np.where(np.arange(n) < n // 2, 1 + 1e-6, 1) * far
        rows.append(y.astype(dtype))
    return rows


def log_sum(values: list) -> Any:
    top = max(values)
    return top + mp.log(sum(mp.exp(value - top) for value in values))


def numbers(values: Any) -> np.ndarray:
    return np.array([float(value) for value in values])


class Far(NamedTuple):
    subsets: np.ndarray
    log_prob: list
    log_partition: Any
    marginals: list
    entropy: Any

    def divergence(self, other: Far) -> tuple[float, np.ndarray]:
        """KL from `other`, and its gradient in the logits of this one."""
        with workdps(DIGITS):
            terms = [
                (mp.exp(own), own - its)
                for own, its in zip(self.log_prob, other.log_prob, strict=True)
            ]
            slope = [
                sum(
                    p * gap * (int(s[i]) - pi)
                    for (p, gap), s in zip(terms, self.subsets, strict=True)
                )
                for i, pi in enumerate(self.marginals)
            ]
            return float(sum(p * gap for p, gap in terms)), numbers(slope)


def subsets_of(y: np.ndarray, k: int) -> Far:
    with workdps(DIGITS):
        exact = [mpf(float(value)) for value in y]
        chosen = list(itertools.combinations(range(len(y)), k))
        scores = [sum((exact[i] for i in members), mpf(0)) for members in chosen]
        log_z = log_sum(scores)
        log_p = [score - log_z for score in scores]
        p = [mp.exp(value) for value in log_p]
        rows = np.array([[i in members for i in range(len(y))] for members in chosen])
        pi = [sum(q for q, row in zip(p, rows, strict=True) if row[i]) for i in range(len(y))]
        return Far(rows, log_p, log_z, pi, -sum(a * b for a, b in zip(p, log_p, strict=True)))


def order_of(y: np.ndarray, order: Any) -> tuple[Any, list]:
    """log P of a Plackett–Luce draw in order, and its gradient."""
    with workdps(DIGITS):
        exact, left = [mpf(float(value)) for value in y], list(range(len(y)))
        log_p, slope = mpf(0), [mpf(0)] * len(y)
        for i in order:
            log_z = log_sum([exact[j] for j in left])
            log_p += exact[i] - log_z
            slope[i] += 1
            for j in left:
                slope[j] -= mp.exp(exact[j] - log_z)
            left.remove(i)
        return log_p, slope


def set_of(y: np.ndarray, drawn: Any) -> tuple[Any, list]:
    """The same for a draw in any order."""
    with workdps(DIGITS):
        orders = [order_of(y, order) for order in itertools.permutations(drawn)]
        log_p = log_sum([one for one, _ in orders])
        weights = [mp.exp(one - log_p) for one, _ in orders]
        slopes = zip(*(slope for _, slope in orders), strict=True)
        return log_p, [sum(map(mp.fmul, weights, slope)) for slope in slopes]
