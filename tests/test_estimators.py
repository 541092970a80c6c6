"""Estimators of ∇E f: their expectation by summing over every sample, or by closed forms."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import oracles_subset as oracles
from kofn import Bernoulli, Categorical, KSubset, Normal, estimators
from kofn.estimators import study

B = torch.tensor([0.2, -0.4, 1.0, 0.7, -1.5], dtype=torch.float64)
Y = torch.tensor([0.5, -1.0, 0.3, 1.2, 0.0], dtype=torch.float64)
INF = math.inf


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def cost(s):
    """Of degree four, so that no estimator is exact by luck."""
    n = s.shape[-1]
    b = B[:n] if isinstance(s, torch.Tensor) else B[:n].numpy()
    return ((s - b) ** 2).sum(-1) + (s @ b) ** 4 + 0.5 * (s**3 @ (b * b))


def square(s):
    return ((s - B[: s.shape[-1]]) ** 2).sum(-1) + (s @ B[: s.shape[-1]]) ** 2


def joint(s):
    """Of two factors together: (…, 2, n) to (…)."""
    return cost(s[..., 0, :]) * (1 + s[..., 1, :] @ B[: s.shape[-1]]) + cost(s[..., 1, :])


PROBLEMS = {
    **{f"categories {n}": (Categorical, cost, Y[:n]) for n in (2, 3, 5)},
    "two factors": (Categorical, joint, torch.stack([Y[:3], Y[2:]])),
    "coins": (Bernoulli, cost, Y[:4]),
    "subsets": (partial(KSubset, k=2), cost, Y),
    "impossible": (Categorical, cost, torch.where(Y == 0.3, -INF, Y)),
}


def by_definition(name):
    """∇ Σ_s P(s) f(s) with no help from the estimators: probabilities written out."""
    _, f, y = PROBLEMS[name]
    leaf = y.clone().requires_grad_()
    if name == "coins":
        every = torch.cartesian_prod(*[torch.arange(2.0).double()] * 4)
        p = torch.where(every == 1, leaf.sigmoid(), 1 - leaf.sigmoid()).prod(-1)
    elif name == "subsets":
        every = torch.tensor(oracles.enumerate_subsets(y.numpy(), 2).subsets.astype(float))
        p = (every @ leaf).softmax(0)
    elif name == "two factors":
        eye = torch.eye(3, dtype=torch.float64)
        every = torch.stack([torch.stack([a, b]) for a in eye for b in eye])
        p = (leaf.softmax(-1)[0][:, None] * leaf.softmax(-1)[1]).flatten()
    else:
        every, p = torch.eye(len(y), dtype=torch.float64), leaf.softmax(-1)
    return torch.autograd.grad((p * f(every)).sum(), leaf)[0].numpy()


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize(
    ("estimator", "options"),
    [
        ("score_function", {}),
        ("score_function", {"baseline": 3.7}),
        ("score_function", {"samples": 2, "baseline": torch.tensor([[1.0], [-2.0]])}),
        ("leave_one_out", {"samples": 2}),
    ],
)
def test_score_functions_have_no_bias(name, estimator, options):
    distribution, f, y = PROBLEMS[name]
    found = study(estimator, f, y, distribution=distribution, **options)
    assert found.enumerated
    assert found.calls == options.get("samples", 1)
    assert np.allclose(found.gradient, by_definition(name), atol=1e-12)
    assert np.allclose(found.mean, found.gradient, atol=1e-11)
    assert np.all(found.mean[np.isinf(y.numpy())] == 0)


def test_leave_one_out_has_less_variance():
    shifted = lambda s: cost(s) + 10  # noqa: E731
    distribution = partial(KSubset, k=2)
    with_, without = (
        study(name, shifted, Y, distribution=distribution, samples=2).variance
        for name in ("leave_one_out", "score_function")
    )
    assert with_ < 0.1 * without


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("options", [{}, {"temperature": 0.3, "scale": 0.6}])
def test_rebar_has_no_bias(name, options):
    distribution, f, y = PROBLEMS[name]
    if name == "subsets":
        with pytest.raises(TypeError, match=r"rebar needs a distribution with .* conditioned"):
            estimators.rebar(KSubset(Y, 2), cost, generator())
        return
    found = study(
        "rebar", f, y, distribution=distribution, rng=generator(), draws=40_000,
        confidence=0.9999, **options,
    )  # fmt: skip
    assert found.unbiased, found
    assert found.relative[1] < 0.35  # or the test would say nothing
    assert found.calls == 2
    plain = study("score_function", lambda s: f(s) + 5, y, distribution=distribution)
    rebar = study(
        "rebar", lambda s: f(s) + 5, y, distribution=distribution, rng=generator(), draws=4000
    )
    assert rebar.variance + rebar.variance_bound < plain.variance


def jacobian(p):
    return np.diag(p) - np.outer(p, p)


def slope_at(f, s):
    leaf = s.clone().requires_grad_()
    return torch.autograd.grad(f(leaf), leaf)[0].numpy()


@pytest.mark.parametrize("n", [1, 2, 5])
def test_straight_through_is_biased_by_the_right_amount(n):
    """Σ_s P(s) J(p) f′(s), written out."""
    p, eye = Y[:n].softmax(-1).numpy(), torch.eye(n, dtype=torch.float64)
    wanted = sum(p[i] * jacobian(p) @ slope_at(cost, eye[i]) for i in range(n))
    found = study("straight_through", cost, Y[:n])
    assert np.allclose(found.mean, wanted, atol=1e-12)
    assert found.bias == pytest.approx(np.linalg.norm(wanted - found.gradient))
    assert (found.bias > 0.01) == (n > 1)
    linear = study("straight_through", lambda s: s @ B[:n], Y[:n])
    assert linear.unbiased


def test_straight_through_for_coins_and_subsets():
    coins = study("straight_through", cost, Y[:3], distribution=Bernoulli)
    every = torch.cartesian_prod(*[torch.arange(2.0).double()] * 3)
    p = Y[:3].sigmoid()
    weights = torch.where(every == 1, p, 1 - p).prod(-1).numpy()
    wanted = sum(
        w * slope_at(cost, s) * (p * (1 - p)).numpy() for w, s in zip(weights, every, strict=True)
    )
    assert np.allclose(coins.mean, wanted, atol=1e-12)
    exact = oracles.enumerate_subsets(Y.numpy(), 2)
    subsets = study("straight_through", cost, Y, distribution=partial(KSubset, k=2))
    every = torch.tensor(exact.subsets.astype(float))
    wanted = sum(
        w * exact.covariance.astype(float) @ slope_at(cost, s)
        for w, s in zip(exact.probabilities.astype(float), every, strict=True)
    )
    assert np.allclose(subsets.mean, wanted, atol=1e-12)
    assert subsets.bias > 0.1
    linear = study("straight_through", lambda s: s @ B, Y, distribution=partial(KSubset, k=2))
    assert linear.unbiased


@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_reinmax_is_exact_to_second_order(n, temperature):
    p, eye = Y[:n].softmax(-1).numpy(), np.eye(n)
    warm = (Y[:n] / temperature).softmax(-1).numpy()
    wanted = sum(
        p[i]
        * (2 * jacobian((warm + eye[i]) / 2) - jacobian(p) / 2)
        @ slope_at(cost, torch.tensor(eye[i]))
        for i in range(n)
    )
    found = study("reinmax", cost, Y[:n], temperature=temperature)
    assert np.allclose(found.mean, wanted, atol=1e-12)
    quadratic = study("reinmax", square, Y[:n], temperature=temperature)
    assert quadratic.unbiased == (temperature == 1 or n == 1)
    if n == 5:
        assert found.bias > 0.01
        coins = study("reinmax", lambda s: (s * B[:3]).sum(-1) ** 3, Y[:3], distribution=Bernoulli)
        assert coins.bias > 1e-3
        # Quadratic in each coin: exact, entry by entry, for one of them.
        assert study("reinmax", square, Y[:1], distribution=Bernoulli).unbiased


def of_relaxed_coin(y, f_slope, temperature, hard):
    """E of the relaxed estimator for one coin, by its noise's quantiles."""
    u = (np.arange(200_000) + 0.5) / 200_000
    z = y + np.log(u) - np.log1p(-u)
    soft = 1 / (1 + np.exp(-z / temperature))
    seen = (z > 0).astype(float) if hard else soft
    return (f_slope(seen) * soft * (1 - soft) / temperature).mean()


@pytest.mark.parametrize("temperature", [0.3, 1.0])
def test_relaxed_samples_are_biased_by_the_right_amount(temperature):
    """One coin: the noise has one dimension, and the expectation is a sum over its quantiles."""
    f, f_slope = lambda s: (s[..., 0] - 0.45) ** 4, lambda s: 4 * (s - 0.45) ** 3
    y, run = Y[3:4], partial(study, f=f, logits=Y[3:4], distribution=Bernoulli, rng=generator())
    for name, options, hard in (
        ("reparameterized", {}, False),
        ("reparameterized", {"hard": True}, True),
        ("gumbel_rao", {"draws": 3}, True),
    ):
        if "draws" in options:
            name = partial(estimators.gumbel_rao, draws=3)
            options = {}
        found = run(name, temperature=temperature, draws=40_000, confidence=0.9999, **options)
        wanted = of_relaxed_coin(y.item(), f_slope, temperature, hard)
        assert abs(found.mean.item() - wanted) < found.bias_bound
        assert found.bias_bound < 0.3 * abs(wanted)


def test_gumbel_rao_is_straight_through_gumbel_with_less_variance():
    common = {"rng": generator(), "draws": 20_000, "temperature": 0.5, "confidence": 0.9999}
    plain = study("reparameterized", cost, Y, hard=True, **common)
    less = study(partial(estimators.gumbel_rao, draws=20), cost, Y, **common)
    assert np.linalg.norm(plain.mean - less.mean) < plain.bias_bound + less.bias_bound
    assert less.variance + less.variance_bound < 0.8 * plain.variance
    assert less.calls == 1
    assert less.bias > less.bias_bound


def test_perturbed_is_a_finite_difference_of_probabilities():
    """For a linear f: (p(θ) − p(θ − λb))/λ, and the gradient as λ → 0."""

    def linear(s):
        return s @ B

    for step in (0.1, 1.0, 10.0):
        found = study(
            "perturbed", linear, Y, rng=generator(), draws=40_000, step=step, confidence=0.9999
        )
        wanted = (Y.softmax(-1) - (Y - step * B).softmax(-1)).numpy() / step
        assert np.linalg.norm(found.mean - wanted) < found.bias_bound
    subsets = study(
        "perturbed", linear, Y, distribution=partial(KSubset, k=2), rng=generator(), step=0.5
    )
    assert subsets.mean @ found.gradient > 0


def test_perturbed_does_not_depend_on_how_the_loss_is_scaled():
    slopes = []
    for scale in (1.0, 1e-3):
        leaf = Y.expand(50, 5).clone().requires_grad_()
        loss = estimators.perturbed(Categorical(leaf), cost, generator(), step=2.0)
        slopes.append(torch.autograd.grad((loss * scale).sum(), leaf)[0] / scale)
    assert torch.allclose(*slopes)


def test_reparameterized_normal_has_no_bias():
    """∇E z³ + 2z over (mean, log scale), in closed form; both estimators, and the article's
    claim that reparameterisation has less variance."""
    y = torch.tensor([0.7, -0.3], dtype=torch.float64)
    mean, scale = 0.7, math.exp(-0.3)
    exact = torch.tensor([3 * (mean**2 + scale**2) + 2, 6 * mean * scale * scale])

    def law(y):
        return Normal(y[..., :1], y[..., 1:].exp())

    def f(z):
        return z[..., 0] ** 3 + 2 * z[..., 0]

    common = {"distribution": law, "rng": generator(), "confidence": 0.9999, "exact": exact}
    path = study("reparameterized", f, y, **common)
    score = study("score_function", f, y, **common)
    assert path.unbiased
    assert score.unbiased
    assert path.variance < 0.5 * score.variance
    # Where f wriggles, its slope says less than its value: E sin 20z is nearly flat.
    wriggle = torch.tensor([20 * math.cos(14) * math.exp(-200 * scale**2), 0.0])
    common["exact"] = wriggle.double()
    path = study("reparameterized", lambda z: (20 * z[..., 0]).sin(), y, **common)
    score = study("score_function", lambda z: (20 * z[..., 0]).sin(), y, **common)
    assert path.unbiased
    assert score.unbiased
    assert path.variance > 20 * score.variance
    with pytest.raises(ValueError, match="temperature and hard are for relaxed samples"):
        estimators.reparameterized(law(y), f, generator(), temperature=1.0)


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
    from kofn import bernoulli, categorical

    noise = np.random.default_rng(0).gumbel(size=(2, 3, 5))
    for module in (categorical, bernoulli):
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
    with pytest.raises(ValueError, match="or begin it"):
        estimators.score_function(choice, lambda s: s, rng)
    with pytest.raises(ValueError, match="draws must be an integer, at least 1; got 0"):
        estimators.gumbel_rao(choice, first, rng, draws=0)
    with pytest.raises(ValueError, match="step must be a finite number > 0; got 0"):
        estimators.perturbed(choice, first, rng, step=0)
    with pytest.raises(TypeError, match="reinmax needs a Categorical or a Bernoulli; got KSubset"):
        estimators.reinmax(KSubset(np.zeros(4), 2), first, rng)
    with pytest.raises(TypeError, match="NumPy arrays have not"):
        estimators.rebar(choice, first, rng)
    with pytest.raises(ValueError, match="factors must be an integer in"):
        estimators.exact(choice, first, factors=2)
    with pytest.raises(TypeError, match="support needs one k for all rows"):
        KSubset(np.zeros((2, 3)), np.array([1, 2])).support()
