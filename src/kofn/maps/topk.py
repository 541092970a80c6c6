"""The top-k maps: soft weights, threshold, smoothed sum, gates, and the hard top-k."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

from kofn import links
from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.checks import check_broadcasts, check_dim, check_real, check_same_kind
from kofn.arrays.kinds import Array, cast, cast_like, deleted, move_axis, namespace, quiet
from kofn.arrays.operations import take_along_last, top_indices
from kofn.arrays.typing import ArrayT, LinkName
from kofn.links import Link, table
from kofn.rows import answers, implicit
from kofn.rows import fused as fused_rows
from kofn.rows.compiled import evaluate
from kofn.rows.given import Given, entries, given, restore
from kofn.rows.settled import Rows, rows_of

__all__ = ["hard_topk", "soft_topk", "soft_topk_sum", "soft_topk_threshold", "topk_gates"]


def soft_topk(
    scores: ArrayT,
    k: float | Array,
    *,
    link: LinkName | Link = "logistic",
    temperature: float | Array = 1.0,
    dim: int = -1,
    mask: Array | None = None,
    hard: bool = False,
) -> ArrayT:
    """Return weights p = F((scores − θ)/temperature) in [0, 1], with θ such that Σp = k.

    Args:
        scores: torch.Tensor, jax.Array or numpy.ndarray of floats, any shape. −inf is never
            chosen, nor is a score at or below half of the dtype's least number, such as the
            finfo.min of an additive mask; +inf is chosen first. An additive mask of −1e9, or a
            float16 minimum cast to float32, counts as a score: use `mask=additive > -1` instead.
        k: how many entries to choose, in [0, n] for n = scores.shape[dim]; may be fractional. A
            number, or an array that broadcasts to the batch shape (`scores.shape` without `dim`):
            for scores of shape (B, H, n), one k per head has shape (H,), not (H, 1). A shape with
            `dim` kept as size 1 (`keepdim=True`) is also accepted.
        link: F, by name ("logistic", "laplace", "normal", "exponential", "linear", "entmax") or
            as a kofn.Link.
        temperature: > 0, in the units of the scores; a number or an array like `k`. As it goes to
            0, the weights become the hard top-k.
        dim: the dimension to choose along.
        mask: boolean, broadcasts to `scores`; False entries are never chosen.
        hard: return the hard top-k exactly, with the soft weights' gradient (straight-through).

    Returns:
        Weights with the shape, dtype and device of `scores`, differentiable twice in scores, k,
        temperature and the link's alpha (PyTorch's third derivative is infinite or NaN, never
        wrong). If fewer than k entries are available, all are chosen; a row with none is zeros. A
        NaN affects its row only.

    Raises:
        TypeError, ValueError: an argument has the wrong type, dtype or shape, or a number is out
            of range. Entries of arrays are not checked; an invalid one gives NaN in its row.

    Source: Amos, Koltun & Kolter, "The Limited Multi-Label Projection Layer" (2019), logistic;
    Struski et al., "LapSum" (2025), laplace; Blondel, Martins & Niculae (2020) for the family.

    Example:
        >>> import numpy as np
        >>> from kofn import soft_topk
        >>> soft_topk(np.array([2.0, 1.0, 0.5, -1.0]), 2).round(3)
        array([0.793, 0.585, 0.461, 0.16 ])
        >>> soft_topk(np.array([2.0, 1.0, 0.5, -1.0]), 2, temperature=0.1).round(3)
        array([1.   , 0.924, 0.076, 0.   ])
        >>> additive = np.array([0.0, 0.0, -1e9, -1e9])
        >>> soft_topk(np.ones(4) + additive, 3, mask=additive > -1)
        array([1., 1., 0., 0.])
    """
    what = given(scores, k, table.resolve(link), temperature, dim, mask, keep_deleted=True)
    with quiet(scores):
        chosen = _weights(what)
        if hard:
            chosen = _hard(what) + (chosen - stop_gradient(chosen))
    return restore(chosen, scores, dim)


def soft_topk_threshold(
    scores: ArrayT,
    k: float | Array,
    *,
    link: LinkName | Link = "logistic",
    temperature: float | Array = 1.0,
    dim: int = -1,
    mask: Array | None = None,
) -> ArrayT:
    """Return θ of soft_topk: scores above θ have weights above F(0), those below less.

    θ is in the units of the scores, for links shifted to mean zero (F(0) = ½ for symmetric links;
    for "exponential" at k = 1, θ = T·(logsumexp(scores/T) − 1)).

    Args:
        scores, k, link, temperature, dim, mask: as for `soft_topk`.

    Returns:
        θ with the batch shape, differentiable; float32 for half-precision scores. +inf where
        k = 0, −inf where every entry is chosen, NaN for a row without available entries.

    Raises:
        TypeError, ValueError: as for `soft_topk`.

    Example:
        >>> import numpy as np
        >>> from kofn import soft_topk_threshold
        >>> soft_topk_threshold(np.array([[4.0, 2.0, 0.0], [9.0, 1.0, 0.0]]), 1.5).round(3)
        array([2.  , 1.66])
    """
    what = given(scores, k, table.resolve(link), temperature, dim, mask, keep_deleted=True)
    with quiet(scores):
        return evaluate(implicit.theta, rows_of(what))


def soft_topk_sum(
    scores: ArrayT,
    k: float | Array,
    *,
    link: LinkName | Link = "logistic",
    temperature: float | Array = 1.0,
    dim: int = -1,
    mask: Array | None = None,
) -> ArrayT:
    """Return the smoothed sum of the k largest, S_k = min_θ kθ + T Σ G((scores − θ)/T), G = ∫F.

    S_k is convex in the scores, and its gradient is `soft_topk`. It is at least the exact sum of
    the k largest scores, and tends to it as T → 0. With link="exponential", S_1 is
    T·logsumexp(scores/T). It is not Σ p·scores.

    Args:
        scores, k, link, temperature, dim, mask: as for `soft_topk`.

    Returns:
        S_k with the batch shape; float32 for half-precision scores. 0 where k = 0.

    Raises:
        TypeError, ValueError: as for `soft_topk`; ValueError for a link without an integral.

    Source: Ogryczak & Tamir (2003) for the hard sum; Blondel, Martins & Niculae (2020).

    Example:
        >>> import numpy as np
        >>> from kofn import soft_topk_sum
        >>> soft_topk_sum(np.array([3.0, 2.0, -1.0]), 2, temperature=0.01).round(3)
        np.float64(5.0)
    """
    link = table.resolve(link)
    answers.require_integral(link, scores)
    what = given(scores, k, link, temperature, dim, mask, keep_deleted=True)
    with quiet(scores):
        fused = fused_rows.value(what)
        return evaluate(answers.value, rows_of(what)) if fused is None else fused


def topk_gates(
    scores: ArrayT,
    k: int,
    *,
    link: LinkName | Link = "logistic",
    temperature: float | Array = 1.0,
    dim: int = -1,
    mask: Array | None = None,
) -> tuple[ArrayT, ArrayT]:
    """Return (gates, indices): the soft_topk weights and the indices of the k largest scores.

    Every score, chosen or not, gets a gradient through the gates, so a router can learn to change
    its choice.

    Args:
        k: a Python integer in [0, n].
        scores, link, temperature, dim, mask: as for `soft_topk`.

    Returns:
        Two arrays like `scores` with k entries along `dim`, largest score first, ties to the
        lowest index. If a row has fewer than k available entries, it ends in gates of 0 with the
        indices of masked entries.

    Raises:
        TypeError: k is not an integer. Otherwise as for `soft_topk`.

    Example:
        >>> import numpy as np
        >>> from kofn import topk_gates
        >>> gates, indices = topk_gates(np.array([0.1, 2.0, -1.0, 1.5]), 2)
        >>> gates.round(3), indices
        (array([0.789, 0.694]), array([1, 3]))
    """
    if isinstance(k, bool):
        raise TypeError(f"k must be a Python integer in [0, n]; got {k!r}")
    try:
        k = operator.index(k)
    except TypeError:
        raise TypeError(f"k must be a Python integer in [0, n]; got {k!r}") from None
    what = given(scores, k, table.resolve(link), temperature, dim, mask)
    with quiet(scores):
        indices = top_indices(stop_gradient(what.scores), k)
        gates = take_along_last(_weights(what), indices)
    dim = check_dim(dim, scores.ndim)
    indices = indices if dim == -1 else move_axis(indices, -1, dim)
    return restore(gates, scores, dim), indices


def hard_topk(
    scores: ArrayT, k: float | Array, *, dim: int = -1, mask: Array | None = None
) -> ArrayT:
    """Return ones at the k largest scores and zeros elsewhere, without a gradient.

    Args:
        scores, dim, mask: as for `soft_topk`.
        k: as for `soft_topk`; the fractional part is the weight of the next largest score.

    Returns:
        Weights like `scores`, ties to the lowest index.

    Raises:
        TypeError, ValueError: as for `soft_topk`.

    Example:
        >>> import numpy as np
        >>> from kofn import hard_topk
        >>> hard_topk(np.array([1.0, 3.0, 3.0, 2.0]), 2.5)
        array([0. , 1. , 1. , 0.5])
    """
    what = given(scores, k, links.logistic, 1.0, dim, mask)
    with quiet(scores):
        return restore(_hard(what), scores, dim)


def _weighted(what: Given, weights: Array, scores: Array, dim: int) -> Given:
    """Add T·log w to the scores."""
    check_same_kind("weights", weights, scores)
    check_real("weights", weights)
    check_broadcasts("weights", tuple(weights.shape), tuple(scores.shape), "the shape of scores")
    x, xp = what.scores, namespace(scores)
    w = xp.broadcast_to(cast_like(weights, x), scores.shape)
    w = entries(w, x, check_dim(dim, scores.ndim))
    raised = x + what.temperature[..., None] * xp.log(xp.where(w > 0, w, 1.0))
    # A w of NaN or below 0 gives NaN; an excluded entry stays excluded.
    out = (w == 0) | deleted(x)
    raised = xp.where(w >= 0, raised, math.nan)
    return what._replace(scores=xp.where(out, -math.inf, raised))


def _weights(what: Given, reference: Callable[[Rows], Array] = answers.weights) -> Array:
    fused = fused_rows.weights(what, reference)
    return evaluate(reference, rows_of(what)) if fused is None else fused


def _hard(what: Given) -> Array:
    order = stop_gradient(what.scores)
    xp = namespace(order)
    # The inverse of a permutation is its argsort.
    # NaN comes last, as in NumPy and JAX, so that +inf is still chosen.
    known = xp.where(xp.isnan(order), -math.inf, order)
    rank = cast(xp.argsort(top_indices(known, order.shape[-1]), axis=-1), order.dtype)
    left = stop_gradient(what.k)[..., None] - rank
    playing = ~deleted(order)
    chosen = xp.where(playing, xp.clip(left, 0.0, 1.0), 0.0)
    bad = xp.any(xp.isnan(order), axis=-1) | xp.isnan(what.k)
    return xp.where(bad[..., None] & playing & (order != math.inf), math.nan, chosen)
