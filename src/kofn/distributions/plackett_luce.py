"""The Plackett–Luce distribution of ordered draws without replacement."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from kofn.arrays.autodiff import moving, stop_gradient
from kofn.arrays.checks import check_count, check_same_kind
from kofn.arrays.flow import stacked
from kofn.arrays.kinds import Array, adopt, cast, dtype_name, full_like, move_axis, namespace, quiet
from kofn.arrays.operations import (
    arange,
    divided_as,
    marked,
    take_along_last,
    top_indices,
    with_undivided_rows,
)
from kofn.arrays.random import centred, with_gumbel
from kofn.arrays.typing import ArrayT, LinkName
from kofn.distributions.base import OverRows
from kofn.links import Link
from kofn.maps.topk import soft_topk
from kofn.rows.compiled import whole

__all__ = ["PlackettLuce"]


class PlackettLuce(OverRows[ArrayT]):
    """The Plackett–Luce distribution: draws in sequence, without replacement, by softmax.

    P(i₁, i₂, …) = Π_j e^{logits_{i_j}}/Σ_{i not yet drawn} e^{logits_i}.

    What Gumbel top-k samples: the k largest of logits + Gumbel noise, in order. Another
    distribution than `KSubset`, with other marginals: here an early draw changes the odds of the
    later ones. Pick `KSubset` for a set of k with exact marginals and gradients, this for rankings
    and for sampling without replacement one after another.

    Args:
        logits: torch.Tensor, jax.Array or numpy.ndarray of floats, (…, n), along the last
            dimension; −inf is never drawn. A row with +inf or NaN has no probabilities: NaN.

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

    def __init__(self, logits: ArrayT) -> None:
        self._set(logits, -1, None)
        self._register()

    def sample(self, k: int, shape: int | tuple[int, ...] = (), rng: Any = None) -> ArrayT:
        """Draw the indices of k entries, in the order of the draws.

        Args:
            k: how many, an integer in [0, n].
            shape: how many draws, as a shape; () for one.
            rng: as for `gumbel_max`.

        Returns:
            Integers, shape + batch shape + (k,). Where fewer than k entries can be drawn, entries
            of −inf come last.

        Raises:
            TypeError, ValueError: an argument of the wrong kind or out of range.
        """
        k = check_count(k, self.logits.shape[-1])
        return top_indices(stop_gradient(self._perturbed(shape, rng)), k)

    def log_prob(self, indices: Array, *, ordered: bool = True) -> ArrayT:
        """Return log P of drawing `indices` in this order, or in any order with ordered=False.

        Args:
            indices: integers, (…, k): the shape of the batch with any number of dimensions of
                samples before it, and the k drawn last. One twice has probability 0.
            ordered: False sums over all k! orders, exactly to rounding, in O(n + k√k).

        Returns:
            The shape of `indices` without its last dimension, differentiable in the logits.

        Raises:
            TypeError, ValueError: `indices` of another kind, or of a shape that does not fit.
        """
        self._check_indices(indices)
        xp = namespace(self.logits)
        indices = adopt(indices, self.logits)
        logits = with_undivided_rows(self._playing())
        logits = xp.broadcast_to(logits, (*indices.shape[:-1], logits.shape[-1]))
        indices = divided_as(indices, logits)
        with quiet(logits):
            out = marked(logits, indices)
            drawn = take_along_last(logits, indices)
            possible = drawn != -math.inf
            once = xp.sum(out, axis=-1) == indices.shape[-1]
            drawn = xp.where(possible, drawn, 0.0)
            others = _sum_of(xp.where(out, -math.inf, logits))
            answer = whole(_in_order if ordered else _in_any_order, drawn, others)
            return xp.where(once & xp.all(possible, axis=-1), answer, -math.inf)

    def relaxed_sample(
        self,
        k: float | Array,
        temperature: float | Array,
        rng: Any = None,
        *,
        shape: int | tuple[int, ...] = (),
        link: LinkName | Link = "logistic",
        hard: bool = False,
    ) -> ArrayT:
        """Return soft_topk of logits + Gumbel noise, a relaxed k-hot sample with gradients.

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

    def _perturbed(self, shape: Any, rng: Any) -> ArrayT:
        """Return perturbed logits in float32 or float64: half precision would cause ties."""
        return with_gumbel(centred(self._playing(), -1), shape, rng)

    def _check_indices(self, indices: Any) -> None:
        check_same_kind("indices", indices, self.logits, "logits")
        if not dtype_name(indices).startswith(("int", "uint")):
            raise TypeError(f"indices must be integers; got dtype {indices.dtype}")
        shape, batch = tuple(indices.shape), tuple(self.logits.shape[:-1])
        if len(shape) <= len(batch) or shape[len(shape) - 1 - len(batch) : -1] != batch:
            wanted = "(…, " + ", ".join(map(str, (*batch, "k"))) + ")"
            raise ValueError(f"indices must have the shape {wanted}; got {shape}")


class _Sums(NamedTuple):
    """log Σ e^y as largest + excess, since one number would lose the excess for a large y."""

    largest: Array  # of the y, a constant; as low as a number can be where there are none
    excess: Array  # in [0, log n]


def _sum_of(y: Array) -> _Sums:
    """Return the sum over the last axis."""
    xp = namespace(y)
    least = divided_as(full_like(y, (*y.shape[:-1], 1), -math.inf), y)
    y = xp.concat([y, least], axis=-1)
    largest = xp.clip(stop_gradient(xp.max(y, axis=-1)), float(xp.finfo(y.dtype).min), None)
    possible = y != -math.inf
    distance = xp.where(possible, y, largest[..., None]) - largest[..., None]
    total = xp.sum(xp.where(possible, xp.exp(distance), 0.0), axis=-1)
    return _Sums(largest, xp.log(xp.where(total == 0, 1.0, total)))


def _joined(one: _Sums, other: _Sums) -> _Sums:
    xp = namespace(one.largest)
    largest = xp.where(one.largest > other.largest, one.largest, other.largest)
    total: Any = sum(xp.exp(part.largest - largest + part.excess) for part in (one, other))
    return _Sums(largest, xp.log(total))


def _sums_from_each(y: Array, rest: _Sums) -> _Sums:
    """Return log(Σ_{i ≥ j} e^{y_i} + e^rest) for each j of the last axis, by recursive doubling."""
    xp, n = namespace(y), y.shape[-1]
    sums = _Sums(
        xp.concat([stop_gradient(y), rest.largest[..., None]], axis=-1),
        xp.concat([moving(y), rest.excess[..., None]], axis=-1),
    )
    reach = 1
    while reach <= n:
        here = _Sums(*(part[..., :-reach] for part in sums))
        there = _Sums(*(part[..., reach:] for part in sums))
        ends = (part[..., n + 1 - reach :] for part in sums)
        parts = zip(_joined(here, there), ends, strict=True)
        sums = _Sums(*(xp.concat(both, axis=-1) for both in parts))
        reach *= 2
    return _Sums(*(part[..., :n] for part in sums))


def _in_order(drawn: Array, rest: _Sums) -> Array:
    """Return Σ_j y_j − log Σ e^y over the entries that are left before draw j."""
    left = _sums_from_each(drawn, rest)
    return namespace(drawn).sum((drawn - left.largest) - left.excess, axis=-1)


class _Node(NamedTuple):
    log_time: Array


def _in_any_order(drawn: Array, rest: _Sums) -> Array:
    """Return log Pr of the k in any order, as a race: the k arrive first, at rates w = e^y.

    With R the rate of the others Pr = ∫ Re^{−Rt} Π(1 − e^{−wt}) dt, in s = log Rt an integrand that
    is analytic, falls off as e^s to the left and faster to the right, and peaks no more sharply
    than with a standard deviation of 1/√(k + 1): equal steps give it to rounding.
    """
    xp, k = namespace(drawn), drawn.shape[-1]
    fine, digits = (0.45, 40) if dtype_name(drawn) == "float64" else (0.6, 20)
    step, first = fine / math.sqrt(k + 3), -digits
    last = math.log(k + 1 + 10 * math.sqrt(k + 1) + digits)
    log_time = first + step * arange(drawn, math.ceil((last - first) / step))
    node = _Node(log_time.reshape((-1,) + (1,) * drawn.ndim))
    speed = (drawn - rest.largest[..., None]) - rest.excess[..., None]  # log w/R
    # So slow that 1 − e^{−wt} is wt at every node: what they lack is the same at all.
    slow = -(last + digits)
    lacking = xp.sum(xp.where(speed < slow, speed - slow, 0.0), axis=-1)
    speed = xp.where(speed < slow, slow, speed)

    def log_arrived(item: _Node) -> tuple[Array]:
        """Return Σ log(1 − e^{−wt})."""
        x = speed + item.log_time
        early, late = x < -18, x > 6
        time = xp.exp(xp.where(early | late, 0.0, x))
        between = xp.log(-xp.expm1(-time))
        answer = xp.where(early, x - xp.exp(xp.where(early, x, 0.0)) / 2, between)
        return (xp.sum(xp.where(late, 0.0, answer), axis=-1)[..., None],)

    (arrived,) = stacked(drawn, log_arrived, node)
    terms = node.log_time - xp.exp(node.log_time) + arrived
    total = _sum_of(move_axis(terms[..., 0], 0, -1))
    return lacking + math.log(step) + (total.largest + total.excess)
