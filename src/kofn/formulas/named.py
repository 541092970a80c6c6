"""The divergence of softmax from probabilities of some named entries of a row, and of a bucket that
has all others.

Logarithms of q are relative to a base, a number per row next to the named scores, so that they have
the digits of their differences. test_losses_distillation.py holds them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from kofn.arrays.autodiff import nan_where, not_below_0, quotient, stop_gradient
from kofn.arrays.kinds import Array, cast, deleted, epsilon, namespace
from kofn.arrays.operations import replaced_along_last
from kofn.solver.reductions import DENSE, Reductions


class Named(NamedTuple):
    """The named entries of rows, (…, m)."""

    z: Array  # (x − base)/T; 0 where there is none, or it is masked
    there: Array  # whether there is an entry; else it is padding
    masked: Array  # whether it cannot be chosen
    log_p: Array  # the teacher's, in the precision that it has; 0 for padding
    base: Array  # per row, without a gradient


def named(own: Array, there: Array, log_p: Array, temperature: Array) -> Named:
    """Return entries by their scores, NaN where one is out of range."""
    xp, fixed = namespace(own), stop_gradient(own)
    masked = there & deleted(fixed)
    some = there & ~masked
    base = xp.max(xp.where(some, fixed, -math.inf), axis=-1)
    base = xp.where(xp.abs(base) < math.inf, base, 0.0)
    t = xp.broadcast_to(temperature[..., None], own.shape)
    z = quotient(xp.where(some, own - base[..., None], 0.0), t, some)
    return Named(xp.where(some, z, 0.0), there, masked, xp.where(there, log_p, 0.0), base)


def rest(
    x: Array, temperature: Array, base: Array, entries: Array, over: Reductions = DENSE
) -> Array:
    """Return log Σ e^{(x − base)/T} over the entries of rows that are not named; −∞ of none.

    Args:
        entries: (…, m), those that are named; n stands for none.
    """
    xp, expand, n = namespace(x), over.expand, x.shape[-1]
    # Not flags: inductor's gradient of what they select is wrong (PyTorch 2.13).
    fixed = stop_gradient(x)
    longer = xp.concat([fixed, xp.zeros_like(fixed[..., :1])], axis=-1)
    out = xp.zeros_like(longer[..., :1]) - math.inf
    longer = replaced_along_last(longer, entries, xp.broadcast_to(out, entries.shape))
    hidden = deleted(longer[..., :n])
    fixed = xp.where(hidden, -math.inf, fixed)
    greatest = over.max(fixed)
    none = greatest == -math.inf
    top = xp.where(none, base, greatest)
    z = xp.where(hidden, 0.0, x - expand(top))
    z = quotient(z, xp.broadcast_to(expand(temperature), x.shape), ~hidden)
    total = over.sum(xp.where(hidden, 0.0, xp.exp(z)))
    loss = quotient(top - base, temperature, ~none) + xp.log(xp.where(none, 1.0, total))
    return xp.where(none, -math.inf, loss)


def divergence(of: Named, log_rest: Array | None, *, reverse: bool) -> Array:
    """Return KL(p‖q), or KL(q‖p), of the named entries and a bucket for the rest.

    Without a rest, of the shares that named entries have among themselves.
    """
    xp, some = namespace(of.z), of.there & ~of.masked
    log_named = _log_sum(of.z, some)
    log_p, log_whole = of.log_p, _log_sum_of_teacher(of)
    if log_rest is None:
        total = log_named
        log_p = log_p - log_whole[..., None]
    else:
        total = _log_of_two(log_named, log_rest)
    log_q = of.z - _finite(total)[..., None]
    log_p = cast(log_p, of.z.dtype)
    p = xp.where(of.there, xp.exp(log_p), 0.0)
    if reverse:
        known = some & (log_p > -math.inf)
        apart = log_q - xp.where(known, log_p, 0.0)
        terms = xp.where(known, xp.exp(xp.where(known, log_q, 0.0)) * apart, 0.0)
        lost = xp.any(some & (log_p == -math.inf), axis=-1)
    else:
        known = some & (p > 0)
        apart = xp.where(known, log_p, 0.0) - log_q
        terms = xp.where(known, p * apart, 0.0)
        lost = xp.any(of.masked & (p > 0), axis=-1)
    loss = xp.sum(terms, axis=-1)
    if log_rest is not None:
        loss = loss + _of_bucket(log_rest, total, log_whole, reverse)
    bad = xp.isnan(loss)
    loss = xp.where(lost, math.inf, not_below_0(xp.where(lost, 0.0, loss)))
    return nan_where(loss, bad)


def _of_bucket(log_rest: Array, total: Array, log_whole: Array, reverse: bool) -> Array:
    """Return the term of the rest; 0 where there is no other entry, or its weight is 0."""
    xp, fixed = namespace(log_rest), stop_gradient(log_rest)
    there = fixed != -math.inf
    log_q = xp.where(there, log_rest, 0.0) - _finite(total)
    log_p = _log1mexp(log_whole)
    unknown = log_p == -math.inf  # the teacher's numbers sum to 1, or more by rounding
    log_p = cast(xp.where(unknown, math.log(epsilon(log_p) / 2), log_p), log_q.dtype)
    if reverse:
        return xp.where(there, xp.exp(xp.where(there, log_q, 0.0)) * (log_q - log_p), 0.0)
    return xp.where(there & ~unknown, xp.exp(log_p) * (log_p - log_q), 0.0)


def _log_sum(z: Array, some: Array) -> Array:
    """Return log Σ e^z of some entries, where no z is far above 0; −∞ of none."""
    xp = namespace(z)
    total = xp.sum(xp.where(some, xp.exp(z), 0.0), axis=-1)
    none = stop_gradient(total) == 0
    return xp.where(none, -math.inf, xp.log(xp.where(none, 1.0, total)))


def _log_sum_of_teacher(of: Named) -> Array:
    """Return log P, with the digits of 1 − P where that is small: the greatest is not added up."""
    xp = namespace(of.log_p)
    log_p = xp.where(of.there, of.log_p, -math.inf)
    greatest = xp.max(log_p, axis=-1)
    base = _finite(greatest)
    place = xp.argmax(log_p, axis=-1)
    # The first of the greatest, as a flag: an index would do, but not on every mesh.
    numbers = xp.cumsum(xp.ones_like(log_p), axis=-1) - 1
    others = numbers != cast(place, numbers.dtype)[..., None]
    raised = xp.where(others, xp.exp(log_p - base[..., None]), 0.0)
    log_sum = base + xp.log1p(xp.sum(raised, axis=-1))
    return xp.where(greatest == -math.inf, -math.inf, log_sum)


def _log1mexp(x: Array) -> Array:
    """Return log(1 − e^x); −∞ for x ≥ 0."""
    xp = namespace(x)
    some = x < 0
    x = xp.where(some, x, -1.0)
    near = x > -math.log(2)
    close = xp.log(-xp.expm1(xp.where(near, x, -1.0)))
    log = xp.where(near, close, xp.log1p(-xp.exp(xp.where(near, -1.0, x))))
    return xp.where(some, log, -math.inf)


def _log_of_two(a: Array, b: Array) -> Array:
    """Return log(e^a + e^b) with its gradients; −∞ where both are −∞."""
    xp = namespace(a)
    less, more = xp.where(a > b, b, a), xp.where(a > b, a, b)
    none, alone = stop_gradient(more) == -math.inf, stop_gradient(less) == -math.inf
    apart = xp.where(alone, 0.0, less) - xp.where(alone, 0.0, more)
    both = more + xp.log1p(xp.where(alone, 0.0, xp.exp(apart)))
    return xp.where(none, -math.inf, xp.where(alone, more, both))


def _finite(x: Array) -> Array:
    return namespace(x).where(stop_gradient(x) == -math.inf, 0.0, x)


def counted(there: Array, x: Array, over: Reductions = DENSE) -> Array:
    """Return the rows with a named entry, and with one in play."""
    xp = namespace(x)
    return xp.any(there, axis=-1) & ~deleted(over.max(stop_gradient(x)))
