"""Both margins in turn, a few times: Sinkhorn's rounds, in prices, for every link."""

from __future__ import annotations

import math
from typing import Any

from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.kinds import Array, namespace, scalar
from kofn.links.link import by_id
from kofn.maps.topk import soft_topk, soft_topk_threshold


def weights_by_rounds(
    x: Array, k: Array, c: Array, t: Array, alpha: Any, *, link_id: str, number: Any, rounds: int
) -> tuple[Array, Array]:
    """Return weights whose rows sum to k, and how far the columns are from c, the largest of each.

    A round finds the prices of the columns at the rows' prices, then the rows'; a price
    is infinite where nothing or all is taken. These are plain calls of the maps, and so are all
    derivatives.
    """
    xp = namespace(x)
    how: Any = {
        "link": by_id(link_id, number if alpha is None else alpha),
        "temperature": t[..., None],
    }
    total, other = xp.sum(k, axis=-1), xp.sum(c, axis=-1)
    grown = total / xp.where(other > 0, other, 1.0)
    c = c * (1.0 + (grown - stop_gradient(grown)))[..., None]  # by 1: their sums are equal already
    live, free = x > -math.inf, x  # less the prices of rows, at first 0
    for done in range(1, rounds + 1):
        columns = soft_topk_threshold(free, c, **how, dim=-2)
        scores = xp.where(live, x - columns[..., None, :], -math.inf)
        if done < rounds:
            rows = soft_topk_threshold(scores, k, **how)
            # Columns that take all may have settled a row: it is still there for them.
            rows = xp.where((k > 0) & ~(rows < math.inf), 0.0, rows)
            free = xp.where(live, x - rows[..., None], -math.inf)
    weights = soft_topk(scores, k, **how)
    # As without rounds: a NaN, or margins that no weights have, leave nothing of a matrix.
    lost = xp.any(xp.isnan(x) | xp.isnan(weights), axis=(-2, -1))
    factor = xp.where(lost, scalar(x, math.nan), 1.0)
    weights = weights * factor[..., None, None]  # so are its gradients
    return weights, xp.max(xp.abs(xp.sum(weights, axis=-2) - c), axis=-1)
