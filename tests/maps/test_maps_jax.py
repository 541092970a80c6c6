"""Every public function under JAX's vmap with derivatives outside of it: the usual way to a loss.

A row's derivatives are held to those of the row alone, which other files hold to oracles.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import kofn
from kofn import classic, estimators, links, losses, metrics
from support import LINKS

N = 4
KEY = jax.random.key(0)
ONE_HOT = jnp.eye(N)[1]
K_HOT = jnp.asarray([1.0, 0, 0, 1])
SUBSET = jnp.asarray([True, False, True, False])
MASK = np.array([True, True, False, True])


def alike(x, row):
    return jnp.broadcast_to(row, x.shape)


def labels(x):
    return jnp.ones(x.shape[:-1], int)


def cosines(x):
    return jnp.tanh(x)


def squared(z):
    return (z * z).sum(-1)


FUNCTIONS = {
    **{f"soft_topk {n}": lambda x, n=n: kofn.soft_topk(x, 2.5, link=n) for n in LINKS},
    "soft_topk masked": lambda x: kofn.soft_topk(x, 1.5, mask=MASK, temperature=0.7),
    "soft_topk hard": lambda x: kofn.soft_topk(x, 2, hard=True),
    "soft_topk dim": lambda x: kofn.soft_topk(jnp.moveaxis(x, -1, 0), 2, dim=0),
    "soft_topk learned": lambda x: kofn.soft_topk(
        x, 1 + jax.nn.sigmoid(x[..., 0]), temperature=jnp.exp(x[..., 1])
    ),
    "soft_topk_threshold": lambda x: kofn.soft_topk_threshold(x, 2),
    "soft_topk_sum": lambda x: kofn.soft_topk_sum(x, 2),
    "topk_gates": lambda x: kofn.topk_gates(x, 2)[0],
    "hard_topk": lambda x: kofn.hard_topk(x, 2),
    "softmax": kofn.softmax,
    "sparsemax": kofn.sparsemax,
    "entmax": kofn.entmax,
    "entmax 1.3": lambda x: kofn.entmax(x, 1.3),
    "entmax learned": lambda x: kofn.entmax(x, 1 + jax.nn.sigmoid(x[..., 0])),
    "sparse_softmax": lambda x: kofn.sparse_softmax(x, k=3),
    "sparse_softmax p": lambda x: kofn.sparse_softmax(x, p=0.9),
    "taylor_softmax": kofn.taylor_softmax,
    **{
        f"perturbed_argmax {n}": lambda x, n=n: kofn.perturbed_argmax(x, noise=n)
        for n in ("normal", "uniform", "gumbel")
    },
    "log_soft_topk": lambda x: kofn.log_soft_topk(x, 2),
    "log_soft_topk exponential": lambda x: kofn.log_soft_topk(x, 2, link="exponential"),
    "log_entmax": lambda x: kofn.log_entmax(x, 1.0),
    "KSubset.log_partition": lambda x: kofn.KSubset(x, 2).log_partition(),
    "KSubset.marginals": lambda x: kofn.KSubset(x, 2).marginals(),
    "KSubset.log_prob": lambda x: kofn.KSubset(x, 2).log_prob(alike(x, SUBSET)),
    "KSubset.entropy": lambda x: kofn.KSubset(x, 2).entropy(),
    "KSubset.kl": lambda x: kofn.KSubset(x, 2).kl(kofn.KSubset(jnp.sin(x), 2)),
    "KSubset.covariance": lambda x: kofn.KSubset(x, 2).covariance_vector_product(jnp.cos(x)),
    "KSubset.relax": lambda x: kofn.KSubset(x, 2).relax(x, 0.5),
    "PlackettLuce.log_prob": lambda x: kofn.PlackettLuce(x).log_prob(
        jnp.broadcast_to(jnp.array([2, 0]), (*x.shape[:-1], 2))
    ),
    "PlackettLuce.log_prob unordered": lambda x: kofn.PlackettLuce(x).log_prob(
        jnp.broadcast_to(jnp.array([2, 0]), (*x.shape[:-1], 2)), ordered=False
    ),
    "PlackettLuce.relaxed_sample": lambda x: kofn.PlackettLuce(x).relaxed_sample(2, 0.5, KEY),
    "Categorical.log_prob": lambda x: kofn.Categorical(x).log_prob(alike(x, ONE_HOT)),
    "Categorical.entropy": lambda x: kofn.Categorical(x).entropy(),
    "Categorical.kl": lambda x: kofn.Categorical(x).kl(kofn.Categorical(jnp.sin(x))),
    "Categorical.marginals": lambda x: kofn.Categorical(x).marginals(),
    "Bernoulli.log_prob": lambda x: kofn.Bernoulli(x).log_prob(alike(x, K_HOT)),
    "Bernoulli.entropy": lambda x: kofn.Bernoulli(x).entropy(),
    "Bernoulli.kl": lambda x: kofn.Bernoulli(x).kl(kofn.Bernoulli(jnp.sin(x))),
    "Normal.log_prob": lambda x: kofn.Normal(x, jnp.exp(x)).log_prob(jnp.sin(x)),
    "Normal.kl": lambda x: kofn.Normal(x, jnp.exp(x)).kl(kofn.Normal(jnp.sin(x), jnp.exp(-x))),
    "normal_rsample": lambda x: kofn.normal_rsample(x, jnp.exp(x), KEY),
    "RelaxedOneHot.log_prob": lambda x: kofn.RelaxedOneHot(x, 0.7).log_prob(
        jax.nn.softmax(jnp.sin(x))
    ),
    "RelaxedOneHot.rsample": lambda x: kofn.RelaxedOneHot(x, 0.7).rsample((), KEY),
    "gumbel_softmax": lambda x: kofn.gumbel_softmax(x, 0.7, rng=KEY),
    "fenchel_young_loss": lambda x: kofn.fenchel_young_loss(x, alike(x, K_HOT), link="logistic"),
    "softmax_loss": lambda x: losses.softmax_loss(x, labels(x)),
    "sparsemax_loss": lambda x: losses.sparsemax_loss(x, labels(x)),
    "entmax_loss": lambda x: losses.entmax_loss(x, alike(x, ONE_HOT), alpha=1.3),
    "topk_loss": lambda x: losses.topk_loss(x, labels(x)),
    "sparse_softmax_loss": lambda x: losses.sparse_softmax_loss(x, labels(x), k=2),
    "topk_cross_entropy": lambda x: losses.topk_cross_entropy(x, labels(x), 2),
    "epsilon_cross_entropy": lambda x: losses.epsilon_cross_entropy(x, labels(x)),
    "accuracy_loss": lambda x: losses.accuracy_loss(x, labels(x)),
    "perturbed_accuracy_loss": lambda x: losses.perturbed_accuracy_loss(x, labels(x)),
    "am_softmax": lambda x: losses.am_softmax(cosines(x), labels(x))[0],
    "arcface": lambda x: losses.arcface(cosines(x), labels(x))[0],
    "classic.iterative_soft_topk": lambda x: classic.iterative_soft_topk(x, 2),
    "classic.weighted_soft_topk": lambda x: classic.weighted_soft_topk(x, 2),
    "classic.ones_and_softmax": lambda x: classic.ones_and_softmax(x, 2),
    "metrics.entropy": lambda x: metrics.entropy(kofn.entmax(x, 1.3)),
    "metrics.effective_support": lambda x: metrics.effective_support(kofn.softmax(x)),
    "metrics.hard_gap": lambda x: metrics.hard_gap(kofn.soft_topk(x, 2), 2),
    "metrics.order_violations": lambda x: metrics.order_violations(x, jnp.sin(x)),
    "metrics.jacobian_norm": lambda x: metrics.jacobian_norm(x, 2),
    "estimators.exact": lambda x: estimators.exact(kofn.Categorical(x), squared),
    "estimators.score_function": lambda x: estimators.score_function(
        kofn.KSubset(x, 2), squared, KEY, samples=3
    ),
    "estimators.straight_through": lambda x: estimators.straight_through(
        kofn.KSubset(x, 2), squared, KEY, samples=3
    ),
    "estimators.reparameterized": lambda x: estimators.reparameterized(
        kofn.KSubset(x, 2), squared, KEY, temperature=0.5, samples=3
    ),
    "links.cdf": lambda x: links.laplace.cdf(x) + links.laplace.log_cdf(x),
}
ORDINARY = ("soft_topk logistic",)
SHAPES = [(1, N), (N, N), (2, 2, N)]


def numbers(shape, seed):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape))


def apart(function, *arrays):
    """`function` of one item after another, compiled once."""
    one = jax.jit(function)
    parts = [one(*(a[i] for a in arrays)) for i in range(arrays[0].shape[0])]
    return jax.tree.map(lambda *values: jnp.stack(values), *parts)


def near(a, b):
    return np.allclose(a, b, rtol=1e-9, atol=1e-11) and np.all(np.isfinite(np.asarray(b)))


def outside_of_vmap(f, x):
    """Whether grad(vmap) and jvp(vmap) are those of the rows, on random vectors, under jit."""
    v, c = numbers(x.shape, 1), numbers(jax.eval_shape(jax.vmap(f), x).shape, 2)

    def loss(x):
        return (jax.vmap(f)(x) * c).sum()

    def pushed(x, v):
        return jax.jvp(jax.vmap(f), (x,), (v,))

    slope = apart(jax.grad(lambda x, c: (f(x) * c).sum()), x, c)
    value, tangent = apart(lambda x, v: jax.jvp(f, (x,), (v,)), x, v)
    y, dy = jax.jit(pushed)(x, v)
    return near(jax.jit(jax.grad(loss))(x), slope), near(y, value) and near(dy, tangent)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        (n, s) if s == (N, N) and n in ORDINARY else pytest.param(n, s, marks=pytest.mark.full)
        for n in FUNCTIONS
        for s in SHAPES
    ],
)
def test_derivatives_outside_of_vmap(name, shape):
    assert outside_of_vmap(FUNCTIONS[name], numbers(shape, 0)) == (True, True)


def test_without_jit_too():
    x, c = numbers((3, N), 0), numbers((3, N), 1)
    f = FUNCTIONS["soft_topk logistic"]
    wanted = jax.grad(lambda x: (f(x) * c).sum())(x)
    assert near(jax.grad(lambda x: (jax.vmap(f)(x) * c).sum())(x), wanted)


EXTREME = ("soft_topk", "logistic", 1e-19)


@pytest.mark.parametrize(
    ("name", "link", "temperature"),
    [
        EXTREME,
        *(
            pytest.param(name, link, t, marks=pytest.mark.full)
            for name in ("soft_topk", "soft_topk_threshold", "soft_topk_sum", "log_soft_topk")
            for link in ("logistic", "linear")
            for t in (1e-31, 1e-19, 1e-12, 1e12, 1e25)
            if (name, link, t) != EXTREME
            and (t >= 1e12 or (name, link) != ("log_soft_topk", "logistic"))
        ),
    ],
)
def test_the_square_of_a_temperature_may_leave_single_precision(name, link, temperature):
    """First and second derivatives in scores, k and T are those of PyTorch, finite."""
    f, v = getattr(kofn, name), np.array([1.0, -2.0, 0.5, 3.0], np.float32)
    x, k, t = (np.float32(a) for a in ([1.5, 0.3, -0.2, -1.0], 2.0, temperature))

    def ours(x, k, t):
        y = f(x, k, link=link, temperature=t)
        return (jnp.where(y > -np.inf, y, 0.0) * (1.0 if y.ndim == 0 else v)).sum()

    def along(x, k, t):
        in_x, in_k, in_t = jax.grad(ours, argnums=(0, 1, 2))(x, k, t)
        return (in_x * v).sum() + 1.3 * in_k + 0.7 * in_t

    first, second = jax.jit(
        lambda *a: (jax.grad(ours, argnums=(0, 1, 2))(*a), jax.grad(along, argnums=(0, 1, 2))(*a))
    )(*(jnp.asarray(a) for a in (x, k, t)))

    leaves = [torch.tensor(a, requires_grad=True) for a in (x, k, t)]
    y = f(leaves[0], leaves[1], link=link, temperature=leaves[2])
    y = torch.where(y > -np.inf, y, torch.zeros(()))
    loss = (y * (1.0 if y.ndim == 0 else torch.tensor(v))).sum()
    # The kernels' in both; plain code knows no dp/dk of a choice as hard as float32 makes this one.
    theirs = torch.autograd.grad(loss, leaves, retain_graph=True)
    plain = torch.autograd.grad(loss, leaves, create_graph=True)
    pushed = (plain[0] * torch.tensor(v)).sum() + 1.3 * plain[1] + 0.7 * plain[2]
    again = torch.autograd.grad(pushed, leaves)
    # At a large T the derivative in T is next to 0; what rounding leaves of it is in units of 1/T.
    unit = 1.0 if "threshold" in name or "sum" in name else 1 / temperature
    for at, (got, wanted) in enumerate(zip([*first, *second], [*theirs, *again], strict=True)):
        wanted = np.asarray(wanted.detach())
        size = float(np.abs(wanted).max())
        if at % 3 == 2 and temperature > 1:
            size = max(size, unit)
        if (name, link, at) == ("soft_topk_sum", "linear", 1) and temperature < 1e-30:
            # θ, which may lie anywhere in a gap that is wider than the link's support
            assert -0.2 < float(got) < 0.3
            continue
        assert np.asarray(got) == pytest.approx(wanted, rel=1e-4, abs=1e-5 * size)


@pytest.mark.parametrize(
    "name", [pytest.param("soft_topk normal", marks=pytest.mark.full), "soft_topk_threshold"]
)
@pytest.mark.parametrize("order", [2, pytest.param(3, marks=pytest.mark.full)])
def test_forward_mode_in_itself_under_jit(name, order):
    """A rule that closes over an array is an error there: JAX traces it when the array is gone."""
    derivative = FUNCTIONS[name]
    for _ in range(order):
        derivative = jax.jacfwd(derivative)
    x = numbers((N,), 0)
    assert near(jax.jit(derivative)(x), derivative(x))
