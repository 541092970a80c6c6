"""The loss for ragged rows: every segment of one long axis is a row of its own."""

from __future__ import annotations

from typing import Any

from kofn.adapters import route
from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.checks import check_same_kind
from kofn.arrays.kinds import Array, adopt, deleted, namespace
from kofn.arrays.operations import as_numbers
from kofn.arrays.typing import ArrayT, LinkName, Reduction
from kofn.links import Link, table
from kofn.losses.reduced import bars, constant_where, over_rows
from kofn.losses.targets import check_reduction
from kofn.operations.losses import LOSS, PLAIN_LOSS, with_number
from kofn.rows.given import Given
from kofn.rows.integral import require_integral
from kofn.rows.segments.given import segment_given

__all__ = ["segment_topk_loss"]


def segment_topk_loss(
    scores: ArrayT,
    target: Array,
    *,
    segment_ids: Array | None = None,
    ptr: Array | None = None,
    num_segments: int | None = None,
    link: LinkName | Link = "logistic",
    temperature: float | Array = 1.0,
    mask: Array | None = None,
    reduction: Reduction = "mean",
) -> ArrayT:
    """Return `topk_loss` of each segment, with gradient (segment_soft_topk(scores, k) − target)/T.

    k = Σ target differs by segment, such as the clicks of a session: the loss ranks its
    labels above its other entries, and compares no scores of two segments.

    Args:
        scores, segment_ids, ptr, num_segments, link, temperature, mask: as for
            `kofn.segment_soft_topk`.
        target: weights in [0, 1] in the form of `scores`, of any real dtype or boolean. No
            gradient reaches it. A segment without labels costs 0.
        reduction: "mean" over the segments with an available entry, "sum", or "none".

    Returns:
        A scalar, or (segments, …) for "none"; float32 for half-precision scores.

    Raises:
        TypeError, ValueError: as for `kofn.segment_soft_topk`; ValueError for a link without an
            integral, a target of another shape or an unknown reduction. A target outside [0, 1]
            gives NaN.

    Source: Blondel, Martins & Niculae, "Learning with Fenchel-Young Losses" (2020).

    Example:
        >>> import numpy as np
        >>> from kofn.losses import segment_topk_loss
        >>> scores, clicks = np.array([2.0, 1.0, -1.0, 0.0, 3.0]), np.array([1, 1, 0, 0, 1])
        >>> segment_topk_loss(scores, clicks, segment_ids=np.array([0, 0, 0, 1, 1])).round(4)
        np.float64(0.5709)
    """
    check_reduction(reduction)
    link = table.resolve(link)
    of = dict(segment_ids=segment_ids, ptr=ptr, num_segments=num_segments)
    checked = segment_given(scores, 0.0, link, temperature, mask, **of)
    labels = _labels(target, checked)
    require_integral(link, checked.scores)
    with checked.form.quiet():
        loss: Any = route.by_kernel(LOSS, checked, labels, settings=(0,))
        if loss is None:
            loss = route.by_array_code(PLAIN_LOSS, with_number(checked, labels).per_row(), labels)
        barred = checked.over.any(bars(stop_gradient(checked.scores), labels))
        return _reduced(constant_where(barred, loss), checked, reduction)


def _labels(target: Array, checked: Given) -> Array:
    x, form = checked.scores, checked.form
    target = form.plain("target", target)
    check_same_kind("target", target, x)
    if tuple(target.shape) != form.shape:
        raise ValueError(
            f"target must have the shape of scores, {form.shape}; got {tuple(target.shape)}"
        )
    labels = as_numbers(stop_gradient(adopt(target, x)), x.dtype)
    return form.flat(form.without_unassigned(labels, 0.0))


def _reduced(loss: ArrayT, checked: Given, reduction: str) -> ArrayT:
    xp, form = namespace(loss), checked.form
    counted = ~deleted(checked.over.max(stop_gradient(checked.scores)))
    loss = xp.where(counted, loss, 0.0)
    return form.per_segment(loss) if reduction == "none" else over_rows(loss, counted, reduction)
