"""Attention weights: a soft top-k whose k fits the number of positions that are live."""

from __future__ import annotations

from typing import Any

from kofn.arrays.checks import check_number
from kofn.arrays.kinds import Array, cast, deleted, framework, full_like, namespace
from kofn.arrays.tracing import is_compiling
from kofn.arrays.typing import ArrayT, LinkName
from kofn.links import Link
from kofn.maps.topk import soft_topk, soft_topk_threshold


def fitting_topk(
    scores: ArrayT,
    k: Any,
    *,
    link: LinkName | Link,
    temperature: Any,
    mask: Array | None,
    additive: bool,
    hard: bool,
) -> tuple[ArrayT, Array | float]:
    """Return soft_topk(scores, κ) along the last dimension, and κ = min(k, max(1, live/2)) per row.

    The weights divided by κ sum to 1. `live` is the number of positions that may be chosen. With κ
    at `live`, the weights would be uniform and the scores would learn nothing. With `hard`, live/2
    is rounded down. A row in which nothing is live is zeros. `additive` says that scores of −inf,
    or finfo.min, are masked, too. κ is a number where it is the same for all rows.
    """
    if scores.shape[-1] == 0:
        return scores, 1.0
    few = _few(scores, k, mask, additive, hard)
    weights = soft_topk(scores, few, link=link, temperature=temperature, mask=mask, hard=hard)
    return weights, few


def shared_threshold(
    scores: ArrayT, k: Any, *, link: LinkName | Link, mask: Array | None = None
) -> ArrayT:
    """Return θ of `fitting_topk` at T = 1; in a row in which nothing is live, it is NaN."""
    few = _few(scores, k, mask, False, False)
    return soft_topk_threshold(scores, few, link=link, mask=mask)


def _few(scores: Array, k: Any, mask: Array | None, additive: bool, hard: bool) -> Array | float:
    if framework(k) is None:
        check_number("k", k, low=0.0, strict=True, allowed="a finite number > 0")
        if mask is None and not additive and not is_compiling():
            share = scores.shape[-1] / 2
            return min(float(k), max(1.0, share // 1 if hard else share))
    xp = namespace(scores)
    live = _live(scores, mask, additive) / 2
    half = xp.floor(live) if hard else live  # so that the chosen share the weight equally
    limit = xp.where(half > 1, half, 1.0)
    return xp.where(limit < k, limit, k)


def _live(scores: Array, mask: Array | None, additive: bool) -> Array:
    """Return the number of positions that may be chosen; its shape broadcasts to the rows'."""
    xp, n = namespace(scores), scores.shape[-1]
    # float32 holds what bfloat16 cannot: numbers of positions beyond 256.
    dtype = xp.float64 if scores.dtype == xp.float64 else xp.float32
    if additive:
        live = ~deleted(scores) if mask is None else mask & ~deleted(scores)
    elif mask is None:
        return full_like(cast(scores[..., :0], dtype), (), n)
    else:
        live = xp.broadcast_to(mask, (*mask.shape[:-1], n))
    return xp.sum(cast(live, dtype), axis=-1)
