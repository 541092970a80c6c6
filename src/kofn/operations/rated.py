"""Losses of rows on a device, their mean included: one kernel knows labels, class weights and which
rows count, so that a mean takes a few launches. (Tests: tests/kernels/gpu/interpreted/losses.py,
test_kernels_gpu.py.)
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kofn.arrays.typing import Tensor
from kofn.operations.losses import LOSS, pulled_back
from kofn.operations.operation import Operation
from kofn.operations.signatures import ROWS, TEMPERED, scores
from kofn.operations.truncated import SET, SPARSE_LOSS, TRUNCATED_LOSS
from kofn.rows.given import Given


def _rated(
    backend: Any, given: Given, target: Tensor, by_class: Any, likely: int, ignored: int,
    reduction: str, again: Any, slopes: int,
) -> tuple[Any, ...]:  # fmt: skip
    """Return the loss; and if `slopes`, p − t, four numbers per row, and Σ of weights or None."""
    numbers, residual, _ = backend.losses(
        target=target, **dict(zip(("x", "k", "temperature", "link"), given[:4], strict=True)),
        likely=bool(likely), wanted=bool(slopes), rated=(ignored, by_class),
    )  # fmt: skip
    loss, count = _reduced(numbers, by_class, reduction)
    return loss, residual, numbers, count


def _reduced(numbers: Tensor, by_class: Any, reduction: str) -> tuple[Tensor, Any]:
    """Return the loss, and the sum of weights that it was divided by."""
    if reduction == "none":
        return numbers[0].clone(), None
    if reduction == "sum":
        return numbers[0].sum(), None
    total, count = numbers[::2][:2].flatten(1).sum(-1)
    # A sum of flags is 0 or at least 1.
    count = count.clamp(min=1) if by_class is None else count.masked_fill_(count == 0, 1)
    return total / count, count


def _of_rows(cotangent: Tensor, weights: Tensor, count: Any) -> Tensor:
    return (cotangent if count is None else cotangent / count) * weights


def _back(
    _: Any, given: Given, cotangent: Tensor, residual: Any, numbers: Tensor, count: Any, dtype: Any
) -> Any:
    each = _of_rows(cotangent, numbers[3], count)
    return pulled_back(_, given, each, residual, numbers[1], dtype)


def _onward(
    _: Any, given: Given, cotangent: Tensor, residual: Tensor, target: Tensor, numbers: Tensor,
    likely: int,
) -> Any:  # fmt: skip
    if target.ndim < residual.ndim:
        target = target.clamp(0, residual.shape[-1] - 1).long()  # a row out of range is NaN
    assert LOSS.onward is not None
    return LOSS.onward.kernel(_, given, cotangent, residual, target, numbers[1], likely)


RATED = Operation(
    name="",
    takes="x n, target n, by_class any, k #, t #, link, likely int, ignored int, reduction str, "
    "again any, slopes int",
    gives="loss r, residual N if slopes, numbers ** if slopes, count any if slopes",
    of=ROWS,
    kernel=_rated,
    plain=lambda given, target, again, **own: again(given, target, **own),
    back=(
        Operation(
            name="",
            takes="cotangent r, t #, residual N, numbers **, count any, dtype dtype",
            gives="x n, t r",
            of=ROWS,
            kernel=_back,
            elementwise=True,
        ),
    ),
    onward=Operation(
        name="",
        takes="cotangent N, residual N, target n, numbers **, t #, link, likely int",
        gives="x n",
        of=ROWS,
        kernel=_onward,
        elementwise=True,
    ),
    goes_onward=LOSS.goes_onward,
    offered="RATED",
)
"""The losses of rows with a target as a caller gives it, their sum or their mean.

`again` is for derivatives: again(given, target, by_class=, likely=, ignored=, reduction=) is it.
"""


def _missed(
    backend: Any, values: Tensor, x: Tensor, target: Tensor, by_class: Any, ignored: int,
    reduction: str, epsilon: float,
) -> tuple[Any, ...]:  # fmt: skip
    numbers, labels = backend.missed(x, values, target, ignored, by_class, epsilon)
    loss, count = _reduced(numbers, by_class, reduction)
    return loss, labels, numbers, count


def _missed_back(
    _: Any, cotangent: Tensor, x: Tensor, labels: Tensor, numbers: Tensor, count: Any
) -> Tensor:
    return _at_labels(x, labels, _of_rows(cotangent, numbers[3], count))


def _at_labels(x: Tensor, labels: Tensor, each: Tensor) -> Tensor:
    return each.new_zeros(x.shape).scatter_(-1, labels[..., None], -each[..., None])


MISSED = Operation(
    name="",
    takes="values n, x n, target r, by_class any, ignored int, reduction str, epsilon float",
    gives="loss r, labels r, numbers **, count any",
    of=scores("values", "rows"),
    kernel=_missed,
    back=(
        Operation(
            name="",
            takes="cotangent r, x n, labels r, numbers **, count any",
            gives="values n",
            of=scores("values", "rows"),
            kernel=lambda _, values, *own: _missed_back(values, *own),
            plain=_missed_back,
        ),
    ),
    keeps_scores=False,
    offered="RATED",
)
"""Minus the values at labels, likewise; the way back needs none of them."""


def _logs_back(
    values: Tensor, cotangent: Tensor, x: Tensor, labels: Tensor, numbers: Tensor, count: Any,
    epsilon: float,
) -> Tensor:  # fmt: skip
    each = _of_rows(cotangent, numbers[2], count)
    return _at_labels(x, labels, each / (values.gather(-1, labels[..., None])[..., 0] + epsilon))


MISSED_LOGS = replace(
    MISSED,
    back=(
        replace(
            MISSED.back[0],
            takes="cotangent r, values n, x n, labels r, numbers **, count any, epsilon float",
            kernel=lambda _, values, *own: _missed_back(values, *own[:-1]),
            plain=_logs_back,
        ),
    ),
    keeps_scores=True,
)
"""−log((p + ε)/(1 + nε)) of the values p, with n entries in play."""


def _of_sets(
    backend: Any, given: Given, labels: Tensor, by_class: Any, k: int | None, p: float | None,
    min_p: float | None, outside: int, ignored: int, reduction: str, again: Any, slopes: int,
) -> tuple[Any, ...]:  # fmt: skip
    x, t = given.scores, given.temperature
    residual, each = backend.truncated(x, k, p, t, labels, bool(slopes), min_p, outside)
    numbers, labels = backend.rated(x, each, labels, ignored, by_class)
    loss, count = _reduced(numbers, by_class, reduction)
    return loss, residual if slopes else None, labels, numbers, count


def _of_sets_back(
    _: Any, given: Given, cotangent: Tensor, labels: Tensor, residual: Tensor, numbers: Tensor,
    count: Any, dtype: Any,
) -> Any:  # fmt: skip
    each = _of_rows(cotangent, numbers[3], count)
    return TRUNCATED_LOSS.back[0].kernel(_, given, each, labels, residual, dtype)


assert SPARSE_LOSS.onward is not None
RATED_SETS = Operation(
    name="",
    takes=f"x n, target r, by_class any, {SET}, outside int, t #, ignored int, reduction str, "
    "again any, slopes int",
    gives="loss r, residual N if slopes, labels r, numbers **, count any",
    of=TEMPERED,
    kernel=_of_sets,
    plain=lambda given, target, again, **own: again(given, target, **own),
    back=(
        Operation(
            name="",
            takes="cotangent r, x n if t, labels r, t #, residual N, numbers **, count any, "
            "dtype dtype",
            gives="x n, t r",
            of=TEMPERED,
            kernel=_of_sets_back,
            elementwise=True,
        ),
    ),
    onward=replace(SPARSE_LOSS.onward, takes="cotangent N, residual N, labels r, t #"),
    offered="truncated",
)
"""−log of softmax over sets of the largest scores at labels, likewise."""
