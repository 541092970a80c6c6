"""Weights of many rows at once by bisection, for scores of any size and a threshold anywhere.

A threshold of its own would be too coarse beside a score of 1e30 at T = 1. So θ is found from the
score next to it, θ = anchor ± distance, and the distance is bisected in the order of floats: then
x − θ is never less than half of what was subtracted from x, and z keeps all its digits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import special

from oracles import links as oracles_links
from oracles.links import at


class Tails(NamedTuple):
    """F and 1 − F of a link counted from where it bends most; the logs where both are infinite."""

    cdf: Callable[[np.ndarray], np.ndarray]
    sf: Callable[[np.ndarray], np.ndarray]
    log_cdf: Callable[[np.ndarray], np.ndarray] | None = None
    log_sf: Callable[[np.ndarray], np.ndarray] | None = None


def _symmetric(cdf: Callable, log_cdf: Callable) -> Tails:
    return Tails(cdf, lambda z: cdf(-z), log_cdf, lambda z: log_cdf(-z))


def _laplace(z: np.ndarray) -> np.ndarray:
    return np.where(z < 0, np.exp(-np.abs(z)) / 2, 1 - np.exp(-np.abs(z)) / 2)


def _log_laplace(z: np.ndarray) -> np.ndarray:
    return np.where(z < 0, z - np.log(2), np.log1p(-np.exp(-np.abs(z)) / 2))


def entmax_tails(alpha: float) -> Tails:
    """From the lower end of its support, where the slope is infinite for α > 2."""
    if alpha == 1:
        return Tails(lambda z: np.exp(np.minimum(z, 0)), lambda z: -np.expm1(np.minimum(z, 0)))
    base = alpha - 1

    def log_cdf(z: np.ndarray) -> np.ndarray:
        return np.log(np.clip(base * z, 0, 1)) / base

    return Tails(lambda z: np.exp(log_cdf(z)), lambda z: -np.expm1(log_cdf(z)))


TAILS: dict[str, Tails] = {
    "logistic": _symmetric(special.expit, special.log_expit),
    "laplace": _symmetric(_laplace, _log_laplace),
    "normal": _symmetric(special.ndtr, special.log_ndtr),
    "exponential": entmax_tails(1.0),
    "linear": entmax_tails(2.0),
    "entmax": entmax_tails(1.5),
}


def _by_mpmath(name: str) -> Tails:
    log_cdf, log_sf, _ = oracles_links.logs(name)
    every = oracles_links.F[name], lambda z: 1 - oracles_links.F[name](z), log_cdf, log_sf
    return Tails(*(lambda z, of=of: at(of, z).astype(float) for of in every))


SLOW = [name for name in oracles_links.F if name not in TAILS and oracles_links.has_two_tails(name)]
"""Links by mpmath, which takes a second for some ten thousand numbers."""
TAILS |= {name: _by_mpmath(name) for name in SLOW}


def _log_total(values: np.ndarray, where: np.ndarray) -> np.ndarray:
    return special.logsumexp(np.where(where, values, -np.inf), axis=-1)


def _excess(z: np.ndarray, k: np.ndarray, tails: Tails) -> np.ndarray:
    """ΣF − k, from the smaller tails; where it is flat, how the logarithms of the tails differ."""
    cdf = tails.cdf(z)
    upper = cdf > 0.5
    missing = upper.sum(-1) - k
    low, high = np.where(upper, 0, cdf), np.where(upper, tails.sf(z), 0)
    excess = missing + (low.sum(-1) - high.sum(-1))
    if tails.log_cdf is not None and tails.log_sf is not None:
        flat = np.flatnonzero((missing == 0) & (k > 0))
        z, upper = z[flat], upper[flat]
        below = _log_total(tails.log_cdf(z), ~upper)
        excess[flat] = below - _log_total(tails.log_sf(z), upper)
    return excess


def _thresholds(
    x: np.ndarray, k: np.ndarray, temperature: np.ndarray, tails: Tails
) -> tuple[np.ndarray, np.ndarray]:
    """(anchor, distance) of rows sorted from the greatest score on, 0 < k < entries in play."""
    rows = np.arange(len(x))
    live = np.sum(x > -np.inf, axis=-1)

    def excess(anchor: np.ndarray, distance: np.ndarray) -> np.ndarray:
        z = ((x - anchor[:, None]) - distance[:, None]) / temperature[:, None]
        return _excess(z, k, tails)

    # The first score at which ΣF is k or more; θ is between it and the one before.
    first, last = np.zeros(len(x), int), live
    while np.any(first < last):
        middle = np.minimum((first + last) // 2, live - 1)
        enough = excess(x[rows, middle], np.zeros(len(x))) >= 0
        first, last = np.where(enough, first, middle + 1), np.where(enough, middle, last)
        first = np.minimum(first, last)
    above, below = x[rows, np.maximum(first - 1, 0)], x[rows, np.minimum(first, live - 1)]
    half = np.where((first > 0) & (first < live), above / 2 - below / 2, 1e3 * temperature)
    upwards = (first == 0) | ((first < live) & (excess(below, half) <= 0))
    anchor, sign = np.where(upwards, below, above), np.where(upwards, 1.0, -1.0)

    short, long = np.zeros(len(x), np.int64), half.astype(np.float64).view(np.int64)
    while np.any(long - short > 1):
        middle = short + (long - short) // 2
        beyond = sign * excess(anchor, sign * middle.view(np.float64)) > 0
        short, long = np.where(beyond, middle, short), np.where(beyond, long, middle)
    return anchor, sign * long.view(np.float64)


def weights(x: np.ndarray, k: np.ndarray, temperature: np.ndarray, tails: Tails) -> np.ndarray:
    """soft_topk of rows (count, n) in float64; −inf is out of play and +inf is chosen first."""
    x, k, temperature = (np.asarray(a, np.float64) for a in (x, k, temperature))
    top, live = x == np.inf, np.isfinite(x)
    share = np.clip(k / np.maximum(top.sum(-1), 1), 0, 1)
    left = k - top.sum(-1)
    p = np.where(live & (left >= live.sum(-1))[:, None], 1.0, 0.0)
    p = np.where(top, share[:, None], p)
    some = np.flatnonzero((left > 0) & (left < live.sum(-1)))
    with np.errstate(all="ignore"):
        playing = np.where(live[some], x[some], -np.inf)
        ordered = -np.sort(-playing, axis=-1)
        anchor, distance = _thresholds(ordered, left[some], temperature[some], tails)
        z = ((playing - anchor[:, None]) - distance[:, None]) / temperature[some, None]
        p[some] = np.where(live[some], tails.cdf(z), p[some])
    return p
