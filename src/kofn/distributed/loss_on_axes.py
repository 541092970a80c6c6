"""Losses of rows that lie along named axes of a JAX mesh, inside jax.shard_map."""

from __future__ import annotations

import math
from typing import Any

from kofn import links
from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.checks import check_integer, check_number
from kofn.arrays.kinds import cast, namespace
from kofn.distributed.loss_parts import Target, reduced, spread, weighted
from kofn.formulas import answers
from kofn.formulas.answers import require_integral
from kofn.formulas.sloped import cross_entropy
from kofn.inputs.given import ONE, Given
from kofn.inputs.settled import rows_of
from kofn.links import Link
from kofn.losses.targets import (
    _are_indices,
    _class_weights,
    bars,
    check_reduction,
    constant_where,
)
from kofn.threshold.compiled import evaluate


def loss(
    name: str,
    axis_name: Any,
    scores: Any,
    target: Any,
    link: Link | None,
    temperature: Any,
    dim: int,
    mask: Any,
    reduction: str,
    options: tuple[Any, ...],
) -> Any:
    """Return a reduced Fenchel–Young loss of this device's rows, or cross-entropy without a link.

    `options` are the fields of `loss_targets.Options`.
    """
    from kofn.threshold.jax_axis import axis_rows, given_on_axes

    check_reduction(reduction)
    over = axis_rows(name, axis_name)
    own = links.exponential if link is None else link
    require_integral(own, scores)
    given = given_on_axes(over, scores, ONE, own, temperature, dim, mask)
    found = _target_of(target, scores, given, over, *options)
    likely = link is None
    if likely:
        value = evaluate(cross_entropy, rows_of(given, over), found.weighed, over=over)
    else:
        rows = rows_of(given._replace(k=found.number), over)
        value = evaluate(answers.gap, rows, found.each, over=over)
    x = stop_gradient(given.scores)
    value = constant_where(over.count(bars(x, found.each)) > 0, value)
    value, weight = weighted(value, found, likely)
    value, weight = over.shared(value), over.shared(stop_gradient(weight))
    return reduced(value, weight, reduction)


def _target_of(
    target: Any,
    scores: Any,
    given: Given,
    over: Any,
    weight: Any,
    label_smoothing: float,
    ignore_index: int,
    spread_one: bool,
) -> Target:
    allowed = "a number in [0, 1]"
    smoothing = check_number("label_smoothing", label_smoothing, low=0.0, high=1.0, allowed=allowed)
    ignored = check_integer("ignore_index", ignore_index, "an integer")
    x, form, used = stop_gradient(given.scores), given.form, None
    xp, n = namespace(x), x.shape[-1]
    integers = _are_indices(target, scores, form)
    if integers:
        used = target != ignored
        valid = (target >= 0) & (target < n * over.copies)
        here = over.positions(n) == target[..., None]
        each = xp.where(here & used[..., None], 1.0, xp.zeros_like(x))
        each = xp.where((used & ~valid)[..., None], math.nan, each)
    else:
        each = cast(form.entries(stop_gradient(target)), x.dtype)
    by_class = None
    if weight is not None:
        by_class = cast(stop_gradient(_class_weights(weight, scores, n, x)), x.dtype)
    none: Any = None
    found = Target(each, none, none, None, used, None, by_class, integers)
    return spread(found, x, over, smoothing, spread_one)
