"""The door to a reduced loss: usual labels of a CPU's tensors are one node of autograd
(adapters/labelled.py); rows on a device one kernel rates (operations/rated.py).

(Tests: test_adapters_labelled.py, tests/kernels/gpu/interpreted/losses.py.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kofn import kernels, links
from kofn.adapters import labelled, route
from kofn.arrays import torch as of_torch
from kofn.arrays.checks import check_number
from kofn.links import table
from kofn.losses.targets import (
    are_indices,
    check_class_weights,
    check_ignored,
    check_reduction,
    class_weights,
)
from kofn.maps.sparse_softmax import check_support
from kofn.operations.logarithms import LOG_AT_LABELS
from kofn.operations.losses import LOSS, target_of
from kofn.operations.margins import MARGINED
from kofn.operations.rated import MISSED, MISSED_LOGS, RATED, RATED_SETS
from kofn.operations.truncated import TRUNCATED_LOSS
from kofn.rows.given import ONE, Given, given_for_kernels
from kofn.rows.numbers import NUMBERS
from kofn.solver.reductions import DENSE


def answer(
    *given: Any, again: Callable[..., Any], likely: bool = False, link: Any = "exponential",
    alpha: Any = None, sets: tuple[Any, ...] = (), **options: Any,
) -> Any:  # fmt: skip
    """Return the loss, or None where this is for other code, which checks all arguments again.

    `given` are the caller's scores, target, temperature, dim, mask and reduction; `again` computes
    the loss from checked rows, with all derivatives (see RATED). `sets` are the k, p, min_p and
    `outside` of a softmax over sets, unchecked but for the last.
    """
    if not is_elsewhere(given[0]):
        if sets:
            return None
        of: tuple[Any, Any] = (TRUNCATED_LOSS, (None, None)) if likely else (LOSS, (0,))
        return labelled.reduced(*of, (link, alpha), *given, **options)
    checked = _checked(*given, whole=not likely, link=link, alpha=alpha, **options)
    if checked is None:
        return None
    rows, target, weight, ignored = checked
    if sets:
        k, p, min_p, outside = sets
        own = weight, *check_support(k, p, min_p, rows.n), outside, ignored, given[-1], again
        return route.by_kernel(RATED_SETS, rows, target, settings=own)
    settings = weight, int(likely), ignored, given[-1], again
    return route.by_kernel(RATED, rows, target, settings=settings)


def of_values(
    values: Callable[[Given], Any], *given: Any, k: Any = None, epsilon: float = 0.0, **options: Any
) -> Any:
    """Return the same of minus the values at labels, of the checked rows; with `epsilon` as
    MISSED_LOGS has it. On a CPU the values are the logarithms of `topk_cross_entropy`, for k.
    """
    if not is_elsewhere(given[0]):
        if type(k) is not int:
            return None
        link = options.pop("link"), None
        return labelled.reduced(LOG_AT_LABELS, (), link, *given, **options | {"k": k})
    checked = _checked(*given, whole=False, **options)
    if checked is None or kernels.serving_of("rows", given[0], "torch", offered="RATED") is None:
        return None
    rows, target, weight, ignored = checked
    with rows.form.quiet():
        return route.by_kernel(
            MISSED_LOGS if epsilon else MISSED, values(rows), rows.scores, target,
            settings=(weight, ignored, given[-1], epsilon),
        )  # fmt: skip


def with_margin(
    cosines: Any, target: Any, margin: Any, turned: int, temperature: Any, dim: int,
    reduction: str, ignored: Any, again: Callable[..., Any],
) -> tuple[Any, Any] | None:  # fmt: skip
    """Return (the form of the cosines, logits of their rows); see MARGINED."""
    if not is_elsewhere(cosines) or type(margin) not in NUMBERS:
        return None
    how = dict(whole=False, link="exponential", ignore_index=ignored)
    checked = _checked(cosines, target, temperature, dim, None, reduction, **how)
    if checked is None or type(checked[0].temperature) is not float:
        return None
    (x, _, t, _, form, _), target, _, ignored = checked
    margin = check_number("margin", margin, low=0.0, allowed="a number ≥ 0")
    with form.quiet():
        own = margin, turned, t, ignored, again
        logits = route.by_kernel(MARGINED, x, target, settings=own)
    return None if logits is None else (form, logits)


def _checked(
    scores: Any, target: Any, temperature: Any, dim: int, mask: Any, reduction: str, *, whole: bool,
    link: Any, alpha: Any = None, weight: Any = None,
    label_smoothing: Any = 0.0, ignore_index: Any = -100,
) -> tuple[Given, Any, Any, int] | None:  # fmt: skip
    """Return (rows, the target, class weights, the label that is ignored), if kernels take them.

    `whole` says whether they take a target of weights.
    """
    if type(label_smoothing) not in (int, float) or label_smoothing:
        return None
    others = [target] if weight is None else [target, weight]
    if not all(map(_is_plain, (scores, *others))):
        return None
    if any(each.device != scores.device for each in others):
        return None
    check_reduction(reduction)
    link = table.resolve(link) if alpha is None else links.entmax(alpha)
    given = given_for_kernels(scores, ONE, link, temperature, dim, mask, halves=True)
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
