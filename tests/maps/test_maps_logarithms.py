"""log_soft_topk and log_entmax: logarithms where the weights themselves have underflowed."""

import math

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from kofn import entmax, links, log_entmax, log_soft_topk, soft_topk
from support import (
    ENDLESS,
    LINKS,
    ONE_OF_EACH,
    Framework,
    every_link,
    full_but,
    with_gradients,
)

X = np.random.default_rng(5).standard_normal((2, 5)) * 2
K = torch.tensor([1.3, 2.6], dtype=torch.float64, requires_grad=True)
T = torch.tensor([1.3, 0.8], dtype=torch.float64, requires_grad=True)


@every_link
def test_it_is_the_logarithm_of_the_weights(framework, link):
    x = framework.array(X, "float32")
    got = framework.numpy(log_soft_topk(x, 2.5, link=link, temperature=0.7))
    p = framework.numpy(soft_topk(x, 2.5, link=link, temperature=0.7))
    assert np.array_equal(np.isneginf(got), p == 0)
    assert np.exp(got) == pytest.approx(p, abs=2e-6)
    assert np.all(got <= 0)


@pytest.mark.parametrize("alpha", [1.0, 1.05, 1.5, 2.0])
def test_log_entmax(framework, alpha):
    got = framework.numpy(log_entmax(framework.array(X), alpha))
    p = entmax(X, alpha)
    assert np.exp(got) == pytest.approx(p, abs=1e-6)
    if alpha == 1:
        exact = X - X.max(-1, keepdims=True)
        exact = exact - np.log(np.exp(exact).sum(-1, keepdims=True))
        assert got == pytest.approx(exact, abs=1e-5)


@pytest.mark.parametrize("link", ENDLESS)
@with_gradients
def test_it_is_finite_with_its_gradient_where_the_weight_is_not(name, link):
    """A score 300 below the others, in float32: p underflows in all of them."""
    framework = Framework(name)
    if name == "jax" and link != "logistic":
        pytest.skip("the same lines")
    x, v = np.array([0.0, -5.0, -300.0, 3.0]), np.array([0.0, 0.0, 1.0, 0.0])
    exact = Framework("torch")

    def f(x):
        return log_soft_topk(x, 2, link=link, temperature=0.5)

    single = framework.array(x, "float32")
    got = framework.numpy(f(single))
    assert np.all(np.isfinite(got))
    assert framework.numpy(soft_topk(single, 2, link=link, temperature=0.5))[2] == 0
    wanted = log_soft_topk(x, 2, link=link, temperature=0.5)
    assert got == pytest.approx(wanted, rel=1e-5, abs=1e-6)
    (slope,) = framework.vjp(f, (single,), framework.array(v, "float32"))
    (wide,) = exact.vjp(f, (exact.array(x),), exact.array(v))
    assert np.linalg.norm(slope - wide) <= 1e-4 * np.linalg.norm(wide)


@pytest.mark.parametrize("link", ["logistic", pytest.param("laplace", marks=pytest.mark.full)])
@pytest.mark.parametrize("size", [1e20, 1e30])
@with_gradients
def test_scores_beyond_every_links_reach_keep_their_logarithm(name, size, link):
    """It stopped at 1.2e18 there, and JAX gave that score, θ and T no gradient."""
    framework = Framework(name)
    x, t = framework.array([[0.5, -size, 1.0, -0.3]], "float32"), framework.array([0.5], "float32")

    def f(x, t):
        return log_soft_topk(x, 1, link=link, temperature=t)[..., 1]

    assert framework.numpy(f(x, t)) == pytest.approx(-size / 0.5, rel=1e-6)
    in_x, in_t = framework.vjp(f, (x, t), framework.array([1.0], "float32"))
    near = Framework("torch")
    wide = near.vjp(
        f, (near.array([[0.5, -50.0, 1.0, -0.3]]), near.array([0.5])), near.array([1.0])
    )
    assert in_x == pytest.approx(wide[0], rel=1e-5)
    assert in_t == pytest.approx(size / 0.25, rel=1e-6)


def test_where_the_logarithm_itself_is_too_large_it_stays_finite():
    x = torch.tensor([0.5, -1e30, 1.0], requires_grad=True)
    value = log_soft_topk(x, 1, link="normal")[1]  # −z²/2
    assert -math.inf < value < -1e35
    (slope,) = torch.autograd.grad(value, x)
    assert slope.isfinite().all()


@pytest.mark.parametrize(
    "link",
    full_but(ONE_OF_EACH, (*LINKS, links.entmax(1.05))),
)
def test_derivatives_are_exact_to_the_second(link):
    def f(x, k, t):
        log_p = log_soft_topk(x, k, link=link, temperature=t)
        return torch.where(torch.isinf(log_p), 0.0, log_p)

    x = torch.tensor(X, requires_grad=True)
    assert gradcheck(f, (x, K, T), check_forward_ad=True, check_batched_grad=True, fast_mode=True)
    assert gradgradcheck(f, (x, K, T), check_fwd_over_rev=True, fast_mode=True)
    # In scores and temperature alone eager PyTorch has a closed form of its own.
    assert gradcheck(lambda x, t: f(x, K.detach(), t), (x, T), check_batched_grad=True)
    assert gradgradcheck(lambda x, t: f(x, K.detach(), t), (x, T), fast_mode=True)


def test_where_the_weight_is_0_the_gradient_is_0():
    x = torch.tensor([3.0, 2.8, 0.0, -math.inf], requires_grad=True)
    for function in (lambda x: log_entmax(x), lambda x: log_soft_topk(x, 1, link="linear")):
        log_p = function(x)
        assert torch.equal(torch.isneginf(log_p), torch.tensor([False, False, True, True]))
        (slope,) = torch.autograd.grad(log_p[:2] @ torch.tensor([1.0, -2.0]), x)
        assert torch.isfinite(slope).all()
        assert not slope[2:].any()
        (slope,) = torch.autograd.grad(function(x)[2:].clamp(min=-1).sum(), x)
        assert not slope.any()


def test_edges_of_the_logarithms(framework):
    inf, nan = math.inf, math.nan
    x = framework.array([[inf, 1, inf], [nan, 1, 2], [-inf] * 3, [5, -inf, -inf]])
    got = framework.numpy(log_soft_topk(x, 1))
    half = math.log(0.5)
    assert got[[0, 2, 3]] == pytest.approx(
        np.array([[half, -inf, half], [-inf] * 3, [0, -inf, -inf]]), abs=1e-6
    )
    assert np.all(np.isnan(got[1]))
    assert np.all(framework.numpy(log_soft_topk(x[3:], 0)) == -inf)
    assert np.all(framework.numpy(log_soft_topk(framework.array(X), 5)) == 0)
    half_precision = log_soft_topk(framework.array(X, "float16"), 2)
    assert framework.dtype(half_precision) == "float16"


def test_they_compile_and_map():
    x = torch.tensor(X)
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x: log_soft_topk(x, 2, temperature=0.5), fullgraph=True, backend="aot_eager"
    )
    want = log_soft_topk(x, 2, temperature=0.5)
    assert torch.allclose(compiled(x), want)
    assert torch.allclose(torch.func.vmap(lambda x: log_soft_topk(x, 2, temperature=0.5))(x), want)


@pytest.mark.parametrize("apart", [50.0, 56.0, 60.0, 70.0])
def test_second_derivatives_in_k_are_right_where_slopes_are_tiny(apart):
    """Two scores ±z from θ, k = 1: W = 2φ(z), and with h = φ/F at −z, ∂² log p/∂x∂k = −h²/(4φ)."""
    x = torch.tensor([apart, 0.0], dtype=torch.float64, requires_grad=True)
    k, t = (torch.tensor(1.0, dtype=torch.float64, requires_grad=True) for _ in "kt")
    low = log_soft_topk(x, k, link="normal", temperature=t)[1]
    in_x, in_k, in_t = torch.autograd.grad(low, (x, k, t), create_graph=True)
    z = apart / 2
    hazard = z + 1 / z - 2 / z**3  # of φ/F in the far tail
    slope = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    (mixed,) = torch.autograd.grad(in_x[1], k, retain_graph=True)
    wanted = -(hazard**2) / (4 * slope)
    assert mixed.item() == pytest.approx(wanted, rel=1e-4)
    (of_t,) = torch.autograd.grad(in_t, k, retain_graph=True)
    assert math.isfinite(of_t)
    (again,) = torch.autograd.grad(in_k, x)
    assert again[1].item() == pytest.approx(mixed.item(), rel=1e-9)
