"""Passes on the way forward over the entries of a row with costs.

As in rows/loops.py, each function makes one Python function for a link's `kind` and a `number`;
frame.py has the loop.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kofn.kernels.cpu.knapsack.formulas import on_grid, place, tails, weight
from kofn.kernels.cpu.knapsack.frame import extremes_of, pass_of
from kofn.kernels.cpu.rows.formulas import deleted, integral
from kofn.kernels.cpu.rows.frame import Pass
from kofn.kernels.cpu.runtime.vector_math import inline


def statistics(kind: int, number: Any) -> Pass:
    """Least and greatest cost, Σc, Σc², Σc³, Σcx, Σc²x, Σcx² of entries in play.

    One of the sums is not finite where a score is NaN or +inf, or a cost NaN or infinite.
    """

    @inline
    def entry(at, x, c):
        playing = not deleted(x)
        price = c if playing else number(0)
        score, cost = np.float64(x if playing else number(0)), np.float64(price)
        both, twice = cost * score, cost * cost
        return price, True, (cost, twice, twice * cost, both, both * cost, both * score)

    return extremes_of(number, number, entry, *[0.0] * 6)


def ends(kind: int, number: Any) -> Pass:
    """The least and the greatest θ at which an entry has the share to buy of all costs."""

    @inline
    def entry(at, x, c):
        pays = (not deleted(x)) & (c > 0)
        below = (at.quantile + at.edge) / at.per_t
        return (np.float64(x) - below) / (np.float64(c) if pays else 1.0), pays, ()

    return extremes_of(number, np.float64, entry)


def rough(kind: int, number: Any) -> Pass:
    """Do as `evaluate` does, in the precision of the scores."""
    return _evaluate(kind, number, number)


def evaluate(kind: int, number: Any) -> Pass:
    """Σ of c times the smaller tails, of those above ½, what these cost, in two parts; ΣcF′, Σc²F′,
    that above ½, Σc³F″, in units of the greatest cost.
    """
    return _evaluate(kind, number, np.float64)


def _evaluate(kind: int, number: Any, kept: Any) -> Pass:
    zero = kept(0)

    @inline
    def entry(at, x, c, given, old):
        z = number(place(kind, at, x, c))
        t, upper, first, curve = tails(kind, z, number(at.rise))
        part, share, large = c * kept(t), c * at.unit, on_grid(c, at.magic)
        flat = share * kept(first)
        steep = share * flat
        above, above_steep = part if upper else zero, steep if upper else zero
        coarse, fine = large if upper else zero, c - large if upper else zero
        bend = share * share * share * kept(curve)
        return old, (part, above, coarse, fine, flat, steep, above_steep, bend)

    return pass_of(number, kept, entry, *[zero] * 8, writes=False)


def write(kind: int, number: Any) -> Pass:
    """F of each entry, and Σc·F; z is rounded once, as the last digits of F depend on it."""

    @inline
    def entry(at, x, c, given, old):
        p = weight(kind, number(place(kind, at, x, c)), number(at.rise))
        return p, (number(c) * p,)

    return pass_of(number, np.float64, entry, number(0))


def integrate(kind: int, number: Any) -> Pass:
    """Σ of G less max(z, 0) far up, the scores and the costs of those far up, Σ(G − zF).

    In a row that buys nothing or everything, what costs something adds its score times that weight.
    """
    zero = number(0)

    @inline
    def entry(at, x, c, given, old):
        playing = not deleted(number(x))
        settled = (at.mean == at.mean) & (c > 0)
        inside = playing & (not settled)
        z = number(place(kind, at, x, c)) if inside else zero
        rest, up, entropy = integral(kind, z, number(at.rise))
        share = (1.0 if up else 0.0) if inside else (at.mean if settled & playing else 0.0)
        above, spent = share * x if share > 0 else 0.0, share * c if share > 0 else 0.0
        return old, (rest if inside else zero, above, spent, entropy if inside else zero)

    return pass_of(number, np.float64, entry, zero, 0.0, 0.0, zero, writes=False)


def close(kind: int, number: Any) -> Pass:
    """A row that buys nothing or everything: that weight to what costs something, F(x/T) to what
    does not.
    """

    @inline
    def entry(at, x, c, given, old):
        free = weight(kind, number(x * at.per_t - at.edge), number(at.rise))
        p = number(at.mean) if c > 0 else free
        return number(0) if deleted(number(x)) else p, ()

    return pass_of(number, np.float64, entry)
