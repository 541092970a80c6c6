"""Losses that belong to the maps: what to minimise so that the weights meet a target."""

from __future__ import annotations

from kofn import implicit, links
from kofn._array import Array, adopt, cast, compute_dtype, namespace, quiet, stop_gradient
from kofn._dispatch import evaluate
from kofn._rows import entries, given, rows_of
from kofn._validate import check_choice, check_dim, check_same_kind, check_scores
from kofn.links import Link

__all__ = ["fenchel_young_loss"]


def fenchel_young_loss(
    scores: Array,
    target: Array,
    *,
    link: str | Link = "exponential",
    temperature: float | Array = 1.0,
    dim: int = -1,
    mask: Array | None = None,
    reduction: str = "mean",
) -> Array:
    """L = S_k(x)/T + ΣΩ(t) − ⟨t, x⟩/T with k = Σt: convex, ≥ 0, and 0 only where p = t.

    Its gradient in the scores is (soft_topk(scores, k) − target)/T. With the default link and
    one-hot targets it is cross-entropy of scores/T; "linear" gives the sparsemax loss, "entmax"
    the entmax loss, and k-hot targets a multi-label loss whose k is the number of labels.

    Args:
        scores, link, temperature, dim, mask: as for `soft_topk`.
        target: weights in [0, 1] with the shape of `scores`, one-hot, k-hot or soft; no gradient
            reaches it. Weight on an entry that cannot be chosen makes the loss infinite.
        reduction: "mean" over the rows that have an entry in play, "sum", or "none".

    Returns:
        A scalar, or the batch shape for "none"; float32 for half-precision scores. Wholly masked
        rows count 0.

    Raises:
        TypeError, ValueError: as for `soft_topk`; ValueError for a link without an integral, a
            target of another shape or an unknown reduction. A target outside [0, 1] gives NaN.

    Source: Blondel, Martins & Niculae, "Learning with Fenchel-Young Losses" (2020).

    Example:
        >>> import numpy as np
        >>> from kofn import fenchel_young_loss
        >>> scores = np.array([[2.0, 1.0, -1.0]])
        >>> fenchel_young_loss(scores, np.array([[1.0, 0.0, 0.0]])).round(4)
        np.float64(0.3490)
        >>> fenchel_young_loss(scores, np.array([[1.0, 1.0, 0.0]])).round(4)
        np.float64(0.1269)
    """
    check_choice("reduction", reduction, ("mean", "sum", "none"))
    check_scores(scores)
    dim = check_dim(dim, scores.ndim)
    check_same_kind("target", target, scores)
    if tuple(target.shape) != tuple(scores.shape):
        raise ValueError(
            f"target must have the shape of scores, {tuple(scores.shape)}; "
            f"got {tuple(target.shape)}"
        )
    link = links.resolve(link)
    implicit.require_integral(link, scores)
    xp = namespace(scores)
    dtype = compute_dtype(scores)
    target = stop_gradient(cast(adopt(target, scores), dtype))
    with quiet(scores):
        rows = rows_of(given(scores, xp.sum(target, axis=dim), link, temperature, dim, mask))
        loss = evaluate(implicit.gap, rows, entries(target, rows, dim))
        counted = xp.any(rows.live | rows.top, axis=-1)
        loss = xp.where(counted, loss, 0.0)
        if reduction == "none":
            return loss
        total = xp.sum(loss)
        if reduction == "sum":
            return total
        return total / xp.clip(cast(xp.sum(counted), dtype), 1, None)
