"""Estimators of ∇E f(S): their expectation by summing over every sample, not by drawing some."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import oracles_subset as oracles
from kofn import KSubset, estimators

Y = torch.tensor([0.5, -1.0, 0.3, 1.2, 0.0], dtype=torch.float64)
B = torch.tensor([0.2, -0.4, 1.0, 0.7, -1.5], dtype=torch.float64)
K = 2
EVERY = oracles.enumerate_subsets(Y.numpy(), K)
SUBSETS = torch.tensor(EVERY.subsets.astype(float))
P = torch.tensor(EVERY.probabilities.astype(float))


def cost(s):
    return ((s - B) ** 2).sum(-1)


def exact_gradient(f):
    y = Y.clone().requires_grad_()
    value = (KSubset(y, K).log_prob(SUBSETS).exp() * f(SUBSETS)).sum()
    return torch.autograd.grad(value, y)[0]


def slope(function):
    y = Y.clone().requires_grad_()
    return torch.autograd.grad(function(KSubset(y, K)), y)[0]


def test_the_score_function_has_no_bias():
    one = [
        slope(lambda c, s=s: estimators.score_function(cost(s)[None], c.log_prob(s)[None]))
        for s in SUBSETS
    ]
    assert torch.allclose((P[:, None] * torch.stack(one)).sum(0), exact_gradient(cost), atol=1e-12)


def test_leave_one_out_has_no_bias_and_less_variance():
    pairs = list(itertools.product(range(len(P)), repeat=2))
    p = torch.tensor([P[i] * P[j] for i, j in pairs])
    found = {}
    for estimator in (estimators.leave_one_out, estimators.score_function):
        slopes = torch.stack(
            [
                slope(lambda c, s=SUBSETS[[i, j]], e=estimator: e(cost(s), c.log_prob(s)))
                for i, j in pairs
            ]
        )
        mean = (p[:, None] * slopes).sum(0)
        assert torch.allclose(mean, exact_gradient(cost), atol=1e-12)
        found[estimator] = (p[:, None] * (slopes - mean) ** 2).sum()
    assert found[estimators.leave_one_out] < 0.5 * found[estimators.score_function]


def test_marginals_through_is_exact_where_f_is_linear_and_the_jacobian_elsewhere():
    generator = torch.Generator().manual_seed(0)

    def linear(s):
        return s @ B

    got = slope(lambda c: linear(estimators.marginals_through(c, (), generator)))
    assert torch.allclose(got, exact_gradient(linear), atol=1e-12)

    y = Y.clone().requires_grad_()
    sample = estimators.marginals_through(KSubset(y, K), (3,), generator)
    assert set(sample.detach().unique().tolist()) == {0, 1}
    assert torch.equal(sample.sum(-1), torch.full((3,), 2.0, dtype=torch.float64))
    (got,) = torch.autograd.grad(cost(sample).sum(), y)
    wanted = torch.tensor(EVERY.covariance.astype(float)) @ (2 * (sample.detach() - B)).sum(0)
    assert torch.allclose(got, wanted, atol=1e-12)


def test_a_gradient_of_f_itself_is_kept():
    scale = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    log_p = KSubset(Y, K).log_prob(SUBSETS)
    for estimator in (estimators.score_function, estimators.leave_one_out):
        value = estimator(scale * cost(SUBSETS), log_p)
        (got,) = torch.autograd.grad(value, scale)
        assert got.item() == pytest.approx(cost(SUBSETS).mean().item())


def test_estimators_on_jax():
    y, subsets = jnp.asarray(Y.numpy()), jnp.asarray(SUBSETS.numpy()[:4])
    values = jnp.asarray(cost(SUBSETS[:4]).numpy())
    got = jax.grad(lambda y: estimators.leave_one_out(values, KSubset(y, K).log_prob(subsets)))(y)
    wanted = slope(lambda c: estimators.leave_one_out(cost(SUBSETS[:4]), c.log_prob(SUBSETS[:4])))
    assert np.allclose(got, wanted.numpy(), atol=1e-12)


def test_wrong_arguments():
    with pytest.raises(ValueError, match=r"values must have the shape of log_prob, \(3,\)"):
        estimators.score_function(np.zeros(4), np.zeros(3))
    with pytest.raises(ValueError, match="at least 2 samples"):
        estimators.leave_one_out(np.zeros(1), np.zeros(1))
    with pytest.raises(TypeError, match="values is a Tensor and log_prob a ndarray"):
        estimators.score_function(torch.zeros(3), np.zeros(3))
