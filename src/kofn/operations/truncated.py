"""Softmax over the largest scores of rows, the k largest or the nucleus; and its loss at labels."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from kofn import kernels
from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.kinds import Array, cast, namespace
from kofn.arrays.operations import (
    at_labels,
    cumulative_sums,
    kth_largest,
    marked,
    with_undivided_rows,
)
from kofn.arrays.typing import Tensor
from kofn.formulas import answers
from kofn.formulas import truncated as formulas
from kofn.kernels.contract import ENTROPY, LAST
from kofn.links import exponential
from kofn.operations.losses import from_labels, onward, pulled_back
from kofn.operations.operation import Operation
from kofn.operations.signatures import TEMPERED
from kofn.rows.compiled import evaluate
from kofn.rows.given import Given
from kofn.rows.settled import rows_of

Chooser = kernels.ChoiceKernels
SET = "k SymInt?, p float?, min_p float?"


def log_weights(given: Given, k: int | None, p: float | None, min_p: float | None = None) -> Any:
    """Return x/T − log Σ_S e^{x/T} of all entries, in plain operations."""
    rows = rows_of(given)
    kept: tuple[Array, ...]
    if is_of_several(k, p, min_p):
        kept = (evaluate(formulas.all_shares, rows, k=k, p=p, min_p=min_p),)
    else:
        kept = () if k is None and p is None else (counted(given, k, p),)
    return evaluate(answers.log_softmax, rows, *kept)


def is_of_several(k: int | None, p: float | None, min_p: float | None) -> bool:
    """Return whether a set needs more than k or p alone, which have operations of their own."""
    return min_p is not None or (k is not None and p is not None)


def supported(given: Given, k: int | None, p: float | None) -> Given:
    """Return the rows with −inf outside the support; those with a NaN are unchanged."""
    given = given.per_row()
    x, _, temperature, *_ = given
    xp = namespace(x)
    fixed = stop_gradient(x)
    if k == 0 or (p is not None and p >= 1):
        return given
    bad = xp.any(xp.isnan(fixed), axis=-1)
    if k is not None:
        last = kth_largest(fixed, k)
    else:
        ordered = xp.flip(xp.sort(with_undivided_rows(fixed), axis=-1), axis=-1)
        share = evaluate(answers.softmax, rows_of(given._replace(scores=ordered)))
        # An entry is kept while the total weight of those before it is below p.
        before = cumulative_sums(share) - share
        last = xp.min(xp.where((before < p) & (share > 0), ordered, math.inf), axis=-1)
        bad = bad | xp.isnan(temperature)
    outside = (fixed < last[..., None]) & ~bad[..., None]
    return given._replace(scores=xp.where(outside, -math.inf, x))


def counted(given: Given, k: int | None, p: float | None) -> Array:
    """Return the share of each entry in the support: 0, 1, or equal shares for ties at the k-th."""
    x = stop_gradient(given.scores)
    xp = namespace(x)
    if k is None or k == 0:
        return cast(supported(given._replace(scores=x), k, p).scores != -math.inf, x.dtype)
    last = kth_largest(x, k)[..., None]
    above, level = cast(x > last, x.dtype), cast(x == last, x.dtype)
    left = k - xp.sum(above, axis=-1)[..., None]
    equal = xp.sum(level, axis=-1)[..., None]
    return above + level * left / xp.where(equal > 0, equal, 1.0)


def _weights(chooser: Chooser, given: Given, k: int | None, p: float | None) -> Array:
    return chooser.truncated(given.scores, k, p, given.temperature, None, True)[0]


def _weights_back(chooser: Chooser, given: Given, weights: Array, cotangent: Array) -> Any:
    temperature = given.temperature
    in_x, in_t = chooser.truncated_gradients(given.scores, weights, cotangent, temperature)
    return in_x, in_x.new_zeros(given.batch) if type(temperature) is float else in_t


TRUNCATED = Operation(
    name="truncated",
    takes="x n, k SymInt?, p float?, t #",
    gives="weights n",
    of=TEMPERED,
    kernel=_weights,
    plain=lambda given, k, p: evaluate(answers.softmax, rows_of(supported(given, k, p))),
    back=(
        Operation(
            name="truncated_backward",
            takes="x n, weights n, cotangent n, t #",
            gives="x n, t r",
            of=TEMPERED,
            kernel=_weights_back,
        ),
    ),
    functions="sparse_softmax",
    lacks={"JAX": "array code", "segments": "no function for segments"},
    offered="truncated",
)


def _loss(
    chooser: Chooser, given: Given, labels: Array, k: int | None, p: float | None, slopes: int
) -> tuple[Array, Array | None]:
    """Return the losses of rows and, if `slopes`, p − t."""
    residual, loss = chooser.truncated(given.scores, k, p, given.temperature, labels, bool(slopes))
    return loss.clone() if hasattr(loss, "clone") else loss, residual if slopes else None


def _loss_back(
    _: Any, given: Given, cotangent: Array, labels: Tensor, residual: Tensor, dtype: Any
) -> tuple[Array, Array | None]:
    x, t = given.scores, given.temperature
    lever = None if x is None or type(t) is float else from_labels(x, labels, residual) / t
    return pulled_back(_, given, cotangent, residual, lever, dtype)


def _loss_onward(
    _: object,
    given: Given,
    cotangent: Array,
    residual: Array,
    labels: Array,
    loss: Array,
    k: int | None,
    p: float | None,
) -> Array:
    target = cast(marked(residual, labels[..., None]), residual.dtype)
    whole = k is None and p is None  # a label may be outside of the support
    of_label = namespace(loss).exp(-stop_gradient(loss)) if whole else None
    return onward(given._replace(link=exponential), cotangent, residual, target, of_label)


TRUNCATED_LOSS = Operation(
    name="truncated_loss",
    takes="x n, labels n, k SymInt?, p float?, t #, slopes int",
    gives="loss r, residual N if slopes",
    of=TEMPERED,
    kernel=_loss,
    plain=lambda given, labels, k, p: -at_labels(log_weights(given.wide(), k, p), labels),
    back=(
        Operation(
            name="",
            takes="cotangent r, x n if t, labels n if t, t #, residual N, dtype dtype",
            gives="x n, t r",
            of=TEMPERED,
            kernel=_loss_back,
            elementwise=True,
        ),
    ),
    onward=Operation(
        name="",
        takes="cotangent N, residual N, labels n, loss r, t #, k SymInt?, p float?",
        gives="x n",
        of=TEMPERED,
        kernel=_loss_onward,
        elementwise=True,
    ),
    functions="softmax_loss, am_softmax, arcface, sparse_softmax_loss",
    offered="truncated",
    lacks={"JAX": "by the primitive of losses", "segments": "no function for segments"},
)


# A set by several of k, p and min_p, or by min_p.


def _sparse(chooser: Chooser, given: Given, *of: Any) -> Array:
    return _asked(chooser, given, None, True, of)[0]


def _asked(
    chooser: Chooser, given: Given, labels: Array | None, wanted: bool, of: Any, what: int = 0
) -> tuple[Array, Any]:
    k, p, min_p = of
    return chooser.truncated(given.scores, k, p, given.temperature, labels, wanted, min_p, what)


SPARSE = replace(
    TRUNCATED,
    name="sparse_softmax",
    takes=f"x n, {SET}, t #",
    kernel=_sparse,
    plain=lambda given, **of: evaluate(formulas.softmax, rows_of(given), over=given.over, **of),
    functions="sparse_softmax(min_p=)",
)


def _sparse_loss(
    chooser: Chooser, given: Given, labels: Array, *settings: Any
) -> tuple[Array, Array | None]:
    *of, outside, slopes = settings
    residual, loss = _asked(chooser, given, labels, bool(slopes), of, outside)
    return loss.clone() if hasattr(loss, "clone") else loss, residual if slopes else None


def _sparse_onward(_: Any, given: Given, cotangent: Array, residual: Array, labels: Array) -> Array:
    target = cast(marked(residual, labels[..., None]), residual.dtype)
    return onward(given._replace(link=exponential), cotangent, residual, target)


SPARSE_LOSS = replace(
    TRUNCATED_LOSS,
    name="sparse_softmax_loss",
    takes=f"x n, labels n, {SET}, outside int, t #, slopes int",
    kernel=_sparse_loss,
    plain=lambda given, labels, **of: evaluate(
        formulas.loss_of_labels, rows_of(given.wide()), labels, **of
    ),
    onward=Operation(
        name="",
        takes="cotangent N, residual N, labels n, t #",
        gives="x n",
        of=TEMPERED,
        kernel=_sparse_onward,
        elementwise=True,
    ),
    functions="sparse_softmax_loss(min_p=), sparse_softmax_loss(outside=)",
    lacks={"JAX": "array code", "segments": "no function for segments"},
)


def _entropy(chooser: Chooser, given: Given, *settings: Any) -> tuple[Array, Array | None]:
    *of, slopes = settings
    slope, entropy = _asked(chooser, given, None, bool(slopes), of, ENTROPY)
    return entropy.clone() if hasattr(entropy, "clone") else entropy, slope if slopes else None


def _entropy_back(
    _: Any, given: Given, cotangent: Array, slope: Tensor, dtype: Any
) -> tuple[Array, Array | None]:
    x: Any = given.scores
    t, lever = given.temperature, None
    if x is not None and type(t) is not float:
        constant = slope == 0  # the slopes add up to 0, so scores may be taken from any number
        x = cast(x, slope.dtype).masked_fill(constant, 0.0)
        apart = x - x.sum(-1, keepdim=True) / (~constant).sum(-1, keepdim=True).clamp(min=1)
        lever = (slope * apart).sum(-1) / t
    return pulled_back(_, given, cotangent, slope, lever, dtype)


SPARSE_ENTROPY = Operation(
    name="sparse_softmax_entropy",
    takes=f"x n, {SET}, t #, slopes int",
    gives="entropy r, slope N if slopes",
    of=TEMPERED,
    kernel=_entropy,
    plain=lambda given, **of: evaluate(formulas.entropy, rows_of(given.wide()), **of),
    back=(
        Operation(
            name="",
            takes="cotangent r, x n if t, t #, slope N, dtype dtype",
            gives="x n, t r",
            of=TEMPERED,
            kernel=_entropy_back,
            elementwise=True,
        ),
    ),
    functions="metrics.sparse_softmax_entropy",
    offered="truncated",
    lacks={"JAX": "array code", "segments": "no function for segments"},
)


def _least(chooser: Chooser, given: Given, *of: Any) -> Array:
    least: Array = _asked(chooser, given, None, False, of, LAST)[1]
    return least


LEAST = Operation(
    name="sparse_softmax_least",
    takes=f"x n, {SET}, t #",
    gives="least r",
    of=TEMPERED,
    kernel=_least,
    plain=lambda given, **of: evaluate(
        formulas.least, rows_of(given.wide()), over=given.over, **of
    ),
    functions="segment_sparse_softmax, segment_sparse_softmax_loss",
    offered="truncated",
    lacks={"JAX": "array code"},
)
"""The score from which on all are in the set of a row, without a gradient."""
