"""Metrics of weights: support, sparsity, entropy, distance to the hard choice, violations of order.

They accept weights of any map and return one number per row.
"""

from __future__ import annotations

import math
from typing import Literal, Never

from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.checks import check_choice, check_number, check_same_kind, check_scores
from kofn.arrays.kinds import Array, adopt, cast, epsilon, namespace, scalar
from kofn.arrays.names import unknown_keyword
from kofn.arrays.operations import cumulative_min, take_along_last, top_indices
from kofn.arrays.typing import ArrayT
from kofn.arrays.without_onnx import refuse
from kofn.maps.topk import hard_topk
from kofn.metrics.entropies import ENTROPY
from kofn.metrics.sums import answer
from kofn.rows.given import masked_weights, weights_in_play, without_deleted

__all__ = [
    "effective_support",
    "entropy",
    "hard_gap",
    "order_violations",
    "sparsity",
    "support_size",
]


def support_size(
    weights: ArrayT,
    *,
    above: float = 0.0,
    dim: int = -1,
    mask: Array | None = None,
    **others: Never,
) -> ArrayT:
    """Return the number of entries with p > above.

    A link with infinite tails gives every entry a weight; see `effective_support`.

    Args:
        weights: torch.Tensor, jax.Array or numpy.ndarray of floats, any shape.
        above: a number ≥ 0. 1e-3, say, counts what matters where no weight is exactly 0.
        dim: the dimension of the choice.
        mask: boolean, broadcasts to `weights`; False entries are excluded.

    Returns:
        The number with the batch shape (`weights.shape` without `dim`), in floats (float32 for
        half precision), because a row with a NaN has NaN.

    Raises:
        TypeError, ValueError: an argument of the wrong kind, dtype or shape, or out of range.

    Example:
        >>> import numpy as np
        >>> from kofn import entmax, metrics
        >>> metrics.support_size(entmax(np.array([[1.0, 0.5, -1.0], [3.0, 0.0, 0.0]])))
        array([2., 1.])
    """
    if others:
        raise unknown_keyword(support_size, others)
    level = check_number("above", above, low=0.0, allowed="a finite number ≥ 0", arrays=False)
    p, form = masked_weights(weights, dim, mask)
    with form.quiet():
        xp = form.xp
        return xp.sum(cast(p > level, p.dtype), axis=-1) + _nan_of(p)


def sparsity(
    weights: ArrayT, *, dim: int = -1, mask: Array | None = None, **others: Never
) -> ArrayT:
    """Return the share of the available entries whose weight is exactly 0.

    Args:
        weights, dim, mask: as for `support_size`.

    Returns:
        A number in [0, 1] with the batch shape; NaN for a row with no entry.

    Raises:
        TypeError, ValueError: as for `support_size`.

    Example:
        >>> import numpy as np
        >>> from kofn import metrics, sparsemax
        >>> metrics.sparsity(sparsemax(np.array([1.0, 0.5, -1.0, -2.0])))
        np.float64(0.5)
    """
    if others:
        raise unknown_keyword(sparsity, others)
    p, playing, form = weights_in_play(weights, dim, mask)
    with form.quiet():
        xp = form.xp
        zeros = xp.sum(cast((p == 0) & playing, p.dtype), axis=-1)
        return zeros / xp.sum(cast(playing, p.dtype), axis=-1) + _nan_of(p)


def effective_support(
    weights: ArrayT, *, dim: int = -1, mask: Array | None = None, **others: Never
) -> ArrayT:
    """Return (Σp)²/Σp², the effective number of entries: k for a hard choice, n for equal weights.

    m equal weights and zeros have an effective support of m; small weights count little, so that
    it means the same for maps with exact zeros and for maps without. It rises with the
    temperature, for every link (docs/metrics.md). At k = 1 it is the inverse participation
    ratio; e to the power of `entropy`, the perplexity, is larger.

    Args:
        weights, dim, mask: as for `support_size`.

    Returns:
        A number with the batch shape, differentiable; 0 for a row of zeros.

    Raises:
        TypeError, ValueError: as for `support_size`.

    Source: Kish, "Survey Sampling" (1965): the effective sample size of weights.

    Example:
        >>> import numpy as np
        >>> from kofn import metrics, soft_topk
        >>> scores = np.array([2.0, 1.0, 0.5, -1.0])
        >>> [round(float(metrics.effective_support(soft_topk(scores, 2, temperature=t))), 2)
        ...     for t in (0.1, 1.0, 10.0)]
        [2.15, 3.31, 3.99]
    """
    if others:
        raise unknown_keyword(effective_support, others)
    p, form = masked_weights(weights, dim, mask)
    with form.quiet():
        xp = form.xp
        # In units of the largest, whose square neither overflows nor underflows.
        greatest = stop_gradient(xp.max(xp.abs(p), axis=-1)) if p.shape[-1] else xp.sum(p, axis=-1)
        p = p / xp.where(greatest > 0, greatest, 1.0)[..., None]
        total, squares = xp.sum(p, axis=-1), xp.sum(p * p, axis=-1)
        return total * total / xp.where(squares == 0, 1.0, squares)


def entropy(
    weights: ArrayT, *, dim: int = -1, mask: Array | None = None, **others: Never
) -> ArrayT:
    """Return −Σ p·ln p in nats: 0 where every weight is 0 or 1; for k = 1, Shannon's entropy.

    `tsallis_entropy` and `renyi_entropy` are its relatives with powers.

    Args:
        weights, dim, mask: as for `support_size`.

    Returns:
        A number with the batch shape, differentiable (the slope at p = 0 counts as 0); NaN where
        a weight is negative.

    Raises:
        TypeError, ValueError: as for `support_size`.

    Example:
        >>> import numpy as np
        >>> from kofn import metrics, softmax
        >>> metrics.entropy(softmax(np.zeros(4))).round(4)  # ln 4
        np.float64(1.3863)
    """
    if others:
        raise unknown_keyword(entropy, others)
    p, form = masked_weights(weights, dim, mask)
    with form.quiet():
        return answer(ENTROPY, p)


def hard_gap(
    weights: ArrayT,
    k: float | Array,
    *,
    norm: Literal["l1", "linf"] = "l1",
    dim: int = -1,
    mask: Array | None = None,
    **others: Never,
) -> ArrayT:
    """Return ‖p − hard_topk‖, the distance of the weights from the nearest hard choice.

    In "l1" it is twice the weight that lies outside the k largest (for a whole k), from 0 to
    2k(1 − k/n), and rises with the temperature for every link. In "linf" it is the one entry that
    is furthest off, in [0, 1]. Ties at the boundary count as soft: the hard choice takes one of
    them.

    Args:
        weights, dim, mask: as for `support_size`.
        k: number of chosen entries; 1 for the softmax family. A number, or an array that broadcasts
            to the batch shape.
        norm: "l1" or "linf".

    Returns:
        A number with the batch shape. It is a difference, so a gap below the rounding error of
        the weights is 0.

    Raises:
        TypeError, ValueError: as for `soft_topk`; ValueError for another norm.

    Example:
        >>> import numpy as np
        >>> from kofn import metrics, soft_topk
        >>> weights = soft_topk(np.array([2.0, 1.0, 0.5, -1.0]), 2)
        >>> [metrics.hard_gap(weights, 2, norm=norm).round(3) for norm in ("l1", "linf")]
        [np.float64(1.243), np.float64(0.461)]
    """
    if others:
        raise unknown_keyword(hard_gap, others)
    check_choice("norm", norm, ("l1", "linf"))
    p, form = masked_weights(weights, dim, mask)
    hard = hard_topk(weights, k, dim=dim, mask=mask)
    with form.quiet():
        xp = form.xp
        # Where fewer than k were in play the rest of them have weight 0 and were not choosable.
        hard = xp.where(p == 0, 0.0, form.last(hard))
        off = xp.abs(p - hard)
        if norm == "l1" or p.shape[-1] == 0:
            return xp.sum(off, axis=-1)
        return xp.max(off, axis=-1)


def order_violations(
    scores: ArrayT, weights: Array, *, dim: int = -1, mask: Array | None = None, **others: Never
) -> ArrayT:
    """Count entries with a larger weight than an entry with a score at least as large.

    A weight counts as larger only by more than two roundings. The iterated
    definitions in `kofn.classic` have violations; so may weights that were learned or rescaled.

    Args:
        scores: the scores of the weights, of the same shape.
        weights, dim, mask: as for `support_size`.

    Returns:
        The number with the batch shape, in floats; NaN for a row with a NaN.

    Raises:
        TypeError, ValueError: as for `support_size`; ValueError for shapes that differ.

    Example:
        >>> import numpy as np
        >>> from kofn import metrics
        >>> scores = np.array([3.0, 2.0, 2.0, 0.0])
        >>> metrics.order_violations(scores, np.array([0.5, 0.6, 0.7, 0.2]))
        np.float64(2.0)
    """
    if others:
        raise unknown_keyword(order_violations, others)
    check_scores(scores)
    weights = adopt(check_same_kind("weights", weights, scores), scores)
    p, playing, form = weights_in_play(weights, dim, mask)
    if tuple(weights.shape) != tuple(scores.shape):
        raise ValueError(
            f"weights must have the shape of scores, {tuple(scores.shape)}; "
            f"got {tuple(weights.shape)}"
        )
    refuse("metrics.order_violations")
    xp = namespace(scores)
    x = xp.where(playing, form.rows(without_deleted(scores)), -math.inf)
    x, p = stop_gradient(x), stop_gradient(p)
    n = p.shape[-1]
    if n < 2:
        return 0.0 * xp.sum(p, axis=-1)
    # By falling score and, where scores are equal, by rising weight: a larger weight than one
    # before it, by more than rounding, has overtaken it. Entries out of play come last, with 0.
    rising = top_indices(-p, n)
    order = take_along_last(rising, top_indices(take_along_last(x, rising), n))
    ordered = take_along_last(p, order)
    least = cumulative_min(ordered)[..., :-1]
    rounding = 2 * epsilon(weights)
    with form.quiet():
        over = ordered[..., 1:] > least * (1 + rounding)
        bad = xp.where(playing & xp.isnan(x), scalar(p, math.nan), 0.0)
        return xp.sum(cast(over, p.dtype), axis=-1) + _nan_of(p + bad)


def _nan_of(p: ArrayT) -> ArrayT:
    """Return 0 per row, NaN if the row has a NaN."""
    xp = namespace(p)
    return xp.sum(xp.where(xp.isnan(p), math.nan, xp.zeros_like(p)), axis=-1)
