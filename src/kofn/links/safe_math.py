"""Pieces that links are made of: kinks and 0/0, safe to differentiate."""

from __future__ import annotations

from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.kinds import Array, namespace
from kofn.links.link import zero_at_ends


def below(z: Array, kink: float = 0.0) -> tuple[Array, Array]:
    """(z < kink, z there and `kink` elsewhere): an exponential of it is safe on both branches.

    Kinks are decided by `where` and a strict sign, never by clip or minimum, whose derivative at
    the kink is 1 in PyTorch and ½ in JAX.
    """
    under = z < kink
    return under, namespace(z).where(under, z, kink)


def up_to_1(u: Array) -> tuple[Array, Array]:
    """(whether F < 1, u there and 0 elsewhere) where F reaches 1 at u = 0.

    Within four roundings above 0 F is 1 and its slope still the one below: a weight of 1 − 1e−9,
    as in any softmax with a clear winner, must not lose its gradient to the rounding of z.
    """
    xp = namespace(u)
    inside = u < 4 * float(xp.finfo(u.dtype).eps)
    u = xp.where(inside, u, 0.0)
    return inside, u - stop_gradient(xp.where(u > 0, u, 0.0))


def softplus(t: Array) -> Array:
    """log(1 + e^t), ∞ at ∞. Of the frameworks' own some have second derivatives of NaN far out."""
    xp = namespace(t)
    return xp.where(t > 0, t, 0.0) + xp.log1p(xp.exp(xp.where(t > 0, -t, t)))


def x_log_x(q: Array) -> Array:
    xp = namespace(q)
    return q * xp.log(xp.where(q > 0, q, 1.0)) + zero_at_ends(q)


def log1p_over(t: Array) -> Array:
    """log1p(t)/t; where the quotient would lose its derivatives (0/0 at t = 0), the series of
    log1p(t) = 2 artanh(t/(2 + t)), seven terms of which reach 1e-19.
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


def expm1_over(s: Array) -> Array:
    """(e^s − 1)/s."""
    xp = namespace(s)
    zero = s == 0
    safe = xp.where(zero, 1.0, s)
    return xp.where(zero, 1.0, xp.expm1(safe) / safe)
