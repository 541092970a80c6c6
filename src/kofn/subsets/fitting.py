"""Logits from marginals: Newton's method, with steps solved by conjugate gradients.

π(y) = π* is the stationary point of log Z(y) − ⟨π*, y⟩, which is convex; it has one for every π*
in (0, 1)ⁿ whose sum is a whole number, and that one up to a constant. The Jacobian H is known by
its products (`operations.covariance`), and is close to diag(π(1 − π)) less a rank of one or two,
so that few products do.
"""

from __future__ import annotations

import math

from kofn.arrays.flow import repeat, while_loop
from kofn.arrays.kinds import Array, namespace, scalar
from kofn.subsets import conditional_bernoulli

ROUNDS = 20  # of Newton's; some 5 are needed
PRODUCTS = 8  # with H in each


def fit(target: Array, k: Array, precise: float) -> Array:
    """Return logits (…, n) whose marginals are `target` to `precise`; ∓∞ where it is 0 or 1."""
    xp = namespace(target)
    inside = (target > 0) & (target < 1)
    wanted = _log_odds(xp.where(inside, target, 0.5))
    fixed = xp.where(target == 0, scalar(target, -math.inf), math.inf)
    fixed = xp.where((target >= 0) & (target <= 1), fixed, math.nan)

    def full(y: Array) -> Array:
        return xp.where(inside, y, fixed)

    def unfinished(state: tuple[Array, Array]) -> Array:
        return xp.any(state[1] > precise)

    def advance(state: tuple[Array, Array]) -> tuple[Array, Array]:
        y, _ = state
        rows = conditional_bernoulli.rows_of(full(y), k)
        pi = xp.where(inside, conditional_bernoulli.marginals(rows), 0.5)
        weight = xp.where(inside, pi * (1 - pi), 0.0)
        miss = xp.where(inside, wanted - _log_odds(pi), 0.0)
        miss = xp.where(weight > 0, miss, 0.0)
        total = inner(weight, xp.ones_like(weight))
        mean = inner(weight, miss) / xp.where(total > 0, total, 1.0)
        step = _solved(rows, xp.where(inside, weight * (miss - mean), 0.0), weight)
        # No further than the odds are off at most: far from the answer Newton overshoots.
        most = xp.max(xp.abs(miss - mean), axis=-1)
        size = xp.max(xp.abs(step), axis=-1)
        scale = xp.where(size > 2 * most, 2 * most / xp.where(size > 0, size, 1.0), 1.0)
        error = xp.max(xp.abs(pi - xp.where(inside, target, 0.5)), axis=-1)
        return y + scale[..., None] * step, error

    start = (wanted, xp.zeros_like(k) + math.inf)
    return full(while_loop(target, unfinished, advance, start, ROUNDS)[0])


def _log_odds(p: Array) -> Array:
    xp = namespace(p)
    p = xp.clip(p, float(xp.finfo(p.dtype).smallest_normal), 1.0)
    return xp.log(p) - xp.log1p(-p)


def _solved(rows: conditional_bernoulli.Rows, right: Array, weight: Array) -> Array:
    """Solve H d = right for d to half the digits, preconditioned by the diagonal `weight`.

    Newton's next round finds the rest; beyond, the rest may be rounding of H.
    """
    xp = namespace(right)
    some = weight > 0
    inverse = xp.where(some, 1 / xp.where(some, weight, 1.0), 0.0)
    total = inner(weight, xp.ones_like(weight))

    def conditioned(left: Array) -> Array:
        # Without its constant, which H does not see.
        mean = inner(left, xp.ones_like(left)) / xp.where(total > 0, total, 1.0)
        return xp.where(some, inverse * left - mean, 0.0)

    def advance(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        d, left, way = state
        product = conditional_bernoulli.covariance(rows, way)
        before, along = inner(left, conditioned(left)), inner(way, product)
        going = (before > enough) & (along > 0)
        length = xp.where(going, before / xp.where(going, along, 1.0), 0.0)
        d, left = d + length * way, left - length * product
        turn = inner(left, conditioned(left)) / xp.where(going, before, 1.0)
        way = xp.where(going, conditioned(left) + turn * way, way)
        return d, left, way

    first = conditioned(right)
    enough = inner(right, first) * float(xp.finfo(right.dtype).eps)
    return repeat(right, PRODUCTS, advance, (xp.zeros_like(right), right, first))[0]


def inner(a: Array, b: Array) -> Array:
    return namespace(a).sum(a * b, axis=-1)[..., None]
