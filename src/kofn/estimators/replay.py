"""Runs of an estimator on every tuple of samples, or many times, as rows of one batch."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from kofn.arrays.autodiff import stop_gradient, values_and_slopes
from kofn.arrays.checks import check_shape
from kofn.arrays.kinds import Array, is_torch, namespace, quiet, to_numpy
from kofn.arrays.random import split_rng
from kofn.distributions.base import Discrete
from kofn.estimators.enumeration import exact as expectation
from kofn.estimators.protocol import adopted

AT_ONCE = 1 << 20
"""Logits in one call of an estimator."""
NEVER = "perturb", "perturb_given", "rsample"
"""Methods with more randomness than the sample; an estimator that asks for one is not enumerated.
"""


class Found(NamedTuple):
    """Estimates, one per row, with their probabilities; equal ones if they were drawn."""

    gradients: np.ndarray  # (estimates, logits)
    values: np.ndarray
    weights: np.ndarray
    drawn: bool

    def mean(self) -> np.ndarray:
        return self.weights @ self.gradients

    def covariance_of_mean(self) -> np.ndarray:
        about = self.gradients - self.mean()
        return (self.weights[:, None] * about).T @ about / (len(about) - 1)


class Choices(NamedTuple):
    """Every possible choice, as samples of one row, and its probability."""

    samples: Array
    probability: np.ndarray


class Counted:
    """f, and the number of samples that it was called with."""

    def __init__(self, f: Callable[[Array], Array]) -> None:
        self.f, self.rows = f, 0

    def __call__(self, z: Array) -> Array:
        values = self.f(z)
        self.rows += math.prod(values.shape)
        return values


class OtherNoise(Exception):
    """Raised if an estimator draws anything but samples."""


class NoSource:
    """A generator for replayed samples, which raises an error at any use."""

    def __getattr__(self, name: str) -> Any:
        raise OtherNoise


class Problem:
    """Logits and their distribution, with one copy per estimate."""

    def __init__(self, logits: Array, distribution: Callable[[Array], Any]) -> None:
        self.logits = stop_gradient(logits)
        self._made = distribution
        self.shape = tuple(logits.shape)
        self.one = self.distribution(self.logits[None])

    def distribution(self, logits: Array) -> Any:
        return adopted(self._made(logits))

    def rows(self, count: int) -> Array:
        xp = namespace(self.logits)
        with quiet(self.logits):
            return xp.broadcast_to(self.logits, (count, *self.shape)) + xp.zeros_like(self.logits)

    def choices(self, most: int) -> Choices | None:
        """Return all choices; None if they cannot be enumerated or are too many."""
        if not hasattr(self.one, "support") or self._count() > most:
            return None
        limit = {"enumerate_up_to": most} if isinstance(self.one, Discrete) else {}
        every = self.one.support(len(self.one.batch_shape) - 1, **limit)
        log_prob = to_numpy(self.one.log_prob(every))
        log_prob = log_prob.reshape(len(log_prob), -1).sum(-1)
        possible = np.flatnonzero(log_prob > -math.inf)
        return Choices(_picked(every, possible), np.exp(log_prob[possible]))

    def _count(self) -> float:
        if not isinstance(self.one, Discrete):
            return 0
        return math.exp(min(math.prod(self.one.batch_shape) * self.one.log_choices(), 700))

    def exact(self, f: Callable[[Array], Array], most: int) -> np.ndarray:
        factors = len(self.one.batch_shape) - 1
        limit: Any = {"enumerate_up_to": most} if isinstance(self.one, Discrete) else {}
        _, gradient = values_and_slopes(
            lambda y: expectation(self.distribution(y), f, factors=factors, **limit), self.rows(1)
        )
        return to_numpy(gradient).reshape(-1)

    def enumerated(
        self, estimate: Callable[[Any, Any], Array], choices: Choices, samples: int
    ) -> Found | None:
        """Run on every tuple of choices as samples; None if the estimator draws anything else."""
        each = range(len(choices.probability))
        index = np.array(list(itertools.product(each, repeat=samples)), dtype=np.intp)

        def run(part: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            picked = _picked(choices.samples[:, 0, ...], part.T.reshape(-1))
            picked = picked.reshape(samples, len(part), *picked.shape[1:])
            return self._gradients(
                lambda choice: estimate(_replayed(choice, picked), NoSource()), len(part)
            )

        try:
            parts = [run(part) for part in np.array_split(index, self._pieces(len(index), samples))]
        except OtherNoise:
            return None
        gradients, values = (np.concatenate(part) for part in zip(*parts, strict=True))
        return Found(gradients, values, choices.probability[index].prod(-1), drawn=False)

    def drawn(self, estimate: Callable[[Any, Any], Array], rng: Any, draws: int) -> Found:
        sizes = [len(part) for part in np.array_split(np.empty(draws), self._pieces(draws, 1))]
        sources = split_rng(rng, len(sizes), self.logits)

        def run(size: int, source: Any) -> tuple[np.ndarray, np.ndarray]:
            return self._gradients(lambda choice: estimate(choice, source), size)

        parts = [run(size, source) for size, source in zip(sizes, sources, strict=True)]
        gradients, values = (np.concatenate(part) for part in zip(*parts, strict=True))
        return Found(gradients, values, np.full(draws, 1 / draws), drawn=True)

    def _pieces(self, count: int, samples: int) -> int:
        return max(1, -(-count * samples * math.prod(self.shape) // AT_ONCE))

    def _gradients(
        self, function: Callable[[Any], Array], count: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the gradient of each row and its value; rows are independent."""
        values, gradients = values_and_slopes(
            lambda y: function(self.distribution(y)), self.rows(count)
        )
        return to_numpy(gradients).reshape(count, -1), to_numpy(values)


def _picked(x: Array, index: np.ndarray) -> Array:
    """Return x[index] along the first axis."""
    return x[index.tolist() if is_torch(x) else index]


def _replayed(choice: Any, samples: Array) -> Any:
    """Return `choice` with these as its next samples, once."""
    choice, left = copy.copy(choice), [samples]

    def sample(shape: Any, rng: object) -> Array:
        if not left or math.prod(check_shape(shape)) != len(samples):
            raise OtherNoise
        return left.pop()

    def refuse(*arguments: Any) -> Array:
        raise OtherNoise

    choice.sample = sample
    for name in NEVER:
        if hasattr(choice, name):
            setattr(choice, name, refuse)
    return choice
