"""Choosing one at random: by Gumbel noise, relaxed or not, and the distribution itself."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kofn._array import (
    Array,
    adopt,
    cast,
    compute_dtype,
    is_jax,
    moving,
    namespace,
    quiet,
    scalar,
    stop_gradient,
)
from kofn._noise import gumbel
from kofn._support import every_choice
from kofn._validate import (
    check_dim,
    check_ends,
    check_mask,
    check_other,
    check_rng,
    check_scores,
    check_shape,
)
from kofn.maps import hard_topk, softmax

__all__ = ["Categorical", "gumbel_max", "gumbel_softmax"]


def gumbel_max(
    logits: Array,
    rng: Any = None,
    *,
    shape: int | tuple[int, ...] = (),
    dim: int = -1,
    mask: Array | None = None,
) -> Array:
    """argmax_i (logits_i + g_i), g standard Gumbel: an index drawn exactly from softmax(logits).

    Args:
        logits: torch.Tensor, jax.Array or numpy.ndarray of floats, any shape; need not be
            normalised. −inf is never drawn.
        rng: a torch.Generator, numpy.random.Generator or JAX key, as `logits` are. The same state
            gives the same draws.
        shape: how many draws, as a shape; () for one.
        dim: the dimension to choose along.
        mask: boolean, broadcasts to `logits`; False entries are as if deleted.

    Returns:
        Integers, shape + batch shape (`logits.shape` without `dim`). Entries of +inf are drawn
        first, evenly. Where nothing can be drawn, or a row holds a NaN, the index means nothing.

    Raises:
        TypeError, ValueError: an argument of the wrong kind, dtype or shape; no entries at all.

    Source: Gumbel (1954); Maddison, Tarlow & Minka, "A* Sampling" (2014).

    Example:
        >>> import numpy as np
        >>> from kofn import gumbel_max
        >>> drawn = gumbel_max(np.log([0.7, 0.2, 0.1]), np.random.default_rng(0), shape=10_000)
        >>> (np.bincount(drawn) / 10_000).round(1)
        array([0.7, 0.2, 0.1])
    """
    choice = Categorical(logits, dim, mask)
    if logits.shape[choice.dim] == 0:
        raise ValueError(f"logits must have entries along dim; got the shape {logits.shape}")
    with quiet(logits):
        noisy = stop_gradient(choice.perturb(shape, rng))
        return namespace(noisy).argmax(noisy, axis=choice.dim)


def gumbel_softmax(
    logits: Array,
    temperature: float | Array = 1.0,
    hard: bool = False,
    rng: Any = None,
    *,
    shape: int | tuple[int, ...] = (),
    dim: int = -1,
    mask: Array | None = None,
) -> Array:
    """softmax((logits + g)/temperature), g standard Gumbel: a relaxed one-hot sample.

    Towards temperature 0 it is the one-hot of `gumbel_max`, and its gradient's variance grows
    like 1/temperature. As an estimator of ∇E f it is biased; `kofn.estimators` measures by how
    much. The noise is finite whatever the generator draws.

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
    choice = Categorical(logits, dim, mask)
    noisy = choice.perturb(shape, rng)
    weights = choice.relax(noisy, temperature)
    if hard:
        weights = choice.choose(noisy) + (weights - stop_gradient(weights))
    return cast(weights, logits.dtype)


class Categorical:
    """P(i) = e^{logits_i}/Σ e^{logits}: one of n, as one-hot samples.

    `KSubset` with k = 1, by shorter means, and the plainest distribution that kofn.estimators
    takes. Shaped like a torch.distributions object, for tensors, JAX arrays (it is a pytree) and
    NumPy arrays. Everything is differentiable in the logits, any number of times.

    Args:
        logits: torch.Tensor, jax.Array or numpy.ndarray of floats, any shape. −inf is never
            chosen; several of +inf share.
        dim: the dimension of the n entries.
        mask: boolean, broadcasts to `logits`; False entries are as if deleted.

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

    def __init__(self, logits: Array, dim: int = -1, mask: Array | None = None) -> None:
        check_scores(logits, "logits")
        self.logits = logits
        self.dim = check_dim(dim, logits.ndim)
        if mask is not None:
            check_mask(mask, logits, "logits")
        self.mask = mask
        if is_jax(logits):
            from kofn._jax import register

            register(Categorical, ("logits", "dim", "mask"))

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The shape of `logits` without `dim`: one distribution each."""
        shape = list(self.logits.shape)
        del shape[self.dim]
        return tuple(shape)

    def __repr__(self) -> str:
        return f"Categorical(logits of shape {tuple(self.logits.shape)}, dim={self.dim})"

    def probs(self) -> Array:
        """P(i), like `logits`."""
        return softmax(self.logits, dim=self.dim, mask=self.mask)

    def marginals(self) -> Array:
        """The mean of a sample: `probs`, under the name it has for every distribution here."""
        return self.probs()

    def log_prob(self, sample: Array) -> Array:
        """log P(sample): −inf where it is not one-hot, or not possible.

        Args:
            sample: booleans, or numbers 0 and 1, with the shape of `logits` behind any number of
                dimensions of samples. An entry that is neither gives NaN.

        Returns:
            The shape of the samples and the batch.

        Raises:
            TypeError, ValueError: another kind of array, or a shape that does not end in that of
                `logits`.
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

    def entropy(self) -> Array:
        """−Σ P log P, with the batch shape."""
        with quiet(self.logits):
            log_p = self._log_probs()
            return self._mean(log_p, -log_p)

    def kl(self, other: Categorical) -> Array:
        """Σ P log(P/P_other), with the batch shape; ∞ where `other` excludes what this does not.

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
            answer = xp.where(apart, math.inf, self._mean(log_p, difference))
            spoiled = xp.any(xp.isnan(log_p) | xp.isnan(log_q), axis=self.dim)
            return xp.where(spoiled, math.nan, answer)

    def mode(self) -> Array:
        """The likeliest one-hot, ties to the lowest index."""
        return hard_topk(self.logits, self._one(), dim=self.dim, mask=self.mask)

    def sample(self, shape: int | tuple[int, ...], rng: Any) -> Array:
        """One-hot samples, by `gumbel_max`.

        Args:
            shape: how many, as a shape; () for one.
            rng: a torch.Generator, numpy.random.Generator or JAX key, as `logits` are.

        Returns:
            shape + logits.shape in the dtype of `logits`; NaN in a row with one. No gradient:
            kofn.estimators gives one to a sample.
        """
        return cast(self.choose(self.perturb(shape, rng)), self.logits.dtype)

    def support(self, factors: int | None = None) -> Array:
        """Every choice, (choices,) + logits.shape, for enumeration where there are few.

        Args:
            factors: as for `KSubset.support`.
        """
        n = self.logits.shape[self.dim]
        return every_choice(np.eye(n), self.logits, self.batch_shape, self.dim, factors)

    def perturb(self, shape: int | tuple[int, ...], rng: Any) -> Array:
        """logits + Gumbel noise, shape + logits.shape, differentiable; float32 for half precision.

        Of several +inf the noise decides.
        """
        shape = check_shape(shape)
        check_rng(rng, self.logits)
        y = self._settled()
        return y + gumbel(rng, (*shape, *y.shape), y)

    def perturb_given(self, sample: Array, rng: Any) -> Array:
        """`perturb`, given what it is that it chooses: differentiable, like `sample`.

        The largest of all is logits' logsumexp + noise, whichever it is; the others are below it.
        Source: Maddison, Tarlow & Minka (2014).
        """
        check_rng(rng, self.logits)
        xp = namespace(self.logits)
        with quiet(self.logits):
            y, log_total = self._normalised()
            noise = gumbel(rng, tuple(sample.shape), y)
            chosen, possible = sample == 1, y != -math.inf
            own = xp.sum(xp.where(chosen, noise, 0.0), axis=self.dim)
            top = xp.expand_dims(log_total + own, axis=self.dim)
            free = xp.where(possible, y, 0.0) + noise
            below = xp.where(possible, -xp.logaddexp(-free, -top), -math.inf)
            return xp.where(chosen, top, below)

    def conditioned(self, perturbed: Array) -> Array:
        """`perturbed`, with the gradient that `perturb_given` has by the same noise (once).

        Given the choice, its own entry moves with logsumexp alone, and one below it by what is
        between: a = 1 − e^{−(top − z)} with its logit, 1 − a with logsumexp.
        """
        xp = namespace(perturbed)
        with quiet(perturbed):
            z = stop_gradient(perturbed)
            y, log_total = self._normalised()
            possible = (y != -math.inf) & (z != -math.inf)
            top = xp.max(z, axis=self.dim, keepdims=True)
            a = xp.where(possible, -xp.expm1(xp.where(possible, z, top) - top), 0.0)
            moved = a * moving(y) + (1 - a) * moving(xp.expand_dims(log_total, axis=self.dim))
            return z + xp.where(possible, moved, 0.0)

    def choose(self, perturbed: Array) -> Array:
        """The one-hot of the largest along dim, without a gradient."""
        return hard_topk(perturbed, self._one(), dim=self.dim)

    def relax(self, perturbed: Array, temperature: float | Array) -> Array:
        """softmax(perturbed/temperature): what `choose` is the limit of."""
        return softmax(perturbed, temperature=temperature, dim=self.dim)

    def _one(self) -> int:
        return min(1, self.logits.shape[self.dim])

    def _settled(self) -> Array:
        """Logits in the compute dtype, −inf where masked; of +inf those alone, if there are."""
        xp = namespace(self.logits)
        y = cast(self.logits, compute_dtype(self.logits))
        if self.mask is not None:
            y = xp.where(adopt(self.mask, y), y, -math.inf)
        top = y == math.inf
        first = xp.any(top, axis=self.dim, keepdims=True) & ~xp.isnan(y)
        return xp.where(first, xp.where(top, scalar(y, 0.0), -math.inf), y)

    def _normalised(self) -> tuple[Array, Array]:
        """Settled logits y and log Σ e^y, 0 for a row with nothing left."""
        y, top, log_sum = self._parts()
        return y, top + log_sum

    def _parts(self) -> tuple[Array, Array, Array]:
        """Settled logits y, their largest, a constant, and log Σ e^{y − largest}."""
        xp = namespace(self.logits)
        y = self._settled()
        if y.shape[self.dim] == 0:
            none = xp.sum(y, axis=self.dim)
            return y, none, none
        top = stop_gradient(xp.max(y, axis=self.dim))
        some = top != -math.inf
        top = xp.where(some, top, 0.0)
        possible = y != -math.inf
        distance = xp.where(possible, y, 0.0) - xp.expand_dims(top, axis=self.dim)
        total = xp.sum(xp.where(possible, xp.exp(distance), 0.0), axis=self.dim)
        return y, top, xp.log(xp.where(some, total, 1.0))

    def _log_probs(self) -> Array:
        # In this order, large logits lose no digit of what is small.
        y, top, log_sum = self._parts()
        xp, dim = namespace(y), self.dim
        return (y - xp.expand_dims(top, axis=dim)) - xp.expand_dims(log_sum, axis=dim)

    def _mean(self, log_p: Array, terms: Array) -> Array:
        """Σ p·terms over what is possible."""
        xp = namespace(log_p)
        possible = log_p != -math.inf
        p = xp.where(possible, xp.exp(xp.where(possible, log_p, 0.0)), 0.0)
        return xp.sum(p * xp.where(possible, terms, 0.0), axis=self.dim)
