"""A row with a NaN has gradients that are NaN, by kernels and array code, as those of softmax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import kofn
from kofn import losses

X = np.random.default_rng(0).standard_normal((3, 12))
X[1, 4], X[1, 7] = np.nan, -np.inf
LIVE = np.arange(12) != 7
TARGET = np.tile(np.arange(12) < 4, (3, 1))
LINKS = ("logistic", "laplace", "normal", "exponential", "linear", "entmax")
MAPS = {
    **{
        link: lambda x, k, t, link=link: kofn.soft_topk(x, k, temperature=t, link=link)
        for link in LINKS
    },
    "log": lambda x, k, t: kofn.log_soft_topk(x, k, temperature=t)[..., LIVE],
    "threshold": lambda x, k, t: kofn.soft_topk_threshold(x, k, temperature=t),
    "sum": lambda x, k, t: kofn.soft_topk_sum(x, k, temperature=t),
    "softmax": lambda x, k, t: kofn.softmax(x, temperature=t) * k[:, None],
    "loss": lambda x, k, t: (
        losses.topk_loss(x, torch.as_tensor(TARGET), temperature=t, reduction="none") * k
    ),
    "knapsack": lambda x, k, t: kofn.soft_knapsack(x, torch.ones(12).double(), k, temperature=t),
    "marginals": lambda x, k, t: (
        kofn.KSubset(x / t[:, None], 4).marginals()[..., LIVE] * k[:, None]
    ),
    "subset": lambda x, k, t: kofn.KSubset(x / t[:, None], 4).log_prob(like_x(TARGET)) * k,
}


def like_x(values):
    return torch.as_tensor(values, dtype=torch.float64)


@pytest.fixture(params=["on", "reference"], autouse=True)
def kernels(request, monkeypatch):
    monkeypatch.setenv("KOFN_KERNELS", request.param)


def check(slopes):
    of_scores, *others = (np.asarray(each) for each in slopes)
    assert np.isnan(of_scores[1, LIVE]).all()
    assert of_scores[1, 7] == 0
    assert np.isfinite(of_scores[[0, 2]]).all()
    for slope in others:
        assert np.isnan(slope[1])
        assert np.isfinite(slope[[0, 2]]).all()


@pytest.mark.parametrize("name", MAPS)
def test_gradients_of_a_row_with_a_nan(name):
    arguments = torch.as_tensor(X), torch.full((3,), 4.0), torch.ones(3)
    arguments = [each.clone().double().requires_grad_() for each in arguments]
    MAPS[name](*arguments).sum().backward()
    check(each.grad for each in arguments)


@pytest.mark.parametrize("link", LINKS)
def test_gradients_of_logarithms_of_a_row_with_a_nan(link):
    x = torch.as_tensor(X).requires_grad_()
    t = torch.ones(3, dtype=torch.float64, requires_grad=True)
    log_p = kofn.log_soft_topk(x, 4, temperature=t, link=link)
    log_p.backward(torch.as_tensor(X).nan_to_num(1.0, neginf=1.0))
    check((x.grad, t.grad))


def test_gradients_and_tangents_of_a_row_with_a_nan_in_jax():
    def total(x, k, t):
        return kofn.soft_topk(x, k, temperature=t).sum()

    arguments = jnp.asarray(X, "float32"), jnp.full(3, 4.0), jnp.ones(3)
    check(jax.grad(total, (0, 1, 2))(*arguments))
    tangents = tuple(map(jnp.ones_like, arguments))
    _, moved = jax.jvp(lambda *given: kofn.soft_topk(*given[:2]), arguments, tangents)
    assert np.isnan(np.asarray(moved)[1, LIVE]).all()
