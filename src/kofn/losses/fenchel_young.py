"""Fenchel–Young losses: convex losses with gradient p − t, which are 0 at p = t."""

from __future__ import annotations

from typing import Any, Never

from kofn import links
from kofn.adapters import route
from kofn.arrays.kinds import Array
from kofn.arrays.names import unknown_keyword
from kofn.arrays.typing import ArrayT, LinkName, Reduction
from kofn.formulas import answers
from kofn.links import Link, table
from kofn.losses import at_once
from kofn.losses import labels as of_labels
from kofn.losses.reduced import reduced
from kofn.losses.targets import (
    Target,
    labels_again,
    log_likelihood,
    nan_if_out_of_range,
    prepared,
    weighted,
)
from kofn.operations.losses import LOSS, PLAIN_LOSS
from kofn.rows.compiled import evaluate
from kofn.rows.given import Given
from kofn.rows.integral import require_integral
from kofn.rows.settled import rows_of

__all__ = ["entmax_loss", "fenchel_young_loss", "softmax_loss", "sparsemax_loss", "topk_loss"]


def fenchel_young_loss(
    scores: ArrayT,
    target: Array,
    *,
    link: LinkName | Link = "exponential",
    temperature: float | Array = 1.0,
    dim: int = -1,
    mask: Array | None = None,
    reduction: Reduction = "mean",
    **others: Never,
) -> ArrayT:
    """Return the Fenchel–Young loss S_k(x)/T + ΣΩ(t) − ⟨t, x⟩/T with k = Σt.

    The loss is convex in the scores, ≥ 0, and 0 only where p = t.

    Its gradient in the scores is (soft_topk(scores, k) − target)/T. With the default link and
    one-hot targets it is cross-entropy of scores/T; "linear" gives the sparsemax loss, "entmax"
    the entmax loss, and k-hot targets a multi-label loss whose k is the number of labels.

    Args:
        scores, link, temperature, dim, mask: as for `soft_topk`.
        target: weights in [0, 1] with the shape of `scores`, one-hot, k-hot or soft, or integers
            without `dim`; no gradient reaches it. Weight on an entry that cannot be chosen makes
            the loss infinite, and the gradients of the row 0.
        reduction: "mean" over the rows with an available entry, "sum", or "none".

    Returns:
        A scalar, or the batch shape for "none"; float32 for half-precision scores. Fully masked
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
    if others:
        raise unknown_keyword(fenchel_young_loss, others)
    return _loss(scores, target, link, temperature, dim, mask, reduction)


def softmax_loss(
    scores: ArrayT,
    target: Array,
    *,
    temperature: float | Array = 1.0,
    dim: int = -1,
    mask: Array | None = None,
    weight: Array | None = None,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    **others: Never,
) -> ArrayT:
    """Return the cross-entropy −Σ w·t·log softmax(scores/T), as torch's cross_entropy does.

    It has the options of torch.nn.functional.cross_entropy, and also a mask, a temperature per
    row, any dim, and support for NumPy and JAX. A score of −inf excludes its entry, also from
    label smoothing, and the mean over no rows is 0, not NaN.

    Args:
        scores, temperature, dim, mask: as for `soft_topk`. `dim` holds the classes: the last by
            default, torch's function has 1.
        target: integers, the index of the class, with the batch shape (`scores.shape` without
            `dim`); or weights with the shape of `scores`. No gradient reaches it.
        weight: one number per class, (n,).
        label_smoothing: the share of the target, in [0, 1], that is spread evenly over the
            available entries.
        ignore_index: rows with this integer have loss 0 and are not part of the mean.
        reduction: "mean", "sum" or "none". For integers the mean is over class weights, else over
            rows.

    Returns:
        A scalar, or the batch shape for "none"; float32 for half-precision scores.

    Raises:
        TypeError, ValueError: as for `soft_topk`; a target, weight or option of the wrong kind or
            shape; an index that is neither in [0, n) nor `ignore_index`. In arrays on other
            devices than a CPU, and in code that JAX or PyTorch traces, such a row is NaN instead,
            because reading the index would wait for the device.

    Example:
        >>> import numpy as np
        >>> from kofn.losses import softmax_loss
        >>> scores = np.array([[2.0, 1.0, -1.0], [0.0, 0.0, 3.0]])
        >>> softmax_loss(scores, np.array([0, -100])).round(4)
        np.float64(0.3490)
        >>> softmax_loss(scores, np.array([0, 1]), label_smoothing=0.1).round(4)
        np.float64(1.7386)
    """
    if others:
        raise unknown_keyword(softmax_loss, others)
    options: Any = dict(weight=weight, label_smoothing=label_smoothing, ignore_index=ignore_index)
    given: Any = (scores, target, temperature, dim, mask, reduction)
    loss: Any = at_once.answer(*given, again=_again, likely=True, **options)
    if loss is not None:
        return loss
    checked, labels = prepared(*given, spread_one=True, halves=True, **options)
    with checked.form.quiet():
        return loss_of_rows(checked, labels, reduction, True)


def loss_of_rows(checked: Given, labels: Target, reduction: str, likely: bool) -> Any:
    """Return the loss of checked rows: their cross-entropy if `likely`, else of their link."""
    if not likely:
        loss = weighted(_losses(checked, labels), labels)
        return reduced(loss, labels, reduction, unlimited=True)
    likely_loss = of_labels.likelihoods(checked, labels)
    if likely_loss is not None:
        return reduced(likely_loss, labels, reduction, unlimited=True)
    log_p = evaluate(answers.log_softmax, rows_of(checked))
    return cross_entropy(log_p, labels, reduction)


def _again(
    given: Given, target: Array, *, by_class: Any, likely: int, ignored: int, reduction: str
) -> Any:
    """Return the loss of rows on a device with all of its derivatives."""
    labels = labels_again(given, target, by_class, ignored)
    return loss_of_rows(given, labels, reduction, bool(likely))


def sparsemax_loss(
    scores: ArrayT,
    target: Array,
    *,
    temperature: float | Array = 1.0,
    dim: int = -1,
    mask: Array | None = None,
    weight: Array | None = None,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    **others: Never,
) -> ArrayT:
    """Return the convex loss whose gradient is (sparsemax(scores/T) − target)/T.

    It is exactly 0 once the target's score leads by T, where cross-entropy is still positive.

    Args:
        scores, target, temperature, dim, mask, label_smoothing, ignore_index: as for
            `softmax_loss`. With several labels k is their number.
        weight: one number per class, (n,); a row has the mean of its labels'.
        reduction: "mean" (over those weights), "sum" or "none".

    Returns:
        As for `softmax_loss`.

    Raises:
        TypeError, ValueError: as for `softmax_loss`.

    Source: Martins & Astudillo, "From Softmax to Sparsemax" (2016).

    Example:
        >>> import numpy as np
        >>> from kofn.losses import sparsemax_loss
        >>> sparsemax_loss(np.array([[2.0, 1.0, -1.0], [0.5, 0.0, 0.0]]), np.array([0, 0])).round(4)
        np.float64(0.0417)
    """
    if others:
        raise unknown_keyword(sparsemax_loss, others)
    options = dict(weight=weight, label_smoothing=label_smoothing, ignore_index=ignore_index)
    return _loss(scores, target, "linear", temperature, dim, mask, reduction, **options)


def entmax_loss(
    scores: ArrayT,
    target: Array,
    alpha: float | Array = 1.5,
    *,
    temperature: float | Array = 1.0,
    dim: int = -1,
    mask: Array | None = None,
    weight: Array | None = None,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    **others: Never,
) -> ArrayT:
    """Return the convex loss whose gradient is (entmax(scores/T, alpha) − target)/T.

    alpha = 1 is cross-entropy (of a soft target less its entropy), alpha = 2 the sparsemax loss.

    Args:
        scores, target, temperature, dim, mask, weight, label_smoothing, ignore_index, reduction:
            as for `sparsemax_loss`.
        alpha: as for `entmax`; it may be learned.

    Returns:
        As for `softmax_loss`.

    Raises:
        TypeError, ValueError: as for `softmax_loss`; ValueError for alpha < 1.

    Source: Peters, Niculae & Martins, "Sparse Sequence-to-Sequence Models" (2019).

    Example:
        >>> import numpy as np
        >>> from kofn.losses import entmax_loss
        >>> entmax_loss(np.array([[2.0, 1.0, -1.0]]), np.array([0])).round(4)
        np.float64(0.0617)
    """
    if others:
        raise unknown_keyword(entmax_loss, others)
    options = dict(weight=weight, label_smoothing=label_smoothing, ignore_index=ignore_index)
    return _loss(
        scores, target, "entmax", temperature, dim, mask, reduction, alpha=alpha, **options
    )


def topk_loss(
    scores: ArrayT,
    target: Array,
    *,
    link: LinkName | Link = "logistic",
    temperature: float | Array = 1.0,
    dim: int = -1,
    mask: Array | None = None,
    weight: Array | None = None,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    **others: Never,
) -> ArrayT:
    """Return the multi-label loss with gradient (soft_topk(scores, k) − target)/T, k = Σ target.

    It trains the labels of a row to be its k largest scores; k may differ between rows. Unlike
    binary cross-entropy per entry it has no bias to learn, and unlike softmax cross-entropy on a
    k-hot target it lets every label have weight 1. It is convex and ≥ 0, and 0 only where the
    weights equal the target.

    Args:
        scores, temperature, dim, mask, label_smoothing, ignore_index: as for `softmax_loss`.
        target: k-hot weights in [0, 1] with the shape of `scores`, of any real dtype or boolean;
            or integers, for k = 1. A row without labels costs 0.
        link: as for `soft_topk`: "exponential" generalises cross-entropy; with "linear" and
            "entmax" the loss is 0 where all labels lead by enough.
        weight: one number per class, (n,); a row has the mean of its labels'.
        reduction: "mean" (over those weights), "sum" or "none".

    Returns:
        As for `softmax_loss`.

    Raises:
        TypeError, ValueError: as for `softmax_loss`; ValueError for a link without an integral.

    Source: Amos, Koltun & Kolter, "The Limited Multi-Label Projection Layer" (2019); Blondel,
    Martins & Niculae, "Learning with Fenchel-Young Losses" (2020).

    Example:
        >>> import numpy as np
        >>> from kofn.losses import topk_loss
        >>> scores = np.array([[2.0, 1.0, -1.0, 0.0]])
        >>> topk_loss(scores, np.array([[1, 1, 0, 0]])).round(4)
        np.float64(1.3510)
    """
    if others:
        raise unknown_keyword(topk_loss, others)
    options = dict(weight=weight, label_smoothing=label_smoothing, ignore_index=ignore_index)
    return _loss(scores, target, link, temperature, dim, mask, reduction, **options)


def cross_entropy(log_p: ArrayT, labels: Target, reduction: str) -> ArrayT:
    """Return −Σ w·t·log p of rows, reduced as in PyTorch."""
    loss: Any = -log_likelihood(log_p, labels)
    return reduced(loss, labels, reduction, plain_mean=not labels.integers)


def _loss(
    scores: Array,
    target: Array,
    link: str | Link,
    temperature: Any,
    dim: int,
    mask: Array | None,
    reduction: str,
    alpha: Any = None,
    **options: Any,
) -> Any:
    """Return the Fenchel–Young loss of any link and target; `alpha` is for entmax."""
    given = (scores, target, temperature, dim, mask, reduction)
    loss = at_once.answer(*given, again=_again, link=link, alpha=alpha, **options)
    if loss is not None:
        return loss
    link = table.resolve(link) if alpha is None else links.entmax(alpha)
    checked, labels = prepared(*given, link=link, halves=True, **options)
    with checked.form.quiet():
        require_integral(link, scores)
        return loss_of_rows(checked, labels, reduction, False)


def _losses(checked: Given, labels: Target) -> Array:
    # A row with an ignored label does not count, whatever its loss.
    smooth = of_labels.losses(checked, labels)
    if smooth is not None:
        return smooth
    if labels.labels is not None:
        loss = route.by_kernel(LOSS, checked, labels.labels, settings=(0,))
    else:
        weights = labels.weights if labels.behind is None else labels.dense()
        loss = route.by_kernel(LOSS, checked, weights, settings=(0,))
    if loss is not None:
        return nan_if_out_of_range(loss, labels)
    checked = checked.per_row()._replace(k=labels.number())
    return route.by_array_code(PLAIN_LOSS, checked, labels.dense())
