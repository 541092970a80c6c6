"""The special functions that kofn needs of NumPy arrays, so that it does without SciPy.

They are computed in float64, to a few units in the last place, in a tail too, and returned in the
dtype of the argument. Array code calls them: kernels have their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
from numpy.polynomial.chebyshev import chebval

Function = Callable[[Any], Any]

_TAIL = (
    1.17756257419656,
    0.005353904539615676,
    -0.09377550342284209,
    0.05436652555744322,
    -0.018976596707845208,
    0.004453426061462712,
    -0.0006335531710553147,
    1.7661719523171593e-05,
    1.2841532864056671e-05,
    -2.0072285659059913e-06,
    -1.807522790414837e-07,
    7.549828343825093e-08,
    1.885668523838603e-09,
    -2.699519049798364e-09,
    -1.460079119939105e-11,
    1.0361607445969489e-10,
    1.475715976623473e-12,
    -4.277340064396911e-12,
    -2.07922492859799e-13,
    1.8134502003176963e-13,
    1.973425574544739e-14,
    -7.287943737592673e-15,
    -1.5169878690228116e-15,
    2.3514112258781403e-16,
    1.0006111691821667e-16,
)
"""(1 + 2x)·exp(x²)·erfc(x) for x ≥ 0, by Chebyshev polynomials of (x − 3)/(x + 3)."""
_CENTER = (
    0.9754769393826541,
    -0.14226120510371365,
    0.010035582187599796,
    -0.0005768764699767485,
    2.741993125219606e-05,
    -1.1043175507344507e-06,
    3.8488755420345036e-08,
    -1.1808582533875466e-09,
    3.2334215826050907e-11,
    -7.991015947004549e-13,
    1.7990725113961456e-14,
    -3.718635487818693e-16,
    7.103599003714253e-18,
)
"""erf(x)/x for |x| ≤ 1, by Chebyshev polynomials of 2x² − 1."""


BLOCK = 8192
"""Numbers that are computed together, so that they stay in a cache."""


def _in_double(function: Function) -> Function:
    """Make a function of arrays of floats from one of a few float64 numbers."""

    @wraps(function)
    def called(x: Any) -> Any:
        if hasattr(x, "__array_function__") and not isinstance(x, np.ndarray | np.generic):
            return x.__array_function__(called, (type(x),), (x,), {})  # as NumPy's own functions do
        x = np.asarray(x)
        whole = np.empty(x.shape, x.dtype if x.dtype.kind == "f" else np.float64)
        given, answers = x.reshape(-1), whole.reshape(-1)
        with np.errstate(all="ignore"):
            for start in range(0, x.size, BLOCK):
                some = slice(start, start + BLOCK)
                answers[some] = function(given[some].astype(np.float64))
        return whole[()]

    return called


@_in_double
def expit(x: Any) -> Any:
    """Return 1/(1 + e^−x)."""
    e = np.exp(-abs(x))
    return np.where(x >= 0, 1.0, e) / (1 + e)


@_in_double
def erfc(x: Any) -> Any:
    """Return 1 − erf(x), accurate where that is small, too."""
    size = np.minimum(abs(x), 30.0)  # from 27 on it is below the smallest number
    # A square rounded would be off by x² units in the last place of e^−x².
    first = np.round(size * 16) / 16
    bell = np.exp(-first * first) * np.exp((first - size) * (first + size))
    tail = _scaled(size) * bell
    return np.where(x < 0, 2 - tail, tail)


@_in_double
def ndtri(q: Any) -> Any:
    """Return z with Φ(z) = q, the standard normal distribution; NaN for q outside of [0, 1]."""
    below = np.minimum(q, 1 - q)
    z = np.where(
        below > 0.2, _central_quantile(q - 0.5), np.copysign(_tail_quantile(below), q - 0.5)
    )
    ends = np.where(q == 0.5, 0.0, np.copysign(np.inf, q - 0.5))
    return np.where((q == 0) | (q == 0.5) | (q == 1), ends, z)


@_in_double
def gammaln(x: Any) -> Any:
    """Return log Γ(x) for x > 0."""
    return np.fromiter(map(math.lgamma, x), np.float64, x.size)


def _scaled(x: Any) -> Any:
    """Return exp(x²)·erfc(x) for x ≥ 0."""
    return chebval((x - 3) / (x + 3), _TAIL) / (1 + 2 * x)


def _rough_quantile(tail: Any) -> Any:
    """Return z with Φ(−z) = tail ≤ ½ to 5e-4: Abramowitz and Stegun, 26.2.23."""
    t = np.sqrt(-2 * np.log(tail))
    above, below = (0.010328, 0.802853, 2.515517), (0.001308, 0.189269, 1.432788, 1)
    return t - np.polyval(above, t) / np.polyval(below, t)


def _tail_quantile(tail: Any) -> Any:
    """Return z with Φ(−z) = tail, by Halley's steps on log Φ."""
    z, wanted = _rough_quantile(tail), np.log(tail)
    for _ in range(2):
        mills = math.sqrt(math.pi / 2) * _scaled(z * math.sqrt(0.5))  # Φ(−z)/φ(z)
        off = np.log(mills) - z * z / 2 - math.log(2 * math.pi) / 2 - wanted
        z = z + off * mills / (1 + off * (1 - z * mills) / 2)
    return z


def _central_quantile(share: Any) -> Any:
    """Return z with Φ(z) − ½ = share, by Halley's steps; accurate near 0, too."""
    share = np.clip(share, -0.3, 0.3)
    z = np.copysign(_rough_quantile(0.5 - abs(share)), share)
    for _ in range(2):
        off = z * chebval(z * z - 1, _CENTER) / math.sqrt(8) - share
        step = off * np.exp(z * z / 2) * math.sqrt(2 * math.pi)
        z = z - step / (1 + step * z / 2)
    return z
