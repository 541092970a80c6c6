"""Softmax over the largest scores of rows: the k largest, or the nucleus; and its loss."""

from __future__ import annotations

import math
from typing import Any

from kofn import kernels
from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.kinds import Array, cast, namespace, of_torch
from kofn.arrays.operations import cumulative_sums, kth_largest, take_along_last
from kofn.rows import answers, choice, kernel_weights
from kofn.rows.compiled import evaluate
from kofn.rows.fused import _is_recorded, _tensors, _with, _without_tensors
from kofn.rows.given import Given
from kofn.rows.settled import rows_of


def weights(given: Given, k: int | None, p: float | None) -> Array:
    """Return softmax over the k largest scores, or over the nucleus; equal scores are kept."""

    def plain(*tensors: Array) -> Array:
        again = _with(numbers, tensors)
        return evaluate(answers.softmax, rows_of(again._replace(scores=supported(again, k, p))))

    def value(*tensors: Array) -> Any:
        assert backend is not None
        x, _, temperature, *_ = _with(numbers, tensors)
        found = backend.truncated(x, k, p, temperature, None, True)[0]
        return found, (found.detach(),)

    def pullback(cotangent: Array, tensors: Any, kept: Any) -> Any:
        assert backend is not None
        x, _, temperature, *_ = _with(numbers, tensors)
        slopes = backend.truncated_gradients(x, kept[0], cotangent, temperature)
        return slopes[: len(tensors)]

    backend, numbers = _serving(given), _without_tensors(given)
    if backend is None:
        operators = _operators(given)
        if operators is not None:
            return operators.truncated_of(given, k, p)
        return plain(*_tensors(given))
    if not _is_recorded(given):
        return backend.truncated(given.scores, k, p, given.temperature, None, True)[0]
    rule = of_torch("rule")
    return rule.recorded(rule.Rule(value, pullback, plain), *_tensors(given))


def label_loss(given: Given, labels: Array, k: int | None, p: float | None) -> Array | None:
    """Return log Σ_S e^{x/T} − x/T at int64 labels, S as in `weights` but that scores equal to the
    k-th largest share the places left, and S is all where neither is given; None if no kernel
    serves the rows.
    """
    backend, numbers = _serving(given), _without_tensors(given)
    if backend is None:
        operators = _operators(given)
        if operators is None:
            return None
        return operators.truncated_loss_of(given, labels, k, p, _is_recorded(given))

    def value(labels: Array, *tensors: Array) -> Any:
        x, _, temperature, *_ = _with(numbers, tensors)
        away, loss = backend.truncated(x, k, p, temperature, labels, True)
        return loss, (away,)

    def pullback(cotangent: Array, tensors: Any, kept: Any) -> Any:
        x, _, temperature, *_ = _with(numbers, tensors[1:])
        each, away = cotangent / temperature, kept[0]
        slopes = None, kernel_weights.scaled(each[..., None], away, x)
        if type(temperature) is float:
            return slopes
        return *slopes, -each * kernel_weights.moved_from_labels(x, tensors[0], away) / temperature

    def plain(labels: Array, *tensors: Array) -> Array:
        log_p = log_weights(_with(numbers, tensors).wide(), k, p)
        return -take_along_last(log_p, labels[..., None])[..., 0]

    if not _is_recorded(given):
        return backend.truncated(given.scores, k, p, given.temperature, labels, False)[1]
    rule = of_torch("rule")
    return rule.by_rule(rule.Rule(value, pullback, plain), labels, *_tensors(given))


def log_weights(given: Given, k: int | None, p: float | None) -> Array:
    """Return x/T − log Σ_S e^{x/T} of all entries, in plain operations."""
    kept = () if k is None and p is None else (counted(given, k, p),)
    return evaluate(answers.log_softmax, rows_of(given), *kept)


def supported(given: Given, k: int | None, p: float | None) -> Array:
    """Return the scores with −inf outside the support; rows with a NaN are unchanged."""
    x, _, temperature, *_ = given.per_row()
    xp = namespace(x)
    fixed = stop_gradient(x)
    if k == 0 or (p is not None and p >= 1):
        return x
    bad = xp.any(xp.isnan(fixed), axis=-1)
    if k is not None:
        last = kth_largest(fixed, k)
    else:
        ordered = xp.flip(xp.sort(fixed, axis=-1), axis=-1)
        share = evaluate(answers.softmax, rows_of(given._replace(scores=ordered)))
        # An entry is kept while the total weight of those before it is below p.
        before = cumulative_sums(share) - share
        last = xp.min(xp.where((before < p) & (share > 0), ordered, math.inf), axis=-1)
        bad = bad | xp.isnan(temperature)
    return xp.where((fixed < last[..., None]) & ~bad[..., None], -math.inf, x)


def counted(given: Given, k: int | None, p: float | None) -> Array:
    """Return the share of each entry in the support: 0, 1, or equal shares for ties at the k-th."""
    x = stop_gradient(given.scores)
    xp = namespace(x)
    if k is None or k == 0:
        return cast(supported(given._replace(scores=x), k, p) != -math.inf, x.dtype)
    last = kth_largest(x, k)[..., None]
    above, level = cast(x > last, x.dtype), cast(x == last, x.dtype)
    left = k - xp.sum(above, axis=-1)[..., None]
    equal = xp.sum(level, axis=-1)[..., None]
    return above + level * left / xp.where(equal > 0, equal, 1.0)


def _serving(given: Given) -> kernels.ChoiceKernels | None:
    return choice.serving(given.scores, given.form.kind)


def _operators(given: Given) -> Any:
    """Return the module of torch's operators for these rows; None if nothing compiles them."""
    if given.form.kind != "torch":
        return None
    from kofn.rows import torch_fused

    return torch_fused if torch_fused.serves_choices(given.scores) else None
