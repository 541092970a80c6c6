"""Derivatives of soft_assignment and its prices: first and second, in all transforms."""

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from kofn import links, soft_assignment, soft_assignment_prices
from support import LINKS, each_compiler, full_but

jax = pytest.importorskip("jax")
jnp = jax.numpy

V = np.random.default_rng(7).standard_normal((4, 3))
X = np.random.default_rng(3).standard_normal((4, 3))
COTANGENT = torch.tensor(V)


def leaves(m=4, n=3):
    rng = np.random.default_rng(3)
    k = torch.tensor(rng.uniform(0.5, n - 1, m))
    c = torch.tensor(rng.uniform(1, 2, n))
    c = c * k.sum() / c.sum()
    x, t = torch.tensor(rng.standard_normal((m, n))), torch.tensor(0.7, dtype=torch.float64)
    return [each.requires_grad_() for each in (x, k, c, t)]


def weights(x, k, c, t, link="logistic"):
    return soft_assignment(x, k, c, link=link, temperature=t)


def turned(x, k, c, t, link="logistic"):
    return soft_assignment(x.mT, c, k, link=link, temperature=t)


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("function", [weights, turned])
def test_all_arguments_have_first_derivatives(link, function):
    assert gradcheck(lambda *a: function(*a, link), leaves())


@pytest.mark.parametrize("link", full_but(("logistic", "exponential")))
def test_all_arguments_have_second_derivatives(link):
    assert gradgradcheck(lambda *a: weights(*a, link), leaves(3, 3), fast_mode=True)


def test_prices_have_derivatives():
    def prices(x, k, c, t):
        return soft_assignment_prices(x, k, c, temperature=t)

    assert gradcheck(prices, leaves())
    assert gradgradcheck(prices, leaves(3, 2), fast_mode=True)


def test_alpha_has_a_derivative():
    alpha = torch.tensor(1.4, dtype=torch.float64, requires_grad=True)
    x = leaves()[0]
    assert gradcheck(lambda x, a: soft_assignment(x, 1.5, link=links.entmax(a)), (x, alpha))


def closed_form(x, k, c, t, v):
    """∂s, ∂k, ∂c by the Schur complement of the columns, of the logistic link, at its prices."""
    w = soft_assignment(x, k, c, temperature=t)
    slopes = w * (1 - w) / t
    rows, columns = slopes.sum(1), slopes.sum(0)
    u, of_columns = (slopes * v).sum(1), (slopes * v).sum(0)
    s = np.diag(columns) - slopes.T @ (slopes / rows[:, None])
    b = np.linalg.pinv(s) @ (of_columns - slopes.T @ (u / rows))
    a = (u - slopes @ b) / rows
    in_k = a + (b * c).sum() / c.sum()
    return slopes * (v - a[:, None] - b), in_k, b - (b * c).sum() / c.sum()


@pytest.mark.parametrize("size", [(12, 5), (5, 12)])
def test_gradients_meet_the_closed_form(size):
    rng = np.random.default_rng(0)
    x, v = rng.standard_normal((2, *size))
    k = rng.uniform(0.5, 3, size[0])
    c = np.full(size[1], k.sum() / size[1])
    given = [torch.tensor(a).requires_grad_() for a in (x, k, c)]
    w = soft_assignment(*given, temperature=0.3)
    found = torch.autograd.grad(w, given, torch.tensor(v))
    for one, wanted in zip(found, closed_form(x, k, c, 0.3, v), strict=True):
        assert np.abs(one.numpy() - wanted).max() < 1e-9


def test_gradients_of_tight_margins_and_masks_are_finite():
    mask = torch.rand(6, 4, generator=torch.Generator().manual_seed(0)) < 0.8
    mask[5] = False
    x = torch.tensor(np.random.default_rng(1).standard_normal((6, 4))).requires_grad_()
    k = torch.tensor([0.0, 1, 1, 2, 1, 0], dtype=torch.float64).requires_grad_()
    for function in (soft_assignment, lambda *a, **b: soft_assignment_prices(*a, **b)[1]):
        found = function(x, k, mask=mask)
        found = found[torch.isfinite(found)]
        slopes = torch.autograd.grad((found**2).sum(), (x, k), create_graph=True)
        assert all(one.isfinite().all() for one in slopes)
        assert torch.all(slopes[0][~mask] == 0)
        assert torch.all(slopes[0][0] == 0)
        again = torch.autograd.grad((slopes[0] ** 2).sum(), x)[0]
        assert again.isfinite().all()


def test_a_hard_choice_has_the_gradient_of_the_weights():
    x = torch.tensor(X).requires_grad_()
    hard = soft_assignment(x, 1, temperature=0.5, hard=True)
    soft = soft_assignment(x, 1, temperature=0.5)
    assert set(hard.unique().tolist()) == {0, 1}
    v = torch.tensor(V)
    one, other = (torch.autograd.grad(w, x, v)[0] for w in (hard, soft))
    assert torch.equal(one, other)


def test_half_types_and_single_precision_have_the_gradient_of_float64():
    x = torch.tensor(X)
    wanted = torch.autograd.grad(soft_assignment(y := x.requires_grad_(), 1), y, torch.tensor(V))[0]
    for dtype, tolerance in ((torch.float32, 1e-6), (torch.bfloat16, 3e-2)):
        x = torch.tensor(X).to(dtype).requires_grad_()
        found = torch.autograd.grad(soft_assignment(x, 1), x, torch.tensor(V).to(dtype))[0]
        assert found.dtype is dtype
        assert (found.double() - wanted).abs().max() < tolerance


# Transforms.


def loss(x):
    return (soft_assignment(x, 1.5, temperature=0.5) ** 2 * COTANGENT).sum()


def gradient(x):
    leaf = x.clone().requires_grad_()
    return torch.autograd.grad(loss(leaf), leaf)[0]


def test_torch_func():
    x = torch.tensor(X)
    stack = torch.stack([x, x.flip(0), -x])
    each = torch.stack([loss(one) for one in stack])
    assert torch.allclose(torch.func.vmap(loss)(stack), each, rtol=1e-10)
    wanted = gradient(x)
    assert torch.allclose(torch.func.grad(loss)(x), wanted, rtol=1e-9, atol=1e-12)
    v = torch.tensor(V)
    moved = torch.func.jvp(loss, (x,), (v,))[1]
    assert torch.allclose(moved, (wanted * v).sum(), rtol=1e-9)
    slopes = torch.func.vmap(torch.func.grad(loss))(stack)
    assert torch.allclose(slopes[1], gradient(stack[1]), rtol=1e-9, atol=1e-12)
    hessian = torch.func.hessian(loss)(x)
    assert torch.allclose(hessian, torch.autograd.functional.hessian(loss, x), atol=1e-9)


@each_compiler
def test_torch_compile(backend):
    x = torch.tensor(X)
    compiled = torch.compile(loss, fullgraph=True, backend=backend)
    leaf = x.clone().requires_grad_()
    found = compiled(leaf)
    assert torch.allclose(found, loss(x), rtol=1e-10)
    assert torch.allclose(torch.autograd.grad(found, leaf)[0], gradient(x), rtol=1e-9, atol=1e-12)


def jax_loss(x):
    return (soft_assignment(x, 1.5, temperature=0.5) ** 2 * jnp.asarray(V)).sum()


def test_jax():
    wanted = gradient(torch.tensor(X)).numpy()
    x = jnp.asarray(X)
    assert abs(jax.jit(jax_loss)(x) - float(loss(torch.tensor(X)))) < 1e-10
    assert np.abs(jax.jit(jax.grad(jax_loss))(x) - wanted).max() < 1e-9


@pytest.mark.full
def test_jax_transforms():
    x = jnp.asarray(X)
    stack = jnp.stack([x, x[::-1], -x])
    each = jax.vmap(jax.grad(jax_loss))(stack)
    for one, y in zip(each, stack, strict=True):
        assert np.abs(one - gradient(torch.tensor(np.asarray(y))).numpy()).max() < 1e-9
    hessian = torch.autograd.functional.hessian(loss, torch.tensor(X)).numpy()
    assert np.abs(jax.hessian(jax_loss)(x) - hessian).max() < 1e-8
    single = jax.grad(jax_loss)(x.astype(jnp.float32))
    assert np.abs(single - gradient(torch.tensor(X)).numpy()).max() < 1e-4
