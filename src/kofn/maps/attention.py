"""Attention weights: a soft top-k whose rows sum to 1, whatever number of positions is live."""

from __future__ import annotations

from typing import Any

from kofn.arrays.checks import check_number
from kofn.arrays.kinds import Array, cast, deleted, framework, namespace
from kofn.arrays.typing import LinkName
from kofn.links import Link
from kofn.maps.topk import soft_topk


def shared_topk(
    scores: Array,
    k: Any,
    *,
    link: LinkName | Link,
    temperature: Any,
    mask: Array | None,
    hard: bool,
) -> Array:
    """Return soft_topk(scores, κ)/κ along the last dimension, κ = min(k, max(1, live/2)) per row.

    `live` is the number of positions that may be chosen. With κ at `live`, the weights would be
    uniform and the scores would learn nothing. With `hard`, live/2 is rounded down. A row in which
    nothing is live is zeros.
    """
    if framework(k) is None:
        check_number("k", k, low=0.0, strict=True, allowed="a finite number > 0")
    xp = namespace(scores)
    live = ~deleted(scores)
    if mask is not None:
        live = live & mask
    # float32 holds what bfloat16 cannot: numbers of positions beyond 256.
    dtype = xp.float64 if scores.dtype == xp.float64 else xp.float32
    half = xp.sum(cast(live, dtype), axis=-1) / 2
    half = xp.floor(half) if hard else half  # so that the chosen share the weight equally
    limit = xp.where(half > 1, half, 1.0)
    few = xp.where(limit < k, limit, k)
    # A row without live positions has weights of 0 for any k; one live position takes it all.
    weights = soft_topk(scores, few, link=link, temperature=temperature, mask=mask, hard=hard)
    return weights / cast(few, scores.dtype)[..., None]
