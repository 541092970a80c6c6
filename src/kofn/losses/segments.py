"""Losses for ragged rows: every segment of one long axis is a row of its own."""

from __future__ import annotations

import math
from typing import Any, Never

import numpy as np

from kofn.adapters import route
from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.checks import check_choice, check_same_device, check_same_kind
from kofn.arrays.kinds import Array, adopt, deleted, dtype_name, full_like, namespace
from kofn.arrays.names import unknown_keyword
from kofn.arrays.operations import arange, as_indices, as_numbers, constant
from kofn.arrays.tracing import at_hand
from kofn.arrays.typing import ArrayT, LinkName, Reduction
from kofn.formulas.truncated import loss_at
from kofn.links import Link, exponential, table
from kofn.losses.reduced import bars, constant_where, is_finite, over_rows
from kofn.losses.sparse_softmax import OUTSIDE, Outside
from kofn.losses.targets import check_ignored, check_reduction
from kofn.maps.sparse_softmax import check_support
from kofn.operations.losses import LOSS, PLAIN_LOSS, with_number
from kofn.operations.operation import Operation
from kofn.operations.signatures import TEMPERED
from kofn.operations.truncated import LEAST, SPARSE_LOSS
from kofn.rows.compiled import evaluate
from kofn.rows.given import Given
from kofn.rows.integral import require_integral
from kofn.rows.segments.given import segment_given
from kofn.rows.settled import rows_of

__all__ = ["segment_sparse_softmax_loss", "segment_topk_loss"]


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
    **others: Never,
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
    if others:
        raise unknown_keyword(segment_topk_loss, others)
    check_reduction(reduction)
    link = table.resolve(link)
    of = dict(segment_ids=segment_ids, ptr=ptr, num_segments=num_segments)
    checked = segment_given(scores, 0.0, link, temperature, mask, **of)
    labels = _labels(target, checked)
    require_integral(link, checked.scores)
    with checked.form.quiet():
        loss = route.by_kernel(LOSS, checked, labels, settings=(0,))
        if loss is None:
            loss = route.by_array_code(PLAIN_LOSS, with_number(checked, labels).per_row(), labels)
        barred = checked.over.any(bars(stop_gradient(checked.scores), labels))
        return _reduced(constant_where(barred, loss), checked, reduction)


def segment_sparse_softmax_loss(
    scores: ArrayT,
    target: Array,
    *,
    segment_ids: Array | None = None,
    ptr: Array | None = None,
    num_segments: int | None = None,
    k: int | None = None,
    p: float | None = None,
    min_p: float | None = None,
    outside: Outside = "against",
    temperature: float | Array = 1.0,
    mask: Array | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    **others: Never,
) -> ArrayT:
    """Return −log of `segment_sparse_softmax` at the target of each segment, its chosen entry.

    Args:
        scores, segment_ids, ptr, num_segments, temperature, mask: as for
            `kofn.segment_soft_topk`.
        target: integers (segments, …): the index along the first axis of `scores` of the entry
            that was chosen in each segment, as `segment_topk` gives it.
        k, p, min_p: as for `kofn.segment_sparse_softmax`.
        outside: what a target outside of the set costs, as in `sparse_softmax_loss`.
        ignore_index: a target of this value costs 0 and does not count in the mean.
        reduction: "mean" over the segments with an available entry, "sum", or "none".

    Returns:
        A scalar, or (segments, …) for "none"; float32 for half-precision scores.

    Raises:
        TypeError, ValueError: as for `kofn.segment_sparse_softmax`; ValueError for a target that
            is no entry of its segment. On JAX, on a GPU and in compiled code it is not read: its
            loss is NaN.

    Source: as for `sparse_softmax_loss`.

    Example:
        >>> import numpy as np
        >>> from kofn.losses import segment_sparse_softmax_loss
        >>> scores, ptr = np.array([2.0, 1.0, 0.0, 5.0, 1.0]), np.array([0, 3, 5])
        >>> loss = segment_sparse_softmax_loss(
        ...     scores, np.array([1, 3]), ptr=ptr, k=2, reduction="none"
        ... )
        >>> loss.round(4)
        array([1.3133, 0.0181])
    """
    if others:
        raise unknown_keyword(segment_sparse_softmax_loss, others)
    check_reduction(reduction)
    check_choice("outside", outside, tuple(OUTSIDE))
    support, ignored = check_support(k, p, min_p, None), check_ignored(ignore_index)
    of: dict[str, Any] = dict(segment_ids=segment_ids, ptr=ptr, num_segments=num_segments)
    checked = segment_given(scores, 1.0, exponential, temperature, mask, **of)
    with checked.form.quiet():
        at, labels, used, valid = _entries(target, checked, ignored)
        settings, xp, loss = (*support, OUTSIDE[outside]), checked.form.xp, None
        if labels is not None:
            loss = route.by_kernel(_OF_SETS, checked, labels, at, settings=settings)
            if loss is not None and is_finite(xp.sum(loss)) and bool(used.all()):
                return _given_back(loss, None, checked, reduction)
        if loss is None:
            own: dict[str, Any] = dict(zip(_OF_SETS.settings, settings, strict=False))
            loss = _of_sets(checked, at, at, **own)
        loss = xp.where(used, xp.where(valid, loss, math.nan), 0.0)
        return _reduced(loss, checked, reduction, used)


def _of_sets(checked: Given, labels: Array, at: Array, *, outside: int, **of: Any) -> Array:
    """Return the losses at entries of the flat scores, by array code."""
    rows, over, xp = rows_of(checked), checked.over, checked.form.xp
    fixed = checked._replace(scores=stop_gradient(checked.scores))
    last = route.answer(LEAST, fixed, settings=tuple(of.values()))
    own = xp.where(rows.top, math.inf, rows.scores)
    # Without an entry, in the graph of the scores all the same.
    own = own[at] if own.shape[0] else xp.sum(own) + full_like(own, last.shape, -math.inf)
    return evaluate(loss_at, rows, own, last, over=over, outside=outside, **of)


_OF_SETS = Operation(
    name="",
    takes="x n, labels r, at r, k SymInt?, p float?, min_p float?, outside int, t #, slopes int",
    gives="loss r, residual N if slopes",
    of=TEMPERED,
    kernel=lambda backend, given, labels, _, *own: SPARSE_LOSS.kernel(backend, given, labels, *own),
    plain=_of_sets,
    back=(
        Operation(
            name="",
            takes="cotangent r, t #, residual N",
            gives="x n",
            of=TEMPERED,
            kernel=lambda _, given, cotangent, residual: (
                given.over.expand(cotangent / given.temperature) * residual
            ),
            elementwise=True,
        ),
    ),
    constant=("t",),
    offered="truncated",
)
"""The same by kernels: labels count from the first entry of a segment; `at` is for array code."""


def _entries(target: Any, checked: Given, ignored: int) -> tuple[Array, Array | None, Array, Array]:
    """Return the entry of each segment in the flat scores, its place in the segment if that can be
    read, whether it counts, and whether it is one of the segment.
    """
    form, xp = checked.form, checked.form.xp
    check_same_kind("target", target, checked.scores)
    check_same_device("target", target, checked.scores)
    wanted = (form.segments, *form.shape[1:])
    if not dtype_name(target).startswith(("int", "uint")):
        raise TypeError(f"target must be integers, an entry of each segment; got {target.dtype}")
    if tuple(target.shape) != wanted:
        raise ValueError(
            f"target must have one index for each segment, shape {wanted}; got "
            f"{tuple(target.shape)}"
        )
    target = adopt(target, checked.scores)
    index = form.flat(as_indices(target))
    size, places = form.shape[0], arange(index, form.rows)
    used, inside = index != ignored, (index >= 0) & (index < size)
    at = xp.where(used & inside, index, 0) + places // max(form.segments, 1) * size
    if not size:
        return at, None, used & False, used
    if checked.order is not None and at_hand(at) is not None:
        within = constant(at, checked.order.within(np.asarray(at)))
        labels, own = xp.where(within < 0, 0, within), within >= 0
    else:
        labels, own = None, checked.over.ids[at] == places  # type: ignore[attr-defined]
    valid = ~used | (inside & own)
    known = at_hand(valid)
    if known is not None and not np.asarray(known).all():
        wrong = int(np.flatnonzero(~np.asarray(known))[0])
        raise ValueError(
            f"target must be an entry of its segment, or ignore_index, {ignored}; got "
            f"{int(index[wrong])} for segment {wrong % form.segments}"
        )
    return at, labels, used, valid


def _labels(target: Array, checked: Given) -> Array:
    x, form = checked.scores, checked.form
    target = form.plain("target", target)
    check_same_kind("target", target, x)
    check_same_device("target", target, x)
    if tuple(target.shape) != form.shape:
        raise ValueError(
            f"target must have the shape of scores, {form.shape}; got {tuple(target.shape)}"
        )
    labels = as_numbers(stop_gradient(adopt(target, x)), x.dtype)
    return form.flat(form.without_unassigned(labels, 0.0))


def _reduced(loss: ArrayT, checked: Given, reduction: str, used: Array | None = None) -> ArrayT:
    xp = namespace(loss)
    counted = ~deleted(checked.over.max(stop_gradient(checked.scores)))
    counted = counted if used is None else counted & used
    return _given_back(xp.where(counted, loss, 0.0), counted, checked, reduction)


def _given_back(loss: ArrayT, counted: Array | None, checked: Given, reduction: str) -> ArrayT:
    """Return losses of segments as the caller wants them; all count if `counted` is None."""
    whole = checked.form.per_segment(loss) if reduction == "none" else loss
    return over_rows(whole, counted, reduction)
