"""The categorical distribution, and Gumbel-max and Gumbel-softmax samples."""

from __future__ import annotations

import math
from typing import Any, Never

import numpy as np

from kofn.arrays.autodiff import moving, not_below_0, stop_gradient
from kofn.arrays.checks import check_ends, check_flag, check_other
from kofn.arrays.kinds import Array, adopt, cast, namespace, quiet, scalar
from kofn.arrays.names import unknown_keyword
from kofn.arrays.random import centred, centred_at_hand, check_rng, gumbel, with_gumbel
from kofn.arrays.typing import ArrayT, NoiseName
from kofn.distributions.base import Discrete, OverRows
from kofn.distributions.noise import with_noise
from kofn.distributions.probabilities import log, logits_of
from kofn.links.link import Link
from kofn.maps.perturbed import GUMBEL
from kofn.maps.softmax import softmax
from kofn.maps.topk import hard_topk

__all__ = ["Categorical", "gumbel_max", "gumbel_softmax"]


def gumbel_max(
    logits: ArrayT,
    rng: Any = None,
    *,
    shape: int | tuple[int, ...] = (),
    dim: int = -1,
    mask: Array | None = None,
    **others: Never,
) -> ArrayT:
    """Draw an index from softmax(logits), as argmax_i (logits_i + g_i) with Gumbel noise g.

    Args:
        logits: torch.Tensor, jax.Array or numpy.ndarray of floats, any shape; need not be
            normalised. −inf is never drawn.
        rng: a torch.Generator, numpy.random.Generator or JAX key, as `logits` are. The same state
            gives the same draws. An integer is the seed of a new one: the same draws at each call.
            Without one torch's global generator draws, inside torch.compile too, or NumPy's
            `default_rng()`, fresh from the system; JAX needs a key or an integer.
        shape: how many draws, as a shape; () for one.
        dim: the dimension to choose along.
        mask: boolean, broadcasts to `logits`; False entries are never chosen.

    Returns:
        Integers, shape + batch shape (`logits.shape` without `dim`). Entries of +inf are drawn
        first, evenly. Where nothing can be drawn, or a row holds a NaN, the index means nothing.

    Raises:
        TypeError, ValueError: an argument of the wrong kind, dtype or shape; no entries at all.

    Source: Gumbel (1954); Maddison, Tarlow & Minka, "A* Sampling" (2014).

    In the articles (docs/from_the_articles.md): Gumbel-Max, argmax(log p − log(−log ε)), a
    reparameterisation of the discrete distribution.

    Example:
        >>> import numpy as np
        >>> from kofn import gumbel_max
        >>> drawn = gumbel_max(np.log([0.7, 0.2, 0.1]), np.random.default_rng(0), shape=10_000)
        >>> (np.bincount(drawn) / 10_000).round(1)
        array([0.7, 0.2, 0.1])
    """
    if others:
        raise unknown_keyword(gumbel_max, others)
    choice = Categorical(logits, dim, mask)
    if logits.shape[choice.dim] == 0:
        raise ValueError(f"logits must have entries along dim; got the shape {logits.shape}")
    with quiet(logits):
        noisy = stop_gradient(choice.perturb(shape, rng))
        return namespace(noisy).argmax(noisy, axis=choice.dim)


def gumbel_softmax(
    logits: ArrayT,
    temperature: float | Array = 1.0,
    hard: bool = False,
    rng: Any = None,
    *,
    shape: int | tuple[int, ...] = (),
    dim: int = -1,
    mask: Array | None = None,
    **others: Never,
) -> ArrayT:
    """Draw a relaxed one-hot sample, softmax((logits + g)/temperature) with Gumbel noise g.

    Towards temperature 0 it is the one-hot of `gumbel_max`, and its gradient's variance grows
    like 1/temperature. As an estimator of ∇E f it is biased; `kofn.estimators` measures by how
    much. The noise is always finite.

    Args:
        logits, rng, shape, dim, mask: as for `gumbel_max`.
        temperature: > 0; a number, or an array that broadcasts to shape + batch shape and may
            carry a gradient.
        hard: the one-hot sample itself, with the relaxed one's gradient (straight-through).

    Returns:
        Weights ≥ 0 that sum to 1, shape + logits.shape in the dtype of `logits`; computed in
        float32 for half precision. A row with nothing to draw is zeros; a NaN stays in its row.

    Raises:
        TypeError, ValueError: as for `gumbel_max` and `softmax`.

    Source: Jang, Gu & Poole, "Categorical Reparameterization with Gumbel-Softmax" (2017);
    Maddison, Mnih & Teh, "The Concrete Distribution" (2017).

    Example:
        >>> import numpy as np
        >>> from kofn import gumbel_softmax
        >>> logits = np.array([2.0, 1.0, 0.0])
        >>> gumbel_softmax(logits, 0.5, rng=np.random.default_rng(0)).round(3)
        array([0.076, 0.107, 0.817])
        >>> gumbel_softmax(logits, 0.5, hard=True, rng=np.random.default_rng(0)).round(3)
        array([0., 0., 1.])
    """
    if others:
        raise unknown_keyword(gumbel_softmax, others)
    choice = Categorical(logits, dim, mask)
    noisy = choice.perturb(shape, rng)
    weights = choice.relax(noisy, temperature)
    if check_flag("hard", hard):
        weights = choice.choose(noisy) + (weights - stop_gradient(weights))
    return cast(weights, logits.dtype)


class Categorical(OverRows[ArrayT], Discrete[ArrayT]):
    """The categorical distribution P(i) = e^{logits_i}/Σ e^{logits}, with one-hot samples.

    `KSubset` with k = 1, by shorter means, and the plainest distribution that kofn.estimators
    takes. Shaped like a torch.distributions object, for tensors, JAX arrays (it is a pytree) and
    NumPy arrays. Everything is differentiable in the logits, any number of times.

    Args:
        logits: torch.Tensor, jax.Array or numpy.ndarray of floats, any shape. −inf is never
            chosen; several of +inf share.
        dim: the dimension of the n entries.
        mask: boolean, broadcasts to `logits`; False entries are never chosen.
        probs: e^logits instead of logits: numbers ≥ 0, which need not sum to 1.

    A row with nothing left holds the empty choice, zeros, with probability 1 (padding). A NaN
    stays in its row.

    Raises:
        TypeError, ValueError: an argument of the wrong kind, dtype or shape.

    Example:
        >>> import numpy as np
        >>> from kofn import Categorical
        >>> choice = Categorical(np.log([0.5, 0.3, 0.2]))
        >>> choice.probs().round(3)
        array([0.5, 0.3, 0.2])
        >>> choice.log_prob(np.array([0, 1, 0])).round(3)  # log 0.3
        np.float64(-1.204)
        >>> choice.sample((), np.random.default_rng(0))
        array([1., 0., 0.])
    """

    parts = ("logits", "dim", "mask")
    said = ("dim",)

    def __init__(
        self,
        logits: ArrayT | None = None,
        dim: int = -1,
        mask: Array | None = None,
        *,
        probs: ArrayT | None = None,
    ) -> None:
        self._set(logits_of(logits, probs, log), dim, mask)
        self._register()

    def probs(self) -> ArrayT:
        """Return P(i), in the shape of `logits`."""
        return softmax(self.logits, dim=self.dim, mask=self.mask)

    def marginals(self) -> ArrayT:
        """Return the mean of a sample, `probs`; every distribution here has this name."""
        return self.probs()

    def log_prob(self, sample: Array) -> ArrayT:
        """Return log P(sample): −inf if it is not one-hot, or impossible.

        Args:
            sample: booleans, or numbers 0 and 1, with the shape of `logits` behind any number of
                dimensions of samples. An entry that is neither gives NaN.

        Returns:
            The shape of the samples and the batch.

        Raises:
            TypeError, ValueError: another kind of array, or a shape that does not end in the
            shape of `logits`.
        """
        check_ends("sample", sample, self.logits)
        xp, sample = namespace(self.logits), adopt(sample, self.logits)
        with quiet(self.logits):
            log_p, chosen = self._log_probs(), sample == 1
            some = xp.any(log_p != -math.inf, axis=self.dim)
            count = xp.sum(cast(chosen, log_p.dtype), axis=self.dim)
            answer = xp.sum(xp.where(chosen, log_p, 0.0), axis=self.dim)
            answer = xp.where(count == cast(some, log_p.dtype), answer, -math.inf)
            unknown = xp.any(~chosen & (sample != 0), axis=self.dim)
            unknown = unknown | xp.any(xp.isnan(log_p), axis=self.dim)
            return xp.where(unknown, math.nan, answer)

    def entropy(self) -> ArrayT:
        """Return −Σ P log P, with the batch shape."""
        with quiet(self.logits):
            log_p = self._log_probs()
            return self._mean(log_p, -log_p)  # type: ignore[arg-type]  # of its kind

    def kl(self, other: Categorical[ArrayT]) -> ArrayT:
        """Return Σ P log(P/P_other), with the batch shape; ∞ if `other` excludes a possible entry.

        Args:
            other: a Categorical of the same kind with logits of the same shape and the same dim.
        """
        check_other(self, other)
        xp = namespace(self.logits)
        with quiet(self.logits):
            log_p, log_q = self._log_probs(), other._log_probs()
            here, there = log_p != -math.inf, log_q != -math.inf
            difference = xp.where(here & there, log_p, 0.0) - xp.where(here & there, log_q, 0.0)
            # A row with nothing left is the empty choice, which no other row knows.
            empty = ~xp.any(here, axis=self.dim) & xp.any(there, axis=self.dim)
            apart = xp.any(here & ~there, axis=self.dim) | empty
            answer = not_below_0(self._mean(log_p, difference))
            answer = xp.where(apart, math.inf, answer)
            has_nan = xp.any(xp.isnan(log_p) | xp.isnan(log_q), axis=self.dim)
            return xp.where(has_nan, math.nan, answer)

    def mode(self) -> ArrayT:
        """Return the most likely one-hot vector; ties go to the lowest index."""
        return hard_topk(self.logits, self._one(), dim=self.dim, mask=self.mask)

    @property
    def variance(self) -> ArrayT:
        """Return P(1 − P), in the shape of `logits`."""
        xp = namespace(self.logits)
        with quiet(self.logits):
            log_p = self._log_probs()
            spread = xp.exp(log_p) * -xp.expm1(log_p)
            return cast(xp.where(log_p == -math.inf, 0.0, spread), self.logits.dtype)

    def sample(self, shape: int | tuple[int, ...] = (), rng: Any = None) -> ArrayT:
        """Draw one-hot samples, by `gumbel_max`.

        Args:
            shape: the shape of the samples; () for one.
            rng: as for `gumbel_max`.

        Returns:
            shape + logits.shape in the dtype of `logits`; NaN in a row with one. No gradient:
            kofn.estimators gives one to a sample.
        """
        return cast(self.choose(self.perturb(shape, rng)), self.logits.dtype)

    def log_choices(self) -> float:
        """Return log n."""
        return math.log(max(self.event_shape[0], 1))

    def _choices(self) -> np.ndarray:
        return np.eye(self.event_shape[0])

    def perturb(
        self,
        shape: int | tuple[int, ...] = (),
        rng: Any = None,
        *,
        noise: NoiseName | Link = "gumbel",
    ) -> ArrayT:
        """Return logits + noise, up to a constant per row, differentiable in the logits.

        With Gumbel noise, `choose` makes samples of it, and `relax` what `gumbel_softmax` draws.
        With another noise they are the samples, and relaxed samples, of Perturb-Max, whose
        probabilities `perturbed_argmax` has; `probs`, `log_prob` and the estimators stay with
        Gumbel noise.

        Args:
            shape: the shape of the samples; () for one.
            rng: as for `gumbel_max`.
            noise: as for `perturbed_argmax`. A kofn.Link draws its quantiles; without a `quantile`
                of its own these are found by bisection.

        Returns:
            shape + logits.shape; float32 for half precision. Of several +inf the noise decides.

        Raises:
            TypeError, ValueError: the noise is unknown, or an argument of the wrong kind.

        Example:
            >>> import numpy as np
            >>> from kofn import Categorical, perturbed_argmax
            >>> choice = Categorical(np.array([2.0, 1.0, 0.0]))
            >>> noisy = choice.perturb(100_000, np.random.default_rng(0), noise="normal")
            >>> choice.choose(noisy).mean(0).round(2)
            array([0.73, 0.22, 0.05])
            >>> perturbed_argmax(choice.logits, noise="normal").round(2)
            array([0.73, 0.22, 0.05])
            >>> choice.relax(noisy[0], 0.5).round(3)
            array([0.883, 0.071, 0.045])
        """
        y = self._settled()
        if isinstance(noise, str) and noise == GUMBEL:
            return with_gumbel(y, shape, rng)
        return with_noise(y, shape, rng, noise)

    def perturb_given(self, sample: Array, rng: Any = None) -> ArrayT:
        """Draw perturbed logits given their choice: differentiable, in the shape of `sample`.

        The largest of all is logits' logsumexp + noise, whichever it is; the others are below it.
        Source: Maddison, Tarlow & Minka (2014).
        """
        rng, xp = check_rng(rng, self.logits), namespace(self.logits)
        check_ends("sample", sample, self.logits)
        with quiet(self.logits):
            y, log_total = self._normalised()
            noise = gumbel(rng, tuple(sample.shape), y)
            chosen, possible = adopt(sample, y) == 1, y != -math.inf
            own = xp.sum(xp.where(chosen, noise, 0.0), axis=self.dim)
            top = xp.expand_dims(log_total + own, axis=self.dim)
            free = xp.where(possible, y, 0.0) + noise
            below = xp.where(possible, -xp.logaddexp(-free, -top), -math.inf)
            return xp.where(chosen, top, below)

    def conditioned(self, perturbed: ArrayT) -> ArrayT:
        """Return `perturbed` with the first derivative of `perturb_given` for the same noise.

        Given the choice, its own entry moves with logsumexp alone, and one below it by both:
        a = 1 − e^{−(top − z)} with its logit, 1 − a with logsumexp.
        """
        perturbed, xp = self._own(perturbed), namespace(self.logits)
        with quiet(perturbed):
            z, (y, log_total) = stop_gradient(perturbed), self._normalised()
            if not self._one():  # no class, and no greatest
                return z + moving(y)
            possible = (y != -math.inf) & (z != -math.inf)
            top = xp.max(z, axis=self.dim, keepdims=True)
            a = xp.where(possible, -xp.expm1(xp.where(possible, z, top) - top), 0.0)
            change = a * moving(y) + (1 - a) * moving(xp.expand_dims(log_total, axis=self.dim))
            return z + xp.where(possible, change, 0.0)

    def choose(self, perturbed: ArrayT) -> ArrayT:
        """Return the one-hot vector of the largest entry along dim, without a gradient."""
        return hard_topk(self._own(perturbed), self._one(), dim=self.dim)

    def relax(self, perturbed: ArrayT, temperature: float | Array) -> ArrayT:
        """Return softmax(perturbed/temperature), whose limit at temperature 0 is `choose`."""
        return softmax(self._own(perturbed), temperature=temperature, dim=self.dim)

    def _one(self) -> int:
        return min(1, self.logits.shape[self.dim])

    def _settled(self) -> ArrayT:
        """Return available logits minus the row's largest; if any is +inf, only these remain."""
        xp = namespace(self.logits)
        y = self._playing()
        known = centred_at_hand(y, self.dim)
        if known is not None:
            return known
        top = y == math.inf
        first = xp.any(top, axis=self.dim, keepdims=True) & ~xp.isnan(y)
        return centred(xp.where(first, xp.where(top, scalar(y, 0.0), -math.inf), y), self.dim)

    def _normalised(self) -> tuple[ArrayT, ArrayT]:
        """Return the settled logits y and log Σ e^y, which is 0 for a row without entries."""
        xp, y = namespace(self.logits), self._settled()
        possible = y != -math.inf
        total = xp.sum(xp.where(possible, xp.exp(xp.where(possible, y, 0.0)), 0.0), axis=self.dim)
        return y, xp.log(xp.where(total == 0, 1.0, total))

    def _log_probs(self) -> ArrayT:
        y, log_total = self._normalised()
        return y - namespace(y).expand_dims(log_total, axis=self.dim)

    def _mean(self, log_p: ArrayT, terms: ArrayT) -> ArrayT:
        """Return Σ p·terms over the possible entries."""
        xp = namespace(log_p)
        possible = log_p != -math.inf
        p = xp.where(possible, xp.exp(xp.where(possible, log_p, 0.0)), 0.0)
        return xp.sum(p * xp.where(possible, terms, 0.0), axis=self.dim)
