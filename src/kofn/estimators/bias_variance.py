"""The bias and variance of an estimator, exact by enumeration or measured."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from kofn.arrays.checks import check_integer, check_number, check_scores
from kofn.arrays.kinds import Array, is_numpy, is_torch, namespace, to_numpy
from kofn.arrays.random import split_rng
from kofn.arrays.without_onnx import refuse
from kofn.distributions.categorical import Categorical
from kofn.estimators.pathwise import reparameterized
from kofn.estimators.replay import Counted, Found, Problem
from kofn.estimators.score import RunningMean, leave_one_out
from kofn.estimators.table import TABLE


@dataclass(frozen=True)
class Study:
    """The result of `study`. Norms are over all logits; gradients have the shape of the logits."""

    gradient: np.ndarray
    """∇E f: exact, or as well as it was measured."""
    mean: np.ndarray
    """The estimator's expectation."""
    bias: float
    """‖mean − gradient‖."""
    bias_bound: float
    """The bound of the error of `bias`; 0 where all was enumerated."""
    variance: float
    """E‖estimate − mean‖²."""
    variance_bound: float
    """The bound of the error of `variance`; 0 where all was enumerated."""
    value: float
    """The mean of the estimate of E f itself."""
    value_variance: float
    """Its variance."""
    calls: float
    """Calls of f, counted, for each estimate."""
    draws: int
    """Estimates that were drawn; 0 where all were enumerated."""
    confidence: float
    """The confidence of the bounds."""
    rounding: float
    """The rounding error of `bias`, relative to the gradient and its deviation."""

    @property
    def enumerated(self) -> bool:
        """Return whether every figure is exact."""
        return self.draws == 0

    @property
    def unbiased(self) -> bool:
        """Return whether a bias of 0 is within the bounds (or within rounding)."""
        scale = float(np.linalg.norm(self.gradient)) + math.sqrt(self.variance)
        return self.bias <= self.bias_bound + self.rounding * scale

    @property
    def relative(self) -> tuple[float, float, float]:
        """Return bias, its bound and the standard deviation, each divided by ‖gradient‖."""
        size = float(np.linalg.norm(self.gradient)) or math.nan
        return self.bias / size, self.bias_bound / size, math.sqrt(self.variance) / size

    def __str__(self) -> str:
        how = "enumerated" if self.enumerated else f"{self.draws:,} draws"
        bias, bound, deviation = self.relative
        within = "" if self.enumerated else f" ± {bound:.3f}"
        return (
            f"bias {bias:.3f}{within}, standard deviation {deviation:.3f} of the gradient's norm, "
            f"{self.calls:g} calls of f ({how})"
        )


def study(
    estimator: str | Callable[..., Array],
    f: Callable[[Array], Array],
    logits: Array,
    *,
    distribution: Callable[[Array], Any] = Categorical,
    samples: int = 1,
    rng: Any = None,
    draws: int = 20_000,
    exact: Array | None = None,
    enumerate_up_to: int = 200_000,
    confidence: float = 0.95,
    **options: Any,
) -> Study:
    """Find the bias and variance of an estimator of ∇E f at `logits`, exactly if possible.

    If one draw of samples is the only randomness of an estimator, `study` sums over every tuple of
    samples, with their probabilities. Otherwise it runs the estimator `draws` times. It compares
    with the exact gradient, from `estimators.exact` or as given. If there are too many choices for
    that, it measures the gradient by an estimator without bias, and the bounds include its error.

    Args:
        estimator: a function like those here, or its name.
        f: as for `score_function`, of one row: (samples, rows, …) to (samples, rows), each row by
            itself; … stands for the shape of `logits`.
        logits: the point of differentiation, a torch.Tensor or jax.Array of any shape: one problem,
            all dimensions of the batch taken by f together.
        distribution: from logits, with any number of rows before them, to a distribution.
        samples: number of samples per estimate.
        rng: as for `score_function`.
        draws: number of estimates, if they are drawn.
        exact: the gradient, if known; the shape of `logits`.
        enumerate_up_to: the largest number of choices, or tuples of them, to sum over.
        confidence: of the bounds, in (0, 1).
        **options: passed to the estimator.

    Returns:
        A `Study`. Its bounds are by a normal approximation (for the bias with the degrees of
        freedom of Welch and Satterthwaite).

    Raises:
        TypeError, ValueError: an unknown name, NumPy arrays (which have no gradients), an
            argument out of range.

    Example:
        >>> import torch
        >>> from kofn import estimators
        >>> cost = torch.tensor([0.0, 5.0, 10.0])
        >>> print(estimators.study("score_function", lambda s: s @ cost, torch.zeros(3)))
        bias 0.000, standard deviation 2.000 of the gradient's norm, 1 calls of f (enumerated)
    """
    refuse("estimators.study", "estimators.Study")
    run = _named(estimator)
    _check(logits, draws, enumerate_up_to, confidence)
    if is_torch(logits) and sys.modules["torch"].is_inference_mode_enabled():
        given = dict(distribution=distribution, samples=samples, rng=rng, draws=draws, exact=exact)
        given |= dict(enumerate_up_to=enumerate_up_to, confidence=confidence)
        with sys.modules["torch"].inference_mode(False):  # in which every gradient would be 0
            return study(estimator, f, logits.clone(), **given, **options)
    counted = Counted(f)
    if isinstance(options.get("baseline"), RunningMean):
        options["baseline"] = float(to_numpy(options["baseline"].mean))

    def estimate(choice: Any, source: Any) -> Array:
        answer = run(choice, counted, source, samples=samples, **options)
        if answer.ndim != 1:
            raise ValueError(
                "f must reduce all dimensions of logits to one number for each row; after "
                f"the samples it gave {tuple(answer.shape)}"
            )
        return answer

    problem = Problem(logits, distribution)
    rng, other = split_rng(rng, 2, logits)
    choices = problem.choices(enumerate_up_to)
    runs = None
    if choices is not None and len(choices.probability) ** samples <= enumerate_up_to:
        # It may have drawn from something that is no source; another error comes again.
        with contextlib.suppress(TypeError):
            runs = problem.enumerated(estimate, choices, samples)
    if runs is None:
        counted.rows = 0
        runs = problem.drawn(estimate, rng, draws)
    calls = counted.rows / len(runs.values)
    truth = _known(problem, exact)
    if truth is None and choices is not None:
        truth = problem.exact(f, enumerate_up_to)
    if truth is not None:
        return _judged(runs, truth, None, calls, confidence, logits)
    best = partial(reparameterized if hasattr(problem.one, "rsample") else leave_one_out, samples=8)
    reference = problem.drawn(lambda choice, source: best(choice, f, source), other, draws)
    return _judged(runs, reference.mean(), reference, calls, confidence, logits)


def _known(problem: Problem, exact: Any) -> np.ndarray | None:
    """Return the gradient that the caller knows, flattened."""
    if exact is None:
        return None
    truth = to_numpy(exact).reshape(-1)
    if truth.size != math.prod(problem.shape):
        raise ValueError(
            f"exact must have the shape of logits, {problem.shape}; got {tuple(exact.shape)}"
        )
    return truth


def _judged(
    runs: Found,
    truth: np.ndarray,
    reference: Found | None,
    calls: float,
    confidence: float,
    logits: Array,
) -> Study:
    mean, shape = runs.mean(), tuple(logits.shape)
    squares = ((runs.gradients - mean) ** 2).sum(-1)
    variance, value = float(runs.weights @ squares), float(runs.weights @ runs.values)
    bound = 0.0
    covariance = sum(each.covariance_of_mean() for each in (runs, reference) if each and each.drawn)
    if runs.drawn:
        count = len(squares)
        variance *= count / (count - 1)
        bound = _quantile((1 + confidence) / 2) * float(squares.std()) / math.sqrt(count)
    return Study(
        gradient=truth.reshape(shape),
        mean=mean.reshape(shape),
        bias=float(np.linalg.norm(mean - truth)),
        bias_bound=_radius(np.asarray(covariance), confidence),
        variance=variance,
        variance_bound=bound,
        value=value,
        value_variance=float(runs.weights @ (runs.values - value) ** 2),
        calls=calls,
        draws=len(squares) if runs.drawn else 0,
        confidence=confidence,
        rounding=float(namespace(logits).finfo(logits.dtype).eps) ** (2 / 3),
    )


def _radius(covariance: np.ndarray, confidence: float) -> float:
    """Return a bound for the length of a normal vector with this covariance, at this confidence."""
    total = float(np.trace(covariance)) if covariance.ndim else 0.0
    if total == 0:
        return 0.0
    # Its square is about a multiple of χ² with this many degrees of freedom.
    freedom = total**2 / float((covariance**2).sum())
    narrow = 2 / (9 * freedom)
    quantile = (1 - narrow + _quantile(confidence) * math.sqrt(narrow)) ** 3
    return math.sqrt(total * quantile)


def _quantile(share: float) -> float:
    """Return a quantile of the standard normal distribution."""
    from statistics import NormalDist  # takes longer to import than the rest of this package

    return NormalDist().inv_cdf(share)


def _named(estimator: Any) -> Callable[..., Array]:
    if isinstance(estimator, str):
        if estimator not in TABLE:
            raise ValueError(f"estimator must be one of {', '.join(TABLE)}; got {estimator!r}")
        return TABLE[estimator]
    if not callable(estimator):
        raise TypeError(f"estimator must be a function or its name; got {estimator!r}")
    return estimator


def _check(logits: Any, draws: Any, most: Any, confidence: Any) -> None:
    check_scores(logits, "logits")
    if is_numpy(logits):
        raise TypeError("study needs a torch.Tensor or jax.Array: NumPy arrays have no gradients")
    if 0 in logits.shape:
        raise ValueError(f"logits must have entries; got the shape {tuple(logits.shape)}")
    for name, value, low in (("draws", draws, 2), ("enumerate_up_to", most, 0)):
        check_integer(name, value, f"an integer, at least {low}", low)
    check_number("confidence", confidence, low=0.0, below=1.0, allowed="in (0, 1)", strict=True)
