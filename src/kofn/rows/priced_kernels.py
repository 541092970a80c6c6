"""Weights of rows with costs from the kernels, and the way back; the array code does the rows that
these gave up on.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from kofn import kernels
from kofn.arrays.kinds import Array, of_torch
from kofn.rows import priced_answers, priced_choice
from kofn.rows.kernel_rows import in_memory
from kofn.rows.priced_given import PricedGiven, with_link


def weights(backend: kernels.PricedKernels, given: PricedGiven) -> tuple[Array, Array]:
    """Return (weights, θ as two floats)."""
    found, theta, lost = backend.weights(*given)
    if lost:
        where = np.isnan(in_memory(theta)[1])
        rows = (in_memory(array)[where] for array in given[:4])
        with np.errstate(all="ignore"):
            in_memory(found)[where] = priced_answers.weights(with_link(rows, given.link))
    return found, theta


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


def _pulled(rows: list[Array], link: Any, cotangent: Array) -> Any:
    leaves = [row.detach().requires_grad_() for row in rows]
    answer = priced_answers.weights(with_link(leaves, link))
    options = {"allow_unused": True, "materialize_grads": True}
    return sys.modules["torch"].autograd.grad(answer, leaves, cotangent, **options)
