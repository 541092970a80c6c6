"""Estimators at their edges: extreme logits, types, transforms, samples to go on with, errors."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from kofn import Bernoulli, Categorical, KSubset, estimators
from kofn.estimators import study
from oracles import subset as oracles
from toys import B, Y, cost, generator, joint, square

INF = math.inf


def gradient(name, y, f=cost, distribution=Categorical, **options):
    leaf = y.clone().requires_grad_()
    value = estimators.TABLE[name](distribution(leaf), f, generator(), **options)
    return torch.autograd.grad(value.sum(), leaf)[0], value


SAMPLES = {"leave_one_out": 2}
SLOW_ON_JAX = ("leave_one_out", "perturbed", "reinmax")


@pytest.mark.parametrize("name", estimators.TABLE)
def test_extreme_logits_impossible_categories_and_one(name):
    samples = SAMPLES.get(name, 1)
    y = torch.stack([Y * 1e4, Y * 1e-8, torch.where(Y > 0.4, -INF, Y), Y - 3e5])
    slope, value = gradient(name, y, samples=samples)
    assert torch.isfinite(slope).all()
    assert torch.isfinite(value).all()
    assert torch.all(slope[2, Y > 0.4] == 0)
    # A choice that is sure has no gradient but rounding.
    assert slope[0].abs().max() < 1e-8
    slope, _ = gradient(name, Y[:1].expand(3, 1), samples=samples)
    assert torch.equal(slope, torch.zeros(3, 1).double())
    y = torch.stack([Y * 1e4, torch.where(Y > 0.4, INF, Y), torch.where(Y > 0.4, -INF, Y)])
    slope, _ = gradient(name, y, distribution=Bernoulli, samples=samples)
    assert torch.isfinite(slope).all()
    assert torch.all(slope[1:, Y > 0.4] == 0)


@pytest.mark.parametrize(
    ("name", "distribution"),
    [
        *((name, Categorical) for name in estimators.TABLE),
        *((n, partial(KSubset, k=2)) for n in ("leave_one_out", "straight_through", "perturbed")),
    ],
)
def test_what_is_masked_is_as_if_deleted(name, distribution):
    """A NaN under the mask too."""
    y = torch.where(Y == 0.3, math.nan, Y).expand(3, 5)
    slope, value = gradient(
        name, y, distribution=partial(distribution, mask=~y.isnan()), samples=SAMPLES.get(name, 1)
    )
    assert torch.isfinite(value).all()
    assert torch.isfinite(slope).all()
    assert torch.all(slope[:, Y == 0.3] == 0)


class Turned(Categorical):
    """Categories along dim 0 or the last, by the same noise."""

    def perturb(self, shape, rng):
        noise = torch.rand(*shape, 5, 5, generator=generator(3), dtype=torch.float64) * 2
        return self.logits + (noise.mT if self.dim == -2 else noise)


@pytest.mark.parametrize("name", ["rebar", "perturbed", "reparameterized"])
def test_any_dimension(name):
    """As many rows as categories: what were summed along the wrong one would raise nothing."""
    y, rows = torch.randn(5, 5, generator=generator(), dtype=torch.float64), torch.arange(5.0)
    slopes = []
    for leaf, f, dim in ((y, cost, -1), (y.T, lambda s: cost(s.mT), 0)):
        leaf = leaf.clone().requires_grad_()
        value = estimators.TABLE[name](Turned(leaf, dim), f, generator(), samples=3)
        slopes.append(torch.autograd.grad((value * rows).sum(), leaf)[0])
    assert slopes[0].abs().max() > 0.1
    assert torch.allclose(slopes[0], slopes[1].T, atol=1e-12)


@pytest.mark.parametrize("name", estimators.TABLE)
def test_half_precision(name):
    slope, value = gradient(
        name, Y.to(torch.bfloat16), f=lambda s: s.float() @ B.float(), samples=SAMPLES.get(name, 1)
    )
    assert slope.dtype == torch.bfloat16
    assert torch.isfinite(slope).all()
    assert value.dtype == torch.float32


@pytest.mark.parametrize("name", estimators.TABLE)
def test_the_gradient_of_f_itself_is_kept(name):
    """f's own parameters are trained by the same pass."""
    scale = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    y = Y.expand(4000, 5)
    # Relaxed samples have the mean of hard ones where they are cold.
    cold = {"temperature": 1e-3} if name == "reparameterized" else {}
    value = estimators.TABLE[name](
        Categorical(y), lambda s: scale * (s @ B), generator(), samples=SAMPLES.get(name, 1), **cold
    )
    (got,) = torch.autograd.grad(value.mean(), scale)
    wanted = Y.softmax(-1) @ B
    assert got.item() == pytest.approx(wanted.item(), abs=0.06)
    assert value.mean().item() == pytest.approx(2 * got.item())


@pytest.mark.parametrize("name", estimators.TABLE)
def test_every_docstring_says_what_one_must_know(name):
    text = estimators.TABLE[name].__doc__
    for part in ("Biased:", "Needs of f:", "Calls of f:", "Source:"):
        assert part in text


def test_a_running_mean_is_of_the_past_only():
    past = estimators.RunningMean(decay=0.5)
    leaf = Y.clone().requires_grad_()
    first = estimators.score_function(Categorical(leaf), cost, generator(), baseline=past)
    plain = estimators.score_function(Categorical(leaf), cost, generator())
    assert torch.equal(*(torch.autograd.grad(each, leaf)[0] for each in (first, plain)))
    assert past.mean.item() == pytest.approx(first.item())
    estimators.score_function(Categorical(leaf), cost, generator(5), baseline=past, samples=100)
    other = estimators.RunningMean(decay=0.5)
    other.load_state_dict(past.state_dict())
    slopes = []
    for baseline in (past, other, past.mean.item()):
        if baseline is past:
            other.load_state_dict(past.state_dict())
        value = estimators.score_function(Categorical(leaf), cost, generator(9), baseline=baseline)
        slopes.append(torch.autograd.grad(value, leaf)[0])
    assert torch.equal(slopes[0], slopes[1])
    with pytest.raises(ValueError, match=r"decay must be a number in \[0, 1\)"):
        estimators.RunningMean(1.0)
    with pytest.raises(TypeError, match="a RunningMean cannot be updated while"):
        jax.jit(lambda v: past.update(v))(jnp.zeros(3))


def test_samples_to_go_on_with():
    for sampler, distribution, options in (
        (estimators.marginals_through, partial(KSubset, k=2), {}),
        (estimators.marginals_through, Categorical, {}),
        (estimators.relaxed_through, partial(KSubset, k=2), {"hard": True, "temperature": 0.5}),
        (estimators.gumbel_rao_through, Categorical, {"draws": 3}),
        (estimators.reinmax_through, Bernoulli, {}),
    ):
        leaf = Y.clone().requires_grad_()
        z = sampler(distribution(leaf), (3, 4), generator(), **options)
        assert z.shape == (3, 4, 5)
        assert torch.allclose(z.detach(), z.detach().round(), atol=1e-12)
        (slope,) = torch.autograd.grad((z @ B).sum(), leaf)
        assert slope.abs().max() > 0
    relaxed = estimators.relaxed_through(KSubset(Y, 2), 3, generator(), temperature=0.5)
    assert torch.allclose(relaxed.sum(-1), torch.full((3,), 2.0).double())


@pytest.mark.parametrize(
    "name", ["rebar", *(pytest.param(n, marks=pytest.mark.full) for n in SLOW_ON_JAX)]
)
def test_jax_and_torch_agree_on_the_same_samples(name, monkeypatch):
    """The same noise in both, under jit on one side."""
    from kofn.arrays import random
    from kofn.distributions import bernoulli

    noise = np.random.default_rng(0).gumbel(size=(2, 3, 5))
    for module in (random, bernoulli):
        monkeypatch.setattr(
            module, "gumbel", lambda rng, shape, like: torch.tensor(noise)
            if isinstance(like, torch.Tensor) else jnp.asarray(noise)
        )  # fmt: skip
    y = np.random.default_rng(1).standard_normal((3, 5))
    leaf = torch.tensor(y, requires_grad=True)
    run = estimators.TABLE[name]
    value = run(Categorical(leaf), square, generator(), samples=2)
    wanted = torch.autograd.grad(value.sum(), leaf)[0]

    def f(s):
        b = jnp.asarray(B.numpy())
        return ((s - b) ** 2).sum(-1) + (s @ b) ** 2

    got = jax.jit(jax.grad(lambda y: run(Categorical(y), f, jax.random.key(0), samples=2).sum()))(
        jnp.asarray(y)
    )
    assert np.allclose(got, wanted.numpy(), atol=1e-10)


def test_torch_transforms():
    """What differentiates f inside works where the caller is transformed too."""
    for name in ("leave_one_out", "rebar", "perturbed", "straight_through"):

        def total(y, name=name):
            run = estimators.TABLE[name]
            return run(Categorical(y), square, generator(), samples=2).sum()

        leaf = Y.expand(3, 5).clone().requires_grad_()
        (wanted,) = torch.autograd.grad(total(leaf), leaf)
        assert torch.allclose(torch.func.grad(total)(leaf.detach()), wanted)


class Poisson:
    """A distribution of someone's own: sample and log_prob, and no more."""

    def __init__(self, log_rate):
        self.log_rate = log_rate

    def sample(self, shape, rng):
        rate = self.log_rate.detach().exp()
        return torch.poisson(rate.expand(*shape, *rate.shape), generator=rng)

    def log_prob(self, s):
        return s * self.log_rate - self.log_rate.exp() - torch.lgamma(s + 1)


def test_a_distribution_of_ones_own():
    """∇E s² in log rate: r + 2r² each; two of them are factors of one f."""
    y = torch.tensor([0.3, -0.2], dtype=torch.float64)
    rate = y.exp()
    found = study(
        "leave_one_out", lambda s: (s**2).sum(-1), y, distribution=Poisson, samples=4,
        rng=generator(), exact=rate + 2 * rate**2, confidence=0.9999,
    )  # fmt: skip
    assert found.unbiased
    assert found.relative[1] < 0.1
    with pytest.raises(TypeError, match=r"straight_through needs .* Poisson has no marginals"):
        estimators.straight_through(Poisson(y), cost, generator())


def test_exact_leaves_out_what_cannot_be_and_knows_factors():
    y = torch.tensor([[0.5, -INF, 0.1], [0.0, 1.0, -INF]], dtype=torch.float64, requires_grad=True)

    def f(s):
        return torch.where(s[..., 1] == 1, INF, s @ B[:3])

    one = estimators.exact(Categorical(y[:1]), f)
    (slope,) = torch.autograd.grad(one.sum(), y)
    assert torch.isfinite(one).all()
    assert torch.isfinite(slope).all()
    batch = torch.randn(4, 2, 3, generator=generator(), dtype=torch.float64)
    together = estimators.exact(Categorical(batch), joint, factors=1)
    eye = torch.eye(3, dtype=torch.float64)
    p = batch.softmax(-1)
    wanted = sum(
        p[:, 0, i] * p[:, 1, j] * joint(torch.stack([eye[i], eye[j]]))
        for i in range(3)
        for j in range(3)
    )
    assert torch.allclose(together, wanted)


def test_surrogates_of_values_from_elsewhere():
    every = torch.tensor(oracles.enumerate_subsets(Y.numpy(), 2).subsets.astype(float))[:4]
    leaf = Y.clone().requires_grad_()
    log_p = KSubset(leaf, 2).log_prob(every)
    value = estimators.surrogate(cost(every), log_p, baseline="leave_one_out")
    (wanted,) = torch.autograd.grad(value, leaf)
    assert value.item() == pytest.approx(cost(every).mean().item())
    own = estimators.leave_one_out(Replayed(leaf, every), cost, generator(), samples=4)
    assert torch.allclose(torch.autograd.grad(own, leaf)[0], wanted)


class Replayed(KSubset):
    """Subsets whose samples are known."""

    def __init__(self, logits, samples):
        super().__init__(logits, 2)
        self.samples = samples

    def sample(self, shape, rng):
        return self.samples


def test_wrong_arguments():
    choice, rng = Categorical(np.zeros((3, 4))), np.random.default_rng(0)
    first = lambda s: s[..., 0]  # noqa: E731
    with pytest.raises(ValueError, match=r"values must have the shape of log_prob, \(3,\)"):
        estimators.surrogate(np.zeros(4), np.zeros(3))
    with pytest.raises(ValueError, match="at least 2 samples"):
        estimators.surrogate(np.zeros(1), np.zeros(1), baseline="leave_one_out")
    with pytest.raises(TypeError, match="values is a Tensor and log_prob a ndarray"):
        estimators.surrogate(torch.zeros(3), np.zeros(3))
    with pytest.raises(ValueError, match="samples must be an integer, at least 2; got 1"):
        estimators.leave_one_out(choice, first, rng, samples=1)
    with pytest.raises(ValueError, match="samples must be an integer, at least 1; got 0"):
        estimators.straight_through(choice, first, rng, samples=0)
    with pytest.raises(ValueError, match="baseline must be None, 'leave_one_out'"):
        estimators.score_function(choice, first, rng, baseline="mean")
    with pytest.raises(TypeError, match="baseline must be None, 'leave_one_out', a number"):
        estimators.score_function(choice, first, rng, baseline=[1.0])
    with pytest.raises(ValueError, match="baseline has shape"):
        estimators.score_function(choice, first, rng, baseline=np.zeros(2))
    with pytest.raises(ValueError, match="f must return one number for each sample"):
        estimators.score_function(choice, lambda s: s[0, :, 0], rng, samples=2)
    with pytest.raises(TypeError, match="what f returns must be an array"):
        estimators.score_function(choice, lambda s: 1.0, rng)
    for name in ("rebar", "perturbed"):
        with pytest.raises(TypeError, match="what f returns must be an array"):
            estimators.TABLE[name](Categorical(torch.zeros(3)), lambda s: None, generator())
    with pytest.raises(ValueError, match="or its first dimensions"):
        estimators.score_function(choice, lambda s: s, rng)
    with pytest.raises(ValueError, match="draws must be an integer, at least 1; got 0"):
        estimators.gumbel_rao(choice, first, rng, draws=0)
    with pytest.raises(ValueError, match="step must be a finite number > 0; got 0"):
        estimators.perturbed(choice, first, rng, step=0)
    with pytest.raises(TypeError, match="reinmax needs a Categorical or a Bernoulli; got KSubset"):
        estimators.reinmax(KSubset(np.zeros(4), 2), first, rng)
    with pytest.raises(TypeError, match="NumPy arrays have no gradients"):
        estimators.rebar(choice, first, rng)
    with pytest.raises(ValueError, match="factors must be an integer in"):
        estimators.exact(choice, first, factors=2)
    with pytest.raises(TypeError, match="support needs one k for all rows"):
        KSubset(np.zeros((2, 3)), np.array([1, 2])).support()
