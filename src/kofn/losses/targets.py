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
    check_same_device,
    check_same_kind,
)
from kofn.arrays.form import Form
from kofn.arrays.kinds import (
    Array,
    adopt,
    cast,
    cast_like,
    compute_dtype,
    deleted,
    dtype_name,
    full_like,
    is_jax,
    namespace,
    scalar,
)
from kofn.arrays.operations import arange, as_numbers, at_labels, divided_as, of_places
from kofn.arrays.tracing import at_hand, is_at_hand
from kofn.arrays.typing import ArrayT
from kofn.links import Link
from kofn.rows.given import ONE, Given, given_for_kernels

REDUCTIONS = ("mean", "sum", "none")


class Target(NamedTuple):
    """A target in the form of the rows of scores, without a gradient.

    Either weights, or one label per row: then no array has an entry for every score.
    """

    scores: Array  # (…, n)
    weights: Any = None  # (…, n), of any real dtype
    labels: Array | None = None  # per row, in range; 0 where the caller's is not
    used: Array | None = None  # rows whose label is not ignored; None: all
    valid: Array | None = None  # 1, or NaN in rows whose label is out of range; None: all are 1
    row_weight: Array | None = None  # the class weight of a row's labels; None: all are 1
    by_class: Array | None = None  # class weights, (n,)
    integers: bool = False  # whether the caller gave labels
    behind: Any = None  # the Target of labels that is smoothed; then this one has neither itself
    smoothing: float = 0.0  # the share that is spread over available entries
    spread_one: bool = False  # whether it is a share of 1, not of the weight

    @property
    def dtype(self) -> Any:
        """Return the dtype to compute in; the scores may be of half precision."""
        return compute_dtype(self.scores)

    @property
    def weighed(self) -> Array:
        """Return weights per entry times the weights of their classes."""
        return self.weights if self.by_class is None else self.weights * self.by_class

    def like(self) -> Array:
        """Return an array of that dtype."""
        x = self.scores
        return x if x.dtype == self.dtype else cast(x[:0], self.dtype)

    def dense(self) -> Array:
        """Return weights per entry: zeros in ignored rows, NaN where a label is out of range."""
        if self.behind is not None:
            return _spread(self.behind, self.smoothing, self.spread_one)
        if self.labels is None:
            return as_numbers(self.weights, self.dtype)
        xp, like = namespace(self.scores), self.like()
        entry = arange(like, self.scores.shape[-1]) == cast_like(self.labels, like)[..., None]
        each = divided_as(cast(entry, self.dtype), self.scores)
        if self.valid is not None:
            each = each + xp.where(self.valid == 1, scalar(like, 0.0), math.nan)[..., None]
        return each if self.used is None else xp.where(self.used[..., None], each, 0.0)

    def number(self) -> Array:
        """Return the sum of a row's weights."""
        xp = namespace(self.scores)
        if self.labels is None:
            return xp.sum(self.dense(), axis=-1)
        ones = divided_as(full_like(self.like(), tuple(self.labels.shape), 1.0), self.scores)
        one = ones if self.valid is None else self.valid
        return one if self.used is None else xp.where(self.used, one, 0.0)

    def chosen(self, values: ArrayT) -> ArrayT:
        """Return Σ t·value over a row's labels, other infinite values not counting."""
        xp = namespace(values)
        if self.behind is not None:
            own, even = self.behind.chosen(values), mean_in_play(self.scores, values)
            return (1 - self.smoothing) * own + self.smoothing * even
        if self.labels is None:
            return _chosen_terms(self.dense(), values)
        one = values.ndim < self.scores.ndim  # they are the labels' values
        term = values if one else at_labels(values, self.labels)
        term = term if self.used is None else xp.where(self.used, term, 0.0)
        return term if self.valid is None else term * self.valid


def prepared(
    scores: Array,
    target: Any,
    temperature: Any,
    dim: int,
    mask: Any,
    reduction: Any,
    *,
    link: Link = links.exponential,
    halves: bool = False,
    **options: Any,
) -> tuple[Given, Target]:
    """Check the arguments of a loss; return rows with k = 1, and their target.

    `halves` is as for `given_for_kernels`; label smoothing needs scores in the compute dtype.
    """
    check_reduction(reduction)
    checked = given_for_kernels(scores, ONE, link, temperature, dim, mask, halves=halves)
    with checked.form.quiet():
        labels = _target_of(target, scores, checked, **options)
        return checked if labels.behind is None else checked.wide(), labels


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
    """Convert a target of any form to one for the rows of `scores`.

    Smoothing spreads its share of all the weight, or of 1 as PyTorch's cross-entropy does.
    """
    form, x = checked.form, stop_gradient(checked.scores)
    smoothing = check_smoothing(label_smoothing)
    if are_indices(target, scores, form):
        labels = labelled(target, scores, x, check_ignored(ignore_index), form.n)
    else:
        labels = Target(x, divided_as(form.entries(stop_gradient(adopt(target, scores))), x))
    if weight is not None:
        check_class_weights(weight, scores, form.n)
        labels = with_class_weights(labels, class_weights(weight, form.n, labels.like()))
    return _smoothed(labels, smoothing, spread_one) if smoothing else labels


def labelled(target: Array, scores: Array, x: Array, ignored: int, n: int) -> Target:
    """Return the target of indices into rows of n entries, where `x` is `scores` as rows.

    A label out of range is an error if reading it does not wait for a device.
    """
    xp = namespace(target)
    index = target if is_jax(target) else cast(target, xp.int64)
    known = at_hand(index)
    if known is not None and math.prod(known.shape) > 0:
        least, most = int(known.min()), int(known.max())
        if least >= 0 and most < n and not least <= ignored <= most:
            return Target(x, labels=divided_as(adopt(index, scores), x), integers=True)
        _check_labels(known, ignored, n)
    used, inside = index != ignored, (index >= 0) & (index < n)
    wrong = adopt(used & ~inside, scores)
    labels = divided_as(adopt(xp.where(used & inside, index, 0), scores), x)
    used, wrong = divided_as(adopt(used, scores), x), divided_as(wrong, x)
    one = full_like(cast(x[:0], compute_dtype(x)), (), 1.0)
    valid = None if known is not None else namespace(scores).where(wrong, math.nan, one)
    return Target(x, labels=labels, used=used, valid=valid, integers=True)


def labels_again(given: Given, target: Array, by_class: Array | None, ignored: int) -> Target:
    """Return the target of rows on a device whose arguments have been checked."""
    x: Any = given.scores
    labels = Target(x.detach(), target)
    if target.ndim < x.ndim:
        labels = labelled(target, x, x.detach(), ignored, x.shape[-1])
    return labels if by_class is None else with_class_weights(labels, by_class)


def _check_labels(known: Array, ignored: int, n: int) -> None:
    wrong = (known != ignored) & ((known < 0) | (known >= n))
    if wrong.any():
        raise ValueError(
            f"target must have indices in [0, {n}), or ignore_index, {ignored}; "
            f"got {int(known[wrong][0])}"
        )


def with_class_weights(target: Target, by_class: Array) -> Target:
    xp = namespace(by_class)
    if target.labels is not None:
        each = of_places(by_class, target.labels)
        each = each if target.used is None else xp.where(target.used, each, 1.0)
        return target._replace(row_weight=each, by_class=by_class)
    each = target.dense()
    share = mean_weight(xp.sum(each, axis=-1), xp.sum(each * by_class, axis=-1))
    return target._replace(row_weight=share, by_class=by_class)


def mean_weight(number: Array, weighed: Array) -> Array:
    """Return the mean class weight Σwt/Σt of a row's labels; 1 for a row without labels."""
    xp, some = namespace(number), number > 0
    return xp.where(some, weighed / xp.where(some, number, 1.0), 1.0)


def _smoothed(target: Target, smoothing: float, spread_one: bool) -> Target:
    if target.labels is None or target.valid is not None or smoothing == 1:
        return target._replace(weights=_spread(target, smoothing, spread_one), labels=None)
    kept = target._replace(behind=target, smoothing=smoothing, spread_one=spread_one)
    return kept._replace(labels=None)


def _spread(target: Target, smoothing: float, spread_one: bool) -> Array:
    xp, x, each = namespace(target.scores), target.scores, target.dense()
    total = xp.sum(each, axis=-1) if target.labels is None else target.number()
    spread = xp.ones_like(total) if spread_one else total
    if all_in_play(x):
        return (1 - smoothing) * each + (smoothing / x.shape[-1] * spread)[..., None]
    playing = ~deleted(x)
    n_playing = xp.sum(cast(playing, target.dtype), axis=-1)
    even = xp.where(playing, (spread / xp.clip(n_playing, 1, None))[..., None], 0.0)
    return (1 - smoothing) * each + smoothing * even


def all_in_play(x: Array) -> bool:
    """Return whether it is known that every entry is available, and none is NaN."""
    if not is_at_hand(x) or math.prod(x.shape) == 0:
        return False
    least = x.min()
    return bool((least == least) & ~deleted(least))


def mean_in_play(scores: Array, values: Array) -> Array:
    """Return the mean of the values over a row's available entries; 0 where there are none."""
    xp, playing = namespace(values), ~deleted(scores)
    count = xp.sum(cast(playing, values.dtype), axis=-1)
    return xp.sum(xp.where(playing, values, 0.0), axis=-1) / xp.clip(count, 1, None)


def check_reduction(reduction: Any) -> None:
    check_choice("reduction", reduction, REDUCTIONS)


def are_indices(target: Any, scores: Array, form: Form) -> bool:
    """Return whether `target` has one index per row, not one weight per entry."""
    check_same_kind("target", target, scores)
    check_same_device("target", target, scores)
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


def check_smoothing(value: Any) -> float:
    allowed = "a number in [0, 1]"
    return check_number("label_smoothing", value, low=0.0, high=1.0, allowed=allowed)


def check_ignored(value: Any) -> int:
    return check_integer("ignore_index", value, "an integer")


def check_class_weights(weight: Any, scores: Array, n: int, entries: str = "the entries") -> None:
    check_same_kind("weight", weight, scores)
    if tuple(weight.shape) != (n,):
        raise ValueError(
            f"weight must have one number for each of {entries} along dim, {(n,)}; "
            f"got the shape {tuple(weight.shape)}"
        )


def class_weights(weight: Array, n: int, like: Array) -> Array:
    """Return one number per class; one of an excluded entry, as rows have, if there is no class."""
    return stop_gradient(cast_like(weight, like)) if n else full_like(like, (1,), 1.0)


def _chosen_terms(each: Array, values: ArrayT) -> ArrayT:
    """Return Σ t·value over entries with t ≠ 0, so that other infinite values do not count."""
    xp = namespace(values)
    wanted = each != 0
    return xp.sum(xp.where(wanted, each * xp.where(wanted, values, 0.0), 0.0), axis=-1)


def log_likelihood(log_p: Array, target: Target) -> Array:
    """Return Σ w·t·log p of rows, for class weights w."""
    w = target.by_class
    if w is None:
        return target.chosen(log_p)
    if target.behind is not None:
        own, even = log_likelihood(log_p, target.behind), mean_in_play(target.scores, log_p * w)
        return (1 - target.smoothing) * own + target.smoothing * even
    if target.labels is None:
        return _chosen_terms(target.dense() * w, log_p)
    return weighted(target.chosen(log_p), target)


def mean_over_labels(target: Target, values: ArrayT) -> ArrayT:
    """Return Σ t·value/Σt; 0 for a row without labels."""
    if target.labels is not None or target.behind is not None:
        return target.chosen(values)
    xp = namespace(values)
    total = target.number()
    some = total > 0
    mean = target.chosen(values) / xp.where(some, total, 1.0)
    bad = xp.isnan(total)
    return xp.where(bad, scalar(values, math.nan), xp.where(some, mean, 0.0))


def nan_if_out_of_range(loss: ArrayT, target: Target) -> ArrayT:
    """Return losses, NaN in rows whose label is out of range."""
    return loss if target.valid is None else loss * target.valid


def weighted(loss: ArrayT, target: Target) -> ArrayT:
    """Return losses times the class weights of their rows."""
    w = target.row_weight
    return loss if w is None else namespace(loss).where(w == 0, 0.0, loss) * w
