"""Softmax, sparsemax and entmax: the maps for k = 1."""

from __future__ import annotations

import math
from typing import Never

from kofn import links
from kofn.adapters import route, short
from kofn.arrays.checks import check_broadcasts, check_real, check_same_kind
from kofn.arrays.kinds import Array, cast_like, deleted
from kofn.arrays.names import unknown_keyword
from kofn.arrays.typing import ArrayT
from kofn.maps.topk import soft_topk
from kofn.operations.topk import SOFTMAX
from kofn.rows.given import ONE, Given, given_for_kernels

__all__ = ["softmax", "sparsemax", "entmax"]


def softmax(
    scores: ArrayT,
    *,
    temperature: float | Array = 1.0,
    dim: int = -1,
    mask: Array | None = None,
    weights: Array | None = None,
    **others: Never,
) -> ArrayT:
    """Return softmax, p = w·e^{scores/T}/Σ w·e^{scores/T}, optionally weighted by w.

    It equals soft_topk with k = 1 and link="exponential". Unlike the frameworks' softmax, it
    accepts a mask, a temperature per row and scores of ±inf, and returns zeros for a row without
    available entries.

    Args:
        scores, temperature, dim, mask: as for `soft_topk`.
        weights: w ≥ 0 per entry, broadcasts to `scores`; 1 by default. It is the multiplicity or
            prior probability of an entry: log w is added to scores/T. An entry with w = 0 is
            excluded; a negative w gives NaN in its row. w may have a gradient, which is 0 where
            w is 0.

    Returns:
        Weights like `scores` that sum to 1.

    Raises:
        TypeError, ValueError: as for `soft_topk`.

    Example:
        >>> import numpy as np
        >>> from kofn import softmax
        >>> softmax(np.array([2.0, 1.0, 5.0]), mask=np.array([True, True, False])).round(3)
        array([0.731, 0.269, 0.   ])
        >>> softmax(np.zeros(3), weights=np.array([3.0, 1.0, 0.0]))
        array([0.75, 0.25, 0.  ])
    """
    if others:
        raise unknown_keyword(softmax, others)
    if weights is None:
        known = short.answer(SOFTMAX, scores, ONE, "exponential", temperature, dim, mask=mask)
        if known is not None:
            return known
    checked = given_for_kernels(scores, ONE, links.exponential, temperature, dim, mask, halves=True)
    with checked.form.quiet():
        if weights is not None:
            checked = _weighted(checked.per_row(), weights, scores)
        return checked.restored(route.answer(SOFTMAX, checked))


def sparsemax(
    scores: ArrayT,
    *,
    temperature: float | Array = 1.0,
    dim: int = -1,
    mask: Array | None = None,
    **others: Never,
) -> ArrayT:
    """Return sparsemax, argmin_p ‖p − scores/T‖² over the simplex.

    It equals soft_topk with k = 1 and link="linear".

    Args:
        scores, temperature, dim, mask: as for `soft_topk`.

    Returns:
        Weights like `scores` that sum to 1; exactly 0 for scores at least T below the largest.

    Raises:
        TypeError, ValueError: as for `soft_topk`.

    Source: Martins & Astudillo, "From Softmax to Sparsemax" (2016).

    Example:
        >>> import numpy as np
        >>> from kofn import sparsemax
        >>> sparsemax(np.array([1.0, 0.5, -1.0]))
        array([0.75, 0.25, 0.  ])
    """
    if others:
        raise unknown_keyword(sparsemax, others)
    return soft_topk(scores, ONE, link="linear", temperature=temperature, dim=dim, mask=mask)


def entmax(
    scores: ArrayT,
    alpha: float | Array = 1.5,
    *,
    temperature: float | Array = 1.0,
    dim: int = -1,
    mask: Array | None = None,
    **others: Never,
) -> ArrayT:
    """Return α-entmax, argmax_p ⟨p, scores/T⟩ + H_α(p) over the simplex.

    H_α = Σ(p − p^α)/(α(α−1)). α = 1 is softmax and α = 2 sparsemax; in between, the weights are
    smooth and may be exactly 0.

    Args:
        scores, temperature, dim, mask: as for `soft_topk`.
        alpha: ≥ 1; a number, or an array that broadcasts to the batch shape and may have a
            gradient.

    Returns:
        Weights like `scores` that sum to 1.

    Raises:
        TypeError, ValueError: as for `soft_topk`; ValueError for alpha < 1.

    Source: Peters, Niculae & Martins, "Sparse Sequence-to-Sequence Models" (2019), on seq2seq.

    Example:
        >>> import numpy as np
        >>> from kofn import entmax
        >>> entmax(np.array([1.0, 0.5, -1.0])).round(3)
        array([0.674, 0.326, 0.   ])
    """
    if others:
        raise unknown_keyword(entmax, others)
    link = links.entmax(alpha)
    return soft_topk(scores, ONE, link=link, temperature=temperature, dim=dim, mask=mask)


def _weighted(given: Given[ArrayT], weights: Array, scores: Array) -> Given[ArrayT]:
    """Add T·log w to the scores."""
    check_same_kind("weights", weights, scores)
    check_real("weights", weights)
    check_broadcasts("weights", tuple(weights.shape), tuple(scores.shape), "the shape of scores")
    x, xp = given.scores, given.form.xp
    w = given.form.entries(xp.broadcast_to(cast_like(weights, x), scores.shape))
    raised = x + given.temperature[..., None] * xp.log(xp.where(w > 0, w, 1.0))
    # A w of NaN or below 0 gives NaN; an excluded entry stays excluded.
    out = (w == 0) | deleted(x)
    raised = xp.where(w >= 0, raised, math.nan)
    return given._replace(scores=xp.where(out, -math.inf, raised))
