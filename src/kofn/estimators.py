"""Gradients of E f(S) for a random subset S: what to differentiate instead of the expectation.

`marginals_through` (SIMPLE) has some bias and the least variance, `score_function` and
`leave_one_out` have none and more. docs/subsets.md has them measured against the exact gradient,
beside relaxed samples (`PlackettLuce.relaxed_sample`).
"""

from __future__ import annotations

from typing import Any

from kofn._array import Array, namespace, stop_gradient
from kofn._validate import check_same_kind
from kofn.subset import KSubset

__all__ = ["leave_one_out", "marginals_through", "score_function"]


def marginals_through(choice: KSubset, shape: int | tuple[int, ...], rng: Any) -> Array:
    """s + (π − stop π): an exact sample s whose gradient is the marginals' (SIMPLE).

    Exact, as an expectation, where f is linear. Biased elsewhere, but of small variance; f needs a
    gradient.

    Args:
        choice: the distribution.
        shape, rng: as for `KSubset.sample`.

    Returns:
        shape + logits.shape: ones and zeros, with a gradient in the logits.

    Source: Ahmed, Zeng, Niepert & Van den Broeck, "SIMPLE: A Gradient Estimator for k-Subset
    Sampling" (2023).

    Example:
        >>> import numpy as np
        >>> from kofn import KSubset, estimators
        >>> choice = KSubset(np.array([2.0, 1.0, 0.0]), 2)
        >>> estimators.marginals_through(choice, (), np.random.default_rng(0)).sum()
        np.float64(2.0)
    """
    pi = choice.marginals()
    return choice.sample(shape, rng) + (pi - stop_gradient(pi))


def score_function(values: Array, log_prob: Array) -> Array:
    """Σ f over samples / m, with the gradient Σ f·∇log P / m: without bias, of large variance.

    Any function will do, one without a gradient too; where it has one of its own it is kept.

    Args:
        values: f(S) of m samples on the first axis.
        log_prob: their `log_prob`, of the same shape.

    Returns:
        The mean over the first axis, to differentiate.

    Raises:
        TypeError, ValueError: arrays of different kinds or shapes.

    Source: Williams, "REINFORCE" (1992).
    """
    _check(values, log_prob, 1)
    weight = stop_gradient(values)
    return _mean(values + weight * (log_prob - stop_gradient(log_prob)))


def leave_one_out(values: Array, log_prob: Array) -> Array:
    """As `score_function`, each f less the mean of the other samples': without bias, less variance.

    Args:
        values, log_prob: as for `score_function`; at least two samples.

    Raises:
        TypeError, ValueError: as for `score_function`; fewer than two samples.

    Source: Kool, van Hoof & Welling, "Buy 4 REINFORCE Samples, Get a Baseline for Free!" (2019).

    Example:
        >>> import numpy as np
        >>> from kofn import KSubset, estimators
        >>> choice = KSubset(np.array([2.0, 1.0, 0.0]), 2)
        >>> subsets = choice.sample(4, np.random.default_rng(0))
        >>> cost = subsets @ np.array([1.0, 2.0, 4.0])
        >>> bool(estimators.leave_one_out(cost, choice.log_prob(subsets)) == cost.mean())
        True
    """
    _check(values, log_prob, 2)
    m = values.shape[0]
    # f − Σ_others f/(m − 1) = (f − mean)·m/(m − 1)
    weight = stop_gradient(values - _mean(values)) * (m / (m - 1))
    return _mean(values + weight * (log_prob - stop_gradient(log_prob)))


def _mean(values: Array) -> Array:
    return namespace(values).mean(values, axis=0)


def _check(values: Array, log_prob: Array, least: int) -> None:
    check_same_kind("values", values, log_prob, "log_prob")
    if tuple(values.shape) != tuple(log_prob.shape):
        raise ValueError(
            f"values must have the shape of log_prob, {tuple(log_prob.shape)}; "
            f"got {tuple(values.shape)}"
        )
    if values.ndim == 0 or values.shape[0] < least:
        raise ValueError(
            f"values must have at least {least} samples on the first axis; "
            f"got the shape {tuple(values.shape)}"
        )
