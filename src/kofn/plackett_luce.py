"""Choosing one after another without replacement: Plackett–Luce, by Gumbel noise."""

from __future__ import annotations

import math
from typing import Any

from kofn._array import (
    Array,
    adopt,
    cast,
    compute_dtype,
    dtype_name,
    full_like,
    is_jax,
    log_cumulative_sums,
    marked,
    namespace,
    quiet,
    stop_gradient,
    take_along_last,
    top_indices,
)
from kofn._noise import gumbel
from kofn._validate import check_count, check_rng, check_same_kind, check_scores, check_shape
from kofn.links import Link
from kofn.maps import soft_topk

__all__ = ["PlackettLuce"]

UNORDERED = 10
"""The largest unordered draw whose probability is summed: 2^k·k/2 terms."""


class PlackettLuce:
    """P(i₁, i₂, …) = Π_j e^{logits_{i_j}}/Σ_{i not yet drawn} e^{logits_i}: draws in sequence.

    What Gumbel top-k samples: the k largest of logits + Gumbel noise, in order. Another
    distribution than `KSubset`, with other marginals: here an early draw changes the odds of the
    later ones. Pick `KSubset` for a set of k with exact marginals and gradients, this for rankings
    and for sampling without replacement one after another.

    Args:
        logits: torch.Tensor, jax.Array or numpy.ndarray of floats, (…, n), along the last
            dimension; −inf is never drawn.

    Raises:
        TypeError, ValueError: `logits` of the wrong kind, dtype or shape.

    Source: Plackett (1975); Kool, van Hoof & Welling, "Stochastic Beams and Where to Find Them"
    (2019), for the Gumbel top-k.

    Example:
        >>> import numpy as np
        >>> from kofn import PlackettLuce
        >>> race = PlackettLuce(np.log([5.0, 3.0, 2.0]))
        >>> np.exp(race.log_prob(np.array([0, 1]))).round(3)  # 5/10 · 3/5
        np.float64(0.3)
        >>> np.exp(race.log_prob(np.array([0, 1]), ordered=False)).round(3)  # + 3/10 · 5/7
        np.float64(0.514)
    """

    def __init__(self, logits: Array) -> None:
        check_scores(logits, "logits")
        self.logits = logits
        if is_jax(logits):
            from kofn._jax import register

            register(PlackettLuce, ("logits",))

    def __repr__(self) -> str:
        return f"PlackettLuce(logits of shape {tuple(self.logits.shape)})"

    def sample(self, k: int, shape: int | tuple[int, ...], rng: Any) -> Array:
        """Indices of k entries in the order they are drawn.

        Args:
            k: how many, an integer in [0, n].
            shape: how many draws, as a shape; () for one.
            rng: a torch.Generator, numpy.random.Generator or JAX key, as `logits` are.

        Returns:
            Integers, shape + batch shape + (k,). Where fewer than k entries can be drawn, entries
            of −inf come last.

        Raises:
            TypeError, ValueError: an argument of the wrong kind or out of range.
        """
        k = check_count(k, self.logits.shape[-1])
        return top_indices(stop_gradient(self._perturbed(shape, rng)), k)

    def log_prob(self, indices: Array, *, ordered: bool = True) -> Array:
        """log P of drawing `indices` in this order; in any order with ordered=False.

        Args:
            indices: integers, (…, k): the shape of the batch with any number of dimensions of
                samples before it, and the k drawn last. One twice has probability 0.
            ordered: False sums over all orders, exactly, by 2^k·k/2 terms; k ≤ 10.

        Returns:
            The shape of `indices` without its last dimension, differentiable in the logits.

        Raises:
            TypeError, ValueError: `indices` of another kind, or of a shape that does not fit; more
                than 10 of them with ordered=False.
        """
        self._check_indices(indices, ordered)
        xp = namespace(self.logits)
        indices = adopt(indices, self.logits)
        logits = cast(self.logits, compute_dtype(self.logits))
        logits = xp.broadcast_to(logits, (*indices.shape[:-1], logits.shape[-1]))
        with quiet(logits):
            out = marked(logits, indices)
            drawn = take_along_last(logits, indices)
            finite = drawn != -math.inf
            once = xp.sum(out, axis=-1) == indices.shape[-1]
            drawn = xp.where(finite, drawn, 0.0)
            others = xp.where(out, -math.inf, logits)
            answer = (_in_order if ordered else _in_any_order)(drawn, _rest(others, drawn))
            return xp.where(once & xp.all(finite, axis=-1), answer, -math.inf)

    def relaxed_sample(
        self,
        k: float | Array,
        temperature: float | Array,
        rng: Any,
        *,
        shape: int | tuple[int, ...] = (),
        link: str | Link = "logistic",
        hard: bool = False,
    ) -> Array:
        """soft_topk of logits + Gumbel noise: a k-hot sample, relaxed so that gradients pass.

        Args:
            k, temperature, link: as for `soft_topk`; towards temperature 0 the k-hot of `sample`.
            rng, shape: as for `sample`.
            hard: the k-hot sample itself with the relaxed one's gradient (straight-through).

        Returns:
            Weights in [0, 1] that sum to k, shape + logits.shape, differentiable in the logits.

        Raises:
            TypeError, ValueError: as for `soft_topk` and `sample`.

        Source: Jang, Gu & Poole; Maddison, Mnih & Teh (2017), for k = 1; Xie & Ermon (2019).
        """
        noisy = self._perturbed(shape, rng)
        weights = soft_topk(noisy, k, temperature=temperature, link=link, hard=hard)
        return cast(weights, self.logits.dtype)

    def _perturbed(self, shape: Any, rng: Any) -> Array:
        shape = check_shape(shape)
        check_rng(rng, self.logits)
        # In half precision many sums would be equal, and the first of them drawn too often.
        logits = cast(self.logits, compute_dtype(self.logits))
        return logits + gumbel(rng, (*shape, *logits.shape), logits)

    def _check_indices(self, indices: Any, ordered: bool) -> None:
        check_same_kind("indices", indices, self.logits, "logits")
        if not dtype_name(indices).startswith(("int", "uint")):
            raise TypeError(f"indices must be integers; got dtype {indices.dtype}")
        shape, batch = tuple(indices.shape), tuple(self.logits.shape[:-1])
        if len(shape) <= len(batch) or shape[len(shape) - 1 - len(batch) : -1] != batch:
            wanted = "(…, " + ", ".join(map(str, (*batch, "k"))) + ")"
            raise ValueError(f"indices must have the shape {wanted}; got {shape}")
        if not ordered and shape[-1] > UNORDERED:
            allowed = f"at most {UNORDERED} indices"
            raise ValueError(f"ordered=False sums over all orders of {allowed}; got {shape[-1]}")


def _rest(others: Array, drawn: Array) -> Array:
    """log Σ e^y over what is not drawn; where that is nothing, too small for a digit to see."""
    xp = namespace(others)
    greatest = stop_gradient(xp.max(others, axis=-1))
    some = greatest > -math.inf
    total = xp.sum(xp.exp(others - xp.where(some, greatest, 0.0)[..., None]), axis=-1)
    rest = greatest + xp.log(xp.where(some, total, 1.0))
    if drawn.shape[-1] == 0:
        return xp.where(some, rest, 0.0)
    least = stop_gradient(xp.min(drawn, axis=-1))
    return xp.where(some, rest, least - 80 - 1e-6 * xp.abs(least))


def _in_order(drawn: Array, rest: Array) -> Array:
    """Σ_j y_j − log Σ e^y over what is left before the j-th draw, added up from the last."""
    xp = namespace(drawn)
    backwards = xp.concat([rest[..., None], xp.flip(drawn, axis=-1)], axis=-1)
    left = log_cumulative_sums(backwards)[..., 1:]
    return xp.sum(drawn, axis=-1) - xp.sum(left, axis=-1)


def _in_any_order(drawn: Array, rest: Array) -> Array:
    """By how likely each set T of the k is what comes first, from the empty set up."""
    xp = namespace(drawn)
    k = drawn.shape[-1]
    everything = (1 << k) - 1
    left = {everything: rest}  # log Σ e^y of what is left after T
    for drawn_first in range(everything - 1, -1, -1):
        i = _lowest(~drawn_first & everything)
        left[drawn_first] = xp.logaddexp(left[drawn_first | 1 << i], drawn[..., i])
    likely = {0: full_like(rest, tuple(rest.shape), 0.0)}
    for drawn_first in range(1, everything + 1):
        total = None
        for i in range(k):
            before = drawn_first & ~(1 << i)
            if before != drawn_first:
                last = likely[before] + (drawn[..., i] - left[before])
                total = last if total is None else xp.logaddexp(total, last)
        likely[drawn_first] = total
    return likely[everything]


def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1
