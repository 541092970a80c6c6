"""The density of relaxed one-hots beside torch's, and that it is one."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.autograd import gradcheck
from torch.distributions import RelaxedOneHotCategorical
from torch.distributions.relaxed_categorical import ExpRelaxedCategorical

from kofn import RelaxedOneHot
from support import Framework
from test_subsets_sampling import rng_of

INF = math.inf
Y = np.array([[1.2, -0.3, 0.5, -0.4], [0.1, 0.2, 2.5, -3.0]])


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_the_density_is_torchs(framework, temperature):
    """At samples of both, in weights and in logarithms."""
    y, t = torch.tensor(Y), torch.tensor(temperature, dtype=torch.float64)
    ours = RelaxedOneHot(framework.array(Y), temperature)
    for theirs, logs in (
        (RelaxedOneHotCategorical(t, logits=y), False),
        (ExpRelaxedCategorical(t, logits=y), True),
    ):
        torch.manual_seed(0)
        drawn = framework.array(theirs.sample((20,)).numpy())
        own = (ours.log_rsample if logs else ours.rsample)(20, rng_of(framework))
        for value in (drawn, own):
            wanted = theirs.log_prob(torch.tensor(framework.numpy(value))).numpy()
            assert np.allclose(framework.numpy(ours.log_prob(value, logs=logs)), wanted, rtol=1e-10)


def test_the_density_adds_up_to_1():
    w = (np.arange(4000) + 0.5) / 4000
    law = RelaxedOneHot(np.array([1.0, 0.0]), 0.8)
    total = np.exp(law.log_prob(np.stack([w, 1 - w], -1))).mean()
    assert total == pytest.approx(1, abs=1e-3)
    drawn = law.sample(20_000, np.random.default_rng(0))[:, 0]
    observed = np.histogram(drawn, bins=20, range=(0, 1))[0]
    expected = np.exp(law.log_prob(np.stack([w, 1 - w], -1))).reshape(20, 200).mean(1) * 1000
    assert (((observed - expected) ** 2 / expected).sum() - 19) / math.sqrt(38) < 4


def test_an_entry_that_cannot_be_is_as_if_deleted(framework):
    whole = RelaxedOneHot(framework.array([0.3, -INF, 1.0, 0.2]), 0.7)
    less = RelaxedOneHot(framework.array([0.3, 1.0, 0.2]), 0.7)
    drawn = framework.numpy(whole.rsample(5, rng_of(framework)))
    assert np.all(drawn[:, 1] == 0)
    got = framework.numpy(whole.log_prob(framework.array(drawn)))
    wanted = framework.numpy(less.log_prob(framework.array(np.delete(drawn, 1, -1))))
    assert np.allclose(got, wanted)
    logs = framework.numpy(whole.log_rsample(5, rng_of(framework)))
    assert np.all(logs[:, 1] == -INF)
    assert np.isfinite(framework.numpy(whole.log_prob(framework.array(logs), logs=True))).all()
    astray = framework.array([[0.2, 0.3, 0.3, 0.2], [0.5, 0.0, 0.0, 0.5]])
    got = framework.numpy(whole.log_prob(astray))
    assert got[0] == -INF
    assert math.isnan(got[1])


def test_gradients_and_a_temperature_per_row():
    y = torch.tensor(Y, requires_grad=True)
    t = torch.tensor([0.5, 2.0], dtype=torch.float64, requires_grad=True)
    drawn = RelaxedOneHot(y, t).sample(3, generator())
    assert not drawn.requires_grad
    assert gradcheck(lambda y, t: RelaxedOneHot(y, t).log_prob(drawn), (y, t))
    assert gradcheck(lambda y, t: RelaxedOneHot(y, t).log_rsample(2, generator()), (y, t))
    cold = RelaxedOneHot(torch.zeros(50), 0.01)
    logs = cold.log_rsample(20, generator())
    assert torch.isfinite(logs).all()
    assert torch.isfinite(cold.log_prob(logs, logs=True)).all()


def test_rows_that_are_out_of_the_ordinary():
    """None left, one, a NaN, temperatures that are none: each in its row."""
    y = torch.tensor(
        [[-INF, -INF], [0.3, -INF], [math.nan, 0.0], [0.0, 1.0], [0.3, -INF]], dtype=torch.float64
    )
    t = torch.tensor([0.5, 0.5, 0.5, -1.0, math.nan], dtype=torch.float64)
    law = RelaxedOneHot(y, t)
    for logs, drawn in (
        (True, law.log_rsample(3, generator())),
        (False, law.rsample(3, generator())),
    ):
        assert drawn.isnan().any(-1).tolist() == [[False, False, True, True, True]] * 3
        log_p = law.log_prob(drawn, logs=logs)
        assert log_p[:, :2].tolist() == [[0, 0]] * 3
        assert log_p[:, 2:].isnan().all()
    finite = torch.tensor([0.4, 0.6], dtype=torch.float64).expand(5, 2)
    assert law.log_prob(finite)[3].isnan()
    tiny = RelaxedOneHot(torch.zeros(3), 1e-50)
    assert torch.isfinite(tiny.log_prob(tiny.log_rsample(5, generator()), logs=True)).all()


def test_jax_and_errors():
    law = RelaxedOneHot(jnp.asarray(Y), 0.5)
    got = jax.jit(lambda law, key: law.log_prob(law.rsample((), key)))(law, jax.random.key(0))
    assert got.shape == (2,)
    with pytest.raises(ValueError, match="temperature must be a finite number > 0"):
        RelaxedOneHot(Y, 0)
    with pytest.raises(ValueError, match=r"temperature has shape \(3,\)"):
        RelaxedOneHot(Y, np.ones(3))
    with pytest.raises(ValueError, match="value has shape"):
        RelaxedOneHot(Y, 1.0).log_prob(np.zeros(4))
    assert repr(RelaxedOneHot(Y, 1.0)) == "RelaxedOneHot(logits of shape (2, 4))"


@pytest.mark.parametrize("name", ["torch", "jax"])
def test_an_entry_that_is_left_out_leaves_the_gradient_in_the_temperature(name):
    """It was NaN in that row: −∞/T has an infinite slope, times a cotangent of 0."""
    framework = Framework(name)
    logits = framework.array([[1.0, -np.inf, 0.3], [0.2, 0.5, -1.0]])

    def drawn(x, t):
        rng = torch.Generator().manual_seed(0) if name == "torch" else jax.random.key(0)
        return RelaxedOneHot(x, t).log_rsample((), rng)

    t, v = framework.array([0.7, 1.0]), framework.array([[1.0, 0, 2], [1, -1, 2]])
    in_x, in_t = framework.vjp(drawn, (logits, t), v)
    step = 1e-6
    ways = [framework.numpy(drawn(logits, t + sign * step)) for sign in (1, -1)]
    moved = np.where(np.isfinite(ways[0]), ways[0] - np.where(np.isfinite(ways[1]), ways[1], 0), 0)
    wanted = (moved * framework.numpy(v)).sum(-1) / (2 * step)
    assert in_t == pytest.approx(wanted, rel=1e-6)
    assert np.isfinite(in_x).all()
