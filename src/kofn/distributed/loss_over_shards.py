"""The way of every loss: this process's part of rows and their targets in, a reduced loss out."""

from __future__ import annotations

from typing import Any, NamedTuple

from kofn import links
from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.form import Form, form_of
from kofn.arrays.kinds import Array, adopt, cast, deleted, namespace
from kofn.arrays.operations import arange, as_numbers
from kofn.distributed.layout import Layout
from kofn.distributed.over_shards import layout_of, link_of, outside_of_graphs
from kofn.losses.reduced import of_counted
from kofn.losses.targets import (
    Target,
    are_indices,
    check_class_weights,
    check_ignored,
    check_reduction,
    check_smoothing,
    class_weights,
    labelled,
    mean_weight,
    nan_if_out_of_range,
    weighted,
)
from kofn.operations.losses import LIKELIHOOD, PLAIN_LOSS, SMOOTHED_LIKELIHOOD
from kofn.rows.given import ONE
from kofn.rows.integral import require_integral
from kofn.rows.shards.asked import Asked
from kofn.solver.reductions import Reductions, wide_sums_of


class Given(NamedTuple):
    """A target whose form is checked: this process's part."""

    target: Array
    integers: bool
    weight: Array | None  # per class
    smoothing: float
    ignored: int


@outside_of_graphs
def loss(
    name: str,
    scores: Any,
    target: Any,
    group: Any,
    axis_name: Any,
    link: Any,
    temperature: Any,
    dim: int,
    mask: Any,
    reduction: Any,
    weight: Any = None,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
) -> Any:
    """Return a reduced Fenchel–Young loss, or cross-entropy if there is no link."""
    layout = layout_of(f"kofn.distributed.{name}", scores, group, axis_name, dim)
    likely = link is None
    with layout.with_all_rows(str(reduction)):
        with layout.checking():
            check_reduction(reduction)
            link = layout.link(links.exponential if likely else link_of(link))
            require_integral(link, layout.scores)
            given = _given(layout, scores, dim, target, weight, label_smoothing, ignore_index)
            temperature = layout.per_row("temperature", temperature)
            mask = layout.per_entry("mask", mask)
        words = (
            f", target of {'indices' if given.integers else 'weights'}, {target.dtype}, "
            f"label_smoothing {label_smoothing}, ignore_index {ignore_index}, "
            f"{'without' if weight is None else 'with'} weight, reduction {reduction}"
        )
        numbers = [given.target] if given.integers else []
        rows = layout.checked(Asked(ONE, link, temperature, mask), words, numbers)
        labels, number, counted = _target_of(given, rows, layout.over, likely)
        value = _of_rows(layout, rows, labels, number, likely, given.smoothing > 0)
        row_weight = None if likely and not given.integers else labels.row_weight
        value, count = of_counted(nan_if_out_of_range(value, labels), counted, row_weight)
    return layout.reduced(value, count, reduction)


def _given(
    layout: Layout,
    scores: Any,
    dim: int,
    target: Any,
    weight: Any,
    label_smoothing: Any,
    ignore_index: Any,
) -> Given:
    """Check a target of any form, and what a loss does to it."""
    smoothing, ignored = check_smoothing(label_smoothing), check_ignored(ignore_index)
    form = form_of(scores, dim)
    integers = are_indices(target, scores, form)
    if weight is not None:
        check_class_weights(weight, scores, form.n, layout.of_classes)
        weight = layout.per_class(weight)
    part_of = layout.per_row if integers else layout.per_entry
    target = part_of("target", stop_gradient(adopt(target, scores)))
    return Given(target, integers, weight, smoothing, ignored)


def _target_of(
    given: Given, rows: Any, over: Reductions, likely: bool
) -> tuple[Target, Array, Array]:
    """Return the weights of the entries in this part, Σt of whole rows, and which rows count.

    One message has all sums. Smoothing spreads its share of the weight evenly over whole rows, or
    of 1 for cross-entropy.
    """
    x: Array = stop_gradient(rows.scores)
    form: Form = rows.form
    xp, playing = namespace(x), ~deleted(x)
    if given.integers:
        labels = _of_labels(given, x, form.n, over)
    else:
        labels = Target(x, cast(form.entries(given.target), x.dtype))
    each: Array = labels.weights
    weighed = []
    if given.weight is not None:
        labels = labels._replace(by_class=class_weights(given.weight, form.n, x))
        weighed = [labels.weighed]
    number, available, *weighed = wide_sums_of(over, each, playing, *weighed)
    if weighed:
        labels = labels._replace(row_weight=cast(mean_weight(number, weighed[0]), x.dtype))
    if given.smoothing:
        share = xp.ones_like(number) if likely else number
        even = cast(given.smoothing * share / xp.where(available > 0, available, 1.0), x.dtype)
        each = (1 - given.smoothing) * each + xp.where(playing, over.expand(even), 0.0)
    counted = available > 0 if labels.used is None else (available > 0) & labels.used
    return labels._replace(weights=each), number, counted


def _of_labels(given: Given, x: Array, n: int, over: Any) -> Target:
    """Return the target of indices into whole rows; n of their entries are here."""
    start, whole = over.span(n, x)
    labels = labelled(given.target, x, x, given.ignored, whole)
    at = labels.labels - start
    here = at < n if labels.used is None else (at < n) & labels.used
    at = namespace(at).where(here, at, -1)[..., None]
    each = as_numbers(arange(at, x.shape[-1]) == at, x.dtype)
    return labels._replace(weights=each, labels=None)


def _of_rows(
    layout: Layout, rows: Any, target: Target, number: Array, likely: bool, smoothed: bool
) -> Array:
    """Return the weighted losses of rows."""
    if not likely:
        return weighted(layout.answer(PLAIN_LOSS, rows._replace(k=number), target.weights), target)
    if smoothed and target.by_class is not None:
        idle = target.by_class == 0
        return layout.answer(SMOOTHED_LIKELIHOOD, rows, target.weighed, idle)
    return layout.answer(LIKELIHOOD, rows, target.weighed)
