"""Choosing one: the law of the samples, the noise at its ends, and Categorical beside KSubset."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from kofn import Categorical, KSubset, gumbel_max, gumbel_softmax
from kofn.arrays import kinds, random
from support import TOTAL, Framework
from test_subsets_sampling import chi_square, rng_of

INF, NAN = math.inf, math.nan
Y = np.array([1.2, -0.3, 0.5, -INF, 2.0])
P = np.exp(Y) / np.exp(Y).sum()
TORCH = Framework("torch")
ROWS = np.array(
    [
        [1.0, 2.0, 0.0, -1.0],
        [-INF] * 4,
        [1.0, -INF, 2.0, -INF],
        [INF, 0.0, INF, -INF],
        [NAN, 0.0, 1.0, -INF],
        [1e30, -1e30, 1e30, 0.0],
        [-INF, -INF, -3e3, -INF],
    ]
)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("sampler", ["gumbel_max", "gumbel_softmax", "sample"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_every_category_is_drawn_with_its_probability(framework, sampler, dtype):
    logits, draws, rng = framework.array(Y, dtype), 20_000, rng_of(framework)
    if sampler == "gumbel_max":
        index = framework.numpy(gumbel_max(logits, rng, shape=draws)).astype(int)
    else:
        if sampler == "sample":
            drawn = Categorical(logits).sample(draws, rng)
        else:
            drawn = gumbel_softmax(logits, 0.5, True, rng, shape=draws)
        assert framework.dtype(drawn) == dtype
        drawn = framework.numpy(drawn)
        # hard + (soft − soft) may be off by a rounding of the soft one.
        assert np.all(np.abs(drawn - np.round(drawn)) < 1e-6)
        assert np.all(np.round(drawn).sum(-1) == 1)
        index = drawn.argmax(-1)
    assert index.shape == (draws,)
    observed = np.bincount(index, minlength=5)
    assert observed[3] == 0
    assert chi_square(np.delete(observed, 3), np.delete(P, 3) * draws) < 4


def test_jax_draws_as_often_as_it_should():
    logits, draws = jnp.asarray(Y, jnp.float32), 20_000
    index = jax.jit(lambda y, key: gumbel_max(y, key, shape=draws))(logits, jax.random.key(0))
    observed = np.bincount(index, minlength=5)
    assert observed[3] == 0
    assert chi_square(np.delete(observed, 3), np.delete(P, 3) * draws) < 4


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_has_the_same_law(dtype):
    """In bfloat16 sums of logits and noise would often be equal, and the first of them win."""
    logits, draws = TORCH.array(np.full(8, 50.0 if dtype == "bfloat16" else 900.0), dtype), 20_000
    observed = np.bincount(gumbel_max(logits, generator(), shape=draws), minlength=8)
    assert chi_square(observed, np.full(8, draws / 8)) < 4
    drawn = Categorical(logits).sample(draws, generator())
    assert TORCH.dtype(drawn) == dtype
    assert chi_square(TORCH.numpy(drawn).sum(0), np.full(8, draws / 8)) < 4


@pytest.mark.parametrize("u", ["lowest", "highest"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_noise_is_finite_whatever_is_drawn(framework, monkeypatch, u, dtype):
    if framework.name == "numpy" and dtype == "bfloat16":
        pytest.skip("NumPy has none")

    def extreme(rng, shape, like):
        eps = float(kinds.namespace(like).finfo(like.dtype).eps)
        return kinds.full_like(like, shape, 0.0 if u == "lowest" else 1 - eps / 2)

    monkeypatch.setattr(random, "uniform", extreme)
    logits = framework.array([0.0, 3.0, -2.0], dtype)
    noise = framework.numpy(random.gumbel(rng_of(framework), (3,), logits))
    assert np.all(np.isfinite(noise))
    assert np.all(noise > 80) if u == "lowest" else np.all(noise < -2.5)
    for hard in (False, True):
        weights = gumbel_softmax(logits, 1e-3, hard, rng_of(framework))
        assert framework.dtype(weights) == dtype
        assert np.all(framework.numpy(weights) == [0, 1, 0])


def test_the_largest_of_many_is_hardly_ever_shared(monkeypatch):
    """Of 2^20 noises of one float32 number each, the largest would be shared by several."""
    for like, rng, double in (
        (np.zeros(1, np.float32), np.random.default_rng(0), True),
        (jnp.zeros(1, jnp.float32), jax.random.key(0), False),
        (torch.zeros(1), generator(), False),  # a device that has no float64
    ):
        if not double:
            monkeypatch.setattr(random, "most_precise_dtype", lambda like: like.dtype)
        noise = np.asarray(random.gumbel(rng, (1 << 20,), like))
        assert noise.dtype == np.float32
        assert noise.mean() == pytest.approx(np.euler_gamma, abs=0.01)
        largest = np.sort(noise)[-64:]
        assert len(np.unique(largest)) == 64


def test_relaxed_samples_are_softmax_of_logits_and_noise():
    y = torch.tensor(np.random.default_rng(0).standard_normal((3, 4)))
    t = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    noise = random.gumbel(generator(), (5, 3, 4), y)
    leaves = [a.clone().requires_grad_() for a in (y, t)]
    got = gumbel_softmax(*leaves, rng=generator(), shape=5)
    copies = [a.clone().requires_grad_() for a in (y, t)]
    wanted = torch.softmax((copies[0] + noise) / copies[1][:, None], -1)
    assert torch.allclose(got, wanted, atol=1e-14)
    v = torch.randn(5, 3, 4, generator=generator(1), dtype=torch.float64)
    for one, other in zip(
        torch.autograd.grad(got, leaves, v), torch.autograd.grad(wanted, copies, v), strict=True
    ):
        assert torch.allclose(one, other, atol=1e-13)
    hard = gumbel_softmax(leaves[0], t, True, generator(), shape=5)
    assert torch.allclose(hard.detach(), (got == got.amax(-1, keepdim=True)).double(), atol=1e-15)
    wanted = torch.autograd.grad(
        gumbel_softmax(leaves[0], t, rng=generator(), shape=5), leaves[0], v
    )
    assert torch.allclose(torch.autograd.grad(hard, leaves[0], v)[0], wanted[0])


def test_cold_relaxed_samples_are_the_one_hots_of_gumbel_max(framework):
    y = framework.array(np.random.default_rng(1).standard_normal((3, 6)))
    index = framework.numpy(gumbel_max(y, rng_of(framework), shape=20, dim=0))
    cold = framework.numpy(gumbel_softmax(y, 1e-9, rng=rng_of(framework), shape=20, dim=0))
    assert index.shape == (20, 6)
    assert np.allclose(cold, np.arange(3)[:, None] == index[:, None])


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_relaxed_samples_at_the_edges(framework, dtype):
    mask = framework.array(np.array([True, True, True, False]), "bool")
    y = framework.array(ROWS, dtype)
    for hard in (False, True):
        w = gumbel_softmax(y, 0.7, hard, rng_of(framework), shape=9, mask=mask)
        w = framework.numpy(w)
        assert np.all(w[:, :, 3][:, [0, 1, 2, 3, 5, 6]] == 0)
        assert np.all(w[:, 1] == 0)
        assert np.isnan(w[:, 4, :3]).all()
        assert np.all(w[:, 3, 1] == 0)
        assert np.all(w[:, 6] == [0, 0, 1, 0])
        live = w[:, [0, 2, 3, 5]]
        assert np.all((live >= 0) & (live <= 1))
        assert np.abs(live.sum(-1) - 1).max() < TOTAL[dtype] * 4


def test_infinite_logits_are_drawn_evenly():
    y = np.array([INF, 5.0, INF, -INF, INF])
    observed = np.bincount(gumbel_max(y, np.random.default_rng(0), shape=9000), minlength=5)
    assert observed[[1, 3]].tolist() == [0, 0]
    assert chi_square(observed[[0, 2, 4]], np.full(3, 3000.0)) < 4


def test_categorical_is_the_subset_of_one(framework):
    y = framework.array(ROWS)
    one, subset = Categorical(y), KSubset(y, 1)
    tolerance = {"rtol": 0, "atol": 1e-13, "equal_nan": True}
    samples = framework.array(np.eye(4)[:, None] * np.ones((7, 1)))
    for got, wanted in (
        (one.probs(), subset.marginals()),
        (one.mode(), subset.mode()),
        (one.entropy(), subset.entropy()),
    ):
        got, wanted = framework.numpy(got).copy(), framework.numpy(wanted)
        if got.ndim == 2:  # in a row with a NaN, what is −inf may be 0 or NaN
            got[4, 3] = wanted[4, 3]
        assert np.allclose(got, wanted, **tolerance)
    got, wanted = (framework.numpy(each.log_prob(samples)) for each in (one, subset))
    assert np.allclose(got, wanted, **tolerance)
    other = framework.array(np.roll(ROWS, 1, axis=0))
    for a, b in ((y, other), (other, y), (y, y)):
        got = framework.numpy(Categorical(a).kl(Categorical(b)))
        wanted = framework.numpy(KSubset(a, 1).kl(KSubset(b, 1)))
        assert np.allclose(got, wanted, atol=1e-12, equal_nan=True), (got, wanted)


def test_categorical_meets_torch():
    y = torch.tensor(np.random.default_rng(2).standard_normal((3, 5)))
    other = torch.tensor(np.random.default_rng(3).standard_normal((3, 5)))
    ours, theirs = Categorical(y), torch.distributions.OneHotCategorical(logits=y)
    drawn = ours.sample((2, 4), generator())
    assert drawn.shape == (2, 4, 3, 5)
    assert torch.allclose(ours.log_prob(drawn), theirs.log_prob(drawn))
    assert torch.allclose(ours.entropy(), theirs.entropy())
    their_other = torch.distributions.OneHotCategorical(logits=other)
    wanted = torch.distributions.kl_divergence(theirs, their_other)
    assert torch.allclose(ours.kl(Categorical(other)), wanted)
    assert torch.equal(Categorical(y.T, dim=0).probs(), ours.probs().T)


def test_a_sample_is_one_hot_or_has_probability_0(framework):
    choice = Categorical(framework.array([0.5, -INF, 0.1]))
    samples = framework.array([[0, 0, 0], [1, 0, 1], [0, 1, 0], [0.5, 0.5, 0]])
    log_p = framework.numpy(choice.log_prob(samples))
    assert np.all(log_p[:3] == -INF)
    assert np.isnan(log_p[3])
    assert framework.numpy(choice.log_prob(framework.array([True, False, False], "bool"))) < 0


def test_support_is_every_choice():
    every = Categorical(np.zeros((2, 3))).support(None)
    assert every.shape == (9, 2, 3)
    assert len(np.unique(every, axis=0)) == 9
    assert np.exp(
        Categorical(np.random.default_rng(0).standard_normal((2, 3))).log_prob(every).sum(-1)
    ).sum() == pytest.approx(1)
    assert Categorical(np.zeros((4, 2, 3))).support(1).shape == (9, 1, 2, 3)
    assert Categorical(np.zeros((3, 2)), dim=0).support(0).tolist() == [
        [[1], [0], [0]],
        [[0], [1], [0]],
        [[0], [0], [1]],
    ]
    with pytest.raises(ValueError, match="factors must be an integer in \\[0, 1\\]"):
        Categorical(np.zeros((2, 3))).support(2)


def test_noise_given_the_choice_has_the_law_of_noise_that_made_it(framework):
    """Drawing the choice first, then the noise behind it, is drawing the noise."""
    choice, draws = Categorical(framework.array(Y)), 20_000
    sample = choice.sample(draws, rng_of(framework, 1))
    noisy = choice.perturb_given(sample, rng_of(framework, 2))
    assert np.array_equal(framework.numpy(choice.choose(noisy)), framework.numpy(sample))
    z, live = framework.numpy(noisy), [0, 1, 2, 4]
    assert np.all(z[:, 3] == -INF)
    noise = z[:, live] - (Y[live] - Y.max())
    assert np.allclose(noise.mean(0), np.euler_gamma, atol=0.05)
    assert np.allclose(np.cov(noise.T), np.eye(4) * math.pi**2 / 6, atol=0.1)
    quantiles = np.quantile(noise, [0.05, 0.5, 0.95], axis=0)
    wanted = -np.log(-np.log([0.05, 0.5, 0.95]))
    assert np.allclose(quantiles, wanted[:, None], atol=0.15)


def test_conditioned_is_perturb_given_by_the_noise_it_was_made_of():
    y = torch.tensor(np.random.default_rng(4).standard_normal((3, 4)))
    y[1, 2] = -INF
    y = y - y.amax(-1, keepdim=True)  # as perturbed logits are
    noise = random.gumbel(generator(), (6, 3, 4), y)
    sample = Categorical(y).sample(6, generator(1))
    leaf = y.clone().requires_grad_()

    def from_noise(leaf):
        top = leaf.logsumexp(-1, keepdim=True) + (sample * noise).sum(-1, keepdim=True)
        below = -torch.logaddexp(-(leaf + noise), -top)
        return torch.where(sample == 1, top, below)

    given = from_noise(leaf)
    assert torch.equal(Categorical(y).perturb_given(sample, generator()), given.detach())
    v = torch.where(given.isinf(), 0.0, torch.randn(6, 3, 4, generator=generator(2)).double())
    (wanted,) = torch.autograd.grad(torch.where(given.isinf(), 0.0, given), leaf, v)
    wanted = torch.where(y.isinf(), 0.0, wanted)
    other = y.clone().requires_grad_()
    again = Categorical(other).conditioned(given.detach())
    assert torch.equal(again.detach(), given.detach())
    assert torch.allclose(torch.autograd.grad(again, other, v)[0], wanted, atol=1e-12)
    other = y.clone().requires_grad_()
    fresh = Categorical(other).perturb_given(sample, generator())
    assert torch.allclose(torch.autograd.grad(fresh, other, v)[0], wanted, atol=1e-12)


def test_gradients():
    rng = np.random.default_rng(5)
    y, other = (torch.tensor(rng.standard_normal((2, 4)), requires_grad=True) for _ in range(2))
    t = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    drawn = torch.eye(4, dtype=torch.float64)[[2, 0]]
    for function, leaves in (
        (lambda y: Categorical(y).log_prob(drawn), (y,)),
        (lambda y: Categorical(y).entropy(), (y,)),
        (lambda y, u: Categorical(y).kl(Categorical(u)), (y, other)),
        (lambda y, t: gumbel_softmax(y, t, rng=generator()), (y, t)),
    ):
        assert gradcheck(function, leaves, check_forward_ad=True)
        assert gradgradcheck(function, leaves, fast_mode=True)


def test_gradients_at_the_edges_are_0_or_of_their_row():
    leaf = torch.tensor(ROWS, requires_grad=True)
    choice = Categorical(leaf)
    sample = torch.eye(4, dtype=torch.float64)[2].expand(7, 4)
    for answer in (
        choice.log_prob(sample),
        choice.entropy(),
        choice.kl(Categorical(leaf.detach() * 0.5)),
        choice.probs() @ torch.arange(4.0).double(),
        gumbel_softmax(leaf, 0.3, rng=generator()) @ torch.arange(4.0).double(),
        choice.perturb_given(choice.sample((), generator()), generator()).clamp(min=-9).sum(-1),
    ):
        chosen = torch.isfinite(answer.detach())
        (slope,) = torch.autograd.grad(answer[chosen].sum(), leaf)
        slope[4] = 0
        assert torch.isfinite(slope).all()
        assert torch.all(slope[torch.isinf(leaf)] == 0)


def test_transforms():
    y = torch.tensor(np.random.default_rng(6).standard_normal((3, 4)))
    drawn = Categorical(y).sample((), generator())

    def total(y):
        choice = Categorical(y)
        mix = (choice.log_prob(drawn) * torch.tensor([1.0, -2.0, 0.5])).sum()
        return mix + choice.entropy().square().sum()

    leaf = y.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(total(leaf), leaf)
    assert torch.allclose(torch.func.grad(total)(y), wanted)
    assert torch.allclose(torch.func.jacfwd(total)(y), wanted)
    torch._dynamo.reset()
    leaf = y.clone().requires_grad_()
    got = torch.compile(total, fullgraph=True, backend="aot_eager")(leaf)
    assert torch.allclose(torch.autograd.grad(got, leaf)[0], wanted)
    rows = torch.func.vmap(lambda y: Categorical(y).entropy())(y)
    assert torch.allclose(rows, Categorical(y).entropy())


def test_jax_transforms():
    y = jnp.asarray(np.random.default_rng(6).standard_normal((3, 4)))

    @jax.jit
    def both(choice, key):
        sample = choice.sample((2,), key)
        slope = jax.grad(lambda y: Categorical(y).log_prob(sample).sum())(choice.logits)
        relaxed = gumbel_softmax(choice.logits, 0.5, rng=key)
        return sample, slope, relaxed

    def of_row(y, key):
        return both(Categorical(y), key)

    sample, slope, relaxed = jax.vmap(of_row)(y, jax.random.split(jax.random.key(0), 3))
    assert sample.shape == (3, 2, 4)
    probs = Categorical(np.asarray(y)).probs()
    assert np.allclose(slope, np.asarray(sample.sum(1)) - 2 * probs)
    assert np.allclose(relaxed.sum(-1), 1)


def test_one_category_and_none(framework):
    one = Categorical(framework.array([[3.0], [-INF]]))
    assert framework.numpy(one.sample((2,), rng_of(framework))).tolist() == [[[1], [0]]] * 2
    assert framework.numpy(gumbel_max(one.logits, rng_of(framework))).tolist() == [0, 0]
    assert framework.numpy(one.entropy()).tolist() == [0, 0]
    relaxed = gumbel_softmax(one.logits, 1e-3, rng=rng_of(framework))
    assert framework.numpy(relaxed).tolist() == [[1], [0]]
    assert Categorical(framework.array(np.zeros((2, 0)))).sample(3, rng_of(framework)).shape == (
        3,
        2,
        0,
    )
    with pytest.raises(ValueError, match="logits must have entries along dim"):
        gumbel_max(framework.array(np.zeros((2, 0))), rng_of(framework))


def test_wrong_arguments():
    y, rng = np.zeros((2, 3)), np.random.default_rng(0)
    with pytest.raises(TypeError, match=r"rng must be a torch\.Generator .* numpy\.random\.Gen"):
        gumbel_max(torch.zeros(3), rng)
    with pytest.raises(ValueError, match="temperature must be a finite number > 0"):
        gumbel_softmax(y, 0.0, rng=rng)
    with pytest.raises(ValueError, match="dim must be in"):
        gumbel_max(y, rng, dim=2)
    with pytest.raises(TypeError, match="mask must be boolean"):
        Categorical(y, mask=y)
    with pytest.raises(TypeError, match="logits must have dtype"):
        Categorical(np.zeros(3, int))
    with pytest.raises(ValueError, match="sample has shape"):
        Categorical(y).log_prob(np.zeros(3))
    with pytest.raises(TypeError, match="other must be a Categorical; got KSubset"):
        Categorical(y).kl(KSubset(y, 1))
    with pytest.raises(ValueError, match="other must have logits of shape"):
        Categorical(y).kl(Categorical(np.zeros((2, 4))))
    assert repr(Categorical(y)) == "Categorical(logits of shape (2, 3), dim=-1)"
