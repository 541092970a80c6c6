"""Derivatives of choices between scores so far from θ that z cannot tell them apart.

At θ = −5·10⁸, the scores 0 and log 3 have the same z in float32. Their slopes are as 3 to 1 all the
same, and so are the derivatives: those of θ in the scores, and those of the weights in k.
"""

from __future__ import annotations

import math
from functools import cache

import jax
import numpy as np
import pytest
import torch

import kofn
from pairs import pairwise
from support import ENDLESS, GRADIENT, SYMMETRIC

THIRD = math.log(3)
# Scores and k; dp/dk = dθ/dx, the same numbers, of the links whose tails are e^−|z| and normal.
ROWS = {
    "masked": ([THIRD, 0.0, -1e9], 2, [0.125, 0.375, 0.5], [0.0, 0.5, 0.5]),
    "winner": ([0.0, THIRD, 1e9], 1, [0.125, 0.375, 0.5], [0.0, 0.5, 0.5]),
    "both": ([-2e9, 0.0, 1e9], 2, [0.5, 0.5, 0.0], [0.5, 0.5, 0.0]),
    "beyond": ([0.0, THIRD, 1e17], 1, [0.125, 0.375, 0.5], [0.0, 0.5, 0.5]),
    "capped": ([0.0, THIRD, 3e25], 1, [0.125, 0.375, 0.5], None),
}
CASES = [
    (link, row)
    for link in SYMMETRIC
    for row, parts in ROWS.items()
    if parts[3] or link != "normal"  # θ of the normal link is a constant at |z| > 3e17
]


def expected(link: str, row: str) -> tuple[list, int, list]:
    x, k, exponential, normal = ROWS[row]
    return x, k, normal if link == "normal" else exponential


def torch_derivatives(x, k, link, dtype, transform):
    scores, count = torch.tensor(x, dtype=dtype), torch.tensor(float(k), dtype=dtype)

    def weights(count):
        return kofn.soft_topk(scores, count, link=link)

    def threshold(scores):
        return kofn.soft_topk_threshold(scores, k, link=link)

    if transform == "eager":
        jacobian = torch.autograd.functional.jacobian
        return jacobian(weights, count).numpy(), jacobian(threshold, scores).numpy()
    derivative = getattr(torch.func, transform)
    return derivative(weights)(count).numpy(), derivative(threshold)(scores).numpy()


@pairwise(transform=["eager", "jacfwd", "jacrev"], dtype=["float32", "float64"], case=CASES)
def test_slopes_keep_the_ratios_that_scores_give_on_torch(case, dtype, transform):
    link, row = case
    x, k, right = expected(link, row)
    in_k, in_x = torch_derivatives(x, k, link, getattr(torch, dtype), transform)
    np.testing.assert_allclose(in_k, right, rtol=GRADIENT["float32"], atol=1e-9)
    np.testing.assert_allclose(in_x, right, rtol=GRADIENT["float32"], atol=1e-9)


@cache
def jax_derivatives(link):
    """Compiled once for all rows."""
    in_k = jax.jacfwd(lambda k, x: kofn.soft_topk(x, k, link=link))
    in_x = jax.grad(lambda x, k: kofn.soft_topk_threshold(x, k, link=link))
    return jax.jit(in_k), jax.jit(in_x)


@pytest.mark.parametrize(("link", "row"), CASES)
def test_slopes_keep_the_ratios_that_scores_give_on_jax(link, row):
    x, k, right = expected(link, row)
    scores, k = jax.numpy.asarray(x, dtype="float32"), jax.numpy.float32(k)
    of_k, of_x = jax_derivatives(link)
    in_k, in_x = of_k(k, scores), of_x(scores, k)
    np.testing.assert_allclose(in_k, right, rtol=GRADIENT["float32"], atol=1e-9)
    np.testing.assert_allclose(in_x, right, rtol=GRADIENT["float32"], atol=1e-9)


@pytest.mark.parametrize("far", [1e17, 3e20, 3e30])
@pytest.mark.parametrize("link", ENDLESS)
def test_no_derivative_is_nan_where_z_is_capped(link, far):
    def theta(x, k, t):
        return kofn.soft_topk_threshold(x, k, temperature=t, link=link)

    arguments = (torch.tensor([0.0, 1.0, far]), torch.tensor(1.0), torch.tensor(1.0))
    for transform in (torch.func.jacfwd, torch.func.jacrev):
        for derivative in transform(theta, argnums=(0, 1, 2))(*arguments):
            assert not derivative.isnan().any()
