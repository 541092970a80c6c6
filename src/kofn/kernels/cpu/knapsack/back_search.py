"""The value of a row with costs, from its θ, and the cotangents of its arguments, from the ones
of its weights.
"""

from __future__ import annotations

import math

from kofn.kernels.contract import BOUNDED
from kofn.kernels.cpu.knapsack import layout
from kofn.kernels.cpu.knapsack.search import pass_for_extremes, pass_over
from kofn.kernels.cpu.runtime.split_row import plain

LEAST_SINGLE, LEAST_DOUBLE = 2.0**-103, 2.0**-970
"""Σc²F′, for costs up to 1, whose terms that matter are all normal numbers."""


@plain
def cotangents(row, of_costs, state):
    """Write the cotangents of the scores, u/T with u = F′(g − ḡc), ḡ = ΣcF′g/Σc²F′, and, if the row
    `of_costs` has an answer, too, of the costs, −θu/T − ḡF; leave the budget's, ḡ, and T's.

    A budget cotangent of NaN says that the row is given up: so are those whose slopes underflow.
    """
    state.in_t = 0.0
    if abs(state.hi) == math.inf:
        free = pass_over(row, layout.STILL)[0]
        if of_costs.out:
            pass_over(of_costs, layout.STILL)
        state.in_budget = 0.0 if free == 0 else math.nan
        return free == 0
    costliest = pass_for_extremes(row, layout.COSTLIEST)[1]
    unit = 1 / costliest if costliest > 0 else 1.0
    state.unit = unit
    sums = pass_over(row, layout.WEIGH)
    weight, product, moment = sums[0], sums[1], sums[2]
    if row.kind in BOUNDED and weight == 0 and state.lo == state.lo:
        weight = 1.0  # in a gap between supports, no entry of positive cost moves
    elif not (weight > (LEAST_SINGLE if row.size == 4 else LEAST_DOUBLE)):
        weight = math.nan
    mean = product / weight * unit
    if not abs(mean) < math.inf:
        state.in_budget = math.nan
        return False
    state.mean = mean
    # As Σcu = 0, any number may stand for θ: that with which c(x − θc) has the mean 0 in F′.
    state.pivot = state.hi + state.lo + state.temperature * (moment / weight * unit)
    sums = pass_over(row, layout.SLOPE)
    rest, in_t = sums[0] / weight * unit, sums[2]
    if abs(sums[0]) > 4 * (2.0**-23 if row.size == 4 else 2.0**-52) * sums[1]:
        state.mean = rest
        pass_over(row, layout.CENTRE)
    state.in_budget = mean + rest
    state.in_t = -in_t * state.per_t
    if of_costs.out:
        state.mean, state.given = state.in_budget, row.out - row.x
        pass_over(of_costs, layout.CHARGE)
    return True


@plain
def value(row, state):
    """Leave S = θB + TΣG(z) as `in_budget`, and its slope in T; as rows/backward.py, without
    differences of large numbers.

    Where nothing or everything is bought, what costs nothing still has a choice.
    """
    closed, state.mean = abs(state.hi) == math.inf, math.nan
    if closed:
        state.mean = 1.0 if state.hi < 0 else 0.0
        state.hi, state.lo = 0.0, 0.0
    sums = pass_over(row, layout.INTEGRATE)
    unspent = 0.0 if closed else state.budget - sums[2]
    chosen = sums[1] + state.temperature * sums[0]
    state.in_budget = unspent * (state.hi + state.lo) + chosen
    state.in_t = sums[3]
