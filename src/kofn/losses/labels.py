"""Losses of one label per row, from a kernel that knows the label alone; smoothed ones, too.

Smoothing moves the share s of the target from its label y evenly to the available entries. That
changes a loss by s times the mean of (x_y − x)/T, and by ΣΩ(t) where the loss has it: a pass over
the scores, and no array of targets.
"""

from __future__ import annotations

import math

from kofn.arrays.autodiff import not_below_0, stop_gradient
from kofn.arrays.kinds import Array, cast, deleted, full_like, is_torch, namespace
from kofn.arrays.operations import take_along_last
from kofn.arrays.tracing import is_at_hand
from kofn.losses.targets import Target, weighted
from kofn.rows import fused, truncated
from kofn.rows.given import Given


def likelihoods(
    checked: Given, target: Target, k: int | None = None, p: float | None = None
) -> Array | None:
    """Return weighted −log p_t of rows, p = e^x/Σ_S e^x with S the k largest, a nucleus, or all.

    None if the target is not one label per row, or no kernel serves the rows.
    """
    hard = target if target.behind is None else target.behind
    if hard.labels is None:
        return None
    loss = truncated.label_loss(checked, hard.labels, k, p)
    if target.behind is None:
        if loss is None and k is None and p is None:
            loss = fused.label_loss(checked, hard.labels)
        return None if loss is None else weighted(loss, target)
    moved = None if loss is None else _moved(checked, loss, hard.labels, target.by_class)
    if moved is None or loss is None:
        return None
    count, whole, apart = moved
    even = target.smoothing / count
    own = 1.0 if target.row_weight is None else target.row_weight
    return loss * ((1 - target.smoothing) * own + even * whole) + even * apart


def gaps(checked: Given, target: Target) -> Array | None:
    """Return the Fenchel–Young losses of rows whose target is one smoothed label; or None."""
    if target.behind is None:
        return None
    labels, smoothing = target.behind.labels, target.smoothing
    loss = fused.gap(checked, labels)
    moved = None if loss is None else _moved(checked, loss, labels, None)
    if moved is None or loss is None:
        return None
    xp, link, count = namespace(loss), checked.link, moved[0]
    if isinstance(count, int):
        count = full_like(loss, (1,) * loss.ndim, float(count))
    even = smoothing / count
    bent = link.omega(xp.clip(1 - even * (count - 1), 0.0, 1.0)) + (count - 1) * link.omega(even)
    return not_below_0(loss + even * moved[2] + bent)


def _moved(
    checked: Given, loss: Array, labels: Array, by_class: Array | None
) -> tuple[Array | int, Array | float, Array] | None:
    """Return (number of available entries, Σw, Σw(x_y − x)/T over them), for class weights w.

    None if an entry is +inf or NaN, or a loss is: then the plain operations know what is right.
    """
    x, temperature = checked.scores, checked.temperature
    if not is_at_hand(x) or 0 in x.shape or not math.isfinite(stop_gradient(loss).sum()):
        return None
    xp, fixed = namespace(x), stop_gradient(x)
    low, high = fixed.aminmax() if is_torch(x) else (fixed.min(), fixed.max())
    if not high < math.inf:
        return None
    at_label = take_along_last(x, labels[..., None])[..., 0]
    if not deleted(low):
        count: Array | int = x.shape[-1]
        whole = float(count) if by_class is None else xp.sum(by_class)
    else:
        playing = ~deleted(fixed)
        x, some = xp.where(playing, x, 0.0), cast(playing, x.dtype)
        count = xp.sum(some, axis=-1)
        whole = count if by_class is None else some @ by_class
    total = xp.sum(x, axis=-1) if by_class is None else x @ by_class
    return count, whole, (whole * at_label - total) / temperature
