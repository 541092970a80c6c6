"""KSubset's derivatives: of any order, in both directions, through every transform.

Tangents are random: a tangent of ones is in the null space of the Jacobian and hides everything.
"""

import itertools
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap

from kofn import KSubset
from kofn.arrays.jax import compile as jax_compile
from oracles import finite_difference
from oracles import subset as oracles
from support import GRADIENT, Framework, jax_x64, with_gradients

RNG = np.random.default_rng(17)
X, V, C = (torch.tensor(RNG.standard_normal((3, 6))) for _ in range(3))
K = torch.tensor([1, 2, 4])

MAPS = {
    "marginals": lambda x: KSubset(x, K).marginals(),
    "log_partition": lambda x: KSubset(x, K).log_partition(),
    "log_prob": lambda x: KSubset(x, K).log_prob(KSubset(C, K).mode()),
    "entropy": lambda x: KSubset(x, K).entropy(),
    "kl": lambda x: KSubset(x, K).kl(KSubset(C, K)),
    "kl from": lambda x: KSubset(C, K).kl(KSubset(x, K)),
    "covariance": lambda x: KSubset(x, K).covariance_vector_product(V),
    "masked": lambda x: KSubset(x, 2, mask=C > -0.9).marginals(),
    "dim": lambda x: KSubset(x, 1, dim=0).marginals(),
}


def scalar(function):
    """A random scalar of a map: its gradient is a vjp with a random cotangent."""

    def total(x):
        y = function(x)
        return (y * (C if y.ndim == 2 else C[: y.shape[0], 0])).sum()

    return total


def exact(function, *arguments):
    leaves = [a.clone().requires_grad_() for a in arguments]
    first = gradcheck(
        function,
        leaves,
        check_forward_ad=True,
        check_batched_grad=True,
        check_batched_forward_grad=True,
    )
    return first and gradgradcheck(function, leaves, check_fwd_over_rev=True, fast_mode=True)


@pytest.mark.parametrize("name", MAPS)
def test_first_and_second_derivatives_meet_differences(name):
    assert exact(MAPS[name], X)


def test_covariance_in_its_vector():
    assert exact(lambda x, v: KSubset(x, 2).covariance_vector_product(v), X, V)


@pytest.mark.parametrize("k", [1, 3, 5])
def test_ties_have_their_derivatives(k):
    """All z are 0 at k = 3: what is decided by a sign there has its derivative all the same."""
    ties = torch.zeros(6, dtype=torch.float64)
    for method in ("marginals", "log_partition", "entropy"):
        assert exact(lambda x, m=method: getattr(KSubset(x, k), m)(), ties)


def test_derivatives_where_nodes_are_streamed(monkeypatch):
    monkeypatch.setattr("kofn.arrays.flow.AT_ONCE", 0)
    assert exact(lambda x: KSubset(x, 2).entropy(), X[0, :4])
    assert exact(lambda x: KSubset(x, 2).covariance_vector_product(V[0, :4]), X[0, :4])


def test_masks_and_infinities():
    y = torch.tensor(
        [[1.0, 1.0, -0.5, -torch.inf, 2.0, 0.3], [torch.inf, 0.5, 1.0, 2.0, -1.0, -torch.inf]],
        dtype=torch.float64,
    )
    hidden = torch.isinf(y)
    for method in ("marginals", "entropy"):
        assert exact(
            lambda f, m=method: getattr(KSubset(torch.where(hidden, y, f), 3), m)(),
            torch.where(hidden, 0.0, y),
        )


def test_a_third_derivative_of_log_partition_is_the_third_cumulant():
    y, v = X[0], V[0]
    along = KSubset(y, 2)
    step = torch.zeros((), dtype=torch.float64, requires_grad=True)
    value = KSubset(y + step * v, 2).log_partition()
    cumulants = []
    for _ in range(3):
        (value,) = torch.autograd.grad(value, step, create_graph=True)
        cumulants.append(value.item())
    exact = oracles.enumerate_subsets(along.logits.numpy(), 2)
    size = exact.subsets @ v.numpy()
    mean = exact.probabilities @ size
    wanted = [mean, *(exact.probabilities @ (size - mean) ** power for power in (2, 3))]
    assert cumulants == pytest.approx([float(w) for w in wanted], rel=1e-10)


@with_gradients
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("std", [0.0, 1.0, 10.0])
def test_the_vjp_of_marginals_meets_the_table(name, dtype, std):
    framework = Framework(name)
    n, k = 60, 17
    y = (np.random.default_rng(1).standard_normal(n) * std).astype(dtype)
    v = np.random.default_rng(2).standard_normal(n).astype(dtype)
    h = oracles.LD(1e-5)
    ahead, behind = (oracles.table(y + s * h * v, k).marginals for s in (1, -1))
    wanted = ((ahead - behind) / (2 * h)).astype(float)
    got = framework.vjp(
        lambda y: KSubset(y, k).marginals(), (framework.array(y, dtype),), framework.array(v, dtype)
    )[0]
    tolerance = max(GRADIENT[dtype], 1e-9)  # of the differences
    assert np.linalg.norm(got - wanted) <= tolerance * np.linalg.norm(wanted)
    product = KSubset(y, k).covariance_vector_product(v)
    assert np.linalg.norm(product - wanted) <= tolerance * np.linalg.norm(wanted)


@pytest.mark.parametrize("kernels", ["", "reference"])
def test_a_constant_is_in_the_null_space_to_the_last_digit(monkeypatch, kernels):
    monkeypatch.setenv("KOFN_KERNELS", kernels)
    choice = KSubset(np.random.default_rng(1).standard_normal(200).astype(np.float32), 20)
    v = np.random.default_rng(2).standard_normal(200).astype(np.float32)
    product = choice.covariance_vector_product(v)
    shifted = choice.covariance_vector_product(v + 1e4)
    assert np.abs(shifted - product).max() < 1e-3  # that is 1e-7 of 1e4
    assert np.abs(choice.covariance_vector_product(np.full(200, 1e4, "f4"))).max() < 1e-4


def test_eager_derivatives_keep_nothing_per_node(monkeypatch):
    monkeypatch.setattr("kofn.arrays.flow.AT_ONCE", 0)
    y = torch.randn(20_000, requires_grad=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        KSubset(y, 1000).marginals()
    distinct = {t.data_ptr(): t.nbytes for t in kept}
    assert sum(distinct.values()) < 10 * y.nbytes


# --- transforms ---


def compiled(function, backend="aot_eager"):
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend=backend)


def _backward(function):
    x = X.clone().requires_grad_()
    return torch.autograd.grad(function(x), x)[0]


COMBINATIONS = {
    "jacfwd": lambda f: jacfwd(f)(X),
    "jacrev": lambda f: jacrev(f)(X),
    "compile backward": lambda f: _backward(compiled(f)),
    "compile(func.grad)": lambda f: compiled(grad(f))(X),
    "compile(jacfwd)": lambda f: compiled(jacfwd(f))(X),
}
CASES = [
    (name, how)
    if not how.startswith("compile") or (name == "marginals" and how != "compile(jacfwd)")
    else pytest.param(name, how, marks=pytest.mark.full)
    for name, how in itertools.product(MAPS, COMBINATIONS)
]


@pytest.mark.parametrize(("name", "how"), CASES)
def test_gradients_by_every_route(name, how):
    f = scalar(MAPS[name])
    slope = finite_difference(f, X, V)
    assert (COMBINATIONS[how](f) * V).sum().item() == pytest.approx(slope.item(), abs=1e-7)


@pytest.mark.parametrize(
    "name",
    ["marginals", *(pytest.param(n, marks=pytest.mark.full) for n in MAPS if n != "marginals")],
)
def test_compiled_forward_mode(name):
    f = scalar(MAPS[name])
    pushed = compiled(lambda x, v: jvp(f, (x,), (v,)))(X, V)
    assert pushed[0].item() == pytest.approx(f(X).item(), abs=1e-12)
    assert pushed[1].item() == pytest.approx(finite_difference(f, X, V).item(), abs=1e-7)


@pytest.mark.full
def test_inductor_gives_the_eager_gradient():
    f = scalar(MAPS["marginals"])
    assert torch.allclose(_backward(compiled(f, "inductor")), _backward(f), atol=1e-10)


@pytest.mark.parametrize("name", [name for name in MAPS if name != "dim"])
def test_vmap_of_hessians(name):
    f = scalar(MAPS[name])
    both = vmap(hessian(f))(torch.stack([X, X + V / 2]))
    slopes = finite_difference(grad(f), X + V / 2, C)
    assert torch.allclose((both[1] * C).sum((-1, -2)), slopes, atol=1e-7)


def test_per_sample_gradients_with_k_per_row():
    slope = vmap(grad(lambda x, k: KSubset(x, k).marginals()[0]))(X, K)
    one = [grad(lambda x, k=k: KSubset(x, k).marginals()[0])(x) for x, k in zip(X, K, strict=True)]
    one = torch.stack(one)
    assert torch.allclose(slope, one, atol=1e-12)


# --- JAX ---


@pytest.mark.parametrize("name", ["marginals", pytest.param("entropy", marks=pytest.mark.full)])
def test_jax_jit_jvp_and_hessian_meet_torch(name):
    x, v, c = (jnp.asarray(a.numpy()) for a in (X, V, C))

    def f(x):
        y = getattr(KSubset(x, jnp.asarray(K.numpy())), name)()
        return (y * (c if y.ndim == 2 else c[:, 0])).sum()

    ours = scalar(MAPS[name])
    second = jax.jit(jax.hessian(f))(x)  # forward over reverse
    assert np.allclose(second, hessian(ours)(X).numpy(), atol=1e-11)
    value, pushed = jax.jit(lambda x, v: jax.jvp(f, (x,), (v,)))(x, v)
    assert float(value) == pytest.approx(ours(X).item(), abs=1e-12)
    assert float(pushed) == pytest.approx(finite_difference(ours, X, V).item(), abs=1e-7)


def test_jax_takes_it_as_a_pytree():
    x = jnp.asarray(X.numpy())
    ks = jnp.asarray(K.numpy())
    mask = x > -1
    choice = KSubset(x, ks, mask=mask)
    mapped = jax.jit(jax.vmap(lambda c: c.marginals()))(choice)
    wanted = KSubset(X.numpy(), K.numpy(), mask=np.asarray(mask)).marginals()
    assert np.allclose(mapped, wanted, atol=1e-14)
    number = KSubset(x, 2)
    again = jax.tree.map(lambda a: 2 * a, number)
    assert (again.k, again.dim, again.mask) == (2, -1, None)
    assert np.array_equal(again.logits, 2 * x)
    made = jax.jit(lambda x: KSubset(x, 2, dim=0))(x)
    assert isinstance(made, KSubset)
    assert made.dim == -2


def test_it_becomes_a_pytree_once_whoever_comes_first(monkeypatch):
    made = []
    monkeypatch.setattr(jax_compile, "_registered", set())
    monkeypatch.setattr(
        jax_compile, "_register", lambda kind, names: (time.sleep(0.01), made.append(kind))
    )
    x = jnp.zeros(3)
    threads = [threading.Thread(target=KSubset, args=(x, 1)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [KSubset]


def test_jax_without_float64():
    with jax_x64(False):
        x = jnp.asarray(X.numpy(), jnp.float32)
        value, slope = jax.value_and_grad(lambda x: KSubset(x, 2).marginals()[0, 1])(x)
        assert value.dtype == slope.dtype == jnp.float32
    leaf = X.clone().requires_grad_()
    exact = KSubset(leaf, 2).marginals()[0, 1]
    assert float(value) == pytest.approx(exact.item(), abs=1e-6)
    assert np.allclose(slope, torch.autograd.grad(exact, leaf)[0].numpy(), atol=1e-6)
