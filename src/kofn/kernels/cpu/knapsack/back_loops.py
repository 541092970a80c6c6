"""Passes on the way back over the entries of a row with costs; as loops.py, where θ is
known.
"""

from __future__ import annotations

from typing import Any

from kofn.kernels.contract import BOUNDED
from kofn.kernels.cpu.knapsack.formulas import distance, place, slope_at, weight
from kofn.kernels.cpu.knapsack.frame import extremes_of, pass_of
from kofn.kernels.cpu.rows.formulas import deleted
from kofn.kernels.cpu.rows.frame import Pass
from kofn.kernels.cpu.runtime.vector_math import inline, where_positive


def costliest(kind: int, number: Any) -> Pass:
    """First: the least and the greatest cost, 0 for an entry out of play."""

    @inline
    def entry(at, x, c):
        return number(0) if deleted(x) else c, True, ()

    return extremes_of(number, number, entry)


def weigh(kind: int, number: Any) -> Pass:
    """Then: F′ to the answer; Σc²F′, ΣcF′g and ΣcF′(x − θc)/T with costs in units of the greatest,
    g the cotangents given.
    """

    @inline
    def entry(at, x, c, g, old):
        z = place(kind, at, x, c)
        w = slope_at(kind, x, z, at.rise)
        # An entry that is not chosen may carry any cotangent, NaN included, and cost anything.
        share = where_positive(w, c * at.unit)
        steep, from_end = share * w, z + at.edge if kind in BOUNDED else z
        product, moment = where_positive(w, steep * g), where_positive(w, steep * from_end)
        return w, (share * steep, product, moment)

    return pass_of(number, number, entry, *[number(0)] * 3)


def slope(kind: int, number: Any) -> Pass:
    """Then: u/T with u = F′(g − dc) to the answer; Σcu, Σ|cu| in those units, Σu(x − pivot·c)/T."""
    zero = number(0)

    @inline
    def entry(at, x, c, g, w):
        moves = w > zero
        u = w * distance(g, c, at.mean, at.rest) if moves else zero
        z = distance(x, c, at.pivot, at.left) * at.per_t if moves else zero
        part = c * at.unit * u if moves else zero
        return u * at.per_t, (part, abs(part), u * z)

    return pass_of(number, number, entry, *[zero] * 3)


def centre(kind: int, number: Any) -> Pass:
    """Where rounding left Σcu ≠ 0: take F′·d·c/T off."""

    @inline
    def entry(at, x, c, g, u):
        w = slope_at(kind, x, place(kind, at, x, c), at.rise)
        return u - (w * at.mean * c * at.per_t if w > 0 else number(0)), ()

    return pass_of(number, number, entry)


def charge(kind: int, number: Any) -> Pass:
    """Last: −θu/T − F·d, the cotangents of the costs, where u/T is given."""

    @inline
    def entry(at, x, c, u, old):
        p = weight(kind, place(kind, at, x, c), at.rise)
        return number(0) if deleted(x) else -at.hi * u - p * at.mean, ()

    return pass_of(number, number, entry)


def still(kind: int, number: Any) -> Pass:
    """A row that buys nothing or everything: 0; how many of its entries move all the same."""

    @inline
    def entry(at, x, c, g, old):
        return number(0), (0.0 if deleted(x) or c > 0 else 1.0,)

    return pass_of(number, number, entry, 0.0)
