"""Losses on the weights of a map: negative log-likelihoods and smoothed accuracies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Never

import numpy as np

from kofn.adapters import route
from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.checks import check_number
from kofn.arrays.kinds import Array, cast, compute_dtype, deleted, namespace
from kofn.arrays.names import unknown_keyword
from kofn.arrays.operations import at_labels
from kofn.arrays.tracing import is_at_hand
from kofn.arrays.typing import ArrayT, LinkName, NoiseName, Reduction
from kofn.links import Link, table
from kofn.losses import at_once
from kofn.losses.reduced import missed, reduced
from kofn.losses.targets import Target, all_in_play, mean_over_labels, prepared, weighted
from kofn.operations.logarithms import LOG_AT_LABELS, LOG_WEIGHTS
from kofn.operations.topk import wide_weights
from kofn.rows.given import Given, without_deleted
from kofn.solver.reductions import DENSE

__all__ = [
    "accuracy_loss",
    "epsilon_cross_entropy",
    "perturbed_accuracy_loss",
    "topk_cross_entropy",
]


def topk_cross_entropy(
    scores: ArrayT,
    target: Array,
    k: int | Sequence[float],
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
    """Return −log Σ_j P_K(j)·soft_topk(scores, j)_t, a smoothed top-k accuracy with random k.

    Use it for a metric such as top-5 accuracy, or half top-1 and half top-5. It is computed from
    logarithms, so a target far below still gets a gradient (with a link of infinite tails).

    Args:
        scores, temperature, dim, mask, weight, label_smoothing, ignore_index, reduction: as for
            `sparsemax_loss`.
        target: as for `softmax_loss`; of several labels the mean over them.
        k: P_K, the probabilities of 1, 2, … , such as (0.5, 0, 0, 0, 0.5), which sum to 1; or one
            integer. Each k with a probability costs a `soft_topk`.
        link: as for `soft_topk`. With "linear" and "entmax" a target of weight 0 costs ∞,
            and with label smoothing any entry of weight 0 does.

    Returns:
        As for `softmax_loss`.

    Raises:
        TypeError, ValueError: as for `softmax_loss`; a `k` that is not a distribution over 1 to n.

    Source: Petersen, Kuehne, Borgelt & Deussen, "Differentiable Top-k Classification Learning"
    (2022).

    Example:
        >>> import numpy as np
        >>> from kofn.losses import topk_cross_entropy
        >>> scores = np.array([[2.0, 1.0, 0.0, -1.0]])
        >>> topk_cross_entropy(scores, np.array([1]), 2).round(4)
        np.float64(0.4741)
        >>> topk_cross_entropy(scores, np.array([1]), (0.5, 0.5)).round(4)
        np.float64(0.7844)
    """
    if others:
        raise unknown_keyword(topk_cross_entropy, others)
    given: Any = (scores, target, temperature, dim, mask, reduction)
    options: Any = dict(
        link=link, weight=weight, label_smoothing=label_smoothing, ignore_index=ignore_index
    )

    def total(checked: Given, labels: Target | None = None) -> Any:
        total, checked = None, checked.wide()
        for number, share in _distribution(k, checked.n):
            one = _logarithms(checked._replace(k=float(number)), labels)
            one = one if share == 1 else one + math.log(share)
            total = one if total is None else _logaddexp(total, one)
        return total

    loss: Any = at_once.of_values(total, *given, k=k, **options)
    if loss is not None:
        return loss
    options["link"] = table.resolve(link)
    checked, labels = prepared(*given, **options)
    with checked.form.quiet():
        return missed(total(checked, labels), labels, reduction, unlimited=True)


def _logarithms(given: Given, target: Target | None) -> Any:
    """Return log p of rows: of their labels, if there is one each, or of all entries."""
    numbers = type(given.temperature) is float and type(given.link.alpha) in (float, type(None))
    usual = given.form.kind == "torch" and not given.is_half and given.over is DENSE
    labels = None if target is None else target.labels
    if usual and numbers and labels is not None and is_at_hand(given.scores):
        log = route.by_kernel(LOG_AT_LABELS, given, labels)
        if log is not None:
            return log
    return route.answer(LOG_WEIGHTS, given)


def epsilon_cross_entropy(
    scores: ArrayT,
    target: Array,
    *,
    epsilon: float = 1e-3,
    link: LinkName | Link = "linear",
    temperature: float | Array = 1.0,
    dim: int = -1,
    mask: Array | None = None,
    weight: Array | None = None,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    **others: Never,
) -> ArrayT:
    """Return −log((p_t + ε)/(1 + nε)) of weights p, which is finite where p_t = 0.

    It is not convex, and has no gradient where p_t = 0, so networks that it trains from scratch may
    stop early. Use it for comparison and evaluation; to train maps with exact zeros, use
    `sparsemax_loss`, `entmax_loss` or `topk_loss`.

    Args:
        scores, temperature, dim, mask, weight, label_smoothing, ignore_index, reduction: as for
            `sparsemax_loss`.
        target: as for `softmax_loss`; with several labels k is their number, nε becomes nε/k and
            the loss is the mean over them.
        epsilon: > 0, added to each weight.
        link: of the map `soft_topk`; "linear" is sparsemax.

    Returns:
        As for `softmax_loss`.

    Raises:
        TypeError, ValueError: as for `softmax_loss`; an `epsilon` that is not positive.

    Example:
        >>> import numpy as np
        >>> from kofn.losses import epsilon_cross_entropy
        >>> epsilon_cross_entropy(np.array([[2.0, 1.0, -1.0]]), np.array([1])).round(4)
        np.float64(6.9108)
    """
    if others:
        raise unknown_keyword(epsilon_cross_entropy, others)
    epsilon = check_number("epsilon", epsilon, low=0.0, allowed="a number > 0", strict=True)
    given: Any = (scores, target, temperature, dim, mask, reduction)
    options: Any = dict(
        link=table.resolve(link), weight=weight, label_smoothing=label_smoothing,
        ignore_index=ignore_index,
    )  # fmt: skip

    def available(checked: Given) -> Any:
        x = checked.scores
        if all_in_play(stop_gradient(x)):
            return x.shape[-1]
        playing = ~deleted(x)
        return namespace(playing).sum(cast(playing, compute_dtype(x)), axis=-1)

    loss = at_once.of_values(_weights, *given, epsilon=epsilon, **options)
    if loss is not None:
        return loss
    checked, labels = prepared(*given, **options)
    xp = checked.form.xp
    with checked.form.quiet():
        k, p = labels.number(), _weights(checked, labels)
        p = p if labels.labels is None else at_labels(p, labels.labels)
        whole = xp.log1p(available(checked) * epsilon / xp.where(k > 0, k, 1.0))
        loss = xp.where(k == 0, 0.0, whole - mean_over_labels(labels, xp.log(p + epsilon)))
        return reduced(weighted(loss, labels), labels, reduction)


def accuracy_loss(
    scores: ArrayT,
    target: Array,
    *,
    link: LinkName | Link = "exponential",
    temperature: float | Array = 1.0,
    dim: int = -1,
    mask: Array | None = None,
    weight: Array | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    **others: Never,
) -> ArrayT:
    """Return −p_t, the negative smoothed accuracy; for k labels, the mean of −p over them.

    The loss is bounded, so wrong labels matter less: use it where there are many. It is nearly flat
    for rows that are clearly right or wrong, so it learns slowly from scratch; on labels that are
    right it gains nothing over cross-entropy, nor after it ("What each finds" in docs/losses.md).

    Args:
        scores, target, temperature, dim, mask, weight, ignore_index, reduction: as for
            `sparsemax_loss`.
        link: as for `soft_topk`; "exponential" with one label is softmax.

    Returns:
        As for `softmax_loss`, in [−1, 0] unless weighted.

    Raises:
        TypeError, ValueError: as for `softmax_loss`.

    Example:
        >>> import numpy as np
        >>> from kofn.losses import accuracy_loss
        >>> accuracy_loss(np.array([[2.0, 1.0, -1.0]]), np.array([0])).round(4)
        np.float64(-0.7054)
    """
    if others:
        raise unknown_keyword(accuracy_loss, others)
    given: Any = (scores, target, temperature, dim, mask, reduction)
    options: Any = dict(link=table.resolve(link), weight=weight, ignore_index=ignore_index)
    loss: Any = at_once.of_values(_weights, *given, **options)
    if loss is not None:
        return loss
    checked, labels = prepared(*given, halves=True, **options)
    with checked.form.quiet():
        return missed(_weights(checked, labels), labels, reduction)


def perturbed_accuracy_loss(
    scores: ArrayT,
    target: Array,
    *,
    noise: NoiseName | Link = "normal",
    temperature: float | Array = 1.0,
    dim: int = -1,
    mask: Array | None = None,
    weight: Array | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    **others: Never,
) -> ArrayT:
    """Return −Pr(target is the largest of scores + T·noise), the negative expected accuracy.

    It is bounded and flat as `accuracy_loss` is, for data where many labels are wrong.

    Args:
        scores, target, temperature, dim, mask, weight, ignore_index, reduction: as for
            `sparsemax_loss`; of several labels the mean over them.
        noise: as for `perturbed_argmax`.

    Returns:
        As for `softmax_loss`, in [−1, 0] unless weighted.

    Raises:
        TypeError, ValueError: as for `softmax_loss` and `perturbed_argmax`.

    Source: Karpukhin, Dereka & Kolesnikov, "EXACT: How to Train Your Accuracy" (2022).

    Example:
        >>> import numpy as np
        >>> from kofn.losses import perturbed_accuracy_loss
        >>> perturbed_accuracy_loss(np.array([[2.0, 1.0, -1.0]]), np.array([0])).round(4)
        np.float64(-0.7556)
    """
    if others:
        raise unknown_keyword(perturbed_accuracy_loss, others)
    from kofn.maps.perturbed import perturbed_argmax  # loaded when it is first used

    checked, labels = prepared(
        scores, target, temperature, dim, mask, reduction, weight=weight, ignore_index=ignore_index
    )
    with checked.form.quiet():
        x = cast(without_deleted(scores), compute_dtype(scores))
        p = perturbed_argmax(x, noise=noise, temperature=temperature, dim=dim, mask=mask)
        return missed(checked.form.entries(p), labels, reduction)


def _weights(checked: Given, labels: Target | None = None) -> Any:
    """Return the weights of soft_topk for as many as a row has labels, or for one."""
    if labels is None:
        return route.answer(*wide_weights(checked))
    if labels.labels is None or labels.used is not None or labels.valid is not None:
        checked = checked._replace(k=labels.number())
    return route.answer(*wide_weights(checked))


def _distribution(k: Any, n: int) -> list[tuple[int, float]]:
    """Return (k, probability) for each possible k."""
    allowed = "an integer in [1, n], or probabilities of 1, 2, … up to n that sum to 1"
    if isinstance(k, (int, np.integer)) and not isinstance(k, bool):
        numbers = [(int(k), 1.0)]
    elif isinstance(k, (Sequence, np.ndarray)) and not isinstance(k, str):
        shares = [check_number("k", share, low=0.0, allowed=allowed) for share in k]
        numbers = [(i + 1, share) for i, share in enumerate(shares) if share > 0]
        if abs(sum(shares) - 1) > 1e-6:
            raise ValueError(f"k must be {allowed}; got {k!r}, which sums to {sum(shares):.6g}")
    else:
        raise TypeError(f"k must be {allowed}; got {k!r}")
    if not all(1 <= number <= n for number, _ in numbers):
        raise ValueError(f"k must be {allowed}; got {k!r} for n = {n}")
    return numbers


def _logaddexp(a: Array, b: Array) -> Array:
    """Return log(e^a + e^b), with gradient 0 where both are −∞."""
    xp = namespace(a)
    none = (a == -math.inf) & (b == -math.inf)
    # PyTorch's own has second derivatives of NaN where they are far apart.
    larger, less = xp.where(a > b, a, b), xp.where(a > b, b, a)
    apart = xp.where(none, 0.0, less) - xp.where(none, 0.0, larger)
    return xp.where(none, -math.inf, larger + xp.log1p(xp.exp(apart)))
