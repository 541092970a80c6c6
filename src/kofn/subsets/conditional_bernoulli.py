"""Log-probability, entropy, divergence and marginals of the conditional Bernoulli distribution.

Let λ be the threshold of `soft_topk` and z = y − λ. Subsets of size k are independent coins with
p = σ(z), given that N = k of them fall heads. This holds for every λ; this one makes k the mean of
N, and needs no derivative. Terms are stored as the smaller tail, so that no large terms cancel.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from kofn.adapters import route
from kofn.arrays.autodiff import nan_where, not_below_0, stop_gradient
from kofn.arrays.kinds import Array, cast, is_jax, namespace, scalar
from kofn.rows.compiled import whole
from kofn.solver.equation import far
from kofn.subsets import operations
from kofn.subsets.operations import LOG_COUNT, TAILS, kernel_for, sum_of, threshold


class Rows(NamedTuple):
    """Rows of logits, with the special cases resolved."""

    logits: Array  # −inf where not in play
    z: Array  # logits − λ, far ones held; −inf in all of a row that leaves no choice
    size: Array  # |logits − λ| however far, with a derivative at 0; 0 where z is −inf
    k: Array  # per row, heads among the coins z
    threshold: Array  # λ, a constant; per row
    must: Array  # what every subset holds
    has_nan: Array  # rows with a NaN
    endless: Array  # rows whose log Z is ∞, for a logit of +inf is chosen


def rows_of(y: Array, k: Array, theta: tuple[Array, Array] | None = None) -> Rows:
    """Return rows of logits y (…, n), −inf where masked, with k per row, NaN if it is invalid.

    `theta` is their `operations.threshold`, for logits without +inf.

    Logits of +inf are the limit of large ones: chosen first; more than k of them share evenly.
    """
    xp = namespace(y)
    top = y == math.inf
    bad = xp.any(xp.isnan(stop_gradient(y)), axis=-1, keepdims=True) | xp.isnan(k)[..., None]
    y = nan_where(y, bad & (y != -math.inf))
    count = cast(xp.sum(top, axis=-1), y.dtype)
    amid = ((count > k) & (k > 0))[..., None]
    sure = top & (count <= k)[..., None]
    y = xp.where(top, xp.where(amid, scalar(y, 0.0), -math.inf), y)
    # Beside them finite ones are never chosen; a NaN still says so.
    y = xp.where(amid & ~top & ~xp.isnan(y), -math.inf, y)
    k = xp.where(amid[..., 0], k, k - count)

    hi, lo = theta or threshold(y, k)
    has_nan = xp.isnan(hi)
    closed = (xp.isinf(hi) | has_nan)[..., None]
    hi = xp.where(closed[..., 0], 0.0, hi)
    play = (y != -math.inf) & ~closed
    distance = (xp.where(play, y, 0.0) - hi[..., None]) - lo[..., None]
    size = xp.where(distance > 0, distance, -distance)
    # Far enough a coin is certain. Its distance stays the cost of falling the other way.
    value, limit = stop_gradient(distance), far(xp.finfo(y.dtype))
    beyond = xp.where(value > 0, scalar(y, limit), -limit)
    z = xp.where(play, xp.where(xp.abs(value) < limit, distance, beyond), -math.inf)
    every = closed & (k > 0)[..., None] & (y != -math.inf)
    return Rows(
        logits=y,
        z=z,
        size=xp.where(play, size, 0.0),
        k=xp.where(closed[..., 0], 0.0, k),
        threshold=hi + lo,
        must=sure | every,
        has_nan=has_nan,
        endless=xp.any(top, axis=-1) & (amid[..., 0] | xp.any(sure, axis=-1)),
    )


def log_partition(rows: Rows) -> Array:
    """Return log Z = kλ + Σ log(1 + e^z) + log Pr(N = k)."""
    xp = namespace(rows.z)
    upper = rows.z > 0
    above = xp.sum(xp.where((upper | rows.must), _finite(rows.logits), 0.0), axis=-1)
    missing = rows.k - cast(xp.sum(upper, axis=-1), rows.k.dtype)
    answer = missing * rows.threshold + above + xp.sum(_overlap(rows), axis=-1)
    answer = answer + _log_count(rows)
    return _or_nan(rows, xp.where(rows.endless, math.inf, answer))


def marginals_of(y: Array, k: Array, theta: tuple[Array, Array] | None = None) -> Array:
    """Return marginals of logits y, −inf where masked, by the fastest code; see `rows_of`."""
    plain = _marginals_by_arrays
    if is_jax(y):
        from kofn.subsets.jax_marginals import marginals as traced

        answer = traced(y, k, plain, theta)  # type: ignore[arg-type]  # of JAX, as y
    elif theta is not None and (kernel := kernel_for(y)) is not None:
        answer = route.computed(_MARGINALS_AT, kernel, y, (k, *theta))
    else:
        answer = route.by_kernel(MARGINALS, y, k)
    return plain(y, k, theta) if answer is None else answer


def _marginals_by_arrays(y: Array, k: Array, theta: Any = None) -> Array:
    return whole(marginals, whole(rows_of, y, k, theta))


MARGINALS = operations.marginals(_marginals_by_arrays)
_MARGINALS_AT = operations.marginals_at(_marginals_by_arrays)


def marginals(rows: Rows) -> Array:
    xp = namespace(rows.z)
    tail = sum_of(TAILS, rows.z, rows.k)
    answer = xp.where(rows.z > 0, 1 - tail, tail)
    return _entries_or_nan(rows, answer, 1.0)


def variance(rows: Rows) -> Array:
    tail = sum_of(TAILS, rows.z, rows.k)
    return _entries_or_nan(rows, tail * (1 - tail))


def covariance(rows: Rows, v: Array) -> Array:
    return _entries_or_nan(rows, operations.covariance(rows.z, rows.k, v))


def log_prob(rows: Rows, subset: Array) -> Array:
    """Return log Pr(S) = Σ_S log p + Σ_{not S} log q − log Pr(N = k); −inf if impossible."""
    xp = namespace(rows.z)
    chosen, coin = subset == 1, rows.z != -math.inf
    wrong = coin & (chosen != (rows.z > 0))
    cost = xp.where(wrong, rows.size, 0.0) + _overlap(rows)
    answer = -xp.sum(cost, axis=-1) - _log_count(rows)
    heads = cast(xp.sum(chosen & coin, axis=-1), rows.k.dtype)
    impossible = xp.any(~coin & (chosen != rows.must), axis=-1) | (heads != rows.k)
    answer = xp.where(impossible, -math.inf, answer)
    unknown = xp.any(~chosen & (subset != 0), axis=-1)
    return _or_nan(rows, xp.where(unknown, math.nan, answer))


def entropy(rows: Rows) -> Array:
    """Return log Pr(N = k) + Σ [log(1 + e^{−|z|}) + |z|·tail]; only the first term is negative."""
    terms = _overlap(rows) + _share(rows.size, sum_of(TAILS, rows.z, rows.k))
    answer = _log_count(rows) + namespace(terms).sum(terms, axis=-1)
    return _or_nan(rows, answer)


def kl(rows: Rows, other: Rows) -> Array:
    """Return E log Pr − E log Pr′, term by term as in `log_prob`; ∞ if Pr′ excludes an S."""
    xp = namespace(rows.z)
    z, u = rows.z, other.z
    tail, coin, coin_other = sum_of(TAILS, z, rows.k), z != -math.inf, u != -math.inf
    # How likely an entry is on the side that is the smaller one for the other.
    strange = xp.where((u > 0) == (z > 0), tail, 1 - tail)
    strange = xp.where(coin, strange, cast((u > 0) != rows.must, z.dtype))
    terms = _share(other.size, strange) - _share(rows.size, tail)
    terms = terms + (_overlap(other) - _overlap(rows))
    answer = xp.sum(terms, axis=-1) + _log_count(other) - _log_count(rows)
    answer = not_below_0(answer)

    never = ~(coin_other | other.must) & (coin | rows.must)
    apart = xp.any(never | (other.must & ~rows.must), axis=-1)
    sure = xp.sum(rows.must, axis=-1) - xp.sum(other.must, axis=-1)
    apart = apart | (cast(sure, z.dtype) + rows.k != other.k)
    answer = xp.where(apart, math.inf, answer)
    return _or_nan(other, _or_nan(rows, answer))


def drawn(rows: Rows, heads: Array) -> Array:
    """Return the subset for the coins that are heads."""
    return _entries_or_nan(rows, cast(heads, rows.z.dtype), 1.0)


def _log_count(rows: Rows) -> Array:
    """Return log Pr(N = k); exactly 0 if there are no coins."""
    xp = namespace(rows.z)
    some = xp.any(rows.z != -math.inf, axis=-1)
    return xp.where(some, sum_of(LOG_COUNT, rows.z, rows.k), 0.0)


def _or_nan(rows: Rows, per_row: Array) -> Array:
    return namespace(per_row).where(rows.has_nan, math.nan, per_row)


def _entries_or_nan(rows: Rows, per_entry: Array, sure: float = 0.0) -> Array:
    """Fill in settled entries, constants that may carry any cotangent: `sure`, 0 and NaN."""
    xp = namespace(per_entry)
    settled = xp.where(rows.must, scalar(per_entry, sure), 0.0)
    answer = xp.where(rows.z == -math.inf, settled, per_entry)
    bad = rows.has_nan[..., None] & (rows.logits != -math.inf)
    return xp.where(bad, math.nan, answer)


def _finite(y: Array) -> Array:
    return namespace(y).where(y != -math.inf, y, 0.0)


def _share(size: Array, probability: Array) -> Array:
    """Return size·probability; 0 if it is impossible, even for an infinite size."""
    xp = namespace(size)
    some = probability > 0
    return xp.where(some, size, 0.0) * xp.where(some, probability, 0.0)


def _overlap(rows: Rows) -> Array:
    """Return log(1 + e^{−|z|}) = −log max(p, q); 0 for excluded entries."""
    xp = namespace(rows.z)
    return xp.where(rows.z != -math.inf, xp.log1p(xp.exp(-rows.size)), 0.0)
