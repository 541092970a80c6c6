"""The k-subset distribution by other means: all subsets for small n, an 80-bit table for more."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np

LD = np.longdouble


class Enumerated(NamedTuple):
    subsets: np.ndarray  # (subsets, n) of 0 and 1
    probabilities: np.ndarray
    log_partition: float
    marginals: np.ndarray
    entropy: float
    covariance: np.ndarray


def enumerate_subsets(y: np.ndarray, k: int) -> Enumerated:
    """Every subset of size k of the finite logits of one row."""
    y = np.asarray(y, LD)
    live = np.flatnonzero(y != -np.inf)
    chosen = list(itertools.combinations(live, k))
    subsets = np.zeros((len(chosen), len(y)), LD)
    for row, members in zip(subsets, chosen, strict=True):
        row[list(members)] = 1
    score = np.array([y[list(members)].sum() for members in chosen], LD)
    log_z = np.logaddexp.reduce(score)
    p = np.exp(score - log_z)
    marginals = p @ subsets
    covariance = (subsets.T * p) @ subsets - np.outer(marginals, marginals)
    return Enumerated(subsets, p, log_z, marginals, -(p * (score - log_z)).sum(), covariance)


class Tabled(NamedTuple):
    log_partition: np.longdouble
    marginals: np.ndarray


def table(y: np.ndarray, k: int) -> Tabled:
    """log Z and marginals of one row by the O(nk) recursion over prefixes and suffixes."""
    y = np.asarray(y, LD)
    n = len(y)
    order = np.sort(y)[::-1]
    shift = order[max(k - 1, 0) : k + 1].mean()  # keeps the table's numbers small
    z = y - shift

    def prefixes(z: np.ndarray) -> np.ndarray:
        log_e = np.full((n + 1, k + 1), -np.inf, LD)
        log_e[0, 0] = 0
        for i in range(n):
            log_e[i + 1] = log_e[i]
            log_e[i + 1, 1:] = np.logaddexp(log_e[i, 1:], log_e[i, :-1] + z[i])
        return log_e

    before, after = prefixes(z), prefixes(z[::-1])[::-1]
    log_z = before[n, k]
    # Item i joins j of those before it and k − 1 − j of those after.
    joint = before[:-1, :k] + after[1:, :k][:, ::-1] + z[:, None] - log_z
    return Tabled(log_z + k * shift, np.exp(joint).sum(axis=1))


def split_counts(y: np.ndarray, k: int, m: int) -> np.ndarray:
    """How likely the first m entries hold j of the k, for j = 0 … k."""
    z = np.asarray(y, LD) - np.sort(y)[-k]

    def sizes(z: np.ndarray) -> np.ndarray:
        log_e = np.full(k + 1, -np.inf, LD)
        log_e[0] = 0
        for value in z:
            log_e[1:] = np.logaddexp(log_e[1:], log_e[:-1] + value)
        return log_e

    joint = sizes(z[:m]) + sizes(z[m:])[::-1]
    return np.exp(joint - np.logaddexp.reduce(joint)).astype(float)
