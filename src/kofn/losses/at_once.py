"""Losses of rows on a device: one kernel knows labels, class weights and which rows count, so that
a mean takes a few launches. (Tests: tests/kernels/gpu/interpreted/losses.py, test_kernels_gpu.py.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kofn import kernels, links
from kofn.adapters import route
from kofn.arrays import torch as of_torch
from kofn.arrays.typing import Array
from kofn.links import Link
from kofn.losses.targets import (
    Target,
    are_indices,
    check_class_weights,
    check_ignored,
    check_reduction,
    class_weights,
    labelled,
    with_class_weights,
)
from kofn.operations.losses import LOSS, pulled_back, target_of
from kofn.operations.operation import Operation
from kofn.operations.signatures import ROWS
from kofn.operations.signatures import scores as of_scores
from kofn.rows.given import ONE, Given, given_for_kernels
from kofn.solver.reductions import DENSE

if TYPE_CHECKING:
    from torch import Tensor


def answer(
    scores: Any, target: Any, temperature: Any, dim: int, mask: Any, reduction: str, *,
    again: Callable[..., Any], likely: bool = False, **options: Any,
) -> Any:  # fmt: skip
    """Return the loss, or None where this is for other code, which checks all arguments anew.

    `again` computes it from checked rows and a target, with all derivatives.
    """
    found = _checked(scores, target, temperature, dim, mask, reduction, not likely, **options)
    if found is None:
        return None
    given, target, weight, ignored = found
    return route.by_kernel(
        RATED, given, target, settings=(weight, int(likely), ignored, reduction, again)
    )


def of_values(
    values: Callable[[Given], Any], scores: Any, target: Any, temperature: Any, dim: int, mask: Any,
    reduction: str, **options: Any,
) -> Any:  # fmt: skip
    """Return the same of minus the values at labels, of the checked rows."""
    found = _checked(scores, target, temperature, dim, mask, reduction, False, **options)
    if found is None or kernels.serving_of("rows", scores, "torch", offered="RATED") is None:
        return None
    given, target, weight, ignored = found
    with given.form.quiet():
        at = values(given)
        return route.by_kernel(
            MISSED, at, given.scores, target, settings=(weight, ignored, reduction)
        )


def _checked(
    scores: Any, target: Any, temperature: Any, dim: int, mask: Any, reduction: str, whole: bool, *,
    link: Link = links.exponential, halves: bool = True, weight: Any = None,
    label_smoothing: Any = 0.0, ignore_index: Any = -100,
) -> tuple[Given, Any, Any, int] | None:  # fmt: skip
    """Return (rows, the target, class weights, the label that is ignored), if kernels take them.

    `whole` says whether they take a target of weights.
    """
    if not is_elsewhere(scores) or type(label_smoothing) not in (int, float) or label_smoothing:
        return None
    others = [target] if weight is None else [target, weight]
    if not all(map(_is_plain, (scores, *others))):
        return None
    if any(each.device != scores.device for each in others):
        return None
    check_reduction(reduction)
    given = given_for_kernels(scores, ONE, link, temperature, dim, mask, halves=halves)
    form, alpha = given.form, given.link.alpha
    labels = are_indices(target, scores, form)
    if form.n == 0 or given.over is not DENSE or not (alpha is None or type(alpha) is float):
        return None
    if not labels:
        target = target_of(given.scores, form.entries(target.detach()))
        if not whole or (target.is_floating_point() and target.element_size() > 4):
            return None
    if weight is not None:
        check_class_weights(weight, scores, form.n)
        weight = class_weights(weight, form.n, scores)
    return given, target, weight, check_ignored(ignore_index)


def is_elsewhere(scores: Any) -> bool:
    """Return whether kernels that rate rows may serve: a quick look."""
    return getattr(scores, "is_cuda", False) is True


def _is_plain(array: Any) -> bool:
    return hasattr(array, "is_cuda") and of_torch.state.is_plain(array)


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


def _of_rows(cotangent: Tensor, numbers: Tensor, count: Any) -> Tensor:
    return (cotangent if count is None else cotangent / count) * numbers[3]


def _back(
    _: Any, given: Given, cotangent: Tensor, residual: Any, numbers: Tensor, count: Any, dtype: Any
) -> Any:
    each = _of_rows(cotangent, numbers, count)
    return pulled_back(_, given, each, residual, numbers[1], dtype)


def _onward(
    _: Any, given: Given, cotangent: Tensor, residual: Tensor, target: Tensor, numbers: Tensor,
    likely: int,
) -> Any:  # fmt: skip
    if target.ndim < residual.ndim:
        target = target.clamp(0, residual.shape[-1] - 1).long()  # a row out of range is NaN
    assert LOSS.onward is not None
    return LOSS.onward.kernel(_, given, cotangent, residual, target, numbers[1], likely)


def _by_parts(
    given: Given, target: Array, by_class: Any, likely: int, ignored: int, reduction: str,
    again: Callable[..., Any],
) -> Any:  # fmt: skip
    """Return the loss with all of its derivatives."""
    x: Any = given.scores
    labels = Target(x.detach(), target)
    if target.ndim < x.ndim:
        labels = labelled(target, x, x.detach(), ignored, x.shape[-1])
    labels = labels if by_class is None else with_class_weights(labels, by_class)
    return again(given, labels, reduction, bool(likely))


RATED = Operation(
    name="",
    takes="x n, target n, by_class any, k #, t #, link, likely int, ignored int, reduction str, "
    "again any, slopes int",
    gives="loss r, residual N if slopes, numbers ** if slopes, count any if slopes",
    of=ROWS,
    kernel=_rated,
    plain=_by_parts,
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
"""The losses of rows with a target as a caller gives it, their sum or their mean."""


def _missed(
    backend: Any, values: Tensor, x: Tensor, target: Tensor, by_class: Any, ignored: int,
    reduction: str,
) -> tuple[Any, ...]:  # fmt: skip
    numbers, labels = backend.missed(x, values, target, ignored, by_class)
    loss, count = _reduced(numbers, by_class, reduction)
    return loss, labels, numbers, count


def _missed_back(
    _: Any, cotangent: Tensor, x: Tensor, labels: Tensor, numbers: Tensor, count: Any
) -> Tensor:
    below = -_of_rows(cotangent, numbers, count)
    return below.new_zeros(x.shape).scatter_(-1, labels[..., None], below[..., None])


MISSED = Operation(
    name="",
    takes="values n, x n, target r, by_class any, ignored int, reduction str",
    gives="loss r, labels r, numbers **, count any",
    of=of_scores("values", "rows"),
    kernel=_missed,
    back=(
        Operation(
            name="",
            takes="cotangent r, x n, labels r, numbers **, count any",
            gives="values n",
            of=of_scores("values", "rows"),
            kernel=lambda _, *arguments: _missed_back(*arguments),
            plain=_missed_back,
        ),
    ),
    keeps_scores=False,
    offered="RATED",
)
"""Minus the values at labels, likewise; the way back needs none of them."""
