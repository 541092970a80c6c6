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
from collections.abc import Sequence
from typing import NamedTuple

from kofn.arrays.autodiff import for_values, gradient, nan_where, values_and_slopes
from kofn.arrays.flow import only_if
from kofn.arrays.kinds import Array, cast, namespace
from kofn.formulas import implicit
from kofn.formulas.root import slope_shares
from kofn.links.link import Link
from kofn.rows.given import Given
from kofn.rows.settled import Rows, rows_of
from kofn.solver.equation import least_weight
from kofn.solver.plateau import Entries
from kofn.solver.reductions import DENSE, Reductions, sums_of

Tangents = Sequence[Array | None]
"""Of x, k and T; None is for zeros."""


class _Sloped(NamedTuple):
    """Rows with the slopes of log F and of θ."""

    rows: Rows
    moves: Array  # entries whose log p does
    steep: Array  # F′/F, 0 elsewhere
    bent: Array  # its slope
    share: Array  # of θ: F′/ΣF′
    bend: Array  # its slope in z alone, F″/ΣF′
    per_k: Array  # 1/ΣF′; 0 where that has underflowed
    hard: Array  # rows where it has
    lever: Array  # z less a number per row
    placed: implicit.Placed
    over: Reductions

    def change(self, tangents: Tangents) -> Array:
        """Return the tangent of z; the mean is improved once, as in `pullbacks.of_weights`."""
        xp, expand, (dx, dk, dt) = namespace(self.steep), self.over.expand, tangents
        s = xp.zeros_like(self.steep) if dx is None else dx
        s = s if dt is None else s - self.lever * expand(dt)
        s = xp.where(self.moves, s / expand(self.rows.temperature), 0.0)
        for _ in range(2):
            (mean,) = sums_of(self.over, xp.where(self.share == 0, 0.0, self.share * s))
            s = xp.where(self.moves, s - expand(mean), 0.0)
        return s if dk is None else xp.where(self.moves, s + expand(dk * self.per_k), 0.0)

    def tops(self) -> tuple[Array, Array]:
        """Return the entries of +inf that share k, and k in their rows, else 1."""
        xp, rows = namespace(self.steep), self.rows
        number = self.over.sum(cast(rows.top, self.steep.dtype))
        shared = (number > 0) & (rows.k <= 0) & (rows.k + number > 0)
        return rows.top & self.over.expand(shared), xp.where(shared, rows.k + number, 1.0)


def _sloped(given: Given, theta: tuple[Array, Array], over: Reductions) -> _Sloped:
    rows = rows_of(given, over)
    with for_values():
        p = implicit.place(rows, over, theta, pivoted=True)
        z = implicit.reached(rows, p)
    xp, expand, link, half = namespace(z), over.expand, p.link, p.link.median(p.z)
    moves = rows.live & ~expand(p.every | p.none)
    low = xp.where(moves & ~p.upper, z, half)
    moves = moves & (p.upper | (link.log_cdf(low) > -math.inf))
    inside = xp.where(moves, z, half)

    def steepness(z: Array) -> Array:
        low, high = xp.where(p.upper, half, z), xp.where(p.upper, z, half)
        return xp.where(p.upper, link.pdf(high) / (1 - link.sf(high)), link.cdf_slope(low))

    steep, bent = values_and_slopes(steepness, inside)
    w = xp.where(moves, link.pdf(p.z), 0.0)
    total = over.sum(w)
    solvable = ~p.settled & (total >= least_weight(total))
    per_k = xp.where(solvable, 1 / xp.where(solvable, total, 1.0), 0.0)
    hard = ~(solvable | p.settled)
    bend = xp.where(w == 0, 0.0, gradient(link.pdf, p.z))
    known = w * expand(per_k), bend * expand(per_k)
    row = Entries(p.z, rows.scores, rows.temperature, rows.live, over)
    share, bend = only_if(hard, lambda: _shares(link, row, hard, known), known)
    # Beyond what numbers can say of z, it is a constant.
    moves = moves & ~(p.outside & (z == p.z) & (share == 0))
    pivot = expand(p.pivot)
    lever = (xp.where(moves, rows.scores, pivot) - pivot) / expand(rows.temperature)
    steep, bent = xp.where(moves, steep, 0.0), xp.where(moves, bent, 0.0)
    return _Sloped(rows, moves, steep, bent, share, bend, per_k, hard, lever, p, over)


def _shares(
    link: Link, row: Entries, hard: Array, known: tuple[Array, Array]
) -> tuple[Array, Array]:
    """Return the shares and their slopes, by logarithms in rows that are hard."""
    xp, inside = namespace(row.z), row.over.expand(hard)
    share = slope_shares(link, row, hard)
    some = inside & (share != 0)
    bend = share * gradient(link.log_pdf, xp.where(some, row.z, link.median(row.z)))
    return xp.where(inside, share, known[0]), xp.where(inside, xp.where(some, bend, 0.0), known[1])


def log_weights(
    tangents: Tangents, given: Given, theta: tuple[Array, Array], over: Reductions = DENSE
) -> Array:
    """Return the tangent of the logarithms of weights."""
    s, dk = _sloped(given, theta, over), tangents[1]
    xp, expand, rows = namespace(s.steep), over.expand, s.rows
    tangent = xp.where(s.steep == 0, 0.0, s.steep * s.change(tangents))
    if dk is not None:
        # In a row that is hard, k moves what lies above ½, whose weight is 1, and else nothing.
        of_k = xp.where(expand(s.hard) & s.placed.upper, s.share, 0.0)
        top, k = s.tops()
        tangent = tangent + xp.where(top, expand(1 / k), of_k) * expand(dk)
    return nan_where(tangent, rows.live & expand(s.placed.has_nan))


def of_log_weights(
    v: Array,
    tangents: Tangents,
    given: Given,
    theta: tuple[Array, Array],
    over: Reductions = DENSE,
) -> tuple[Array, Array, Array]:
    """Return how the cotangents of x, k and T change, where one of log p is v."""
    s, (_, dk, dt) = _sloped(given, theta, over), tangents
    xp, expand, t, e = namespace(s.steep), over.expand, s.rows.temperature, s.change(tangents)
    pulled = xp.where(s.steep == 0, 0.0, v * s.steep)
    (size,) = sums_of(over, pulled)
    u = pulled - s.share * expand(size)
    moved = xp.where(s.bent == 0, 0.0, v * s.bent)
    c = xp.where(s.moves, (moved - xp.where(s.bend == 0, 0.0, s.bend * expand(size))) * e, 0.0)
    (total,) = sums_of(over, c)
    du = c - s.share * expand(total)
    (tilt,) = sums_of(over, du * s.lever + u * e)
    if dt is not None:
        (moment,) = sums_of(over, u * s.lever)
        du, tilt = du - u * expand(dt / t), tilt - moment * (dt / t)
    in_k = total * s.per_k
    if dk is not None:
        top, k = s.tops()
        in_k = in_k - over.sum(xp.where(top, v, 0.0)) * dk / (k * k)
    has_nan = s.placed.has_nan
    in_x = nan_where(du / expand(t), s.rows.live & expand(has_nan))
    return in_x, nan_where(in_k, has_nan), nan_where(-tilt / t, has_nan)
