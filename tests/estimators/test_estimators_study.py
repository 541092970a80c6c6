"""The judge of estimators: its sums against sums by hand, its bounds against the truth."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from kofn import Bernoulli, Categorical, KSubset, Normal, estimators
from kofn.estimators import bias_variance, replay, study

Y = torch.tensor([0.5, -1.0, 0.3], dtype=torch.float64)
COST = torch.tensor([4.0, 5.0, 6.0], dtype=torch.float64)


def linear(s):
    return s @ COST


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_enumerated_figures_are_the_sums_they_are_said_to_be():
    """The score function's, in closed form: f(i)·(e_i − p) with probability p_i."""
    p, f = Y.softmax(-1).numpy(), COST.numpy()
    found = study("score_function", linear, Y)
    each = f[:, None] * (np.eye(3) - p)
    assert np.allclose(found.mean, p @ each)
    assert np.allclose(found.gradient, p * (f - p @ f))
    variance = p @ ((each - p @ each) ** 2).sum(1)
    assert found.variance == pytest.approx(variance)
    assert found.value == pytest.approx(p @ f)
    assert found.value_variance == pytest.approx(p @ (f - p @ f) ** 2)
    assert (found.calls, found.draws, found.bias_bound, found.variance_bound) == (1, 0, 0, 0)
    assert found.enumerated
    assert found.unbiased
    two = study("score_function", linear, Y, samples=2)
    assert two.variance == pytest.approx(variance / 2)
    assert two.calls == 2


def test_the_articles_two_lotteries():
    """4, 5, 6 and 0, 5, 10 have one mean; a sample of the second says 25 times less."""
    y = torch.zeros(3, dtype=torch.float64)
    one, other = (
        study("score_function", lambda s, c=c: s @ c, y)
        for c in (COST, torch.tensor([0.0, 5.0, 10.0]).double())
    )
    assert one.value == pytest.approx(other.value) == pytest.approx(5)
    assert one.value_variance == pytest.approx(2 / 3)
    assert other.value_variance == pytest.approx(50 / 3)


@pytest.mark.parametrize("estimator", ["score_function", "reinmax"])
def test_drawing_finds_what_enumerating_finds(estimator):
    exact = study(estimator, linear, Y)
    drawn = study(
        estimator, linear, Y, rng=generator(), draws=4000, enumerate_up_to=2, confidence=0.9999
    )
    assert not drawn.enumerated
    assert drawn.draws == 4000
    assert np.linalg.norm(drawn.mean - exact.mean) < drawn.bias_bound
    assert abs(drawn.variance - exact.variance) < drawn.variance_bound
    # Where nothing can be summed, the gradient itself is measured.
    assert np.linalg.norm(drawn.gradient - exact.gradient) < 0.1


def test_the_bound_holds_as_often_as_it_says():
    """A bias of 0, found in noise 150 times; one that is not 0 is noticed."""
    drawn = partial(study, "score_function", linear, Y, samples=2, draws=200, enumerate_up_to=3)
    inside = [drawn(rng=generator(seed)).unbiased for seed in range(150)]
    assert 0.9 < np.mean(inside) < 0.99
    biased = study("straight_through", lambda s: linear(s) ** 3, Y)
    assert not biased.unbiased


def test_the_length_of_a_normal_vector():
    """Alike in ten directions it is that of χ² exactly; in ten unlike ones, of what is drawn."""
    alike = bias_variance._radius(np.eye(10) / 4, 0.95)
    assert alike == pytest.approx(math.sqrt(18.307 / 4), rel=1e-3)
    spread = np.linspace(0.1, 1, 10)
    drawn = np.linalg.norm(np.random.default_rng(0).standard_normal((100_000, 10)) * spread, axis=1)
    found = bias_variance._radius(np.diag(spread**2), 0.95)
    assert found == pytest.approx(np.quantile(drawn, 0.95), rel=0.02)


def test_pieces_are_put_together(monkeypatch):
    whole = study("leave_one_out", linear, Y, samples=3)
    monkeypatch.setattr(replay, "AT_ONCE", 50)
    pieces = study("leave_one_out", linear, Y, samples=3)
    assert np.allclose(whole.mean, pieces.mean)
    assert whole.variance == pytest.approx(pieces.variance)
    drawn = study("reparameterized", linear, Y, rng=generator(), draws=100)
    assert drawn.mean.shape == (3,)


def test_a_problem_too_large_to_sum_is_held_to_a_measured_gradient():
    y = torch.zeros(30, dtype=torch.float64)
    b = torch.linspace(-1, 1, 30, dtype=torch.float64)
    law = partial(KSubset, k=15)
    found = study(
        "leave_one_out",
        lambda s: s @ b,
        y,
        distribution=law,
        samples=2,
        rng=generator(),
        draws=2000,
    )
    exact = KSubset(y, 15).covariance_vector_product(b).numpy()
    assert found.unbiased
    assert np.linalg.norm(found.gradient - exact) < found.bias_bound
    one_k_each = study(
        "leave_one_out", lambda s: (s[..., 0, :] * s[..., 1, :]) @ COST, torch.stack([Y, -Y]),
        distribution=lambda y: KSubset(y, torch.tensor([1, 2])), samples=2, rng=generator(),
        draws=1000,
    )  # fmt: skip
    assert one_k_each.unbiased
    assert not one_k_each.enumerated
    one = study(
        "reparameterized",
        lambda z: z[..., 0] ** 2,
        torch.tensor([1.0, 0.0]),
        distribution=lambda y: Normal(y[..., :1], y[..., 1:].exp()),
        rng=generator(),
        draws=2000,
    )
    assert one.unbiased
    assert np.allclose(one.gradient, [2, 2], atol=0.3)


def test_a_running_mean_is_taken_as_it_stands():
    past = estimators.RunningMean()
    past.update(torch.tensor([5.0]))
    found = study("score_function", linear, Y, baseline=past)
    assert found.variance == study("score_function", linear, Y, baseline=5.0).variance
    assert past.mean == 5


def test_rounding_is_no_bias():
    y, cost = Y.float(), COST.float()
    assert study("leave_one_out", lambda s: (s @ cost) ** 2, y, samples=3).unbiased
    assert not study("straight_through", lambda s: (s @ cost) ** 2, y).unbiased


def test_more_randomness_than_one_draw_of_samples_is_drawn():
    """A second draw would replay the first; noise of one's own would come from nowhere."""

    def twice(choice, f, rng, samples):
        s, other = choice.sample((samples,), rng), choice.sample((samples,), rng)
        return estimators.surrogate(f(s), choice.log_prob(s), baseline=f(other))

    def noisy(choice, f, rng, samples):
        noise = torch.randn(choice.logits.shape, generator=rng, dtype=torch.float64)
        return f(choice.sample((samples,), rng)).mean(0) + (noise * choice.logits).sum(-1)

    common = {"rng": generator(), "draws": 4000, "confidence": 0.9999}
    found = study(twice, linear, Y, **common)
    assert not found.enumerated
    assert found.unbiased
    assert not study(noisy, linear, Y, **common).enumerated
    assert not study(noisy, linear, Y, draws=100).enumerated  # by the global generator


@pytest.mark.full
def test_on_jax():
    cost = jnp.asarray(COST.numpy())
    found = study("leave_one_out", lambda s: s @ cost, jnp.asarray(Y.numpy()), samples=2)
    wanted = study("leave_one_out", linear, Y, samples=2)
    assert np.allclose(found.mean, wanted.mean)
    assert found.variance == pytest.approx(wanted.variance)
    drawn = study(
        "reparameterized",
        lambda s: s @ cost,
        jnp.asarray(Y.numpy()),
        rng=jax.random.key(0),
        draws=50,
    )
    assert drawn.draws == 50


def test_what_it_prints():
    assert str(study("score_function", linear, Y)).endswith("1 calls of f (enumerated)")
    text = str(study("rebar", linear, Y, rng=generator(), draws=100))
    assert "±" in text
    assert text.endswith("2 calls of f (100 draws)")


def test_wrong_arguments():
    with pytest.raises(ValueError, match="estimator must be one of score_function, leave_one_out"):
        study("reinforce", linear, Y)
    with pytest.raises(TypeError, match="estimator must be a function or its name; got 3"):
        study(3, linear, Y)
    with pytest.raises(TypeError, match="NumPy arrays have no gradients"):
        study("score_function", linear, Y.numpy())
    with pytest.raises(ValueError, match="draws must be an integer, at least 2; got 1"):
        study("rebar", linear, Y, rng=generator(), draws=1)
    with pytest.raises(ValueError, match=r"confidence must be in \(0, 1\); got 1.5"):
        study("score_function", linear, Y, confidence=1.5)
    with pytest.raises(TypeError, match=r"rng must be a torch\.Generator"):
        study("rebar", linear, Y, rng=np.random.default_rng(0))
    with pytest.raises(ValueError, match="f must reduce all dimensions of logits"):
        study("score_function", lambda s: s @ COST, Y.expand(2, 3))
    with pytest.raises(ValueError, match=r"exact must have the shape of logits, \(3,\); got \(2,"):
        study("score_function", linear, Y, exact=torch.zeros(2))
    two = study("score_function", lambda s: (s @ COST).prod(-1), Y.expand(2, 3))
    assert two.unbiased
    assert two.mean.shape == (2, 3)
    assert study("score_function", lambda s: s.sum(-1), Y, distribution=Bernoulli).unbiased
    assert math.isnan(study("score_function", lambda s: s.sum(-1), Y[:1]).relative[0])
    assert Categorical(Y).support().shape == (3, 3)
