"""Independent Bernoulli variables: 0 or 1 for every logit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kofn.arrays.autodiff import moving, not_below_0, stop_gradient
from kofn.arrays.checks import check_ends, check_other, check_scores, check_shape
from kofn.arrays.kinds import (
    Array,
    adopt,
    as_array,
    cast,
    compute_dtype,
    namespace,
    quiet,
    scalar,
    special,
)
from kofn.arrays.operations import divided_as
from kofn.arrays.random import check_rng, gumbel
from kofn.arrays.typing import ArrayT
from kofn.distributions.base import Discrete
from kofn.distributions.probabilities import logits_of
from kofn.links.safe_math import softplus
from kofn.rows.given import without_deleted
from kofn.rows.numbers import temperature_of

__all__ = ["Bernoulli"]


class Bernoulli(Discrete[ArrayT]):
    """Independent Bernoulli variables with P(1) = σ(logits), one per entry.

    With the methods of `Categorical`, entry by entry: the batch shape is `logits`'s. Their
    joint distribution is the product; kofn.estimators adds up the log-probabilities of what f
    takes together.

    Args:
        logits: torch.Tensor, jax.Array or numpy.ndarray of floats, any shape, () for one coin;
            −inf, and what like it counts as deleted (from half of its dtype's least number on), is
            always 0, +inf always 1.
        probs: P(1) instead of logits.

    Raises:
        TypeError, ValueError: `logits` of the wrong kind, dtype or shape.

    Example:
        >>> import numpy as np
        >>> from kofn import Bernoulli
        >>> coins = Bernoulli(np.array([0.0, 2.0]))
        >>> coins.probs().round(3)
        array([0.5 , 0.881])
        >>> coins.log_prob(np.array([1, 0])).round(3)
        array([-0.693, -2.127])
    """

    def __init__(self, logits: ArrayT | None = None, *, probs: ArrayT | None = None) -> None:
        logits = logits_of(as_array(logits), as_array(probs), log_odds, scalars=True)
        check_scores(logits, "logits", scalars=True)
        self.logits = as_array(logits)
        self._register()

    def probs(self) -> ArrayT:
        """Return P(1), in the shape of `logits`."""
        with quiet(self.logits):
            y = self._settled()
            return cast(special(y).expit(y), self.logits.dtype)

    def marginals(self) -> ArrayT:
        """Return the mean of a sample, `probs`; every distribution here has this name."""
        return self.probs()

    def log_prob(self, sample: Array) -> ArrayT:
        """Return log P(sample) per entry; −inf if it is impossible, NaN if it is neither 0 nor 1.

        Args:
            sample: booleans, or numbers 0 and 1, with the shape of `logits` behind any number of
                dimensions of samples.

        Returns:
            The shape of `sample`.

        Raises:
            TypeError, ValueError: another kind of array, or a shape that does not end in the
            shape of `logits`.
        """
        sample = as_array(sample)
        check_ends("sample", sample, self.logits)
        xp, sample = namespace(self.logits), self._beside(sample)
        with quiet(self.logits):
            y, chosen = self._settled(), sample == 1
            answer = -softplus(xp.where(chosen, -y, y))
            return xp.where(~chosen & (sample != 0), math.nan, answer)

    def entropy(self) -> ArrayT:
        """Return −P log P − (1 − P) log(1 − P) per entry."""
        with quiet(self.logits):
            xp, y = namespace(self.logits), self._settled()
            size = xp.where(y > 0, y, -y)
            finite = size != math.inf
            size = xp.where(finite, size, 0.0)
            # log(1 + e^−|y|) + |y|·(the smaller of the two): no large numbers cancel.
            return xp.where(finite, softplus(-size) + size * special(y).expit(-size), 0.0)

    def kl(self, other: Bernoulli[ArrayT]) -> ArrayT:
        """Return Σ P log(P/P_other) per entry; ∞ if `other` excludes a value that this does not.

        Args:
            other: a Bernoulli of the same kind with logits of the same shape.
        """
        check_other(self, other)
        xp = namespace(self.logits)
        with quiet(self.logits):
            y, u = self._settled(), other._settled()
            total: Any = 0.0
            for sign in (1.0, -1.0):
                p = special(y).expit(sign * y)
                ours, theirs = softplus(-sign * y), softplus(-sign * u)
                both = (ours != math.inf) & (theirs != math.inf)
                term = p * (xp.where(both, theirs, 0.0) - xp.where(both, ours, 0.0))
                total = total + xp.where((ours < math.inf) & (theirs == math.inf), math.inf, term)
            return not_below_0(total)

    def mode(self) -> ArrayT:
        """Return 1 where it is more likely than 0; 0 in a tie."""
        return cast(self.choose(self._settled()), self.logits.dtype)

    @property
    def variance(self) -> ArrayT:
        """Return P(1)·P(0), in the shape of `logits`."""
        with quiet(self.logits):
            y = self._settled()
            return cast(special(y).expit(y) * special(y).expit(-y), self.logits.dtype)

    def sample(self, shape: int | tuple[int, ...] = (), rng: Any = None) -> ArrayT:
        """Draw zeros and ones.

        Args:
            shape: the shape of the samples; () for one.
            rng: as for `gumbel_max`.

        Returns:
            shape + logits.shape in the dtype of `logits`; NaN at one. No gradient.
        """
        return cast(self.choose(self.perturb(shape, rng)), self.logits.dtype)

    def log_choices(self) -> float:
        """Return log 2."""
        return math.log(2)

    def _choices(self) -> np.ndarray:
        return np.arange(2.0)

    def perturb(self, shape: int | tuple[int, ...] = (), rng: Any = None) -> ArrayT:
        """Return differentiable logits + logistic noise, shape + logits.shape; float32 for half."""
        shape, rng = check_shape(shape), check_rng(rng, self.logits)
        with quiet(self.logits):
            y = self._settled()
            return y + _logistic(rng, (*shape, *y.shape), y)

    def perturb_given(self, sample: Array, rng: Any = None) -> ArrayT:
        """Draw perturbed logits given their choice: differentiable, in the shape of `sample`."""
        rng, sample = check_rng(rng, self.logits), as_array(sample)
        check_ends("sample", sample, self.logits)
        xp = namespace(self.logits)
        with quiet(self.logits):
            y = self._settled()
            noise = _logistic(rng, tuple(sample.shape), y)
            # Pr(z > t | z > 0) = σ(y − t)/σ(y), inverted.
            up, down = softplus(softplus(y) + noise), -softplus(softplus(-y) + noise)
            return xp.where(self._beside(sample) == 1, up, down)

    def _beside(self, sample: Array) -> Any:
        """Return the sample as an array of the logits' kind, divided by a mesh as they are."""
        sample = adopt(sample, self.logits)
        return divided_as(sample, self.logits) if sample.ndim == self.logits.ndim else sample

    def conditioned(self, perturbed: ArrayT) -> ArrayT:
        """Return `perturbed` with the first derivative of `perturb_given` for the same noise."""
        perturbed, xp = self._beside(self._own(perturbed)), namespace(self.logits)
        with quiet(perturbed):
            z, y = stop_gradient(perturbed), self._settled()
            up = z > 0
            a = -xp.expm1(xp.where(up, -z, z))
            change = xp.where(up, moving(softplus(y)), -moving(softplus(-y)))
            return z + a * change

    def choose(self, perturbed: ArrayT) -> ArrayT:
        """Return 1 where `perturbed` > 0, without a gradient."""
        xp, z = namespace(self.logits), stop_gradient(self._own(perturbed))
        return xp.where(xp.isnan(z), math.nan, cast(z > 0, z.dtype))

    def relax(self, perturbed: ArrayT, temperature: float | Array) -> ArrayT:
        """Return σ(perturbed/temperature), whose limit at temperature 0 is `choose`.

        Args:
            temperature: > 0; a number, or an array that broadcasts to `perturbed` and may carry a
                gradient.
        """
        perturbed, xp = self._own(perturbed), namespace(self.logits)
        t = temperature_of(temperature, tuple(perturbed.shape), perturbed)
        with quiet(perturbed):
            z = perturbed / t
            # There σ is 0 or 1 in every dtype, and 1/t could make a NaN of its slope of 0.
            sure = xp.abs(z) > 1000
            safe = xp.where(sure, 0.0, perturbed) / xp.where(sure, 1.0, t)
            z = xp.where(sure, stop_gradient(z), safe)
            return special(z).expit(z)

    def _settled(self) -> ArrayT:
        return cast(without_deleted(self.logits), compute_dtype(self.logits))


def log_odds(p: ArrayT) -> ArrayT:
    """Return log p/(1 − p), with gradient 0 at p = 0 and p = 1."""
    xp, end = namespace(p), (p == 0) | (p == 1)
    inside = xp.where(end, 0.5, p)
    odds = xp.log(inside) - xp.log1p(-inside)
    return xp.where(end, xp.where(p == 0, scalar(p, -math.inf), math.inf), odds)


def _logistic(rng: Any, shape: tuple[int, ...], like: ArrayT) -> ArrayT:
    noise = gumbel(rng, (2, *shape), like)
    return noise[0] - noise[1]
