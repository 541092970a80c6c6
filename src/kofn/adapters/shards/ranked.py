"""Entries of rows in shards by their rank: exact, by counts, and no numbers are sent.

`over` are the reductions of rows in several processes, or along axes of a mesh. Each part is sorted
once.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from kofn.arrays.keys import keys_of, with_one_nan
from kofn.arrays.kinds import Array, cast, dtype_name, is_torch, namespace
from kofn.arrays.operations import cumulative_sums, stable_order, take_along_last
from kofn.formulas.choice import order_by_states


class Found(NamedTuple):
    """Numbers by their rank, (…, m), the same in all parts, and which part has them."""

    keys: Any  # `keys_of` the numbers
    entries: Any  # of this part
    mine: Any  # whether that is the entry


def ranked(x: Any, playing: Any, ranks: Any, over: Any) -> Found:
    """Return the numbers of these ranks, 0 for the smallest; equal ones are ranked by their index.

    NaN is the largest number.

    Args:
        x: (…, n), this part, without a gradient. playing: which of them count, None for all.
        ranks: (…, m), each below the number of those that count in the whole row.
    """
    xp, keys = namespace(x), keys_of(with_one_nan(x))
    has_room = playing is None or "float" in dtype_name(x)  # no float has the greatest key
    if playing is None:
        playing = xp.ones_like(x, dtype=xp.bool)
    else:
        keys = xp.where(playing, keys, np.iinfo(dtype_name(keys)).max)
    ordered: Any
    order: Any
    if is_torch(keys):
        ordered, order = keys.contiguous().sort(dim=-1, stable=True)  # searchsorted asks for it
    else:
        order = stable_order(keys) if has_room else order_by_states(x, ~playing, False)
        ordered = take_along_last(keys, order)
    ranks = cast(ranks, over.counted)
    count = xp.sum(playing, axis=-1, keepdims=True, dtype=over.counted)

    def below(wanted: Array, side: str = "left") -> Any:
        places = cast(_places(ordered, wanted, side), over.counted)
        return xp.minimum(places, count)

    last = over.last_key(ranks, ordered, count, below, lambda counts: counts <= ranks)
    first, through = below(last), below(last, "right")
    last = cast(last, keys.dtype)
    total, before = over.before(first, through - first)
    place = ranks - total - before
    mine = (place >= 0) & (place < through - first)
    if not x.shape[-1]:
        return Found(last, xp.zeros_like(ranks), mine)
    at = xp.clip(first + place, 0, x.shape[-1] - 1)
    return Found(last, take_along_last(order, at), mine)


def _places(ordered: Any, wanted: Any, side: str) -> Any:
    """Return where among the ordered numbers of each row those wanted would stand."""
    if is_torch(ordered):
        find: Any = namespace(ordered).searchsorted
        return find(ordered, cast(wanted, ordered.dtype).contiguous(), side=side)
    import jax

    find = partial(jax.numpy.searchsorted, side=side)
    for _ in ordered.shape[:-1]:
        find = jax.vmap(find)
    return find(ordered, wanted)


def shares(above: Any, tie: Any, k: Any, over: Any) -> Any:
    """Return clip(k − rank, 0, 1): 1 above the last entry chosen, and for its equals the rest.

    Equal entries are ranked by their index in the row.
    """
    xp = namespace(above)

    def due(first: Any, ties: Any) -> Any:
        return (k - first < ties) & (ties > 1)

    counts = (xp.sum(flags, axis=-1, dtype=over.counted) for flags in (above, tie))
    rank, before = over.before(*counts, due)
    rank = rank[..., None]
    if before is not None:
        rank = rank + (cumulative_sums(cast(tie, over.counted)) - 1 + before[..., None])
    share = xp.clip(k[..., None] - rank, 0.0, 1.0)
    return xp.where(above, 1.0, xp.where(tie, share, 0.0))
