"""Slow and certain: the same answers by other means than kofn's.

Distribution functions are written out again in 80-bit floats, the threshold is bisected, the
gradient is the closed form, small cases are enumerated.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import mpmath
import numpy as np
from scipy import special

from oracles import links as oracles_links
from oracles.links import at

LD = np.longdouble


def _normal_cdf(z: np.ndarray) -> np.ndarray:
    return special.ndtr(z.astype(np.float64)).astype(LD)


def _normal_pdf(z: np.ndarray) -> np.ndarray:
    return np.exp(-z * z / 2) / np.sqrt(2 * LD(np.pi))


def entmax_cdf(alpha: float) -> Callable[[np.ndarray], np.ndarray]:
    a = LD(alpha)
    return lambda z: np.clip(1 + (a - 1) * (z - 1 / a), 0, 1) ** (1 / (a - 1))


def entmax_pdf(alpha: float) -> Callable[[np.ndarray], np.ndarray]:
    def pdf(z: np.ndarray) -> np.ndarray:
        p = entmax_cdf(alpha)(z)
        inside = (p > 0) & (p < 1)
        return np.where(inside, np.where(inside, p, 1) ** (2 - LD(alpha)), 0)

    return pdf


CDF: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "logistic": lambda z: 1 / (1 + np.exp(-z)),
    "laplace": lambda z: np.where(z < 0, np.exp(-np.abs(z)) / 2, 1 - np.exp(-np.abs(z)) / 2),
    "normal": _normal_cdf,
    "exponential": lambda z: np.exp(np.minimum(z - 1, 0)),
    "linear": lambda z: np.clip(z + LD(0.5), 0, 1),
    "entmax": entmax_cdf(1.5),
}
PDF: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "logistic": lambda z: 1 / (2 + np.exp(z) + np.exp(-z)),
    "laplace": lambda z: np.exp(-np.abs(z)) / 2,
    "normal": _normal_pdf,
    "exponential": lambda z: np.where(z < 1, np.exp(np.minimum(z - 1, 0)), 0),
    "linear": lambda z: (np.abs(z) < 0.5).astype(LD),
    "entmax": entmax_pdf(1.5),
}


def bisect_threshold(
    x: np.ndarray, k: float, temperature: float, cdf: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """θ of every row of x (…, n) by bisection in 80 bits."""
    x, t = np.asarray(x, LD), LD(temperature)

    def total(theta: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return np.sum(cdf((x - theta[..., None]) / t), axis=-1)

    low, high = x.min(-1) - t, x.max(-1) + t
    while np.any(total(low) < k):
        low = low - 2 * (high - low)
    while np.any(total(high) > k):
        high = high + 2 * (high - low)
    while np.any((high - low) > 1e-18 * t):
        middle = (low + high) / 2
        if np.all((middle == low) | (middle == high)):
            break
        above = total(middle) > k
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return (low + high) / 2


def soft_topk(
    x: np.ndarray, k: float, temperature: float, cdf: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Weights of every row of x (…, n)."""
    theta = bisect_threshold(x, k, temperature, cdf)
    with np.errstate(all="ignore"):
        return cdf((np.asarray(x, LD) - theta[..., None]) / LD(temperature))


class Vjp(NamedTuple):
    """Cotangents in scores, k and temperature, and the size of the terms that each sums."""

    values: tuple[np.ndarray, LD, LD]
    sizes: tuple[LD, LD, LD]


def vjp(x: np.ndarray, k: float, temperature: float, link: str, v: np.ndarray) -> Vjp:
    """⟨v, p⟩ pulled back through one row: u = w∘(v − v̄)/T, v̄, −Σ u (x − θ)/T."""
    x, v, t = np.asarray(x, LD), np.asarray(v, LD), LD(temperature)
    theta = bisect_threshold(x, k, temperature, CDF[link])
    with np.errstate(all="ignore"):
        w = PDF[link]((x - theta) / t)
    mean = (w * v).sum() / w.sum()
    u = w * (v - mean) / t
    # v − v̄ may cancel altogether: a single entry in the support has no gradient left.
    u_size = w * (np.abs(v) + np.abs(mean)) / t
    distance = np.where(w > 0, np.abs(x - theta) / t, 0)
    sizes = (
        np.linalg.norm(u_size),
        (w * np.abs(v)).sum() / w.sum(),
        (u_size * distance).sum(),
    )
    return Vjp((u, mean, -(u * (x - theta) / t).sum()), sizes)


class Logs(NamedTuple):
    """log F, log(1 − F) and log F′ in mpmath, of a link whose F is nowhere exactly 0."""

    cdf: Callable
    sf: Callable
    pdf: Callable


def _log_normal(z: mpmath.mpf) -> mpmath.mpf:
    if z < -100:
        series = mpmath.fsum((-1) ** j * mpmath.fac2(2 * j - 1) / z ** (2 * j) for j in range(9))
        return -z * z / 2 - mpmath.log(-z * mpmath.sqrt(2 * mpmath.pi)) + mpmath.log(series)
    return mpmath.log(mpmath.ncdf(z)) if z < 0 else mpmath.log1p(-mpmath.ncdf(-z))


def _log_logistic(z: mpmath.mpf) -> mpmath.mpf:
    return min(z, 0) - mpmath.log1p(mpmath.exp(-abs(z)))


def _log_laplace(z: mpmath.mpf) -> mpmath.mpf:
    return z - mpmath.log(2) if z < 0 else mpmath.log1p(-mpmath.exp(-z) / 2)


def _symmetric(cdf: Callable, pdf: Callable) -> Logs:
    return Logs(cdf, lambda z: cdf(-z), pdf)


LOGS: dict[str, Logs] = {
    "logistic": _symmetric(_log_logistic, lambda z: _log_logistic(z) + _log_logistic(-z)),
    "laplace": _symmetric(_log_laplace, lambda z: -abs(z) - mpmath.log(2)),
    "normal": _symmetric(_log_normal, lambda z: -z * z / 2 - mpmath.log(2 * mpmath.pi) / 2),
    "exponential": Logs(
        lambda z: min(z - 1, mpmath.mpf(0)),
        lambda z: mpmath.log(-mpmath.expm1(z - 1)) if z < 1 else -mpmath.inf,
        lambda z: z - 1 if z < 1 else -mpmath.inf,
    ),
}


def excess(zs: list, k: float, logs: Logs) -> mpmath.mpf:
    """ΣF − k in mpmath, from the smaller tails."""
    half = -mpmath.log(2)
    above = [logs.cdf(z) > half for z in zs]
    short = mpmath.fsum(mpmath.exp(logs.cdf(z)) for z, up in zip(zs, above, strict=True) if not up)
    long = mpmath.fsum(mpmath.exp(logs.sf(z)) for z, up in zip(zs, above, strict=True) if up)
    return (sum(above) - k) + (short - long)


@functools.cache
def exact_threshold(x: tuple[float, ...], k: float, temperature: float, link: str) -> float:
    """θ by bisection on two tails of any exponent: sees a plateau that no float does."""
    with mpmath.workdps(30):
        xs, t = [mpmath.mpf(v) for v in x], mpmath.mpf(temperature)
        low, high = min(xs) - 100 * t, max(xs) + 100 * t
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (
                (middle, high)
                if excess([(v - middle) / t for v in xs], k, LOGS[link]) > 0
                else (low, middle)
            )
        return float(low)


def logistic_hessian(x: np.ndarray, k: float, temperature: float) -> np.ndarray:
    """∂²p/∂x² of one row, (n, n, n), with tails of any exponent."""
    with mpmath.workdps(30):
        theta = exact_threshold(tuple(x.tolist()), k, temperature, "logistic")
        zs = [(mpmath.mpf(v) - theta) / temperature for v in x.tolist()]
        e = [mpmath.exp(-abs(z)) for z in zs]
        w = np.array([a / (1 + a) ** 2 for a in e])
        slope = np.array([-a * mpmath.tanh(z / 2) for a, z in zip(w, zs, strict=True)])
        q = w / w.sum()
        dz = (np.eye(len(x)) - q) / temperature
        dq = (slope[:, None] * dz - np.outer(q, slope @ dz)) / w.sum()
        hessian = slope[:, None, None] * dz[:, :, None] * dz[:, None, :]
        return (hessian - w[:, None, None] * dq / temperature).astype(float)


def best_subset_sum(x: np.ndarray, k: int) -> float:
    """The largest sum of k entries, over all subsets."""
    return max((sum(s) for s in itertools.combinations(x.tolist(), k)), default=0.0)


def finite_difference(
    f: Callable, x: np.ndarray, direction: np.ndarray, h: float = 1e-6
) -> np.ndarray:
    return (f(x + h * direction) - f(x - h * direction)) / (2 * h)


def _entropy_of(alpha: float) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    return lambda q, z: (q ** LD(alpha) - q) / (LD(alpha) * (LD(alpha) - 1))


def _times_log(q: np.ndarray) -> np.ndarray:
    return q * np.log(np.where(q > 0, q, LD(1)))


def _laplace_omega(q: np.ndarray, z: np.ndarray) -> np.ndarray:
    tail = np.minimum(q, np.exp(-np.abs(z)) / 2)
    return _times_log(tail) + (np.log(LD(2)) - 1) * tail


OMEGA: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {  # of q = F(z)
    "logistic": lambda q, z: _times_log(q) + _times_log(CDF["logistic"](-z)),
    "laplace": _laplace_omega,
    "normal": lambda q, z: -PDF["normal"](z),
    "exponential": lambda q, z: _times_log(q),
    "linear": _entropy_of(2.0),
    "entmax": _entropy_of(1.5),
}


def _omega_by_quad(name: str) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    return lambda q, z: at(oracles_links.omega(name), z)


for _name in oracles_links.F:  # the links that nobody wrote out above, slowly
    CDF.setdefault(_name, partial(at, oracles_links.F[_name]))
    PDF.setdefault(_name, partial(at, oracles_links.pdf(_name)))
    OMEGA.setdefault(_name, _omega_by_quad(_name))
    if oracles_links.is_endless(_name):
        LOGS.setdefault(_name, Logs(*oracles_links.logs(_name)))


def value(x: np.ndarray, k: float, temperature: float, link: str) -> tuple[LD, np.ndarray, LD, LD]:
    """(S_k = ⟨p, x⟩ − TΣΩ(p), and its slopes in x, k and T: p, θ and −ΣΩ(p)) of one row."""
    x, t = np.asarray(x, LD), LD(temperature)
    theta = bisect_threshold(x, k, temperature, CDF[link])
    with np.errstate(all="ignore"):
        z = (x - theta) / t
        p = CDF[link](z)
        entropy = -OMEGA[link](p, z).sum()
    # As kθ + TΣ(p·z − Ω(p)) = kθ + TΣG(z), which is least at θ: its rounding has no say.
    return k * theta + (p * (x - theta)).sum() + t * entropy, p, theta, entropy
