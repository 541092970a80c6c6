"""Categorical.perturb with any noise: the samples, and relaxed samples, of Perturb-Max."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import support
from kofn import Categorical, Link, links, perturbed_argmax
from kofn.arrays import random
from kofn.distributions import categorical
from kofn.links import table
from kofn.maps import perturbed
from support import Framework, jax_x64

X = np.array([1.0, 0.4, 0.0, -0.7])
NOISES = [*perturbed.NOISES, perturbed.GUMBEL]
LINKS = [table.TABLE[name] for name in support.LINKS]


def rng_of(name, seed=0):
    """A fresh source of random numbers of a framework."""
    if name == "torch":
        return torch.Generator().manual_seed(seed)
    return jax.random.key(seed) if name == "jax" else np.random.default_rng(seed)


def shares(choice, framework, noise, draws=60_000):
    noisy = choice.perturb(draws, rng_of(framework.name), noise=noise)
    return framework.numpy(choice.choose(noisy)).mean(0)


@pytest.mark.parametrize("noise", [*NOISES, *LINKS], ids=str)
def test_samples_have_the_probabilities_of_perturbed_argmax(framework, noise):
    choice = Categorical(framework.array(X))
    p = framework.numpy(perturbed_argmax(choice.logits, noise=noise))
    deviation = np.sqrt(p * (1 - p) / 60_000)
    assert np.all(np.abs(shares(choice, framework, noise) - p) <= 4.5 * deviation + 1e-12)


def test_a_link_of_a_user_draws_by_its_quantile_or_by_bisection(framework):
    xp = {"numpy": np, "torch": torch, "jax": jnp}[framework.name]
    cauchy = dict(
        cdf=lambda z: xp.arctan(z) / np.pi + 0.5,
        sf=lambda z: xp.arctan(-z) / np.pi + 0.5,
        pdf=lambda z: 1 / (np.pi * (1 + z * z)),
    )
    choice = Categorical(framework.array(X))
    p = framework.numpy(perturbed_argmax(choice.logits, noise=Link(**cauchy)))
    for link in (Link(**cauchy), Link(**cauchy, quantile=lambda q: xp.tan(np.pi * (q - 0.5)))):
        found = shares(choice, framework, link, 40_000)
        assert np.all(np.abs(found - p) <= 4.5 * np.sqrt(p * (1 - p) / 40_000))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("noise", [*NOISES, links.entmax(1.5)], ids=str)
def test_the_noise_itself_has_its_distribution(dtype, noise):
    """Of one logit the perturbed one is the noise: Kolmogorov–Smirnov, 20,000 draws."""
    choice = Categorical(torch.zeros(1, dtype=getattr(torch, dtype)))
    noisy = choice.perturb(20_000, rng_of("torch"), noise=noise)
    assert noisy.dtype == (torch.float64 if dtype == "float64" else torch.float32)
    assert bool(torch.isfinite(noisy).all())
    z = np.sort(noisy[:, 0].double().numpy())
    if noise == "gumbel":
        cdf = np.exp(-np.exp(-z))
    else:
        link = {"uniform": links.linear}.get(noise, noise)
        cdf = (getattr(links, link) if isinstance(link, str) else link).cdf(z)
    distance = np.max(np.abs(cdf - (np.arange(20_000) + 0.5) / 20_000))
    assert distance < 1.95 / np.sqrt(20_000)  # exceeded once in a thousand


def test_tails_have_their_digits():
    """Also without float64 (JAX by default), where one uniform number has 24 bits."""
    with jax_x64(False):
        choice = Categorical(jnp.zeros(1, jnp.float32))
        twin = Link(links.logistic.cdf, links.logistic.pdf, quantile=links.logistic.quantile)
        for noise in ("logistic", twin):
            noisy = np.asarray(choice.perturb(1_000_000, rng_of("jax"), noise=noise))
            assert noisy.dtype == np.float32
            assert np.isfinite(noisy).all()
            ends = np.sort(noisy[:, 0])
            assert len(np.unique(ends[:1000])) == 1000
            if noise == "logistic":  # a Link has no quantiles from above
                assert len(np.unique(ends[-1000:])) == 1000


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_noise_is_finite_at_the_ends_of_the_uniform_numbers(name, monkeypatch):
    """A quantile of exactly 0 or 1 would be infinite."""
    from kofn.distributions import noise as drawing

    like = Framework(name).array(np.zeros(2), "float32")
    xp = {"numpy": np, "torch": torch, "jax": jnp}[name]
    twin = Link(links.logistic.cdf, links.logistic.pdf, quantile=links.logistic.quantile)
    for link in (links.exponential, twin):
        for below in (True, False):
            tiny = float(np.finfo(np.float32).smallest_normal)
            ends = (xp.full_like(like, tiny), xp.full_like(like, below, dtype=xp.bool))
            if name == "numpy":
                ends = (ends[0], ends[1].astype(bool))
            elif name == "jax":
                ends = (ends[0], jnp.full((2,), below))
            monkeypatch.setattr(drawing, "halves", lambda *_, ends=ends: ends)
            z = Framework(name).numpy(drawing._drawn(link, None, (2,), like))
            assert np.isfinite(z).all()
            assert np.all(z < -15 if below else z > (15 if link is twin else 0.999))


@pytest.mark.parametrize("noise", NOISES)
def test_relaxed_samples_tend_to_samples_and_carry_a_gradient(noise):
    x = torch.tensor(X, requires_grad=True)
    choice = Categorical(x)
    noisy = choice.perturb(1000, rng_of("torch"), noise=noise)
    chosen = choice.choose(noisy)
    assert torch.equal(chosen.sum(-1), torch.ones(1000, dtype=torch.float64))
    assert (choice.relax(noisy, 1e-6) - chosen).abs().max() < 1e-6
    soft = choice.relax(noisy, 0.5)
    assert torch.allclose(soft.sum(-1), torch.ones(1000, dtype=torch.float64))
    gradient = torch.autograd.grad(soft[:, 0].mean(), x, retain_graph=True)[0]
    assert gradient[0] > 0
    assert bool((gradient[1:] < 0).all())
    assert torch.equal(torch.autograd.grad(noisy.sum(), x)[0], torch.full((4,), 1000.0).double())


def test_masks_infinities_and_nan(framework):
    inf, nan = np.inf, np.nan
    x = framework.array([[0.0, 1.0, -inf, 2.0], [0.0, inf, inf, 3.0], [0.0, nan, 1.0, 2.0]])
    mask = framework.array([True, True, True, False], "bool")
    choice = Categorical(x, mask=mask)
    chosen = framework.numpy(
        choice.choose(choice.perturb(500, rng_of(framework.name), noise="normal"))
    )
    assert np.all(chosen[:, 0, 2:] == 0)
    assert np.all(chosen[:, 0].sum(-1) == 1)
    assert np.all(chosen[:, 1, [0, 3]] == 0)
    assert 0.4 < chosen[:, 1, 1].mean() < 0.6
    assert np.isnan(chosen[:, 2]).any()


def test_the_same_state_gives_the_same_noise_and_dim_is_any(framework):
    x = np.random.default_rng(0).standard_normal((3, 4))
    a, b = (
        Categorical(framework.array(each), dim=dim).perturb(
            (), rng_of(framework.name), noise=links.entmax(1.5)
        )
        for each, dim in ((x, -1), (x, -1))
    )
    assert np.array_equal(framework.numpy(a), framework.numpy(b))
    turned = Categorical(framework.array(x), dim=0)
    noisy = turned.perturb(7, rng_of(framework.name), noise="laplace")
    assert noisy.shape == (7, 3, 4)
    assert np.array_equal(framework.numpy(turned.choose(noisy)).sum(1), np.ones((7, 4)))


def test_no_entries_and_no_rows(framework):
    for shape in ((0,), (0, 3), (2, 0)):
        noisy = Categorical(framework.array(np.zeros(shape))).perturb(
            (), rng_of(framework.name), noise="normal"
        )
        assert noisy.shape == shape


def test_under_jit_vmap_and_compile():
    x = jnp.asarray(X)

    def drawn(x, key):
        return Categorical(x).perturb(3, key, noise=links.entmax(1.5))

    keys = jax.random.split(jax.random.key(0), 5)
    one = jnp.stack([drawn(x, key) for key in keys])
    assert np.allclose(jax.jit(jax.vmap(drawn, (None, 0)))(x, keys), one, atol=1e-12)
    slope = jax.grad(lambda x: (drawn(x, keys[0]) * jnp.arange(4.0)).sum())(x)
    assert np.allclose(slope, 3 * np.arange(4.0))

    def sampled(x):
        choice = Categorical(x)
        return choice.relax(choice.perturb(3, noise="normal"), 0.5)

    torch.manual_seed(0)
    expected = sampled(torch.tensor(X))
    compiled = torch.compile(sampled, backend="eager", fullgraph=True)
    torch.manual_seed(0)
    assert torch.allclose(compiled(torch.tensor(X)), expected)


@pytest.mark.parametrize(
    ("noise", "error", "message"),
    [
        ("cauchy", ValueError, "noise must be one of 'normal', .*or a kofn.Link; got 'cauchy'"),
        (1.0, TypeError, "noise must be one of .*got 1.0"),
        (links.entmax(np.array([1.5])), TypeError, "noise must have a number for alpha"),
    ],
)
def test_noises_that_there_are_not(noise, error, message):
    with pytest.raises(error, match=message):
        Categorical(X).perturb(noise=noise)


def test_arguments_are_checked_with_any_noise():
    with pytest.raises(TypeError, match=r"rng must be a numpy\.random\.Generator"):
        Categorical(X).perturb((), jax.random.key(0), noise="normal")
    with pytest.raises(ValueError, match="shape must be"):
        Categorical(X).perturb(-1, noise="normal")
    framework = Framework("torch")
    again = Categorical(framework.array(X)).perturb(4, rng_of("torch"))
    named = Categorical(framework.array(X)).perturb(4, rng_of("torch"), noise="gumbel")
    assert torch.equal(again, named)


@pytest.mark.parametrize("name", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_logits_at_hand_are_centred_as_others_are(name, dtype, monkeypatch):
    """Finite largest entries are found at once; any other row goes the way of traced ones."""
    rows = np.array([[3.0, 1.0, -2.0], [1e30, 0.0, -np.inf], [-7.0, -7.0, -9.0]])
    for special in (None, [-np.inf] * 3, [np.inf, 1.0, np.inf], [np.nan, 0.0, 1.0], [3e38] * 3):
        x = rows if special is None else np.concatenate([rows, [special]])
        y = Framework(name).array(x, dtype)
        if name == "torch":
            y.requires_grad_()
        settled = Categorical(y)._settled()
        at_once = special is None or special == [3e38] * 3
        assert (random.centred_at_hand(y, -1) is not None) == at_once
        with monkeypatch.context() as patch:
            for module in (random, categorical):
                patch.setattr(module, "centred_at_hand", lambda *_: None)
            wanted = Categorical(y)._settled()
        assert np.array_equal(
            *(Framework(name).numpy(each) for each in (settled, wanted)), equal_nan=True
        )
        if name == "torch":
            slopes = (torch.autograd.grad(each.sum(), y)[0] for each in (settled, wanted))
            assert torch.equal(*(each.nan_to_num(7) for each in slopes))
