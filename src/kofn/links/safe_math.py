"""Functions for links that are safe to differentiate at kinks and removable singularities.

(Tests: test_links.py.)
"""

from __future__ import annotations

from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.kinds import Array, namespace
from kofn.arrays.typing import ArrayT
from kofn.links.link import zero_at_ends
from kofn.links.vocabulary import rounding


def below(z: Array, kink: float = 0.0) -> tuple[Array, Array]:
    """Return z < kink, and min(z, kink), whose exponential is finite on both branches.

    Kinks use `where` and a strict inequality, not clip or minimum: their derivative at the kink
    is 1 in PyTorch and ½ in JAX.
    """
    under = z < kink
    return under, namespace(z).where(under, z, kink)


def up_to_1(u: Array) -> tuple[Array, Array]:
    """Return F < 1, and u there and 0 elsewhere, for an F that reaches 1 at u = 0.

    Up to four rounding errors above 0, F is 1 but keeps the slope from below: a weight of 1 − 1e−9,
    as in any softmax with a clear winner, must not lose its gradient to the rounding of z.
    """
    xp = namespace(u)
    inside = u < rounding(u)
    u = xp.where(inside, u, 0.0)
    return inside, u - stop_gradient(xp.where(u > 0, u, 0.0))


def softplus(t: ArrayT) -> ArrayT:
    """Return log(1 + e^t), ∞ at ∞; second derivatives of some frameworks' own are NaN far out."""
    xp = namespace(t)
    return xp.where(t > 0, t, 0.0) + xp.log1p(xp.exp(xp.where(t > 0, -t, t)))


def x_log_x(q: ArrayT) -> ArrayT:
    xp = namespace(q)
    return q * xp.log(xp.where(q > 0, q, 1.0)) + zero_at_ends(q)


def log1p_over(t: ArrayT) -> ArrayT:
    """Return log1p(t)/t; near t = 0, where the quotient is 0/0, by a series.

    It sums the series log1p(t) = 2 artanh(t/(2 + t)), whose seven terms reach 1e-19.
    """
    xp = namespace(t)
    near = xp.abs(t) < 0.1
    small = xp.where(near, t, 0.0)
    ratio = small / (2 + small)
    square = ratio * ratio
    series = 1 / 13 * xp.ones_like(t)
    for power in range(11, 0, -2):
        series = 1 / power + square * series
    far = xp.where(near, 1.0, t)
    return xp.where(near, 2 / (2 + small) * series, xp.log1p(far) / far)


def expm1_over(s: ArrayT) -> ArrayT:
    """Return (e^s − 1)/s."""
    xp = namespace(s)
    zero = s == 0
    safe = xp.where(zero, 1.0, s)
    return xp.where(zero, 1 + s * (0.5 + s / 6), xp.expm1(safe) / safe)  # with its derivatives at 0
