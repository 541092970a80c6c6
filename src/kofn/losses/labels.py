"""Losses of one label per row, from a kernel that knows the label alone; smoothed ones, too.

Smoothing moves the share s of the target from its label y evenly to the available entries. That
changes a loss by s times the mean of (x_y − x)/T, and by ΣΩ(t) where the loss has it: a pass over
the scores, and no array of targets.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from kofn.adapters import route
from kofn.arrays.autodiff import not_below_0, stop_gradient
from kofn.arrays.kinds import Array, cast, deleted, full_like, namespace
from kofn.arrays.operations import at_labels
from kofn.arrays.tracing import is_at_hand
from kofn.arrays.typing import Tensor
from kofn.links.link import Link, by_id
from kofn.losses.targets import Target, nan_if_out_of_range, weighted
from kofn.operations.losses import LOSS
from kofn.operations.operation import Operation
from kofn.operations.signatures import scores
from kofn.operations.truncated import TRUNCATED_LOSS
from kofn.rows.given import Given

FAR = 1e30
"""Scores up to it are ordinary, and so are their sums."""


def likelihoods(
    checked: Given, target: Target, k: int | None = None, p: float | None = None
) -> Array | None:
    """Return weighted −log p_t of rows, p = e^x/Σ_S e^x with S the k largest, a nucleus, or all.

    None if the target is not one label per row, or no kernel serves the rows.
    """
    hard = target if target.behind is None else target.behind
    if hard.labels is None or not _is_direct(checked, target):
        return None
    loss = route.by_kernel(TRUNCATED_LOSS, checked, hard.labels, settings=(k, p))
    if target.behind is None:
        if loss is None and k is None and p is None:
            loss = route.by_kernel(LOSS, checked, hard.labels, settings=(1,))
        return None if loss is None else weighted(nan_if_out_of_range(loss, target), target)
    terms = None if loss is None else _smoothing_terms(checked, loss, hard.labels, target.by_class)
    if terms is None or loss is None:
        return None
    count, whole, apart = terms
    even = target.smoothing / count
    own = 1.0 if target.row_weight is None else target.row_weight
    return loss * ((1 - target.smoothing) * own + even * whole) + even * apart


def _is_direct(checked: Given, target: Target) -> bool:
    """Return whether nothing is smoothed, or it can be known how `_smoothing_terms` does that."""
    return target.behind is None or is_at_hand(checked.scores)


def losses(checked: Given, target: Target) -> Array | None:
    """Return the Fenchel–Young losses of rows whose target is one smoothed label; or None."""
    if target.behind is None or not _is_direct(checked, target):
        return None
    labels, smoothing = target.behind.labels, target.smoothing
    loss = route.by_kernel(LOSS, checked, labels, settings=(0,))
    terms = None if loss is None else _smoothing_terms(checked, loss, labels, None)
    if terms is None or loss is None:
        return None
    bent = _omega(checked.link, terms[0], smoothing, loss)
    return not_below_0(loss + (smoothing / terms[0]) * terms[2] + bent)


def _omega(link: Link, count: Array | int, smoothing: float, like: Array) -> Array | float:
    """Return ΣΩ(t) of a target of 1 − s + s/count, and of s/count at the other entries."""
    number, alpha = link.static_and_array_alpha()
    if isinstance(count, int) and alpha is None:
        return _omega_of_number(link.id, number, count, smoothing)
    if isinstance(count, int):
        count = full_like(like, (1,) * like.ndim, float(count))
    even = smoothing / count
    most = namespace(like).clip(1 - even * (count - 1), 0.0, 1.0)
    return link.omega(most) + (count - 1) * link.omega(even)


@lru_cache
def _omega_of_number(link: str, alpha: float | None, count: int, smoothing: float) -> float:
    even = smoothing / count
    both = by_id(link, alpha).omega(np.array([1 - even * (count - 1), even]))
    return float(both[0] + (count - 1) * both[1])


def _smoothing_terms(
    checked: Given, loss: Array, labels: Array, by_class: Array | None
) -> tuple[Array | int, Array | float, Array] | None:
    """Return (number of available entries, Σw, Σw(x_y − x)/T over them), for class weights w.

    None if an entry is +inf or NaN, or a loss is: then the plain operations answer.
    """
    x, temperature = checked.scores, checked.temperature
    if 0 in x.shape or not math.isfinite(stop_gradient(loss).sum()):
        return None
    xp, fixed = namespace(x), stop_gradient(x)
    highest, total = fixed.max(), xp.sum(fixed, axis=-1)
    if not highest < math.inf:
        return None
    # An entry out of play, which is below −1e38, would show in the sum of its row.
    if highest < FAR and bool((total > -FAR).all()):
        whole = float(x.shape[-1]) if by_class is None else xp.sum(by_class)
        apart = route.computed(_APART, None, x, (labels,), (by_class, whole, total))
        return x.shape[-1], whole, apart / temperature
    playing = ~deleted(fixed)
    at_label = at_labels(x, labels)
    x, some = xp.where(playing, x, 0.0), cast(playing, x.dtype)
    count = xp.sum(some, axis=-1)
    whole = count if by_class is None else some @ by_class
    return count, whole, (whole * at_label - _weighed(x, by_class)) / temperature


def _weighed(x: Array, by_class: Array | None) -> Array:
    return namespace(x).sum(x, axis=-1) if by_class is None else x @ by_class


def _apart(_: Any, x: Array, labels: Array, by_class: Any, whole: Any, total: Array) -> Array:
    """Return whole·x_y − Σwx, with total = Σx."""
    return whole * at_labels(x, labels) - (total if by_class is None else x @ by_class)


def _apart_back(_: Any, cotangent: Tensor, labels: Tensor, by_class: Any, whole: Any) -> Array:
    below = -cotangent[..., None]
    if by_class is None:  # then w is 1, and Σw the number of entries
        slopes = below.expand(*cotangent.shape, int(whole)).clone()
    else:
        slopes = below * by_class
    return slopes.scatter_add_(-1, labels[..., None], -whole * below)


_APART = Operation(
    name="",
    takes="x n, labels r, by_class any, whole any, total any",
    gives="apart r",
    of=scores("x", "rows"),
    kernel=_apart,
    back=(
        Operation(
            name="",
            takes="cotangent r, labels r, by_class any, whole any",
            gives="x n",
            of=scores("x", "rows"),
            kernel=lambda _, *arguments: _apart_back(*arguments),
            plain=_apart_back,
        ),
    ),
    keeps_scores=False,
)
"""In one pass back, where autograd would take four."""
