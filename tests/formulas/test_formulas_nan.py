"""A row with a NaN has gradients that are NaN, by kernels and array code, as those of softmax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import kofn
from kofn import losses
from kofn.arrays.operations import greatest, least
from support import LINKS

X = np.random.default_rng(0).standard_normal((3, 12))
X[1, 4], X[1, 7] = np.nan, -np.inf
LIVE = np.arange(12) != 7
TARGET = np.tile(np.arange(12) < 4, (3, 1))
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


@pytest.mark.parametrize("shape", [(4, 7), (512, 64), (6, 1000), (3, 9001)])
def test_a_nan_is_the_greatest_and_the_least_of_a_row_in_jax(shape):
    """XLA's maximum loses it, by the shape of an array and the processor."""
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    wanted = x.max(-1), x.min(-1)
    x[2, shape[1] // 2] = wanted[0][2] = wanted[1][2] = np.nan
    for found in (greatest, least), (jax.jit(greatest), jax.jit(least)):
        for function, answer in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(function(jnp.asarray(x)), answer)


def test_the_temperature_for_a_row_with_a_nan_is_that_of_numpy_in_jax():
    x = np.random.default_rng(0).standard_normal((6, 1000)).astype("float32")
    x[1, 500] = np.nan
    found = kofn.temperature_for(jnp.asarray(x), 3, gap=0.2, per_row=True)
    np.testing.assert_allclose(found, kofn.temperature_for(x, 3, gap=0.2, per_row=True), rtol=1e-4)


@pytest.mark.parametrize(
    "name",
    [
        "logistic",
        "knapsack",
        *(pytest.param(n, marks=pytest.mark.full) for n in ("linear", "softmax")),
    ],
)
def test_a_row_with_a_nan_among_many_entries_in_jax(name):
    """XLA loses the NaN among so many."""
    x = np.random.default_rng(0).standard_normal((6, 1000)).astype("float32")
    x[1, 500] = np.nan
    maps = {**MAPS, "knapsack": lambda x, k, t: kofn.soft_knapsack(x, np.full(1000, 2, "f"), k)}
    arguments = jnp.asarray(x), jnp.full(6, 4.0), jnp.ones(6)
    of_scores = jax.grad(lambda *given: maps[name](*given).sum())(*arguments)
    for found in (maps[name](*arguments), of_scores):
        assert np.isnan(found[1]).all()
        assert np.isfinite(np.delete(found, 1, 0)).all()
