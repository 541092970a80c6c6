"""How logarithms of weights, and the cotangents of their rows, change with the rows. For JAX.

z changes by e = s − Σqs + k̇/W, as in tangents.py, q = w/W, and log p by he, h = F′/F. With
λ = Σvh and u = vh − qλ, the cotangents u/T, λ/W and −Σuz/T of x, k and T, for one of log p, v,
change as the cotangents of weights do, with

    c = (vh′ − λqF″/F′)e   and   u̇ = c − qΣc.

This holds in rows where W has underflowed, too, in which q balances the two tails: what moves the
sum of one moves the other's alike, and leaves q as it is.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from kofn.arrays.autodiff import gradient, nan_where, values_and_slopes
from kofn.arrays.kinds import Array, cast, namespace
from kofn.formulas.root import slope_shares
from kofn.formulas.tangents import Sloped, Tangents, sloped
from kofn.rows.given import Given
from kofn.solver.reductions import DENSE, Reductions, sums_of


class _Logs(NamedTuple):
    """Slopes of log F."""

    upper: Array  # F > ½
    steep: Array  # F′/F, 0 where log p is a constant
    bent: Array  # its slope


def _sloped(
    given: Given, theta: tuple[Array, Array], over: Reductions, counted: bool
) -> tuple[Sloped, _Logs]:
    s = sloped(given, theta, over, counted, slope_shares)
    xp, expand, rows, link = namespace(s.z), over.expand, s.rows, s.link
    upper = link.above_half(s.z)
    at = xp.where(upper, s.z, s.exact)  # log F may be finite where z is cut
    # Beyond what numbers can say of z, it is a constant.
    moves = rows.live & expand(xp.isfinite(theta[0])) & xp.isfinite(s.exact)
    steep, bent = values_and_slopes(lambda z: gradient(link.log_tail, z), at)
    if link.has_infinite_tails(s.z) is True:  # |log F| is |z|F′/F or half of it
        known = xp.isfinite(s.exact / 2 * steep)
    else:
        known = link.log_tail(at) > -math.inf
    some = moves & (upper | known)
    # Above ½ the slope is F′/(1 − t), and so F′ = −t·steep.
    slope = link.pdf(s.z)
    above = slope / (1 + xp.where(slope == 0, 0.0, slope / steep))
    steep = xp.where(some, xp.where(upper, above, steep), 0.0)
    bent = xp.where(some, xp.where(upper, steep * (s.turn - steep), bent), 0.0)
    return s._replace(moves=moves), _Logs(upper, steep, bent)


def _tops(s: Sloped) -> tuple[Array, Array]:
    """Return the entries of +inf that share k, and k in their rows, else 1."""
    xp, rows, over = namespace(s.z), s.rows, s.over
    number = over.sum(cast(rows.top, s.z.dtype))
    shared = (number > 0) & (rows.k <= 0) & (rows.k + number > 0)
    return rows.top & over.expand(shared), xp.where(shared, rows.k + number, 1.0)


def log_weights(
    tangents: Tangents, given: Given, theta: tuple[Array, Array], over: Reductions = DENSE
) -> Array:
    """Return the tangent of the logarithms of weights."""
    dk = tangents[1]
    s, logs = _sloped(given, theta, over, counted=dk is not None)
    xp, expand = namespace(s.z), over.expand
    (e,) = s.change(tangents)
    tangent = xp.where(logs.steep == 0, 0.0, logs.steep * e)
    if dk is not None:
        # In a row that is hard, k moves what lies above ½, whose weight is 1, and else nothing.
        of_k = xp.where(expand(s.hard) & logs.upper, s.share, 0.0)
        top, k = _tops(s)
        tangent = tangent + xp.where(top, expand(1 / k), of_k) * expand(dk)
    return nan_where(tangent, s.rows.live & expand(s.has_nan))


def of_log_weights(
    v: Array,
    tangents: Tangents,
    given: Given,
    theta: tuple[Array, Array],
    over: Reductions = DENSE,
) -> tuple[Array, Array, Array]:
    """Return how the cotangents of x, k and T change, where one of log p is v."""
    _, dk, dt = tangents
    s, logs = _sloped(given, theta, over, counted=dk is not None)
    xp, expand, t = namespace(s.z), over.expand, s.rows.temperature
    (e,), share = s.change(tangents), s.share
    pulled = xp.where(logs.steep == 0, 0.0, v * logs.steep)
    (size,) = sums_of(over, pulled)
    u = pulled - share * expand(size)
    c = xp.where(logs.bent == 0, 0.0, v * logs.bent * e)
    turned = xp.where(share == 0, 0.0, s.turn * expand(size) * e)
    total, rest = sums_of(over, c, share * turned)
    du, lever = c - share * (turned + expand(total - rest)), s.lever()
    (tilt,) = sums_of(over, du * lever + xp.where(u == 0, 0.0, u * e))
    if dt is not None:
        (moment,) = sums_of(over, u * lever)
        du, tilt = du - u * expand(dt / t), tilt - moment * (dt / t)
    in_k = (total - rest) * s.per_k
    if dk is not None:
        top, k = _tops(s)
        in_k = in_k - over.sum(xp.where(top, v, 0.0)) * dk / (k * k)
    in_x = nan_where(du / expand(t), s.rows.live & expand(s.has_nan))
    return in_x, nan_where(in_k, s.has_nan), nan_where(-tilt / t, s.has_nan)
