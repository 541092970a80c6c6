"""Tsallis and Rényi entropies of weights; alpha = 1 is Shannon's entropy."""

from __future__ import annotations

import math
from typing import Any, Never

import numpy as np

from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.checks import check_number
from kofn.arrays.kinds import Array, namespace, scalar
from kofn.arrays.names import unknown_keyword
from kofn.arrays.typing import ArrayT
from kofn.links.vocabulary import Real, expm1, log_of_any, raised, where
from kofn.metrics.sums import Sum, answer
from kofn.rows.given import masked_weights

HUGE = 1e30
"""An alpha for which Rényi's entropy equals the limit, to every digit: ln n/alpha is left."""

NAN, INFINITY, MOST = math.nan, math.inf, 1e38


def _shannon(p: Real) -> tuple[Real]:
    return (-p * log_of_any(where(p == 0, 1.0, p)),)


def _shannon_slope(p: Real) -> tuple[Real]:
    return (where(p == 0, 0.0, -log_of_any(where(p == 0, 1.0, p)) - 1.0),)


ENTROPY = Sum(__name__, "ENTROPY", _shannon, _shannon_slope)


def _steps(p: Real, e: Real) -> tuple[Real, Real, Real, Real, Real, Real]:
    """p, NaN below 0; whether it is not 0; p or 1, its log, and e times that, if it is near 0."""
    p = where(p < 0, NAN, p)
    some = p != 0
    safe = where(some, p, 1.0)
    logs = log_of_any(safe)
    by = e * logs
    # Near α = 1 and near p = 1 the difference would cancel; far from them the power is exact.
    near = by * by < 0.5
    return p, some, safe, logs, near, where(near, by, 0.0)


def _powers(p: Real, alpha: Real, e: Real, at_zero: Real) -> tuple[Real, Real]:
    """p^α and (p − p^α)/e, e = α − 1, whose slope at p = 0 is at_zero, where 0^α = 0."""
    p, some, safe, logs, near, by = _steps(p, e)
    small = -p * expm1(by) / e
    high = where(some, raised(safe, logs, alpha), 0.0)
    return high, where(some, where(near, small, (p - high) / e), at_zero * p)


def _power_slopes(p: Real, alpha: Real, e: Real, at_zero: Real) -> tuple[Real, Real]:
    p, some, safe, logs, near, by = _steps(p, e)
    ratio = raised(safe, logs, e)
    steep = alpha * where(ratio == INFINITY, MOST, ratio)  # for α = 0 no 0·∞
    small = -1.0 - alpha / e * expm1(by)
    return where(some, steep, 0.0), where(some, where(near, small, (1.0 - steep) / e), at_zero)


def _tsallis(p: Real, alpha: Real, e: Real, at_zero: Real) -> tuple[Real]:
    _, term = _powers(p, alpha, e, at_zero)
    return (term,)


def _tsallis_slope(p: Real, alpha: Real, e: Real, at_zero: Real) -> tuple[Real]:
    _, slope = _power_slopes(p, alpha, e, at_zero)
    return (slope,)


TSALLIS = Sum(__name__, "TSALLIS", _tsallis, _tsallis_slope, numbers=3)


def _of_powers(
    powers: Array, share: Array, alpha: float, e: float, at_zero: float, total: Array
) -> Array:
    """Return ln(Σp^α/Σp)/(1 − α)."""
    return _logarithm(powers / total, share / total, e)


RENYI = Sum(__name__, "RENYI", _powers, _power_slopes, numbers=3, count=2, outer=_of_powers)


def _numbers(alpha: float) -> tuple[float, float, float]:
    e = alpha - 1
    return alpha, e, 1 / e if e > 0 else 0.0


def tsallis_entropy(
    weights: ArrayT, alpha: float, *, dim: int = -1, mask: Array | None = None, **others: Never
) -> ArrayT:
    """Return Σ(p − p^α)/(α − 1), the Tsallis entropy for Σp = 1; `entropy` for α = 1.

    α = 0 counts the entries with weight (less Σp), α = 2 is the Gini impurity 1 − Σp². What
    `entmax(x, alpha)` maximises, Σpx + H, has H = `tsallis_entropy(p, alpha)/alpha`.

    Args:
        weights, dim, mask: as for `support_size`.
        alpha: a finite number ≥ 0.

    Returns:
        A number with the batch shape, differentiable; NaN where a weight is negative. The slope
        at p = 0 is 1/(α − 1) for α > 1; for α ≤ 1 it is infinite and counts as 0.

    Raises:
        TypeError, ValueError: as for `support_size`; for an alpha out of range.

    Source: Tsallis, "Possible generalization of Boltzmann–Gibbs statistics" (1988); with the
    factor 1/α: Peters, Niculae & Martins, "Sparse Sequence-to-Sequence Models" (2019).

    Example:
        >>> import numpy as np
        >>> from kofn import metrics, softmax
        >>> p = softmax(np.zeros(4))
        >>> [round(float(metrics.tsallis_entropy(p, alpha)), 4) for alpha in (0, 1, 2)]
        [3.0, 1.3863, 0.75]
    """
    if others:
        raise unknown_keyword(tsallis_entropy, others)
    alpha = check_number("alpha", alpha, low=0.0, allowed="a finite number ≥ 0", arrays=False)
    p, form = masked_weights(weights, dim, mask)
    with form.quiet():
        return answer(ENTROPY, p) if alpha == 1 else answer(TSALLIS, p, *_numbers(alpha))


def renyi_entropy(
    weights: ArrayT, alpha: float, *, dim: int = -1, mask: Array | None = None, **others: Never
) -> ArrayT:
    """Return ln(Σp^α/Σp)/(1 − α), the Rényi entropy for Σp = 1; `entropy` for α = 1.

    α = 0 is the logarithm of the number of entries with weight, α = 2 of `effective_support`,
    α = ∞ is −ln max p. Weights in another sum, say k, are what Rényi calls an incomplete
    distribution: at α = 1 their entropy is `entropy`/Σp.

    Args:
        weights, dim, mask: as for `support_size`.
        alpha: a number ≥ 0, or infinity.

    Returns:
        A number with the batch shape, differentiable; 0 for a row of zeros, NaN where a weight is
        negative. The slope at p = 0 is finite for α > 1; for α ≤ 1 it is infinite and counts as 0.

    Raises:
        TypeError, ValueError: as for `support_size`; for an alpha out of range.

    Source: Rényi, "On Measures of Entropy and Information" (1961).

    Example:
        >>> import numpy as np
        >>> from kofn import metrics
        >>> p = np.array([0.5, 0.25, 0.25, 0.0])
        >>> [round(float(metrics.renyi_entropy(p, alpha)), 4) for alpha in (0, 1, 2, np.inf)]
        [1.0986, 1.0397, 0.9808, 0.6931]
    """
    if others:
        raise unknown_keyword(renyi_entropy, others)
    allowed = "a number ≥ 0, or infinity"
    infinite = isinstance(alpha, (float, np.floating)) and alpha == math.inf
    alpha = HUGE if infinite else check_number("alpha", alpha, low=0, allowed=allowed, arrays=False)
    p, form = masked_weights(weights, dim, mask)
    with form.quiet():
        return _renyi(p, alpha) if p.shape[-1] else form.xp.sum(p, axis=-1)


def _renyi(p: ArrayT, alpha: float) -> ArrayT:
    """In units of the largest weight m, Σ(p/m)^α ≥ 1 is no underflow, and

    H = −ln m − ln(1 − (α − 1)·T/S)/(α − 1), T = Σ(q − q^α)/(α − 1), S = Σq, q = p/m,
    whose terms are both at least 0 for p ≤ 1.
    """
    xp = namespace(p)
    if alpha >= HUGE:
        greatest = xp.max(p, axis=-1)
        bad = xp.sum(xp.where(p >= 0, scalar(p, 0.0), math.nan), axis=-1)
        return bad - xp.log(xp.where(greatest == 0, 1.0, greatest))
    # H does not depend on the units, so they are a constant.
    unit = stop_gradient(xp.max(p, axis=-1))
    unit = xp.where(unit > 0, unit, 1.0)
    q = p / unit[..., None]
    if alpha <= 1:  # of Σq as of the powers
        q = xp.where(q == 0, 0.0, q)
    total: Any = xp.sum(q, axis=-1)
    total = xp.where(total == 0, 1.0, total)
    if alpha == 1:
        return answer(ENTROPY, q) / total - xp.log(unit)
    return answer(RENYI, q, *_numbers(alpha), beside=(total,)) - xp.log(unit)


def _logarithm(ratio: Array, share: Array, e: float) -> Array:
    """Return −ln(ratio)/e for ratio = 1 − e·share, from the more accurate of the two."""
    xp = namespace(ratio)
    far = (ratio > 0) & (xp.abs(e * share) > 0.5)
    of_ratio = xp.log(xp.where(far, ratio, 1.0))
    return -xp.where(far, of_ratio, xp.log1p(xp.where(far, 0.0, -e * share))) / e
