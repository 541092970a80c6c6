"""The hard choice of rows: ones at the k largest scores, and the indices of those.

Equal scores are chosen from the lowest index on. NaN comes last, so that +inf is still chosen; but
every other score in its row becomes NaN. There are no gradients here.
"""

from __future__ import annotations

import math
from typing import Any

from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.kinds import (
    LEAST_IN_PLAY,
    Array,
    cast,
    clip,
    deleted,
    dtype_name,
    is_torch,
    namespace,
    scalar,
)
from kofn.arrays.operations import (
    arange,
    as_numbers,
    cumulative_sums,
    kth_largest,
    put_along_last,
    stable_order,
    take_along_last,
    top_indices,
)
from kofn.arrays.typing import Number
from kofn.kernels.contract import SMALLEST
from kofn.rows.given import Given
from kofn.rows.numbers import NUMBERS
from kofn.solver.reductions import DENSE, Reductions


def hard(given: Given, k: Number) -> Array:
    """Return the hard top-k of rows; `k` is the caller's, a number or an array."""
    if given.over is not DENSE:
        from kofn.rows.segments.choice import hard as of_segments

        return of_segments(given)
    x, whole = stop_gradient(given.wide().scores), whole_of(k)
    count = stop_gradient(given.per_row().k)
    if whole == 0:
        chosen = namespace(x).zeros_like(x)
    else:
        chosen = by_count(known_scores(x), count, whole, x.dtype)
    return with_nan(x, count, chosen)


def whole_of(k: Number) -> int | None:
    """Return ⌈k⌉ if k is a number."""
    return math.ceil(k) if type(k) in NUMBERS else None


def largest(x: Array, k: int) -> Array:
    """Return the indices of the k largest scores, largest first; masked ones and NaN come last."""
    return top_indices(known_scores(x), k)


def first(x: Array, k: int, way: int) -> Array:
    """Return the indices of the k largest numbers, or of the smallest, ties to the lowest index.

    NaN is the largest number.
    """
    return stable_order(x, not way & SMALLEST)[..., :k]


def first_of_masked(x: Array, mask: Array, k: int, way: int) -> Array:
    """Return the same with those at last that the mask leaves out."""
    return _order_of_masked(x, mask, not way & SMALLEST)[..., :k]


def ranked(x: Array, ranks: Array) -> Array:
    """Return the indices of numbers by their ranks, 0 for the smallest; NaN is the largest."""
    return take_along_last(stable_order(x), _limited(ranks, scalar(ranks, x.shape[-1] - 1)))


def ranked_of_masked(x: Array, mask: Array, ranks: Array) -> Array:
    """Return the same of the numbers that the mask leaves in."""
    last = namespace(x).sum(as_numbers(mask, ranks.dtype), axis=-1)[..., None] - 1
    return take_along_last(_order_of_masked(x, mask, False), _limited(ranks, last))


def _limited(ranks: Array, last: Array) -> Array:
    xp = namespace(ranks)
    return xp.maximum(xp.minimum(ranks, cast(last, ranks.dtype)), scalar(ranks, 0))


def _order_of_masked(x: Array, mask: Array, descending: bool) -> Array:
    """Return what sorts x, with those at last that the mask leaves out, in their order."""
    return order_by_states(x, as_numbers(~mask, namespace(x).int32), descending)


def order_by_states(x: Array, states: Array, descending: bool) -> Array:
    """Return what sorts x where `states` are 0; entries of greater states follow, in their order.

    A NaN counts as the largest number.
    """
    order = stable_order(namespace(x).where(states == 0, x, scalar(x, 0)), descending)
    return take_along_last(order, stable_order(take_along_last(states, order)))


def known_scores(x: Array) -> Array:
    """Return −inf for masked scores and NaN."""
    flags = x > LEAST_IN_PLAY[dtype_name(x)]  # no NaN is
    return namespace(x).where(flags, x, -math.inf)


def by_indices(x: Array, k: Array, whole: int) -> Array:
    """Return the shares of the k largest numbers, at most `whole` of them."""
    share = namespace(x).clip(k[..., None] - arange(x, whole), 0.0, 1.0)
    return put_along_last(x, top_indices(x, whole), share)


def by_count(x: Array, k: Array, whole: int | None, dtype: Any) -> Array:
    """Return the same in a dtype, from the last number that is chosen and how many share it."""
    xp = namespace(x)
    last = kth_largest(x, whole)[..., None] if whole is not None else _at_rank(x, k)
    above, tie = x > last, x == last
    left = k[..., None] - xp.sum(cast(above, dtype), axis=-1)[..., None]
    place = cumulative_sums(cast(tie, dtype)) - 1
    share = xp.where(tie, xp.clip(left - place, 0.0, 1.0), 0.0)
    return xp.where(above, 1.0, share)


def _at_rank(x: Array, k: Array) -> Array:
    """Return the ⌈k⌉-th largest score of each row, (…, 1)."""
    xp = namespace(x)
    rank = clip(xp.ceil(xp.where(xp.isnan(k), 0.0, k)) - 1, 0.0, x.shape[-1] - 1.0)
    descending = xp.flip(xp.sort(x, axis=-1), axis=-1)
    return take_along_last(descending, _as_index(rank)[..., None])


def _as_index(rank: Array) -> Array:
    return rank.long() if is_torch(rank) else cast(rank, namespace(rank).int32)


def with_nan(x: Array, k: Array, chosen: Array, over: Reductions = DENSE) -> Array:
    """Return the hard choice with 0 for excluded entries, and NaN where x or k has one."""
    xp, playing = namespace(x), ~deleted(x)
    chosen = xp.where(playing, chosen, 0.0)
    bad = xp.any(xp.isnan(x), axis=-1) if over is DENSE else over.count(xp.isnan(x)) > 0
    bad = bad[..., None] & (x != math.inf)
    return xp.where((bad | xp.isnan(k)[..., None]) & playing, math.nan, chosen)
