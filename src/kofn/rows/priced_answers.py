"""Answers of rows with costs whose special cases are not resolved yet."""

from __future__ import annotations

from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.kinds import Array
from kofn.rows import answers, implicit
from kofn.rows.priced_choice import fill
from kofn.rows.priced_given import PricedGiven, priced_rows
from kofn.solver.price import Price
from kofn.solver.reductions import DENSE, Reductions


def weights(given: PricedGiven, over: Reductions = DENSE, found: Price | None = None) -> Array:
    return answers.weights(priced_rows(given, over), over, found)


def hard_weights(given: PricedGiven) -> Array:
    """Return the entries that `fill` buys, as 0 and 1, with the gradient of the weights."""
    soft = weights(given)
    return fill(given) + (soft - stop_gradient(soft))


def theta(given: PricedGiven, over: Reductions = DENSE) -> Array:
    return implicit.theta(priced_rows(given, over), over)


def value(given: PricedGiven, over: Reductions = DENSE) -> Array:
    return answers.value(priced_rows(given, over), over)
