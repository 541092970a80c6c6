"""Estimators of ∇E f: their expectation by summing over every sample, or by closed forms."""

import math
from functools import partial

import numpy as np
import pytest
import torch

from kofn import Bernoulli, Categorical, KSubset, Normal, estimators
from kofn.estimators import study
from oracles import subset as oracles
from toys import B, Y, cost, generator, joint, square

INF = math.inf


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


@pytest.mark.parametrize("step", [0.1, 1.0, 5.0])
def test_perturbed_is_biased_by_the_right_amount(step):
    """Two categories: their difference d is logistic noise about y0 − y1, and a move of
    step·(f′0 − f′1) changes the choice where d is between 0 and that."""
    d = (Y[0] - Y[1]).item()
    slopes = [slope_at(cost, s) for s in torch.eye(2, dtype=torch.float64)]
    from_one, from_other = (step * (slope[0] - slope[1]) for slope in slopes)
    below = lambda t: 1 / (1 + math.exp(d - t))  # noqa: E731
    lost = below(max(from_one, 0.0)) - below(0.0)
    won = below(0.0) - below(min(from_other, 0.0))
    wanted = (lost - won) / step
    found = study(
        "perturbed", cost, Y[:2], rng=generator(), draws=40_000, step=step, confidence=0.9999
    )
    assert np.linalg.norm(found.mean - [wanted, -wanted]) < found.bias_bound
    assert found.bias > found.bias_bound


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


@pytest.mark.parametrize(("steepness", "loses"), [(1.0, False), (1.5, True)])
def test_where_reparameterisation_loses(steepness, loses):
    """sin ωz, z ~ N(1, 1): the variances cross at ω = 1.25."""
    one = {
        name: study(
            name,
            lambda z: (steepness * z[..., 0]).sin(),
            torch.tensor([1.0, 0.0], dtype=torch.float64),
            distribution=lambda y: Normal(y[..., :1], y[..., 1:].exp()),
            rng=generator(),
            exact=torch.zeros(2),
        )
        for name in ("reparameterized", "score_function")
    }
    path, score = one["reparameterized"], one["score_function"]
    apart = path.variance - score.variance if loses else score.variance - path.variance
    assert apart > 2 * (path.variance_bound + score.variance_bound)
