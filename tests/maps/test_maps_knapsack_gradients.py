"""Derivatives of the knapsack maps: first and second, in every argument, under every transform."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, hessian, jacfwd, jacrev, vmap

import kofn
from kofn import links, soft_knapsack, soft_knapsack_threshold, soft_knapsack_value
from support import LINKS, Framework, every_link

MAPS = {
    "weights": soft_knapsack,
    "threshold": soft_knapsack_threshold,
    "value": soft_knapsack_value,
}
with_gradients = pytest.mark.parametrize(
    "name", ["torch", pytest.param("jax", marks=pytest.mark.full)]
)
every_map = pytest.mark.parametrize("name", MAPS)

RNG = np.random.default_rng(21)
X, COSTS = RNG.standard_normal((2, 5)), RNG.uniform(0.2, 3, (2, 5))
BUDGET = COSTS.sum(-1) * np.array([0.35, 0.7])
T = np.array([0.6, 1.3])
ROWS = X, COSTS, BUDGET, T


def of(name, link="logistic"):
    return lambda x, c, b, t: MAPS[name](x, c, b, link=link, temperature=t)


def tensors(*rows, **options):
    return [torch.tensor(row, **options) for row in rows]


def some(*chosen):
    """Every map with every link, of which the chosen are ordinary tests."""
    every = [(name, link) for name in MAPS for link in LINKS]
    marks = {True: [], False: [pytest.mark.full]}
    return [pytest.param(*case, marks=marks[case in chosen]) for case in every]


@pytest.mark.parametrize(("name", "link"), some(("weights", "logistic"), ("threshold", "entmax")))
def test_derivatives_meet_finite_differences(name, link):
    rows = tensors(*ROWS, requires_grad=True)
    assert gradcheck(of(name, link), rows, check_forward_ad=True, fast_mode=True)
    assert gradgradcheck(of(name, link), rows, fast_mode=True)


@pytest.mark.parametrize(
    "name", ["weights", *(pytest.param(n, marks=pytest.mark.full) for n in ("threshold", "value"))]
)
def test_alpha_has_derivatives(name):
    rows = tensors(*ROWS, np.array([1.4, 1.7]), requires_grad=True)

    def function(x, c, b, t, alpha):
        return MAPS[name](x, c, b, link=links.entmax(alpha), temperature=t)

    assert gradcheck(function, rows, fast_mode=True)
    assert gradgradcheck(function, rows, fast_mode=True)


@every_link
@with_gradients
def test_gradients_meet_the_closed_form(link, name):
    framework = Framework(name)
    rows = [framework.array(a) for a in ROWS]
    v = np.random.default_rng(2).standard_normal(X.shape)
    found = framework.vjp(of("weights", link), tuple(rows), framework.array(v))
    theta = framework.numpy(of("threshold", link)(*rows))[:, None]
    z, inner = (X - theta * COSTS) / T[:, None], getattr(links, link)
    inner = inner() if link == "entmax" else inner
    p, w = (f(z.copy()) for f in (inner.cdf, inner.pdf))
    share = COSTS * w / (COSTS**2 * w).sum(-1, keepdims=True)
    mean = (share * v).sum(-1, keepdims=True)
    u = w * (v - mean * COSTS) / T[:, None]
    wanted = u, -theta * u - p * mean, mean[:, 0], -(u * (X - theta * COSTS)).sum(-1) / T
    for one, other in zip(found, wanted, strict=True):
        assert np.allclose(one, other, atol=1e-12)


@every_link
@with_gradients
def test_the_value_has_the_weights_and_the_price_as_slopes(link, name):
    framework = Framework(name)
    rows = [framework.array(a) for a in ROWS]
    found = framework.vjp(of("value", link), tuple(rows), framework.array(np.ones(2)))
    p = framework.numpy(of("weights", link)(*rows))
    theta = framework.numpy(of("threshold", link)(*rows))
    for one, other in zip(found, (p, -theta[:, None] * p, theta), strict=False):
        assert np.allclose(one, other, atol=1e-12)


@every_link
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["threshold", "value"])
def test_slopes_of_a_row_with_a_kernel_are_those_of_the_array_code(link, name, dtype):
    """A temperature with a gradient goes to the array code, so it says what is wanted."""
    rng = np.random.default_rng(5)
    x, c = rng.standard_normal((30, 9)) * 3, rng.uniform(0.5, 2, (30, 9))
    budget = c.sum(-1) * rng.uniform(0.1, 0.9, 30)
    x[:3, 2], x[3, 1], c[4:7, 3] = -np.inf, np.inf, 0
    budget[7], budget[8], x[9], x[10, 0] = 0, 1e3, -np.inf, np.nan
    x[11] *= 1e4
    v, found = torch.tensor(rng.standard_normal(30), dtype=dtype), []
    for moves in (False, True):
        rows = [torch.tensor(a, dtype=dtype, requires_grad=True) for a in (x, c, budget)]
        t = torch.full((30,), 0.7, dtype=dtype, requires_grad=moves)
        answer = MAPS[name](*rows, link=link, temperature=t)
        found.append((answer, *torch.autograd.grad(answer, rows, v)))
    for ours, wanted in zip(*found, strict=True):
        assert ours.dtype == dtype
        some = wanted.abs().nan_to_num(0, 0, 0).amax(-1, keepdim=True).clamp(min=1)
        close = torch.isclose(
            ours / some,
            wanted / some,
            atol=1e-4 if dtype == torch.float32 else 1e-9,
            equal_nan=True,
        )
        assert close.all(), (ours[~close], wanted[~close])


@with_gradients
def test_the_budget_binds_the_derivatives(name):
    """Σ c·dp + Σ p·dc = dB in float32, also where one entry has nearly all of the slope."""
    framework = Framework(name)
    rng = np.random.default_rng(8)
    x, c = rng.standard_normal((40, 8)) * 6, rng.uniform(0.5, 2, (40, 8))
    budget, t = c.sum(-1) * rng.uniform(0.1, 0.9, 40), np.full(40, 0.5)
    rows = tuple(framework.array(a, "float32") for a in (x, c, budget, t))
    p = framework.numpy(of("weights")(*rows))
    in_x, in_c, in_budget, in_t = framework.vjp(of("weights"), rows, rows[1])
    assert np.allclose(in_x, 0, atol=3e-6)
    assert np.allclose(in_c, -p, atol=2e-5)
    assert np.allclose(in_budget, 1, atol=1e-6)
    assert np.allclose(in_t, 0, atol=2e-5)


@with_gradients
def test_an_entry_that_costs_nothing_has_the_derivatives_from_above(name):
    framework = Framework(name)
    costs = COSTS.copy()
    costs[:, 2] = 0
    v = framework.array(RNG.standard_normal(X.shape))
    rows = [framework.array(a) for a in (X, costs, BUDGET, T)]
    near = [framework.array(a) for a in (X, costs + 1e-7 * (costs == 0), BUDGET, T)]
    found = framework.vjp(of("weights"), tuple(rows), v)
    for one, other in zip(found, framework.vjp(of("weights"), tuple(near), v), strict=True):
        assert np.allclose(one, other, atol=1e-5)


@with_gradients
def test_settled_rows_have_gradients_of_0_and_none_is_nan(name):
    framework = Framework(name)
    x = np.tile([1.0, np.inf, -np.inf, 0.5], (5, 1))
    x[3:, 1] = 0.2
    costs = np.tile([1.0, 2.0, 1.0, 0.0], (5, 1))
    rows = x, costs, np.array([0.0, 1.0, np.inf, 3.0, 0.0]), np.ones(5)
    rows = tuple(framework.array(a) for a in rows)
    for dtype in ("float32", "float64"):
        given = tuple(framework.array(framework.numpy(a), dtype) for a in rows)
        v = framework.array(np.ones((5, 4)), dtype)
        found = framework.vjp(of("weights"), given, v)
        assert all(np.all(np.isfinite(a)) for a in found)
        assert np.array_equal(found[0][:, :3], np.zeros((5, 3)))
        assert np.array_equal(found[2][2:], [0, 0, 0])
        assert np.allclose(found[2][1], 0.5)


# Two entries spend the budget exactly, and nothing of F is left. At θ = 0, the first and the last
# entry have the largest tails.
HARD = np.array([[10.0, 18.0, -18.0, -10.0]]), np.array([[1.0, 2.0, 2.0, 1.0]]), np.array([3.0])


@with_gradients
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_budget_keeps_its_gradient_when_the_choice_is_hard(name, dtype):
    framework = Framework(name)
    rows = tuple(framework.array(a, dtype) for a in (*HARD, np.array([0.01])))
    for i, wanted in enumerate([0.5, 0.0, 0.0, 0.5]):
        v = framework.array(np.eye(4)[i : i + 1], dtype)
        found = framework.vjp(of("weights"), rows, v)
        assert np.allclose(found[2], wanted, atol=1e-4), i
        assert all(np.all(np.isfinite(a)) for a in found)
    one = framework.array(np.ones(1), dtype)
    in_x, in_c, in_b, _ = framework.vjp(of("threshold"), rows, one)
    assert np.allclose(in_x, [[0.5, 0, 0, 0.5]], atol=1e-4)
    assert np.all(np.isfinite(in_c))
    assert np.all(np.isfinite(in_b))


@with_gradients
def test_hard_has_the_soft_gradient(name):
    framework = Framework(name)
    rows = tuple(framework.array(a) for a in ROWS)
    v = framework.array(RNG.standard_normal(X.shape))

    def hard(x, c, b, t):
        return soft_knapsack(x, c, b, temperature=t, hard=True)

    assert set(np.unique(framework.numpy(hard(*rows)))) <= {0.0, 1.0}
    for soft, straight in zip(
        framework.vjp(of("weights"), rows, v), framework.vjp(hard, rows, v), strict=True
    ):
        assert np.array_equal(soft, straight)


V = torch.tensor(RNG.standard_normal(X.shape))


def scalar(name):
    function = of(name)

    def total(x, c, b, t):
        y = function(x, c, b, t)
        return (y * (V if y.ndim == 2 else V[:, 0])).sum()

    return total


@every_map
def test_torch_func_agrees_with_autograd(name):
    rows = tensors(*ROWS)
    leaves = tensors(*ROWS, requires_grad=True)
    every = tuple(range(4))
    wanted = torch.autograd.grad(scalar(name)(*leaves), leaves)
    for transform in (grad, jacrev, jacfwd):
        for one, other in zip(transform(scalar(name), argnums=every)(*rows), wanted, strict=True):
            assert torch.allclose(one, other, atol=1e-12), transform
    each = vmap(jacrev(of(name), argnums=every))(*rows)
    for i in range(2):
        alone = jacrev(of(name), argnums=every)(*(row[i] for row in rows))
        for one, other in zip(each, alone, strict=True):
            assert torch.allclose(one[i], other, atol=1e-12)
    second = hessian(scalar(name))(*rows)
    again = jacfwd(jacfwd(scalar(name)))(*rows)
    assert torch.allclose(second, again, atol=1e-10)


@pytest.mark.full
@pytest.mark.parametrize("name", ["weights", "value"])
def test_it_compiles_with_its_gradients(name):
    torch._dynamo.reset()
    function = torch.compile(scalar(name), fullgraph=True, backend="aot_eager")
    leaves, again = (tensors(*ROWS, requires_grad=True) for _ in range(2))
    wanted = torch.autograd.grad(scalar(name)(*again), again)
    for one, other in zip(torch.autograd.grad(function(*leaves), leaves), wanted, strict=True):
        assert torch.allclose(one, other, atol=1e-12)


class Knapsack(torch.nn.Module):
    def forward(self, x, costs, budget):
        return kofn.soft_knapsack(x, costs, budget, temperature=0.5)


def test_it_exports():
    x, costs, budget, _ = tensors(*ROWS)
    program = torch.export.export(Knapsack(), (x, costs, budget), strict=False)
    assert torch.allclose(program.module()(x + 1, costs, budget), Knapsack()(x + 1, costs, budget))


@pytest.mark.full
@every_map
def test_jax_transforms_agree_with_torch(name):
    rows = tuple(map(jnp.asarray, ROWS))
    weights = jnp.asarray(V.numpy())

    def total(x, c, b, t):
        y = of(name)(x, c, b, t)
        return (y * (weights if y.ndim == 2 else weights[:, 0])).sum()

    leaves = tensors(*ROWS, requires_grad=True)
    wanted = torch.autograd.grad(scalar(name)(*leaves), leaves)
    every = tuple(range(4))
    for function in (
        jax.grad(total, every),
        jax.jit(jax.grad(total, every)),
        jax.jacfwd(total, every),
    ):
        for one, other in zip(function(*rows), wanted, strict=True):
            assert np.allclose(one, other, atol=1e-12)
    one = jax.hessian(total)(*rows)
    assert np.allclose(one, hessian(scalar(name))(*tensors(*ROWS)), atol=1e-10)


def loss(x, c, b, t):
    return (soft_knapsack(x, c, b, temperature=t) * jnp.asarray(V.numpy()[0])).sum()


def rows_of(arrays, axes, i):
    return [a[i] if axis == 0 else a for a, axis in zip(arrays, axes, strict=True)]


BATCHED = [tuple(0 if i == j else None for i in range(4)) for j in range(4)]


def test_jax_has_the_weights_and_the_price():
    """What is quick to compile: derivatives, which take seconds, are among the full tests."""
    x, costs, budget, t = (jnp.asarray(a, jnp.float32) for a in ROWS)
    for name in ("weights", "threshold"):
        found = of(name, "linear")(x, costs, budget, t)
        assert np.allclose(found, of(name, "linear")(*ROWS), atol=2e-6)


@pytest.mark.full
@pytest.mark.parametrize("axes", [(0,) * 4, *BATCHED])
def test_jax_maps_gradients_over_any_of_the_arguments(axes):
    rows = tuple(map(jnp.asarray, ROWS))
    given = [a if axis == 0 else a[0] for a, axis in zip(rows, axes, strict=True)]
    slopes = jax.grad(loss, (0, 1, 2, 3))
    mapped = jax.vmap(slopes, axes)(*given)
    summed = jax.grad(lambda *a: jax.vmap(loss, axes)(*a).sum(), (0, 1, 2, 3))(*given)
    for i in range(2):
        for one, other in zip(mapped, slopes(*rows_of(given, axes, i)), strict=True):
            assert np.allclose(one[i], other, atol=1e-13)
    for one, other, axis in zip(summed, mapped, axes, strict=True):
        assert np.allclose(one, other if axis == 0 else other.sum(0), atol=1e-13)


@pytest.mark.full
def test_jvp_of_jax_without_double_precision():
    rows = tuple(jnp.asarray(a, jnp.float32) for a in ROWS)
    tangents = tuple(jnp.asarray(RNG.standard_normal(a.shape), jnp.float32) for a in ROWS)
    found = jax.jvp(of("weights"), rows, tangents)[1]
    leaves = tuple(tensors(*ROWS))
    along = tuple(torch.tensor(np.asarray(t, np.float64)) for t in tangents)
    wanted = torch.func.jvp(of("weights"), leaves, along)[1]
    assert np.allclose(found, wanted, atol=3e-6)
