"""Coins, beside torch's, at their ends, and as the two categories they are."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from kofn import Bernoulli, Categorical
from test_subsets_sampling import chi_square, rng_of

INF = math.inf
Y = np.array([1.2, -0.3, 0.0, -INF, INF, 800.0, math.nan])


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_heads_come_as_often_as_they_should(framework):
    draws = 20_000
    drawn = framework.numpy(Bernoulli(framework.array(Y)).sample(draws, rng_of(framework)))
    assert np.isnan(drawn[:, 6]).all()
    assert np.all(drawn[:, 3:6] == [0, 1, 1])
    for heads, y in zip(drawn.sum(0)[:3], Y, strict=False):
        p = 1 / (1 + math.exp(-y))
        expected = draws * np.array([1 - p, p])
        assert chi_square(np.array([draws - heads, heads]), expected) < 4


def test_coins_are_two_categories(framework):
    y, other = Y[:6], np.array([0.4, 0.4, -INF, 0.4, INF, 800.0])
    two = [np.stack([a, np.zeros(6)], -1) for a in (y, other)]
    coin, pair = Bernoulli(framework.array(y)), Categorical(framework.array(two[0]))
    for name in ("entropy", "probs"):
        got = framework.numpy(getattr(coin, name)())
        wanted = framework.numpy(getattr(pair, name)())
        assert np.allclose(got, wanted if name == "entropy" else wanted[:, 0], atol=1e-15)
    heads = np.array([[1.0] * 6, [0.0] * 6])
    got = framework.numpy(coin.log_prob(framework.array(heads)))
    wanted = pair.log_prob(framework.array(np.stack([heads, 1 - heads], -1)))
    assert np.allclose(got, framework.numpy(wanted), atol=1e-15)
    got = framework.numpy(coin.kl(Bernoulli(framework.array(other))))
    wanted = framework.numpy(pair.kl(Categorical(framework.array(two[1]))))
    assert np.allclose(got, wanted, atol=1e-14)
    assert framework.numpy(coin.mode()).tolist() == [1, 0, 0, 0, 1, 1]
    assert np.isnan(framework.numpy(coin.log_prob(framework.array([0.5] * 6)))).all()


def test_noise_given_the_side_has_the_law_of_noise_that_made_it(framework):
    y, draws = np.array([1.2, -0.3, -4.0]), 20_000
    coins = Bernoulli(framework.array(y))
    sides = coins.sample(draws, rng_of(framework, 1))
    noisy = coins.perturb_given(sides, rng_of(framework, 2))
    assert np.array_equal(framework.numpy(coins.choose(noisy)), framework.numpy(sides))
    noise = framework.numpy(noisy) - y
    shares = np.array([0.05, 0.3, 0.5, 0.7, 0.95])
    wanted = np.log(shares) - np.log1p(-shares)
    assert np.allclose(np.quantile(noise, shares, axis=0), wanted[:, None], atol=0.12)


def test_gradients():
    rng = np.random.default_rng(0)
    y, u = (torch.tensor(rng.standard_normal(4), requires_grad=True) for _ in range(2))
    sides = torch.tensor([1.0, 0.0, 1.0, 0.0], dtype=torch.float64)
    for function, leaves in (
        (lambda y: Bernoulli(y).log_prob(sides), (y,)),
        (lambda y: Bernoulli(y).entropy(), (y,)),
        (lambda y, u: Bernoulli(y).kl(Bernoulli(u)), (y, u)),
        (lambda y: Bernoulli(y).perturb_given(sides, generator()), (y,)),
        (lambda y: Bernoulli(y).relax(Bernoulli(y).perturb((), generator()), 0.5), (y,)),
    ):
        assert gradcheck(function, leaves, check_forward_ad=True)
        assert gradgradcheck(function, leaves, fast_mode=True)
    coins = Bernoulli(y)
    noisy = coins.perturb_given(sides, generator())
    (wanted,) = torch.autograd.grad(noisy.sum(), y)
    (got,) = torch.autograd.grad(coins.conditioned(noisy.detach()).sum(), y)
    assert torch.allclose(got, wanted)


def test_certain_coins_have_gradient_0():
    y = torch.tensor([INF, -INF, 800.0, -800.0], dtype=torch.float64, requires_grad=True)
    coins = Bernoulli(y)
    sides = coins.sample((), generator())
    for answer in (
        coins.probs(),
        coins.entropy(),
        coins.relax(coins.perturb((), generator()), 0.5),
        coins.relax(coins.perturb_given(sides, generator()), 0.5),
        coins.log_prob(sides),
    ):
        assert torch.equal(torch.autograd.grad(answer.sum(), y)[0], torch.zeros(4).double())


def test_to_exclude_what_is_hardly_possible_costs_infinity(framework):
    """As for two categories: P = e^−800 is not 0, though a float says so."""
    coins = Bernoulli(framework.array([-800.0, 800.0, -INF, math.nan]))
    other = Bernoulli(framework.array([-INF, INF, -INF, INF]))
    assert np.array_equal(framework.numpy(coins.kl(other)), [INF, INF, 0, math.nan], equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_temperatures_at_their_ends(dtype):
    """The smallest give the side itself, with gradient 0; those that are none give NaN."""
    z = torch.tensor([0.3, -1.0, 1e6, INF, -INF], dtype=dtype, requires_grad=True)
    v = torch.arange(1.0, 6.0, dtype=dtype)
    for number in (1e-30, 1e-44, 1e-320):
        for temperature in (number, torch.full((5,), number, dtype=dtype, requires_grad=True)):
            if torch.is_tensor(temperature) and not temperature.detach().all():
                continue  # rounds to 0, which is no temperature
            weights = Bernoulli(z).relax(z, temperature)
            assert weights.tolist() == [1, 0, 1, 1, 0]
            leaves = [z] if isinstance(temperature, float) else [z, temperature]
            for slope in torch.autograd.grad(weights, leaves, v):
                assert torch.equal(slope, torch.zeros(5, dtype=dtype))
    wrong = torch.tensor([0.0, -1.0, math.nan, INF, 1.0], dtype=dtype)
    assert Bernoulli(z).relax(z, wrong).isnan().tolist() == [True] * 4 + [False]
    z, t = (torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in ([0.3, -2.0], 0.7))
    assert gradcheck(Bernoulli(z).relax, (z, t), check_forward_ad=True)
    assert gradgradcheck(Bernoulli(z).relax, (z, t), fast_mode=True)
    with pytest.raises(ValueError, match=r"temperature has shape \(4, 1\)"):
        Bernoulli(z).relax(z, torch.ones(4, 1))
    with pytest.raises(TypeError, match="temperature is a ndarray"):
        Bernoulli(z).relax(z, np.ones(2))


def test_half_precision_jax_and_errors():
    half = Bernoulli(torch.zeros(3, dtype=torch.bfloat16))
    assert half.sample((), generator()).dtype == torch.bfloat16
    assert half.entropy().dtype == torch.float32
    for dtype in (torch.bfloat16, torch.float16):
        assert half.relax(torch.zeros(3, dtype=dtype), 0.5).tolist() == [0.5] * 3
    draw = jax.jit(lambda coins, key: coins.sample((2,), key).sum() + coins.entropy().sum())
    assert np.isfinite(draw(Bernoulli(jnp.zeros(3)), jax.random.key(0)))
    cold, y = jnp.float32(1e-30), jnp.float32([0.5])
    assert jax.grad(lambda t: Bernoulli(y).relax(y, t).sum())(cold) == 0
    assert Bernoulli(np.zeros((2, 2))).support(None).shape == (16, 2, 2)
    assert Bernoulli(np.zeros((2, 2))).support(1).tolist() == [
        [[0, 0]],
        [[0, 1]],
        [[1, 0]],
        [[1, 1]],
    ]
    with pytest.raises(ValueError, match="sample has shape"):
        Bernoulli(np.zeros(3)).log_prob(np.zeros(2))
    with pytest.raises(TypeError, match="other must be a Bernoulli"):
        Bernoulli(np.zeros(3)).kl(Categorical(np.zeros(3)))
    with pytest.raises(ValueError, match="other must have logits of shape"):
        Bernoulli(np.zeros(3)).kl(Bernoulli(np.zeros(2)))
    with pytest.raises(ValueError, match="temperature must be"):
        Bernoulli(np.zeros(3)).relax(np.zeros(3), -1.0)
    assert repr(Bernoulli(np.zeros(3))) == "Bernoulli(logits of shape (3,))"
