"""The maps for ragged rows: every segment of one long axis is a row of its own."""

from __future__ import annotations

import math
from typing import Any, Never

from kofn import links
from kofn.adapters import route
from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.checks import check_flag
from kofn.arrays.kinds import Array
from kofn.arrays.names import unknown_keyword
from kofn.arrays.typing import ArrayT, LinkName
from kofn.links import Link, table
from kofn.maps.sparse_softmax import check_support
from kofn.maps.topk import chosen, hard_weights_of
from kofn.operations.topk import SOFTMAX, THETA, VALUE, WEIGHTS
from kofn.operations.truncated import LEAST
from kofn.rows.integral import require_integral
from kofn.rows.segments.given import segment_given

__all__ = [
    "segment_soft_topk",
    "segment_soft_topk_threshold",
    "segment_soft_topk_sum",
    "segment_softmax",
    "segment_sparse_softmax",
    "segment_sparsemax",
    "segment_entmax",
    "segment_hard_topk",
]


def segment_soft_topk(
    scores: ArrayT,
    k: float | Array | None = None,
    *,
    segment_ids: Array | None = None,
    ptr: Array | None = None,
    num_segments: int | None = None,
    ratio: float | None = None,
    link: LinkName | Link = "logistic",
    temperature: float | Array = 1.0,
    mask: Array | None = None,
    hard: bool = False,
    **others: Never,
) -> ArrayT:
    """Return p = F((scores − θ)/temperature) in [0, 1], with θ of a segment such that its Σp = k.

    Every segment is a row of `soft_topk`: a graph's nodes, a session's items, a node's edges.

    Args:
        scores: torch.Tensor, jax.Array or numpy.ndarray of floats, (n, …): segments lie along the
            first axis, and every column has its own rows. Or a jagged nested tensor of PyTorch,
            (segments, ragged, …), whose parts are the segments.
        k: how many entries to choose in each segment, ≥ 0, may be fractional; a number, or an array
            with one per segment, (segments,) or (segments, …). Where a segment has no more than k
            available entries, all of them are chosen.
        segment_ids: integers in [0, segments), the segment of each entry, (n,), in any order.
        ptr: instead of ids, where sorted segments begin and end: segment i goes from ptr[i] to
            ptr[i + 1]; (segments + 1,).
        num_segments: how many segments there are; by default the largest id + 1. In jax.jit and
            torch.compile it must be given with `segment_ids`.
        ratio: instead of k, the share in (0, 1] of each segment's available entries, rounded up,
            as graph pooling takes it.
        link, mask: as for `soft_topk`; a mask may also have the shape (n,).
        temperature: as for `soft_topk`; a number or an array like `k`.
        hard: return the hard top-k exactly, with the soft weights' gradient (straight-through).

    Returns:
        Weights in the form of `scores`, differentiable as in `soft_topk`. An empty segment
        has none, and no segment affects another.

    Raises:
        TypeError, ValueError: as for `soft_topk`; ids out of range, a ptr that decreases or does
            not span the entries, k and ratio together, an array of the wrong length. On JAX, on a
            GPU and in compiled code ids and ptr are not read: entries of no segment have weight 0
            there, and what came before counts where ptr decreases.

    Source: Knyazev, Taylor & Amer, "Understanding Attention and Generalization in Graph Neural
    Networks" (2019), for pooling by a ratio.

    Example:
        >>> import numpy as np
        >>> from kofn import segment_soft_topk
        >>> scores = np.array([2.0, 1.0, 0.5, 3.0, 1.0])
        >>> segment_soft_topk(scores, 1, ptr=np.array([0, 3, 5])).round(3)
        array([0.52 , 0.285, 0.195, 0.731, 0.269])
        >>> segment_soft_topk(scores, ratio=0.5, segment_ids=np.array([1, 0, 1, 1, 0])).round(3)
        array([0.735, 0.5  , 0.382, 0.883, 0.5  ])
    """
    if others:
        raise unknown_keyword(segment_soft_topk, others)
    of = segment_ids, ptr, num_segments, ratio
    checked = segment_given(scores, k, table.resolve(link), temperature, mask, *of)
    with checked.form.quiet():
        if not check_flag("hard", hard):
            return checked.restored(route.answer(WEIGHTS, checked))
        return checked.restored(hard_weights_of(checked, None))


def segment_soft_topk_threshold(
    scores: ArrayT,
    k: float | Array | None = None,
    *,
    segment_ids: Array | None = None,
    ptr: Array | None = None,
    num_segments: int | None = None,
    ratio: float | None = None,
    link: LinkName | Link = "logistic",
    temperature: float | Array = 1.0,
    mask: Array | None = None,
    **others: Never,
) -> ArrayT:
    """Return θ of segment_soft_topk for each segment, in the units of the scores.

    Args:
        scores, k, segment_ids, ptr, num_segments, ratio, link, temperature, mask: as for
            `segment_soft_topk`.

    Returns:
        θ of shape (segments, …), differentiable; as `soft_topk_threshold`, NaN for a segment
        without available entries.

    Raises:
        TypeError, ValueError: as for `segment_soft_topk`.

    Source: as for `soft_topk`.

    Example:
        >>> import numpy as np
        >>> from kofn import segment_soft_topk_threshold
        >>> scores = np.array([4.0, 2.0, 0.0, 9.0, 1.0])
        >>> segment_soft_topk_threshold(scores, 1, ptr=np.array([0, 3, 5])).round(3)
        array([3.109, 5.   ])
    """
    if others:
        raise unknown_keyword(segment_soft_topk_threshold, others)
    of = segment_ids, ptr, num_segments, ratio
    checked = segment_given(scores, k, table.resolve(link), temperature, mask, *of)
    with checked.form.quiet():
        return checked.form.per_segment(route.answer(THETA, checked))


def segment_soft_topk_sum(
    scores: ArrayT,
    k: float | Array | None = None,
    *,
    segment_ids: Array | None = None,
    ptr: Array | None = None,
    num_segments: int | None = None,
    ratio: float | None = None,
    link: LinkName | Link = "logistic",
    temperature: float | Array = 1.0,
    mask: Array | None = None,
    **others: Never,
) -> ArrayT:
    """Return the smoothed sum of each segment's k largest, S_k = min_θ kθ + T Σ G((scores − θ)/T).

    Args:
        scores, k, segment_ids, ptr, num_segments, ratio, link, temperature, mask: as for
            `segment_soft_topk`.

    Returns:
        S_k of shape (segments, …), whose gradient is `segment_soft_topk`; 0 for an empty segment.

    Raises:
        TypeError, ValueError: as for `segment_soft_topk`; ValueError for a link without an
            integral.

    Source: as for `soft_topk_sum`.

    Example:
        >>> import numpy as np
        >>> from kofn import segment_soft_topk_sum
        >>> scores = np.array([3.0, 2.0, -1.0, 5.0, 1.0])
        >>> segment_soft_topk_sum(scores, 1, ptr=np.array([0, 3, 5]), temperature=0.01).round(3)
        array([3., 5.])
    """
    if others:
        raise unknown_keyword(segment_soft_topk_sum, others)
    link = table.resolve(link)
    of = segment_ids, ptr, num_segments, ratio
    checked = segment_given(scores, k, link, temperature, mask, *of)
    require_integral(link, checked.scores)
    with checked.form.quiet():
        return checked.form.per_segment(route.answer(VALUE, checked))


def segment_softmax(
    scores: ArrayT,
    *,
    segment_ids: Array | None = None,
    ptr: Array | None = None,
    num_segments: int | None = None,
    temperature: float | Array = 1.0,
    mask: Array | None = None,
    **others: Never,
) -> ArrayT:
    """Return softmax of each segment, p = e^{scores/T}/Σ e^{scores/T}.

    Args:
        scores, segment_ids, ptr, num_segments, temperature, mask: as for `segment_soft_topk`.

    Returns:
        Weights in the form of `scores` that sum to 1 in each segment with an available entry.

    Raises:
        TypeError, ValueError: as for `segment_soft_topk`.

    Example:
        >>> import numpy as np
        >>> from kofn import segment_softmax
        >>> segment_softmax(np.array([2.0, 1.0, 5.0]), segment_ids=np.array([0, 0, 1])).round(3)
        array([0.731, 0.269, 1.   ])
    """
    if others:
        raise unknown_keyword(segment_softmax, others)
    of = segment_ids, ptr, num_segments
    checked = segment_given(scores, 1.0, links.exponential, temperature, mask, *of)
    with checked.form.quiet():
        return checked.restored(route.answer(SOFTMAX, checked))


def segment_sparsemax(
    scores: ArrayT,
    *,
    segment_ids: Array | None = None,
    ptr: Array | None = None,
    num_segments: int | None = None,
    temperature: float | Array = 1.0,
    mask: Array | None = None,
    **others: Never,
) -> ArrayT:
    """Return sparsemax of each segment, the projection of its scores/T onto the simplex.

    Args:
        scores, segment_ids, ptr, num_segments, temperature, mask: as for `segment_soft_topk`.

    Returns:
        Weights in the form of `scores` that sum to 1 in each segment with an available entry.

    Raises:
        TypeError, ValueError: as for `segment_soft_topk`.

    Source: Martins & Astudillo, "From Softmax to Sparsemax" (2016).

    Example:
        >>> import numpy as np
        >>> from kofn import segment_sparsemax
        >>> segment_sparsemax(np.array([0.5, 0.0, 2.0, 0.0]), ptr=np.array([0, 2, 4]))
        array([0.75, 0.25, 1.  , 0.  ])
    """
    if others:
        raise unknown_keyword(segment_sparsemax, others)
    of: dict[str, Any] = dict(segment_ids=segment_ids, ptr=ptr, num_segments=num_segments)
    return segment_soft_topk(
        scores, 1.0, link=links.linear, temperature=temperature, mask=mask, **of
    )


def segment_sparse_softmax(
    scores: ArrayT,
    *,
    segment_ids: Array | None = None,
    ptr: Array | None = None,
    num_segments: int | None = None,
    k: int | None = None,
    p: float | None = None,
    min_p: float | None = None,
    temperature: float | Array = 1.0,
    mask: Array | None = None,
    **others: Never,
) -> ArrayT:
    """Return `sparse_softmax` of each segment: softmax over a set of its largest scores.

    Args:
        scores, segment_ids, ptr, num_segments, temperature, mask: as for `segment_soft_topk`. A
            mask leaves the sets that were drawn from, where these are known.
        k: number of scores to keep in each segment, an integer ≥ 1; all of one with fewer.
        p, min_p: as for `sparse_softmax`.

    Returns:
        Weights in the form of `scores` that sum to 1 in each segment with an available entry.

    Raises:
        TypeError, ValueError: as for `segment_soft_topk` and `sparse_softmax`.

    Source: as for `sparse_softmax`.

    Example:
        >>> import numpy as np
        >>> from kofn import segment_sparse_softmax
        >>> scores = np.array([2.0, 1.0, 0.0, 5.0, 1.0])
        >>> segment_sparse_softmax(scores, k=2, p=0.9, ptr=np.array([0, 3, 5])).round(3)
        array([0.731, 0.269, 0.   , 1.   , 0.   ])
    """
    if others:
        raise unknown_keyword(segment_sparse_softmax, others)
    support = check_support(k, p, min_p, None)
    of = segment_ids, ptr, num_segments
    checked = segment_given(scores, 1.0, links.exponential, temperature, mask, *of)
    with checked.form.quiet():
        x, over = checked.scores, checked.over
        fixed = checked._replace(scores=stop_gradient(x))  # kernels have no way back for it
        outside = fixed.scores < over.expand(route.answer(LEAST, fixed, settings=support))
        few = checked._replace(scores=checked.form.xp.where(outside, -math.inf, x))
        return checked.restored(route.answer(SOFTMAX, few))


def segment_entmax(
    scores: ArrayT,
    alpha: float | Array = 1.5,
    *,
    segment_ids: Array | None = None,
    ptr: Array | None = None,
    num_segments: int | None = None,
    temperature: float | Array = 1.0,
    mask: Array | None = None,
    **others: Never,
) -> ArrayT:
    """Return alpha-entmax of each segment: softmax at alpha = 1, sparsemax at 2.

    Args:
        scores, segment_ids, ptr, num_segments, temperature, mask: as for `segment_soft_topk`.
        alpha: ≥ 1; a number, or an array like `k` of `segment_soft_topk`.

    Returns:
        Weights in the form of `scores` that sum to 1 in each segment with an available entry.

    Raises:
        TypeError, ValueError: as for `segment_soft_topk`; ValueError for alpha < 1.

    Source: Peters, Niculae & Martins, "Sparse Sequence-to-Sequence Models" (2019).

    Example:
        >>> import numpy as np
        >>> from kofn import segment_entmax
        >>> segment_entmax(np.array([1.0, 0.0, 2.0]), ptr=np.array([0, 2, 3])).round(3)
        array([0.831, 0.169, 1.   ])
    """
    if others:
        raise unknown_keyword(segment_entmax, others)
    of: dict[str, Any] = dict(segment_ids=segment_ids, ptr=ptr, num_segments=num_segments)
    return segment_soft_topk(
        scores, 1.0, link=links.entmax(alpha), temperature=temperature, mask=mask, **of
    )


def segment_hard_topk(
    scores: ArrayT,
    k: float | Array | None = None,
    *,
    segment_ids: Array | None = None,
    ptr: Array | None = None,
    num_segments: int | None = None,
    ratio: float | None = None,
    mask: Array | None = None,
    **others: Never,
) -> ArrayT:
    """Return ones at the k largest scores of each segment and zeros elsewhere, without a gradient.

    Args:
        scores, segment_ids, ptr, num_segments, ratio, mask: as for `segment_soft_topk`.
        k: as for `segment_soft_topk`; the fractional part is the weight of the next largest score.

    Returns:
        Weights in the form of `scores`, ties to the lowest index.

    Raises:
        TypeError, ValueError: as for `segment_soft_topk`.

    Example:
        >>> import numpy as np
        >>> from kofn import segment_hard_topk
        >>> scores = np.array([1.0, 3.0, 3.0, 2.0, 5.0])
        >>> segment_hard_topk(scores, ratio=0.5, segment_ids=np.array([0, 0, 0, 0, 1]))
        array([0., 1., 1., 0., 1.])
    """
    if others:
        raise unknown_keyword(segment_hard_topk, others)
    of = segment_ids, ptr, num_segments, ratio
    checked = segment_given(scores, k, links.logistic, 1.0, mask, *of)
    with checked.form.quiet():
        return checked.restored(chosen(checked, None))
