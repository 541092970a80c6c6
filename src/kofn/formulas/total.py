"""Weights whose sum is k, though each has been rounded.

Each weight is F of a rounded number, which is rounded again. Where many scores are equal, these
errors are equal, too, and the sum of the weights is off by as much as each of them. So the sum is
held against k, and where it is off, the weights take one more Newton step. docs/behaviour.md
derives the bound that follows.
"""

from __future__ import annotations

from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.flow import barrier, only_if
from kofn.arrays.kinds import Array, dtype_name, namespace
from kofn.formulas.implicit import Placed
from kofn.rows.settled import Rows
from kofn.solver.reductions import Reductions, sums_of

MISSED = {"float32": 2.5 * 2.0**-23, "float64": 5e-14}
"""The part of k by which the sum may miss it; the kernels' is the same."""


def mended(chosen: Array, p: Placed, rows: Rows) -> Array:
    """Return weights with Σp = k, with the derivatives of those given."""
    xp, over = namespace(chosen), p.over
    fixed, k = stop_gradient(chosen), stop_gradient(rows.k)
    rest = missing(fixed, k, over)
    off = (xp.abs(rest) > MISSED[dtype_name(fixed)] * k) & ~(p.none | p.every | p.has_nan)

    def step_to_k() -> Array:
        link, inside = p.link.map_alpha(stop_gradient), rows.live & over.expand(off)
        slope = xp.where(inside, link.pdf(xp.where(inside, stop_gradient(p.z), 0.0)), 0.0)
        weight = over.sum(slope)
        # A longer step is none for the weights: their slopes change on its way.
        usable = off & (xp.abs(rest) <= weight / 128) & (weight < float("inf"))
        step = xp.where(usable, rest, 0.0) / xp.where(usable, weight, 1.0)
        if link.alpha is not None:
            # Above alpha 2, F′ = p^(2 − alpha) has no bound: weights next to 0 would take it all.
            bend = (link.alpha - 2) * slope * over.expand(xp.abs(step))
            usable = usable & (over.count(bend > fixed / 8) == 0)
            step = xp.where(usable, step, 0.0)
        slope = xp.where(over.expand(usable), slope, 0.0)
        return xp.clip(fixed + slope * over.expand(step), 0.0, 1.0) - fixed

    return chosen + only_if(off, step_to_k, xp.zeros_like(fixed))


def missing(weights: Array, k: Array, over: Reductions) -> Array:
    """Return k − Σp, true to the last places of k.

    Each weight is split into a multiple of a unit in the last place of 2k and a rest. The sum of
    the multiples is exact, and the sum of the rests so small that its rounding does not matter.
    """
    grid = over.expand(2 * k)
    (raised,) = barrier(weights + grid)
    coarse = raised - grid
    much, little = sums_of(over, coarse, weights - coarse)
    return (k - much) - little
