"""The normal distribution beside torch's; its samples' gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

from kofn import Normal, normal_rsample
from test_subsets_sampling import rng_of


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


MEAN = np.array([[0.5, -1.0, 2.0], [0.0, 0.1, 30.0]])
SCALE = np.array([1.0, 0.2, 3.0])


def test_samples_come_as_often_as_they_should(framework):
    drawn = normal_rsample(
        framework.array(MEAN), framework.array(SCALE), rng_of(framework), shape=20_000
    )
    z = (framework.numpy(drawn) - MEAN) / SCALE
    assert z.shape == (20_000, 2, 3)
    shares = [0.02, 0.16, 0.5, 0.84, 0.98]
    wanted = [-2.0537, -0.9945, 0, 0.9945, 2.0537]
    assert np.allclose(np.quantile(z, shares, axis=0), np.reshape(wanted, (5, 1, 1)), atol=0.08)
    assert np.abs(np.corrcoef(z.reshape(-1, 6).T) - np.eye(6)).max() < 0.05


def test_what_torch_has(framework):
    mean, scale = torch.tensor(MEAN), torch.tensor(SCALE)
    theirs = torch.distributions.Normal(mean, scale)
    other = torch.distributions.Normal(mean + 1, torch.ones_like(mean) * 2)
    ours = Normal(framework.array(MEAN), framework.array(SCALE))
    our_other = Normal(framework.array(MEAN + 1), framework.array(np.full_like(MEAN, 2)))
    value = np.random.default_rng(0).standard_normal((4, 2, 3))
    for got, wanted in (
        (ours.log_prob(framework.array(value)), theirs.log_prob(torch.tensor(value))),
        (ours.entropy(), theirs.entropy()),
        (ours.kl(our_other), torch.distributions.kl_divergence(theirs, other)),
        (ours.mode(), theirs.mode),
    ):
        assert np.allclose(framework.numpy(got), wanted.numpy(), atol=1e-12)


def test_gradients_reach_mean_and_scale():
    leaves = [torch.tensor(a, requires_grad=True) for a in (MEAN, SCALE)]
    assert gradcheck(lambda m, s: normal_rsample(m, s, generator(), shape=2), leaves)
    assert not Normal(*leaves).sample((), generator()).requires_grad
    value = torch.tensor(MEAN + 0.3)
    assert gradcheck(lambda m, s: Normal(m, s).log_prob(value), leaves)


def test_half_precision_jax_and_errors():
    half = normal_rsample(torch.zeros(3, dtype=torch.float16), torch.ones(3).half(), generator())
    assert half.dtype == torch.float16

    @jax.jit
    def slope(law, key):
        return jax.grad(lambda s: Normal(law.mean, s).rsample((), key).sum())(law.scale)

    noise = slope(Normal(jnp.asarray(MEAN), jnp.asarray(SCALE)), jax.random.key(0))
    assert noise.shape == (3,)
    with pytest.raises(TypeError, match="rng must be"):
        normal_rsample(MEAN, SCALE, rng=0.5)
    with pytest.raises(ValueError, match=r"scale has shape \(2,\); it must broadcast to the shape"):
        Normal(MEAN, np.ones(2))
    with pytest.raises(TypeError, match="scale must be an array"):
        Normal(MEAN, 1.0)
    with pytest.raises(ValueError, match="value has shape"):
        Normal(MEAN, SCALE).log_prob(np.zeros(3))
    with pytest.raises(TypeError, match="other must be a Normal"):
        Normal(MEAN, SCALE).kl(None)
    with pytest.raises(ValueError, match="other must have mean of shape"):
        Normal(MEAN, SCALE).kl(Normal(MEAN[0], SCALE))
    assert repr(Normal(MEAN, SCALE)) == "Normal(mean of shape (2, 3))"
