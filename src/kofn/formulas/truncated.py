"""Softmax over a set of a row's largest scores: the set, by sums and counts alone; its weights,
their entropy, and −log of one of them.

The set is as samplers have it: the k largest, of them the nucleus of p, of it what has min_p of the
greatest weight. Equal scores are in it or out of it together.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kofn.arrays.autodiff import nan_where, quotient, stop_gradient
from kofn.arrays.flow import repeat
from kofn.arrays.keys import keys_of, numbers_of
from kofn.arrays.kinds import Array, cast, deleted, dtype_name, full_like, namespace, scalar
from kofn.arrays.operations import at_labels
from kofn.formulas import answers
from kofn.kernels.contract import AGAINST, INFINITE, KEPT
from kofn.rows.settled import Rows
from kofn.solver.reductions import DENSE, Reductions, wide_sums_of


def least(
    rows: Rows, over: Reductions = DENSE, *, k: int | None, p: float | None, min_p: float | None
) -> Array:
    """Return the score of each row from which on all are in the set.

    It is −∞ in rows without a score in play, or with one of +inf, and NaN in a row with a NaN.
    """
    xp, expand = namespace(rows.scores), over.expand
    x, t = stop_gradient(rows.scores), stop_gradient(rows.temperature)
    greatest = over.max(x)
    plain = (xp.abs(greatest) < math.inf) & (rows.k > 0) & (t == t)
    base, t = xp.where(plain, greatest, 0.0), xp.where(plain, t, 1.0)
    playing = rows.live & expand(plain)
    lowest = np.iinfo(_integers(x)).min
    keys = keys_of(x)
    keys = xp.where(playing, keys, scalar(keys, lowest))
    last = full_like(keys, tuple(base.shape), lowest) + cast(0 * base, keys.dtype)
    if k is not None:
        ones = cast(playing, x.dtype)
        (whole,) = wide_sums_of(over, ones)
        last = _last_key(keys, ones, xp.zeros_like(whole) + k, over)
    if p is not None and p < 1:
        z = (xp.where(playing, x, expand(base)) - expand(base)) / expand(t)
        inside = playing & (keys >= expand(last))
        mass = xp.where(inside, xp.exp(z), 0.0)
        (whole,) = wide_sums_of(over, mass)
        last = _last_key(keys, mass, p * whole, over)
    some = plain & (last > lowest)
    least = xp.where(some, numbers_of(last, dtype_name(x)), -math.inf)
    if min_p:
        least = xp.maximum(least, xp.where(plain, base + math.log(min_p) * t, -math.inf))
    return nan_where(least, xp.isnan(greatest) | xp.isnan(rows.temperature))


def _integers(x: Array) -> str:
    return "int64" if dtype_name(x) == "float64" else "int32"


def _last_key(keys: Any, amounts: Array, wanted: Array, over: Reductions) -> Any:
    """Return of each row the greatest key from which on the amounts add up to `wanted`.

    It is the least integer where all of them do not.
    """
    xp = namespace(amounts)
    if hasattr(over, "last_key"):
        return _last_key_in_parts(keys, amounts, wanted, over)
    info = np.iinfo(dtype_name(keys))

    def reach(key: Array) -> Array:
        reached = over.sum(xp.where(keys >= over.expand(key), amounts, 0.0))
        return reached >= wanted

    def refine(state: tuple[Any, Any]) -> tuple[Any, Any]:
        key, bit = state
        return xp.where(
            reach(key + bit), key + bit, key
        ), bit // 2  # PyTorch shifts DTensors wrongly

    zero = cast(0 * wanted, keys.dtype)
    start = xp.where(reach(zero), zero, zero + scalar(zero, info.min))
    return repeat(amounts, info.bits - 1, refine, (start, zero + (1 << (info.bits - 2))))[0]


def _last_key_in_parts(keys: Any, amounts: Array, wanted: Any, over: Any) -> Any:
    """Return the same of rows in several processes, which send sums at a few keys a message."""
    xp, lowest = namespace(amounts), np.iinfo(dtype_name(keys)).min
    playing, wanted = keys > lowest, wanted[..., None]
    highest = scalar(keys, np.iinfo(dtype_name(keys)).max)
    ends = xp.min(xp.where(playing, keys, highest), axis=-1), xp.max(keys, axis=-1)
    count = 2 * xp.any(playing, axis=-1, keepdims=True)

    def sums(key: Array) -> Array:
        reached = xp.where(keys >= cast(key, keys.dtype), amounts, 0.0)
        return cast(xp.sum(reached, axis=-1, keepdims=True), wanted.dtype)

    last = over.last_key(
        wanted, xp.stack(ends, axis=-1), count, sums, lambda reached: reached >= wanted
    )
    return cast(last, keys.dtype)[..., 0]


def inside(rows: Rows, last: Array, over: Reductions = DENSE) -> Array:
    """Return which entries are in the set, given its least score; a NaN is."""
    flags: Array = ~(stop_gradient(rows.scores) < over.expand(last))
    return (rows.live & flags) | rows.top


def shares(
    rows: Rows,
    last: Array,
    over: Reductions = DENSE,
    *,
    k: int | None,
    p: float | None,
    min_p: float | None,
) -> Array:
    """Return how much of each entry counts in a loss, given the set's least score.

    That is 0 or 1; where k alone is given, ties for the last of k places share the places left.
    """
    xp = namespace(rows.scores)
    flags = cast(inside(rows, last, over), rows.scores.dtype)
    if k is None or p is not None or min_p is not None:
        return flags
    level = rows.live & (stop_gradient(rows.scores) == over.expand(last))
    level = cast(level, rows.scores.dtype)
    ties, whole = over.sum(level), over.sum(flags)
    some = ties > 0
    share = xp.where(some, (k - (whole - ties)) / xp.where(some, ties, 1.0), 1.0)
    return xp.where(level > 0, over.expand(xp.clip(share, 0.0, 1.0)), flags)


def softmax(rows: Rows, over: Reductions = DENSE, **of: Any) -> Array:
    """Return softmax over the set, 0 outside."""
    return answers.softmax(only(rows, least(rows, over, **of), over), over)


def only(rows: Rows, last: Array, over: Reductions) -> Rows:
    """Return rows that have the entries of the set alone."""
    live = rows.live & inside(rows, last, over)
    scores = namespace(rows.scores).where(live, rows.scores, -math.inf)
    return rows._replace(scores=scores, live=live)


def entropy(rows: Rows, over: Reductions = DENSE, **of: Any) -> Array:
    """Return −Σ p·log p of softmax over the set."""
    return entropy_of(only(rows, least(rows, over, **of), over), over)


def entropy_of(rows: Rows, over: Reductions = DENSE) -> Array:
    """Return −Σ p·log p of softmax over all in play; 0 of none, log m of m scores of +inf."""
    xp = namespace(rows.scores)
    greatest, z, raised = _raised(rows, None, over)
    total = over.sum(raised)
    total = xp.where(total > 0, total, 1.0)
    entropy = xp.log(total) - over.sum(raised * z) / total
    return _with_ends(entropy, rows, greatest)


def _raised(
    rows: Rows, share: Array | None, over: Reductions, at_least: Array | None = None
) -> tuple[Array, Array, Array]:
    """Return the greatest score that counts, z = (x − it)/T, and share·e^z."""
    xp, expand = namespace(rows.scores), over.expand
    some = rows.live if share is None else rows.live & (share > 0)
    fixed = stop_gradient(rows.scores)
    greatest = over.max(xp.where(some, fixed, -math.inf))
    if at_least is not None:
        greatest = xp.maximum(greatest, at_least)
    base = expand(xp.where(xp.abs(greatest) < math.inf, greatest, 0.0))
    z = quotient(xp.where(some, rows.scores, base) - base, expand(rows.temperature), some)
    z = xp.where(some, z, 0.0)
    raised = xp.exp(z) if share is None else share * xp.exp(z)
    return greatest, z, xp.where(some, raised, 0.0)


def _with_ends(entropy: Array, rows: Rows, greatest: Array) -> Array:
    """Return entropies, right also in rows with NaN, scores of +inf, or nothing in play."""
    xp = namespace(entropy)
    top = _has_top(rows)
    entropy = xp.where(top, -xp.log(xp.where(top, rows.top_weight, 1.0)), entropy)
    entropy = xp.where((greatest == -math.inf) & ~top, 0.0, entropy)
    return nan_where(entropy, xp.isnan(greatest) | xp.isnan(rows.temperature))


def _has_top(rows: Rows) -> Array:
    """Return which rows have scores of +inf; k was 1."""
    return (rows.k <= 0) & (rows.top_weight > 0)


def loss(
    rows: Rows,
    share: Array,
    own: Array,
    is_in: Array,
    over: Reductions = DENSE,
    *,
    outside: int,
) -> Array:
    """Return log Σ share·e^{x/T} − own/T: −log p of a label in the set, and of another as asked.

    Args:
        share: what counts of each entry, without a gradient. own: the label's score, per row.
        is_in: whether the label is in the set.
    """
    xp, fixed = namespace(own), stop_gradient(own)
    known = ~(deleted(fixed) | (fixed == math.inf))
    joins = known & ~is_in if outside == KEPT else None
    at_least = None if joins is None else xp.where(joins, fixed, -math.inf)
    greatest, _, raised = _raised(rows, share, over, at_least)
    base = xp.where(xp.abs(greatest) < math.inf, greatest, 0.0)
    mine = quotient(xp.where(known, own, base) - base, rows.temperature, known)
    mine = xp.where(known, mine, 0.0)
    total = over.sum(raised)
    if joins is not None:
        total = total + xp.where(joins, xp.exp(xp.where(joins, mine, 0.0)), 0.0)
    # Rounding of entries that count in part may give less than the greatest one's 1.
    total = total + stop_gradient(xp.where((total > 0) & (total < 1), 1 - total, 0.0))
    loss = xp.log(xp.where(total > 0, total, 1.0)) - mine
    top = _has_top(rows)
    among = -xp.log(xp.where(top, rows.top_weight, 1.0))
    among = xp.where(fixed == math.inf, among, math.inf)
    loss = xp.where(top | (fixed == math.inf), among, loss)
    lost = deleted(fixed) | ~is_in if outside == INFINITE else deleted(fixed)
    loss = xp.where(lost, math.inf, loss)
    loss = xp.where((greatest == -math.inf) & ~top & (outside == AGAINST), 0.0, loss)
    return nan_where(loss, xp.isnan(greatest) | xp.isnan(fixed) | xp.isnan(rows.temperature))


def loss_at(
    rows: Rows, own: Array, last: Array, over: Reductions = DENSE, *, outside: int, **of: Any
) -> Array:
    """Return `loss` of labels, given their scores and the set's least score."""
    share, is_in = shares(rows, last, over, **of), ~(stop_gradient(own) < last)
    return loss(rows, share, own, is_in, over, outside=outside)


def loss_of_labels(rows: Rows, labels: Array, *, outside: int, **of: Any) -> Array:
    """Return `loss` of dense rows at their labels."""
    own = at_labels(namespace(rows.scores).where(rows.top, math.inf, rows.scores), labels)
    return loss_at(rows, own, least(rows, **of), outside=outside, **of)


def all_shares(rows: Rows, **of: Any) -> Array:
    """Return `shares` of dense rows."""
    return shares(rows, least(rows, **of), **of)
