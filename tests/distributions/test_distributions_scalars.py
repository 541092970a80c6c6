"""Normal and Bernoulli of single numbers, arrays without dimensions, as torch.distributions has."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from kofn import Bernoulli, Categorical, Normal, estimators, normal_rsample
from support import Framework

MEAN, SCALE, LOGIT = 0.3, 1.7, 0.8
DTYPES = ["float64", "float32", "float16", "bfloat16"]


def rng_of(name, seed=0):
    if name == "torch":
        return torch.Generator().manual_seed(seed)
    return jax.random.key(seed) if name == "jax" else np.random.default_rng(seed)


METHODS = {
    Normal: {
        "sample": lambda law, rng: law.sample((), rng),
        "samples": lambda law, rng: law.rsample(5, rng),
        "log_prob": lambda law, rng: law.log_prob(law.sample((2, 3), rng)),
        "entropy": lambda law, rng: law.entropy(),
        "kl": lambda law, rng: law.kl(law),
        "variance": lambda law, rng: law.variance,
        "mode": lambda law, rng: law.mode(),
    },
    Bernoulli: {
        "sample": lambda law, rng: law.sample((), rng),
        "samples": lambda law, rng: law.sample((2, 3), rng),
        "log_prob": lambda law, rng: law.log_prob(law.sample(5, rng)),
        "probs": lambda law, rng: law.probs(),
        "mean": lambda law, rng: law.mean,
        "entropy": lambda law, rng: law.entropy(),
        "kl": lambda law, rng: law.kl(law),
        "variance": lambda law, rng: law.variance,
        "mode": lambda law, rng: law.mode(),
        "support": lambda law, rng: law.support(),
        "enumerate_support": lambda law, rng: law.enumerate_support(),
        "perturb": lambda law, rng: law.perturb(4, rng),
        "perturb_given": lambda law, rng: law.perturb_given(law.sample(4, rng), rng),
        "conditioned": lambda law, rng: law.conditioned(law.perturb((), rng)),
        "relax": lambda law, rng: law.relax(law.perturb(3, rng), 0.5),
    },
}
CASES = [(law, name) for law, methods in METHODS.items() for name in methods]


def law_of(kind, framework, dtype, shape):
    parts = (MEAN, SCALE) if kind is Normal else (LOGIT,)
    return kind(*(framework.array(np.full(shape, each), dtype) for each in parts))


@pytest.mark.pairs
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_one_number_is_like_an_array_of_one(framework, kind, name, dtype):
    if framework.name == "numpy" and dtype == "bfloat16":
        pytest.skip("NumPy has no bfloat16")
    method = METHODS[kind][name]
    alone, row = (
        method(law_of(kind, framework, dtype, shape), rng_of(framework.name))
        for shape in ((), (1,))
    )
    assert (*alone.shape, 1) == tuple(row.shape)
    assert alone.dtype == row.dtype
    assert framework.is_kind(alone)
    assert np.allclose(
        framework.numpy(alone), framework.numpy(row)[..., 0], rtol=1e-6, equal_nan=True
    )


def test_they_agree_with_torch():
    z, ones = torch.tensor([0.1, -2.0, 7.0]), torch.tensor([0.0, 1.0])
    ours, theirs = (kind(torch.tensor(MEAN), torch.tensor(SCALE)) for kind in (Normal, _NORMAL))
    assert torch.allclose(ours.log_prob(z), theirs.log_prob(z))
    assert torch.allclose(ours.entropy(), theirs.entropy())
    assert ours.batch_shape == tuple(theirs.batch_shape) == ()
    coin = Bernoulli(torch.tensor(LOGIT))
    assert torch.allclose(
        coin.log_prob(ones), torch.distributions.Bernoulli(logits=LOGIT).log_prob(ones)
    )
    assert coin.expand((2, 3)).batch_shape == (2, 3)
    assert ours.expand(4).sample().shape == (4,)


_NORMAL = torch.distributions.Normal


def test_numbers_of_numpy_count_as_arrays():
    """x.mean() of NumPy is a number of its own, no array."""
    x = np.array([1.0, 2.0, 3.0])
    law = Normal(x.mean(), x.std())
    assert law.log_prob(x.max()) == pytest.approx(law.log_prob(np.array(3.0)))
    assert law.batch_shape == ()
    assert normal_rsample(x.mean(), np.float64(0.0)) == 2.0
    coin = Bernoulli(probs=x.min() / 4)
    assert coin.log_prob(np.float64(1.0)) == pytest.approx(np.log(0.25))
    assert coin.probs() == pytest.approx(0.25)


def test_one_scale_for_all_means(framework):
    mean, scale = framework.array([0.0, 1.0]), framework.array(2.0)
    each = framework.array([2.0, 2.0])
    a, b = (framework.numpy(Normal(mean, s).log_prob(mean + 1)) for s in (scale, each))
    assert np.array_equal(a, b)


def test_gradients_of_single_numbers():
    mean, scale, logit = (
        torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (MEAN, SCALE, LOGIT)
    )
    z = torch.tensor([0.1, -2.0], dtype=torch.float64)
    ones = torch.tensor([0.0, 1.0], dtype=torch.float64)
    cases = [
        (lambda m, s: Normal(m, s).log_prob(z), (mean, scale)),
        (lambda m, s: Normal(m, s).kl(Normal(s, m * m)), (mean, scale)),
        (lambda m, s: Normal(m, s).rsample(3, torch.Generator().manual_seed(0)), (mean, scale)),
        (lambda y: Bernoulli(y).log_prob(ones), (logit,)),
        (lambda y: Bernoulli(y).entropy(), (logit,)),
        (lambda y: Bernoulli(y).kl(Bernoulli(y * y)), (logit,)),
    ]
    for function, arguments in cases:
        assert torch.autograd.gradcheck(function, arguments)
        assert torch.autograd.gradgradcheck(function, arguments, fast_mode=True)


def test_vmap_and_jit_over_rows_of_numbers():
    means, scales = jnp.linspace(-1, 1, 4), jnp.linspace(0.5, 2, 4)
    one = jax.vmap(lambda m, s: Normal(m, s).log_prob(m + 1))(means, scales)
    assert np.allclose(one, Normal(means, scales).log_prob(means + 1))
    assert np.allclose(
        jax.jit(lambda m, s: Normal(m, s).entropy())(means[0], scales[0]),
        one[0] * 0 + Normal(means, scales).entropy()[0],
    )
    coins = jax.jit(jax.vmap(lambda y: Bernoulli(y).entropy()))(means)
    assert np.allclose(coins, Bernoulli(means).entropy())
    leaves = jax.tree.map(lambda x: 2 * x, Normal(means[0], scales[0]))
    assert leaves.scale == 2 * scales[0]
    rows = torch.func.vmap(lambda m, s: Normal(m, s).log_prob(m + 1))
    means, scales = torch.linspace(-1, 1, 4), torch.linspace(0.5, 2, 4)
    assert torch.allclose(rows(means, scales), Normal(means, scales).log_prob(means + 1))
    compiled = torch.compile(
        lambda m, s: Normal(m, s).log_prob(m + 1), backend="eager", fullgraph=True
    )
    assert torch.allclose(compiled(means[0], scales[0]), rows(means, scales)[0])


def test_estimators_take_them():
    """∂E(z − b)² for a normal variable is 2(m − b); for a coin P(1)P(0)(1 − 2b)."""
    mean = torch.tensor(MEAN, dtype=torch.float64, requires_grad=True)
    scale = torch.tensor(SCALE, dtype=torch.float64)

    def slope(estimator, law):
        rng = torch.Generator().manual_seed(0)  # which wrapped laws of torch's would refuse
        loss = estimator(law, lambda z: (z - 0.4) ** 2, rng=rng, samples=20_000)
        return float(torch.autograd.grad(loss, mean)[0])

    for law in (Normal(mean, scale), torch.distributions.Normal(mean, scale)):
        for estimator in (estimators.score_function, estimators.reparameterized):
            assert slope(estimator, law) == pytest.approx(2 * (MEAN - 0.4), abs=0.2)
    p = 1 / (1 + np.exp(-MEAN))
    for law in (Bernoulli(mean), torch.distributions.Bernoulli(logits=mean)):
        exact = estimators.exact(law, lambda z: (z - 0.4) ** 2)
        found = float(torch.autograd.grad(exact, mean)[0])
        assert found == pytest.approx(p * (1 - p) * 0.2, abs=1e-12)
        for estimator in (estimators.leave_one_out, estimators.rebar, estimators.gumbel_rao):
            assert slope(estimator, law) == pytest.approx(found, abs=0.03)


def test_rows_still_need_a_dimension(framework):
    with pytest.raises(ValueError, match="logits must have at least one dimension"):
        Categorical(framework.array(1.0))
    with pytest.raises(ValueError, match="scale has shape"):
        Normal(framework.array(1.0), framework.array([1.0, 2.0]))
    with pytest.raises(TypeError, match=r"mean must be a torch\.Tensor"):
        Normal(1.0, 2.0)
    integer = Framework(framework.name).array(1, "int32")
    with pytest.raises(TypeError, match=r"logits must have dtype .*got .*int32; cast it, as in"):
        Bernoulli(integer)
