"""The screening of wide tables: which columns are worth the training of a network.

One column at a time is not enough: where y depends on the product of two columns, neither alone
tells anything. So the products of all pairs are looked at too, which is one product of matrices.
"""

from __future__ import annotations

import numpy as np

__all__ = ["screening_order"]

# A pair's correlation with a target is seen from 0.1 on with this many rows; more cost time only.
MOST_ROWS = 4_000
# Beyond these standard deviations a column is cut, so that no single row makes a product large.
WIDEST = 3.0
# Columns at a time, for memory.
BLOCK = 1_024


def screening_order(
    columns: np.ndarray,
    signals: np.ndarray,
    importance: np.ndarray | None,
    members: np.ndarray,
    rng: np.random.RandomState,
) -> np.ndarray:
    """Return the groups of columns, most promising first.

    Every group has two marks: the largest correlation of one of its columns with a signal, and
    the largest covariance of a signal with the product of one of its columns and any other. The
    order takes from the two rankings in turn. A target that depends on three or more columns only
    jointly shows in neither.

    Args:
        columns: (rows, n), each of mean 0 and variance 1.
        signals: (rows, targets) what to predict, each of mean 0 and variance 1.
        importance: (rows,) of mean 1, or None.
        members: (n,) the group of each column.
        rng: draws the rows to look at, if there are more than 4,000.

    Returns:
        (groups,) indices. It takes rows · n² · targets multiplications.
    """
    alone = _covariance(columns, signals, importance).max(0)
    if len(columns) > MOST_ROWS:
        part = rng.choice(len(columns), MOST_ROWS, replace=False)
        columns, signals = columns[part], signals[part]
        importance = None if importance is None else importance[part]
    cut = np.clip(columns, -WIDEST, WIDEST)
    marks = (alone, _pairs(cut, signals, importance))
    rankings = [np.argsort(-_of_groups(mark, members), kind="stable") for mark in marks]
    # First of one, first of the other, second of one, …; a dictionary keeps each group's first.
    return np.array(list(dict.fromkeys(np.stack(rankings, 1).ravel().tolist())))


def _pairs(columns: np.ndarray, signals: np.ndarray, importance: np.ndarray | None) -> np.ndarray:
    """Return (n,): the largest |covariance| of a signal and a column's product with another."""
    best = np.zeros(columns.shape[1], dtype=columns.dtype)
    for signal in signals.T:
        marked = columns * signal[:, None]
        for start in range(0, len(best), BLOCK):
            block = slice(start, start + BLOCK)
            covariances = _covariance(columns, marked[:, block], importance)
            best[block] = np.maximum(best[block], covariances.max(1))
    return best


def _covariance(
    columns: np.ndarray, signals: np.ndarray, importance: np.ndarray | None
) -> np.ndarray:
    """Return (targets, n): |mean over the rows of signal · column|."""
    counted = signals if importance is None else signals * importance[:, None]
    return np.abs(counted.T @ columns) / len(columns)


def _of_groups(marks: np.ndarray, members: np.ndarray) -> np.ndarray:
    best = np.zeros(members.max() + 1, dtype=marks.dtype)
    np.maximum.at(best, members, marks)
    return best
