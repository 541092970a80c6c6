"""The loss of softmax over a set of the largest scores, or over sets that a caller names."""

from __future__ import annotations

from typing import Any, Literal, Never

from kofn.adapters import route
from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.checks import check_choice
from kofn.arrays.form import Form
from kofn.arrays.kinds import Array, namespace
from kofn.arrays.names import unknown_keyword
from kofn.arrays.typing import ArrayT, Reduction
from kofn.formulas import truncated as formulas
from kofn.kernels.contract import AGAINST, INFINITE, KEPT
from kofn.losses import at_once
from kofn.losses import labels as of_labels
from kofn.losses.fenchel_young import cross_entropy
from kofn.losses.reduced import of_counted, over_rows, reduced
from kofn.losses.targets import (
    Target,
    are_indices,
    check_class_weights,
    check_ignored,
    check_reduction,
    check_smoothing,
    class_weights,
    labelled,
    labels_again,
    nan_if_out_of_range,
    prepared,
    weighted,
)
from kofn.maps.sparse_softmax import Support, check_alone, check_support
from kofn.operations import truncated
from kofn.operations.truncated import SPARSE_LOSS, is_of_several
from kofn.rows.compiled import evaluate
from kofn.rows.given import Given
from kofn.rows.kept import Kept, form_of_sets, kept_given
from kofn.rows.settled import rows_of

__all__ = ["sparse_softmax_loss"]

Outside = Literal["against", "kept", "infinite"]
OUTSIDE = {"against": AGAINST, "kept": KEPT, "infinite": INFINITE}


def sparse_softmax_loss(
    scores: ArrayT,
    target: Array,
    *,
    k: int | None = None,
    p: float | None = None,
    min_p: float | None = None,
    kept: Any = None,
    outside: Outside | None = None,
    temperature: float | Array = 1.0,
    dim: int = -1,
    mask: Array | None = None,
    weight: Array | None = None,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    **others: Never,
) -> ArrayT:
    """Return −log of `sparse_softmax` at the target: log Σ_S e^{scores/T} − scores_t/T.

    S is the k largest scores, of them the nucleus, of it those with min_p of the greatest weight;
    or `kept`, the sets that tokens were drawn from. With `reduction="none"` it is −log p of each
    token under its sampler: the difference of two of them is the log of an importance ratio.

    The target does not have to be in S: outside of S, its score is still raised against all of S.
    Other entries outside of S get no gradient. The article keeps it for fine-tuning; with ten
    classes it also learned from scratch, no worse than cross-entropy, but with k = 2 it lost 9 and
    33 points to wrong labels ("What each finds" in docs/losses.md). With k, p and min_p it is ≥ 0,
    and 0 only if S is the target alone. With `k` alone it is continuous and convex, as a
    maximum of log-sum-exps over sets of k; ties for the last place share it. With others all ties
    count, and it jumps where S changes; the jump has no gradient.

    Args:
        scores, target, temperature, dim, mask, weight, label_smoothing, ignore_index, reduction:
            as for `softmax_loss`; each of several labels is compared with S. With `kept`, and with
            another `outside` than "against", the target is one index per row, without smoothing.
        k, p, min_p, kept: as for `sparse_softmax`. A row whose set is empty costs 0 and does not
            count in the mean.
        outside: what a target outside of S costs. "against": log Σ_S e^{scores/T} − scores_t/T, no
            logarithm of a probability; "kept": its score joins S; "infinite": +inf, without a
            gradient. None is "kept" with `kept`, where rounding may have lost the token that was
            drawn, else "against".

    Returns:
        As for `softmax_loss`. With `kept` no array has the size of the scores but their gradient.

    Raises:
        TypeError, ValueError: as for `softmax_loss` and `sparse_softmax`.

    Source: Sun et al., "Sparse-softmax: A Simpler and Faster Alternative Softmax Transformation"
    (2021); DeepSeek-AI, "DeepSeek-V3.2: Pushing the Frontier of Open Large Language Models" (2025),
    for the kept sets.

    Example:
        >>> import numpy as np
        >>> from kofn.losses import sparse_softmax_loss
        >>> scores = np.array([[2.0, 1.0, 0.0, -1.0]])
        >>> sparse_softmax_loss(scores, np.array([0]), k=2).round(4)
        np.float64(0.3133)
        >>> sparse_softmax_loss(scores, np.array([0]), kept=([0, 3], [0, 2])).round(4)
        np.float64(0.0486)
    """
    if others:
        raise unknown_keyword(sparse_softmax_loss, others)
    if outside is not None:
        check_choice("outside", outside, tuple(OUTSIDE))
    if kept is not None:
        check_alone(k, p, min_p)
        check_reduction(reduction)
        form = form_of_sets(scores, dim)
        with form.quiet():
            only = _labels_of(target, scores, form, weight, label_smoothing, ignore_index)
            at: Any = only.labels
            sets = kept_given(scores, kept, temperature, dim, mask, labels=at.reshape(-1))
            return _of_sets(sets, only, OUTSIDE[outside or "kept"], reduction)
    given: Any = (scores, target, temperature, dim, mask, reduction)
    options: Any = dict(weight=weight, label_smoothing=label_smoothing, ignore_index=ignore_index)
    way = OUTSIDE[outside or "against"]
    loss = at_once.answer(*given, again=_again, likely=True, sets=(k, p, min_p, way), **options)
    if loss is not None:
        return loss
    checked, labels = prepared(*given, spread_one=True, halves=True, **options)
    of = check_support(k, p, min_p, checked.n)
    if way != AGAINST and labels.labels is None:
        raise ValueError(
            f"outside must be 'against' for a target of weights and with label smoothing; got "
            f"{outside!r}"
        )
    with checked.form.quiet():
        return _reduced(checked, labels, of, way, reduction)


def _reduced(checked: Given, labels: Target, of: Support, way: int, reduction: str) -> Any:
    loss = _of_rows(checked, labels, of, way)
    if loss is not None:
        return reduced(loss, labels, reduction, unlimited=True)
    return cross_entropy(truncated.log_weights(checked.wide(), *of), labels, reduction)


def _again(
    given: Given, target: Array, *, by_class: Any, k: Any, p: Any, min_p: Any, outside: int,
    ignored: int, reduction: str,
) -> Any:  # fmt: skip
    """Return the loss of rows on a device with all of its derivatives."""
    labels = labels_again(given, target, by_class, ignored)
    return _reduced(given, labels, Support(k, p, min_p), outside, reduction)


def _of_rows(checked: Given, labels: Target, of: Support, way: int) -> Array | None:
    """Return the weighted losses of rows; None if array code of several labels has to."""
    if way == AGAINST and not is_of_several(*of):
        return of_labels.likelihoods(checked, labels, of.k, of.p)
    if labels.labels is None:
        return None
    loss = route.answer(SPARSE_LOSS, checked, labels.labels, settings=(*of, way))
    return weighted(nan_if_out_of_range(loss, labels), labels)


def _labels_of(
    target: Any, scores: Any, form: Form, weight: Any, smoothing: Any, ignored: Any
) -> Target:
    """Check a target of one index per row."""
    if check_smoothing(smoothing):
        raise ValueError(f"label_smoothing must be 0 where kept is given; got {smoothing!r}")
    if not are_indices(target, scores, form):
        raise ValueError(
            "target must have one index per row where kept is given, with the shape "
            f"{form.batch}; got weights of shape {tuple(target.shape)}"
        )
    labels = labelled(target, scores, stop_gradient(scores), check_ignored(ignored), form.n)
    if weight is None:
        return labels
    check_class_weights(weight, scores, form.n)
    by_class = class_weights(weight, form.n, labels.like())
    return labels._replace(row_weight=by_class[labels.labels])


def _of_sets(sets: Kept, labels: Target, way: int, reduction: str) -> Any:
    """Return the reduced losses of labels of the sets of rows."""
    assert labels.labels is not None
    over, batch, own = sets.given.over, sets.form.batch, sets.own
    assert own is not None
    is_in = sets.has(labels.labels.reshape(-1), over)
    rows, xp = rows_of(sets.given.per_row()), namespace(own)
    share = xp.ones_like(rows.scores)
    loss = evaluate(formulas.loss, rows, share, own, is_in, over=over, outside=way).reshape(batch)
    counted = (over.count(rows.live | rows.top) > 0).reshape(batch)
    counted = counted if labels.used is None else counted & labels.used
    loss = weighted(nan_if_out_of_range(loss, labels), labels)
    return over_rows(*of_counted(loss, counted, labels.row_weight), reduction)
