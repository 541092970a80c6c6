"""Conversion of all forms of targets to weights per entry, and the reductions."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from kofn import links
from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.checks import (
    check_choice,
    check_integer,
    check_number,
    check_same_kind,
)
from kofn.arrays.form import Form
from kofn.arrays.kinds import (
    Array,
    adopt,
    cast,
    cast_like,
    dtype_name,
    full_like,
    namespace,
    scalar,
)
from kofn.arrays.operations import arange
from kofn.arrays.tracing import is_at_hand
from kofn.links import Link
from kofn.rows.given import ONE, Given, given

REDUCTIONS = ("mean", "sum", "none")


class Target(NamedTuple):
    """A target in the form of the rows of scores, without a gradient."""

    each: Array  # (…, n), zeros in ignored rows, NaN where an index is out of range
    weight: Array  # per row, the class weights of its labels
    counted: Array  # per row, whether it is in the mean
    by_class: Array | None  # class weights, (n,)
    integers: bool  # whether the labels were indices


def prepared(
    scores: Array,
    target: Any,
    temperature: Any,
    dim: int,
    mask: Any,
    reduction: Any,
    *,
    link: Link = links.exponential,
    **options: Any,
) -> tuple[Given, Target]:
    """Check the arguments of a loss; return rows with k = 1, and their target."""
    check_reduction(reduction)
    checked = given(scores, ONE, link, temperature, dim, mask)
    with checked.form.quiet():
        return checked, _target_of(target, scores, checked, **options)


def _target_of(
    target: Any,
    scores: Array,
    checked: Given,
    *,
    weight: Any = None,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    spread_one: bool = False,
) -> Target:
    """Convert a target of any form to weights for the rows of `scores`.

    Smoothing spreads its share of all the weight, or of 1 as PyTorch's cross-entropy does.
    """
    x, form = checked.scores, checked.form
    xp = form.xp
    allowed = "a number in [0, 1]"
    smoothing = check_number("label_smoothing", label_smoothing, low=0.0, high=1.0, allowed=allowed)
    playing = stop_gradient(x) != -math.inf
    counted = xp.any(playing, axis=-1)
    integers = _are_indices(target, scores, form)
    if integers:
        ignored = check_integer("ignore_index", ignore_index, "an integer")
        index = adopt(target, scores)
        used = index != ignored
        counted = counted & used
        _check_indices(target, ignored, form.n)
        each = cast(arange(x, x.shape[-1]) == cast_like(index, x)[..., None], x.dtype)
        wrong = used & ((index < 0) | (index >= form.n))
        each = xp.where(wrong[..., None], math.nan, xp.where(used[..., None], each, 0.0))
    else:
        each = form.entries(cast(stop_gradient(adopt(target, scores)), x.dtype))
    by_class = None if weight is None else _class_weights(weight, scores, form.n, x)
    total = xp.sum(each, axis=-1)
    if by_class is None:
        each_row = xp.ones_like(total)
    else:
        some = total > 0
        share = xp.sum(each * by_class, axis=-1) / xp.where(some, total, 1.0)
        each_row = xp.where(some, share, 1.0)
    if smoothing:
        n_playing = xp.sum(cast(playing, x.dtype), axis=-1)
        spread = xp.ones_like(total) if spread_one else total
        even = xp.where(playing, (spread / xp.clip(n_playing, 1, None))[..., None], 0.0)
        each = (1 - smoothing) * each + smoothing * even
    return Target(each, each_row, counted, by_class, integers)


def reduced(loss: Array, target: Target, reduction: str, *, plain_mean: bool = False) -> Array:
    """Reduce weighted losses per row to their mean over the rows that count, their sum, or none.

    The mean is over class weights, or over rows.
    """
    xp = namespace(loss)
    loss = xp.where(target.counted, loss, 0.0)
    if reduction == "none":
        return loss
    total = xp.sum(loss)
    if reduction == "sum":
        return total
    each = xp.ones_like(target.weight) if plain_mean else target.weight
    count = xp.sum(xp.where(target.counted, each, 0.0))
    return total / xp.where(count == 0, 1.0, count)


def check_reduction(reduction: Any) -> None:
    check_choice("reduction", reduction, REDUCTIONS)


def _are_indices(target: Any, scores: Array, form: Form) -> bool:
    """Return whether `target` has one index per row, not one weight per entry."""
    check_same_kind("target", target, scores)
    shape, whole, batch = tuple(target.shape), tuple(scores.shape), form.batch
    if shape == whole:
        return False
    if shape != batch:
        kept = list(whole)
        kept[form.dim] = 1
        meant = f"; for indices squeeze it to {batch}" if shape == tuple(kept) else ""
        raise ValueError(
            f"target must have the shape of scores, {whole}, for weights, or without dim, "
            f"{batch}, for indices; got {shape}{meant}"
        )
    if not dtype_name(target).startswith(("int", "uint")):
        raise TypeError(f"target of indices must be integers; got dtype {target.dtype}")
    return True


def _check_indices(target: Array, ignored: int, n: int) -> None:
    """Raise an error for an index out of range, if reading it does not wait for a device."""
    if not is_at_hand(target):
        return
    wrong = (target != ignored) & ((target < 0) | (target >= n))
    if bool(namespace(target).any(wrong)):
        raise ValueError(
            f"target must have indices in [0, {n}), or ignore_index, {ignored}; "
            f"got {int(target[wrong][0])}"
        )


def _class_weights(weight: Any, scores: Array, n: int, x: Array) -> Array:
    check_same_kind("weight", weight, scores)
    if tuple(weight.shape) != (n,):
        raise ValueError(
            f"weight must have one number for each of the entries along dim, {(n,)}; "
            f"got the shape {tuple(weight.shape)}"
        )
    weight = stop_gradient(cast_like(weight, x))
    return weight if n else full_like(x, (1,), 1.0)


def chosen_terms(each: Array, values: Array) -> Array:
    """Return Σ t·value over entries with t > 0, so that other infinite values do not count."""
    xp = namespace(values)
    wanted = each != 0
    return xp.sum(xp.where(wanted, each * xp.where(wanted, values, 0.0), 0.0), axis=-1)


def missed(values: Array, target: Target, reduction: str) -> Array:
    """Return minus the mean of values over a row's labels, weighted and reduced."""
    return reduced(-mean_over_labels(target.each, values) * target.weight, target, reduction)


def mean_over_labels(each: Array, values: Array) -> Array:
    """Return Σ t·value/Σt; 0 for a row without labels."""
    xp = namespace(values)
    total = xp.sum(each, axis=-1)
    some = total > 0
    mean = chosen_terms(each, values) / xp.where(some, total, 1.0)
    bad = xp.isnan(total)
    return xp.where(bad, scalar(values, math.nan), xp.where(some, mean, 0.0))
