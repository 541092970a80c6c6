"""Rows with costs in compiled JAX programs: the eager kernels' answers, under every transform."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import kofn
from support import LINKS

RNG = np.random.default_rng(7)
NAME = "kofn_rows"  # how XLA knows the kernels
N = 40
X, V = (RNG.standard_normal((6, N)) for _ in range(2))
COSTS, BUDGET, T = RNG.uniform(0.2, 2, (6, N)), np.array([1.0, 3, 9, 12, 20, 30]), np.full(6, 0.4)
GIVEN = X, COSTS, BUDGET, T
full = pytest.mark.full


def knapsack(x, costs, budget, t, **options):
    return kofn.soft_knapsack(x, costs, budget, temperature=t, **options)


def total(**options):
    return lambda *given: (knapsack(*given, **options) * V.astype(given[0].dtype)).sum()


def text(function, *arrays):
    return jax.jit(function).lower(*arrays).as_text()


def by_torch(given, **options):
    """The weights and the gradients of `total` by the eager kernels."""
    leaves = [torch.tensor(a, requires_grad=True) for a in given]
    weights = knapsack(*leaves, **options)
    (weights * torch.tensor(V, dtype=weights.dtype)).sum().backward()
    return weights.detach(), [leaf.grad for leaf in leaves]


def near(a, b, tolerance):
    size = tolerance * np.abs(np.nan_to_num(b)).max()
    return np.allclose(a, b, rtol=tolerance, atol=size, equal_nan=True)


def agrees(given, tolerance, **options):
    """Whether weights and gradients of all arguments are those of the eager kernels."""

    def both(*arrays):
        weights = knapsack(*arrays, **options)
        return (weights * V.astype(weights.dtype)).sum(), weights

    found = jax.jit(jax.grad(both, (0, 1, 2, 3), has_aux=True))(*map(jnp.asarray, given))
    slopes, weights = by_torch(given, **options)[::-1]
    pairs = zip((found[1], *found[0]), (weights, *slopes), strict=True)
    return all(near(a, b.numpy(), tolerance) for a, b in pairs)


def unusual():
    """Rows that kernels give up on, forward or backward, between ordinary ones."""
    x, costs, budget, t = (a.copy() for a in GIVEN)
    x[0, 3], x[1, :2], costs[2, 5] = np.nan, np.inf, np.nan
    costs[3, :4], budget[3] = 0, 0
    budget[4] = costs[4].sum()
    return x, costs, budget, t


def test_a_kernel_serves_the_weights_the_price_and_the_way_back():
    given = tuple(map(jnp.asarray, GIVEN))
    assert NAME in text(knapsack, *given)
    assert NAME in text(lambda *a: kofn.soft_knapsack_threshold(*a[:3]), *given)
    # A program compiled for another machine has none.
    exported = jax.export.export(jax.jit(lambda x: knapsack(x, *GIVEN[1:])))(given[0])
    assert NAME not in exported.mlir_module()
    assert np.allclose(exported.call(given[0]), knapsack(*GIVEN), atol=1e-12)


def test_weights_and_gradients_are_those_of_the_eager_kernels():
    assert agrees([a.astype("f") for a in unusual()], 2e-5)


@full
@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_every_link_agrees_with_the_eager_kernels(link, dtype):
    tolerance = 2e-5 if dtype == "f4" else 1e-11
    for given in (GIVEN, unusual()):
        for hard in (False, True):
            assert agrees([a.astype(dtype) for a in given], tolerance, link=link, hard=hard)


@full
@pytest.mark.parametrize("unit", [2.0**-100, 2.0**100])
def test_costs_may_be_in_any_unit(unit):
    given = X, COSTS * unit, BUDGET * unit, T
    found = jax.jit(knapsack)(*(jnp.asarray(a, jnp.float32) for a in given))
    assert np.allclose(found, knapsack(*GIVEN), atol=2e-6)
    assert np.all(found == jax.jit(knapsack)(*(jnp.asarray(a, jnp.float32) for a in GIVEN)))


def row(x):
    return (kofn.soft_knapsack(x, COSTS[0], 3.0) ** 2).sum()


def of_all(x):
    return total()(x, *GIVEN[1:])


def of_each(budget, t):
    return total()(jnp.asarray(X), COSTS, budget, t)


TRANSFORMS = {
    "hessian": jax.jit(jax.hessian(row)),
    "jvp": lambda x: jax.jvp(of_all, (x,), (V,)),
    "jacrev of jacrev": lambda x: jax.jacrev(jax.jacrev(row))(x[0]),
    "hessian in budget and T": lambda x: jax.hessian(of_each, (0, 1))(BUDGET, T),
    "vmap of grad": lambda x: jax.vmap(jax.grad(row))(x),
    "grad of vmap": lambda x: jax.grad(lambda x: jax.vmap(row)(x).sum())(x),
    "checkpoint": lambda x: jax.grad(jax.checkpoint(of_all))(x),
    "without jit": lambda x: jax.grad(of_all)(x),
    "threshold": jax.grad(lambda x: kofn.soft_knapsack_threshold(x, *GIVEN[1:3]).sum()),
    "value": lambda x: jax.hessian(lambda x: kofn.soft_knapsack_value(x, COSTS[0], 3.0))(x[0]),
}


@full
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms_are_those_of_the_array_code(transform, monkeypatch):
    x = X[0] if transform == "hessian" else X
    found = TRANSFORMS[transform](x)
    monkeypatch.setenv("KOFN_KERNELS", "reference")
    jax.clear_caches()
    wanted = TRANSFORMS[transform](x)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert np.allclose(one, other, atol=1e-10)


@full
@pytest.mark.parametrize("size", [1e10, 1e13, 1e16])
def test_rows_whose_price_needs_more_digits_than_two_floats_have(size):
    given = [(X * size).astype("f4"), *(a.astype("f4") for a in GIVEN[1:])]
    rise = jax.jit(jax.grad(lambda *a: knapsack(*a).sum(), 2))(*map(jnp.asarray, given))
    leaves = [torch.tensor(a, dtype=torch.float64) for a in given]
    leaves[2].requires_grad_()
    knapsack(*leaves).sum().backward()
    assert near(rise, leaves[2].grad.numpy(), 1e-5)
