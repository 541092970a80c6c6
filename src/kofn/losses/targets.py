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
    compute_dtype,
    deleted,
    dtype_name,
    full_like,
    is_jax,
    namespace,
    scalar,
)
from kofn.arrays.operations import arange, as_numbers, at_labels
from kofn.arrays.tracing import is_at_hand
from kofn.arrays.typing import ArrayT
from kofn.inputs.given import ONE, Given, given
from kofn.links import Link

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
        each = cast(entry, self.dtype)
        each = (
            each
            if self.valid is None
            else each + xp.where(self.valid == 1, 0.0, math.nan)[..., None]
        )
        return each if self.used is None else xp.where(self.used[..., None], each, 0.0)

    def number(self) -> Array:
        """Return the sum of a row's weights."""
        xp = namespace(self.scores)
        if self.labels is None:
            return xp.sum(self.dense(), axis=-1)
        ones = full_like(self.like(), tuple(self.labels.shape), 1.0)
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
        found = at_labels(values, self.labels)
        found = found if self.used is None else xp.where(self.used, found, 0.0)
        return found if self.valid is None else found * self.valid


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

    `halves` is as for `given`; what smooths a label needs its scores in the compute dtype.
    """
    check_reduction(reduction)
    checked = given(scores, ONE, link, temperature, dim, mask, for_kernels=True, halves=halves)
    with checked.form.quiet():
        found = _target_of(target, scores, checked, **options)
        return checked if found.behind is None else checked.wide(), found


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
    form, allowed = checked.form, "a number in [0, 1]"
    smoothing = check_number("label_smoothing", label_smoothing, low=0.0, high=1.0, allowed=allowed)
    x = stop_gradient(checked.scores)
    if _are_indices(target, scores, form):
        ignored = check_integer("ignore_index", ignore_index, "an integer")
        labels, used, valid = _labels(target, scores, ignored, form.n)
        # A `where` of two numbers has the framework's default dtype, not that of the rows.
        valid = None if valid is None else cast(valid, compute_dtype(x))
        found = Target(x, labels=labels, used=used, valid=valid, integers=True)
    else:
        found = Target(x, form.entries(stop_gradient(adopt(target, scores))))
    if weight is not None:
        found = _weighted(found, _class_weights(weight, scores, form.n, found.like()))
    return _smoothed(found, smoothing, spread_one) if smoothing else found


def _labels(
    target: Array, scores: Array, ignored: int, n: int
) -> tuple[Array, Array | None, Array | None]:
    """Return `labels`, `used` and `valid` of a Target.

    A label out of range is an error if reading it does not wait for a device.
    """
    xp, at_hand = namespace(target), is_at_hand(target)
    index = target if is_jax(target) else cast(target, xp.int64)
    if at_hand and math.prod(index.shape) > 0:
        least, most = int(index.min()), int(index.max())
        if least >= 0 and most < n and not least <= ignored <= most:
            return adopt(index, scores), None, None
    used, inside = index != ignored, (index >= 0) & (index < n)
    wrong = used & ~inside
    if at_hand and bool(xp.any(wrong)):
        raise ValueError(
            f"target must have indices in [0, {n}), or ignore_index, {ignored}; "
            f"got {int(index[wrong][0])}"
        )
    labels, used = adopt(xp.where(used & inside, index, 0), scores), adopt(used, scores)
    if at_hand:
        return labels, used, None
    return labels, used, namespace(scores).where(adopt(wrong, scores), math.nan, 1.0)


def _weighted(target: Target, by_class: Array) -> Target:
    xp = namespace(by_class)
    if target.labels is not None:
        each = by_class[target.labels]
        each = each if target.used is None else xp.where(target.used, each, 1.0)
        return target._replace(row_weight=each, by_class=by_class)
    each = target.dense()
    total = xp.sum(each, axis=-1)
    some = total > 0
    share = xp.sum(each * by_class, axis=-1) / xp.where(some, total, 1.0)
    return target._replace(row_weight=xp.where(some, share, 1.0), by_class=by_class)


def _smoothed(target: Target, smoothing: float, spread_one: bool) -> Target:
    if target.labels is None or target.valid is not None or smoothing == 1:
        return target._replace(weights=_spread(target, smoothing, spread_one), labels=None)
    kept = target._replace(behind=target, smoothing=smoothing, spread_one=spread_one)
    return kept._replace(labels=None)


def _spread(target: Target, smoothing: float, spread_one: bool) -> Array:
    xp, x, each = namespace(target.scores), target.scores, target.dense()
    total = xp.sum(each, axis=-1) if target.labels is None else target.number()
    spread = xp.ones_like(total) if spread_one else total
    if _is_all_in_play(x):
        return (1 - smoothing) * each + (smoothing / x.shape[-1] * spread)[..., None]
    playing = ~deleted(x)
    n_playing = xp.sum(cast(playing, target.dtype), axis=-1)
    even = xp.where(playing, (spread / xp.clip(n_playing, 1, None))[..., None], 0.0)
    return (1 - smoothing) * each + smoothing * even


def _is_all_in_play(x: Array) -> bool:
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


def nan_if_out_of_range(loss: Array, target: Target) -> Array:
    """Return losses, NaN in rows whose label is out of range."""
    return loss if target.valid is None else loss * target.valid


def weighted(loss: ArrayT, target: Target) -> ArrayT:
    """Return losses times the class weights of their rows."""
    w = target.row_weight
    return loss if w is None else namespace(loss).where(w == 0, 0.0, loss) * w


def reduced(
    loss: ArrayT,
    target: Target,
    reduction: str,
    *,
    plain_mean: bool = False,
    unlimited: bool = False,
) -> ArrayT:
    """Reduce weighted losses per row to their mean over the rows that count, their sum, or none.

    The mean is over class weights, or over rows. `unlimited` says that a label costs ∞ in a row
    without an available entry, so that finite losses tell that there is none.
    """
    xp = namespace(loss)
    total = xp.sum(loss)
    finite = _is_finite(total)
    if not finite:
        loss = constant_where(_is_barred(target), loss)
        total = xp.sum(loss)
    counted = None if unlimited and finite and _all_count(loss, target) else _counted(target)
    if counted is not None:
        loss = xp.where(counted, loss, 0.0)
        total = xp.sum(loss)
    if reduction == "none":
        return loss
    if reduction == "sum":
        return total
    weight = None if plain_mean else target.row_weight
    if counted is None and weight is None:
        return total / math.prod(loss.shape)
    each = xp.ones_like(loss) if weight is None else weight
    count = xp.sum(each if counted is None else xp.where(counted, each, 0.0))
    return total / xp.where(count == 0, 1.0, count)


def constant_where(barred: Array, loss: ArrayT) -> ArrayT:
    """Return losses without a gradient in the rows whose target is `barred`, if that costs ∞.

    No step makes such a loss finite. One that has overflowed keeps its gradient, p − t.
    """
    endless = barred & (stop_gradient(loss) == math.inf)
    return namespace(loss).where(endless, scalar(loss, math.inf), loss)


def bars(x: Array, weights: Array) -> Array:
    """Return the entries for which a target of these weights may be out of reach.

    They are excluded and have weight, or are +inf, which leaves nothing to others.
    """
    return (x == math.inf) | (deleted(x) & (weights != 0))


def _is_barred(target: Target) -> Array:
    """Return the rows with an entry of `bars`."""
    x, xp = target.scores, namespace(target.scores)
    hard = target if target.behind is None else target.behind
    if hard.labels is None:
        return xp.any(bars(x, hard.weights), axis=-1)
    return deleted(at_labels(x, hard.labels)) | (xp.max(x, axis=-1) == math.inf)


def _is_finite(total: Array) -> bool:
    """Return whether it is known that a number is finite."""
    return is_at_hand(total) and math.isfinite(stop_gradient(total))


def _all_count(loss: Array, target: Target) -> bool:
    """Return whether every row counts: it has a label. The losses are finite.

    A row of weights has a label if its loss is not 0.
    """
    if target.used is not None or math.prod(loss.shape) == 0:
        return False
    labels = target.labels if target.behind is None else target.behind.labels
    return labels is not None or float(stop_gradient(loss).min()) > 0


def _counted(target: Target) -> Array | None:
    """Return the rows with an available entry whose label is not ignored; None for all."""
    x = target.scores
    playing = ~deleted(namespace(x).max(x, axis=-1))  # a NaN is the greatest
    if target.used is not None:
        return playing & target.used
    return None if math.prod(x.shape) > 0 and is_at_hand(x) and bool(playing.all()) else playing


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


def _class_weights(weight: Any, scores: Array, n: int, like: Array) -> Array:
    check_same_kind("weight", weight, scores)
    if tuple(weight.shape) != (n,):
        raise ValueError(
            f"weight must have one number for each of the entries along dim, {(n,)}; "
            f"got the shape {tuple(weight.shape)}"
        )
    weight = stop_gradient(cast_like(weight, like))
    return weight if n else full_like(like, (1,), 1.0)


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


def missed(values: ArrayT, target: Target, reduction: str) -> ArrayT:
    """Return minus the mean of values over a row's labels, weighted and reduced."""
    return reduced(weighted(-mean_over_labels(target, values), target), target, reduction)


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
