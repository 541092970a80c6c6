"""Weights of rows with costs from the kernels, and the way back; the array code does the rows that
these gave up on.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

from kofn import kernels
from kofn.arrays.kinds import Array, deleted, of_torch
from kofn.rows import priced_answers, priced_choice
from kofn.rows.kernel_rows import in_memory
from kofn.rows.priced_given import PricedGiven, with_link

FLAT = 1e-30  # a Σc²F′ that has underflowed, or nearly
LARGEST = 2.0**28  # θc in units of T, of which float64 leaves an error of 2⁻²⁵


def weights(backend: kernels.PricedKernels, given: PricedGiven) -> tuple[Array, Array]:
    """Return (weights, θ as two floats)."""
    found, theta, lost = backend.weights(*given)
    if lost:
        where = np.isnan(in_memory(theta)[1])
        rows = (in_memory(array)[where] for array in given[:4])
        with np.errstate(all="ignore"):
            in_memory(found)[where] = priced_answers.weights(with_link(rows, given.link))
    return found, theta


def value(backend: kernels.PricedKernels, given: PricedGiven, theta: Array) -> Array:
    """Return the values and their slopes in the temperature, (2, …), from θ as two floats.

    Those of rows that have none are the array code's, but their slopes are not.
    """
    x, costs, budget, temperature, link = given
    found = backend.values(x, costs, theta, budget, temperature, link)
    where = np.isnan(in_memory(theta)[1])
    if where.any():
        rows = (in_memory(array)[where] for array in given[:4])
        with np.errstate(all="ignore"):
            in_memory(found)[0, where] = priced_answers.value(with_link(rows, link))
    return found


def fill(backend: kernels.PricedKernels, given: PricedGiven) -> Array:
    """Return `priced_choice.fill`, for a link with a number for alpha."""
    found, lost = backend.fill(*given[:4])
    if lost.any():
        where = lost.reshape(given.budget.shape) != 0
        rows = (in_memory(array)[where] for array in given[:4])
        with np.errstate(all="ignore"):
            in_memory(found)[where] = priced_choice.fill(with_link(rows, given.link))
    return found


def gradients(
    backend: kernels.PricedKernels,
    given: PricedGiven,
    cotangent: Array,
    theta: Array,
    of_costs: bool,
) -> tuple[Array, Array | None, Array]:
    """Return the cotangents of the scores, of the costs if wanted, and of budget and T, (2, …)."""
    x, costs, budget, temperature, link = given
    in_x, in_costs, in_rows, lost = backend.gradients(
        x, costs, cotangent, theta, budget, temperature, link, of_costs
    )
    if lost:
        where = in_rows[0].isnan()
        rows = [array[where] for array in given[:4]]
        pulled = of_torch("state").recording(_pulled, rows, link, cotangent[where])
        in_x[where], in_rows[0][where], in_rows[1][where] = pulled[0], pulled[2], pulled[3]
        if in_costs is not None:
            in_costs[where] = pulled[1]
    return in_x, in_costs, in_rows


def theta(backend: kernels.PricedKernels, given: PricedGiven) -> tuple[Array, Array]:
    """Return (θ, θ as two floats); where these are not finite, θ is that of the array code."""
    pair, _ = backend.price(*given)
    found = pair[0, ...] if isinstance(pair, np.ndarray) else pair[0].clone()
    where = ~np.isfinite(in_memory(pair)).all(0)
    if where.any():
        rows = (in_memory(array)[where] for array in given[:4])
        with np.errstate(all="ignore"):
            in_memory(found)[where] = priced_answers.theta(with_link(rows, given.link))
    return found[()], pair


def slopes_of_theta(
    given: PricedGiven, cotangent: Array, pair: Array, of_costs: bool
) -> tuple[Array, ...]:
    """Return the cotangents of scores, costs, budget and T: w = F′ and p = F at z = (x − θc)/T
    give, by Σ c·p = B, dθ/dx = cw/Σc²w, dθ/dc = (Tp − θcw)/Σc²w, dθ/dB = −T/Σc²w and
    dθ/dT = −Σcwz/Σc²w.
    """
    x, costs, t = (array.double() for array in (given.scores, given.costs, given.temperature))
    price, t = pair.double().sum(0)[..., None], t[..., None]
    at = (x - price * costs) / t
    z = at - given.link.edge
    spent = costs * given.link.pdf(z)
    steep = (costs * spent).sum(-1, keepdim=True)
    of_cost = cotangent[..., None] / steep
    in_costs = (t * given.link.cdf(z) - price * spent) * of_cost if of_costs else None
    in_x = spent * of_cost
    in_t = -(in_x * at.where(in_x != 0, 0.0)).sum(-1)
    found = in_x, in_costs, (-t * of_cost)[..., 0], in_t
    large = ((price / t)[..., 0] * costs.amax(-1)).abs() > LARGEST
    lost = ~pair.isfinite().all(0) | ~(steep[..., 0] > FLAT) | large
    return _mended(priced_answers.theta, given, cotangent, lost, found)


def slopes_of_value(
    given: PricedGiven, cotangent: Array, weights: Array, pair: Array, of_t: Array
) -> tuple[Array, ...]:
    """Return the cotangents of scores, costs, budget and T: p, −θp, θ and −ΣΩ(p)."""
    in_x = cotangent[..., None] * weights
    found = in_x, -pair[0][..., None] * in_x, cotangent * pair[0], cotangent * of_t
    return _mended(priced_answers.value, given, cotangent, ~pair.isfinite().all(0), found)


def _mended(
    function: Any, given: PricedGiven, cotangent: Array, lost: Array, found: Any
) -> tuple[Any, ...]:
    """Return cotangents in the dtype of the scores, with those of the array code where lost."""
    found = [each if each is None else each.to(given.scores.dtype) for each in found]
    if lost.any():
        rows = [array[lost] for array in given[:4]]
        pulled = of_torch("state").recording(_pulled, rows, given.link, cotangent[lost], function)
        for each, right in zip(found, pulled, strict=False):
            if each is not None:
                each[lost] = right
    return tuple(found)


def _pulled(
    rows: list[Array], link: Any, cotangent: Array, function: Any = priced_answers.weights
) -> Any:
    """Return the cotangents of the rows in the dtype of the scores, from float64."""
    x, like = rows[0].masked_fill(deleted(rows[0]), -math.inf), rows[0]
    leaves = [row.detach().double().requires_grad_() for row in (x, *rows[1:])]
    answer = function(with_link(leaves, link))
    options = {"allow_unused": True, "materialize_grads": True}
    found = sys.modules["torch"].autograd.grad(answer, leaves, cotangent.double(), **options)
    return [slope.to(like.dtype) for slope in found]
