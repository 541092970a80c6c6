"""Losses of rows to one number: class weights, rows that do not count, and the mean."""

from __future__ import annotations

import math
from typing import Any

from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.kinds import deleted, namespace, scalar
from kofn.arrays.operations import at_labels
from kofn.arrays.tracing import is_at_hand
from kofn.arrays.typing import Array, ArrayT
from kofn.losses.targets import Target, mean_over_labels, weighted


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
    finite = is_finite(total)
    if not finite:
        loss = constant_where(_is_barred(target), loss)
        total = xp.sum(loss)
    counted = None if unlimited and finite and _all_count(loss, target) else _counted(target)
    weight = None if plain_mean else target.row_weight
    if counted is not None:
        loss, weight = of_counted(loss, counted, weight)
        return over_rows(loss, weight, reduction)
    return over_rows(loss, weight, reduction, total)


def of_counted(loss: ArrayT, counted: Array, weight: Array | None) -> tuple[ArrayT, Array]:
    """Return losses, and what each counts in the mean; both are 0 in rows that do not count."""
    xp = namespace(loss)
    weight = xp.ones_like(loss) if weight is None else weight
    return xp.where(counted, loss, 0.0), xp.where(counted, weight, 0.0)


def over_rows(loss: ArrayT, weight: Array | None, reduction: str, total: Any = None) -> ArrayT:
    """Return the losses of rows as they are, their sum, or their mean, by weights or flags.

    `total` is their sum, where the caller knows it.
    """
    if reduction == "none":
        return loss
    xp = namespace(loss)
    total = xp.sum(loss) if total is None else total
    if reduction == "sum":
        return total
    if weight is None:
        return total / math.prod(loss.shape)
    count = xp.sum(weight)
    return total / xp.where(count == 0, 1, count)


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


def is_finite(total: Array) -> bool:
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


def missed(values: ArrayT, target: Target, reduction: str, *, unlimited: bool = False) -> ArrayT:
    """Return minus the mean of values over a row's labels, weighted and reduced."""
    losses: Any = -mean_over_labels(target, values)
    return reduced(weighted(losses, target), target, reduction, unlimited=unlimited)
