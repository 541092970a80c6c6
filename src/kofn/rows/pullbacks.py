"""Cotangents of scores and temperatures from those of z = (x − θ)/T, in closed form."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from kofn.arrays.autodiff import spoil, values_and_slopes
from kofn.arrays.flow import only_if
from kofn.arrays.kinds import Array, is_numpy, namespace, scalar
from kofn.rows import answers, implicit
from kofn.rows.settled import Rows
from kofn.solver.plateau import Entries, balance
from kofn.solver.reductions import DENSE, Reductions


def in_rows(
    cotangent: Array,
    rows: Rows,
    found: Any,
    in_z: Callable,
    constants: Sequence[Array] = (),
    over: Reductions = DENSE,
) -> tuple[Array, Array]:
    """Return the cotangents of the scores and the temperature.

    in_z(cotangent, placed, rows, *constants) is that of z, which sums to 0 in a row.
    """
    p = implicit.place(rows, over, found)
    in_x = in_z(cotangent, p, rows, *constants) / over.expand(rows.temperature)
    moved = in_x * implicit.distances(rows, p)
    return in_x, -over.sum(namespace(in_x).where(in_x == 0, 0.0, moved))


def log_cotangents(v: Array, rows: Rows, found: Any) -> tuple[Array, Array]:
    """Return the cotangents of the scores and the temperature for one of log p."""
    return in_rows(v, rows, found, of_logarithms)


def of_logarithms(v: Array, p: implicit.Placed, rows: Rows) -> Array:
    """Return the cotangent of z for one of log p."""
    xp = namespace(v)
    moves = _moving(p, rows)
    slope = xp.where(moves, p.link.pdf(p.z), 0.0)
    z = implicit.reached(rows, p)
    if is_numpy(z):
        pulled = v * _log_slopes(p, z)
    else:
        pulled = v * values_and_slopes(lambda z: answers.log_of(p, z, rows.live), z)[1]
    pulled = xp.where(moves, pulled, 0.0)
    total = p.over.sum(slope)
    solvable = total >= implicit.least_weight(total)
    hard = ~(solvable | p.every | p.none | p.spoiled)
    share = slope / p.over.expand(xp.where(solvable, total, math.inf))

    def shares() -> Array:
        row = Entries(p.z, rows.scores, rows.temperature, rows.live, p.over)
        return share + implicit.shares(p.link, row, hard)

    return pulled - only_if(hard, shares, share) * p.over.expand(p.over.sum(pulled))


def _log_slopes(p: implicit.Placed, z: Array) -> Array:
    """Return F′/F, which NumPy has no other way to find; 0 where F is 0."""
    xp, half = namespace(z), p.link.median(z)
    below = xp.where(p.upper, half, z)
    below = xp.where(p.link.log_cdf(below) > -math.inf, p.link.cdf_slope(below), 0.0)
    above = xp.where(p.upper, z, half)
    return xp.where(p.upper, p.link.pdf(above) / (1 - p.link.sf(above)), below)


def of_losses(v: Array, p: implicit.Placed, rows: Rows, target: Array) -> Array:
    """Return the cotangent of z for one of Fenchel–Young losses."""
    xp = namespace(v)
    chosen = xp.where(p.upper, 1 - p.link.sf(p.z), p.link.cdf(p.z))
    chosen = xp.where(p.over.expand(p.spoiled), math.nan, chosen)
    return xp.where(_moving(p, rows), p.over.expand(v) * (chosen - target), 0.0)


def of_thresholds(
    cotangent: Array, rows: Rows, found: Any, over: Reductions = DENSE
) -> tuple[Array, Array, Array]:
    """Return the cotangents of the scores, k and the temperature, for those of θ."""
    p = implicit.place(rows, over, found)
    xp = namespace(p.z)
    slope = xp.where(_moving(p, rows), p.link.pdf(p.z), 0.0)
    total = p.over.sum(slope)
    settled = p.every | p.none | p.spoiled
    solvable = ~settled & (total >= implicit.least_weight(total))
    share = slope / p.over.expand(xp.where(solvable, total, math.inf))
    hard = ~(solvable | settled)

    def balanced() -> Array:
        flat = balance(p.link, Entries(p.z, rows.scores, rows.temperature, rows.live, over), hard)
        some = p.over.expand(hard & flat.usable)
        return xp.where(some, flat.slopes / p.over.expand(flat.slope), share)

    if p.link.has_infinite_tails(p.z) is not False:
        share = only_if(hard, balanced, share)
    share = spoil(share, rows.live & p.over.expand(p.spoiled))
    in_x = p.over.expand(cotangent) * share
    moved = in_x * xp.where(in_x == 0, 0.0, implicit.distances(rows, p))
    # On a plateau θ is an end of it, which moves with no score, and with the temperature by this.
    still = xp.where(settled | (p.over.count(share != 0) > 0), 0.0, scalar(total, p.link.edge))
    lever = xp.where(solvable, -rows.temperature / xp.where(solvable, total, 1.0), 0.0)
    lever = spoil(lever, p.spoiled)
    return in_x, cotangent * lever, -over.sum(moved) - cotangent * still


def _moving(p: implicit.Placed, rows: Rows) -> Array:
    """Return the entries whose weights change with the scores."""
    return rows.live & ~p.over.expand(p.every | p.none)
