"""Derivatives of perturbed_argmax: exact, under every transform, at the edges."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from kofn import links, perturbed_argmax
from kofn.maps.perturbed import NOISES
from support import GRADIENT, Framework, full_but

STEEP = links.entmax(3.0)


@pytest.mark.parametrize(
    "noise",
    full_but(("normal", "uniform", STEEP), (*NOISES, STEEP, links.exponential)),
)
def test_derivatives_are_exact_to_the_second(noise):
    x = torch.tensor(
        [[0.35, 0.8, -0.54, -1.3], [0.91, 0.45, -0.54, 0.58]],
        dtype=torch.float64,
        requires_grad=True,
    )
    t = torch.tensor([1.3, 0.8], dtype=torch.float64, requires_grad=True)

    def f(x, t):
        return perturbed_argmax(x, noise=noise, temperature=t)

    assert gradcheck(f, (x, t), check_forward_ad=True, check_batched_grad=True, fast_mode=True)
    assert gradgradcheck(f, (x, t), check_fwd_over_rev=True, fast_mode=True)


@pytest.mark.parametrize(
    ("name", "noise", "dtype"),
    [("torch", n, d) for n in ("normal", "uniform") for d in ("float64", "float32")]
    + [("jax", "normal", "float32")]
    + [pytest.param("jax", n, "float64", marks=pytest.mark.full) for n in NOISES],
)
def test_gradients_meet_differences(name, noise, dtype, rng):
    framework = Framework(name)
    x, v = rng.standard_normal(40).astype("f4"), rng.standard_normal(40)
    (got,) = framework.vjp(
        lambda x: perturbed_argmax(x, noise=noise),
        (framework.array(x, dtype),),
        framework.array(v, dtype),
    )
    h, wide = 1e-5, x.astype(float)
    for i in range(0, 40, 7):
        step = h * np.eye(40)[i]
        up, down = (perturbed_argmax(wide + s * step, noise=noise) @ v for s in (1, -1))
        assert got[i] == pytest.approx((up - down) / (2 * h), abs=max(1e-8, GRADIENT[dtype]))


def test_a_third_derivative_is_not_quietly_wrong():
    x = torch.tensor([0.3, -0.2, 1.1], dtype=torch.float64)
    v = torch.tensor([1.0, 0.5, -0.3], dtype=torch.float64)

    def along(step):
        return (perturbed_argmax(x + step * v) * v).sum()

    third = torch.func.grad(torch.func.grad(torch.func.grad(along)))
    assert not torch.isfinite(third(torch.zeros((), dtype=torch.float64)))
    # Eager differentiation is of the quadrature's own Jacobian, and right to any order.
    step = torch.zeros((), dtype=torch.float64, requires_grad=True)
    value, orders = along(step), []
    for _ in range(3):
        (value,) = torch.autograd.grad(value, step, create_graph=True)
        orders.append(value.item())
    h = 0.02
    f = [along(torch.tensor(i * h)).item() for i in (-2, -1, 1, 2)]
    assert orders[2] == pytest.approx((f[3] - 2 * f[2] + 2 * f[1] - f[0]) / (2 * h**3), rel=1e-3)


def test_compiled_gradients(rng):
    x, v = (torch.tensor(rng.standard_normal((2, 5))) for _ in range(2))
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x: (perturbed_argmax(x) * v).sum(), fullgraph=True, backend="aot_eager"
    )
    leaf, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    got = torch.autograd.grad(compiled(leaf), leaf)[0]
    slope = torch.autograd.grad((perturbed_argmax(other) * v).sum(), other)[0]
    assert torch.allclose(got, slope, atol=1e-12)


def test_transforms(rng):
    x, v = (torch.tensor(rng.standard_normal((2, 5))) for _ in range(2))
    leaf = x.clone().requires_grad_()
    slope = torch.autograd.grad((perturbed_argmax(leaf) * v).sum(), leaf)[0]
    want = perturbed_argmax(x)
    assert torch.allclose(torch.func.vmap(perturbed_argmax)(x), want, atol=1e-13)
    by_row = torch.func.vmap(torch.func.grad(lambda x, v: (perturbed_argmax(x) * v).sum()))(x, v)
    assert torch.allclose(by_row, slope, atol=1e-12)
    pushed = torch.func.jvp(perturbed_argmax, (x,), (v,))[1]
    assert torch.allclose(pushed, slope, atol=1e-12)  # the Jacobian is symmetric


@pytest.mark.parametrize(
    "noise",
    [
        "uniform",
        *(
            pytest.param(noise, marks=pytest.mark.full)
            for noise in ("laplace", links.entmax(1.5), links.entmax(1.01))
        ),
    ],
)
def test_transforms_where_the_noise_has_kinks(noise, rng):
    x, v = (torch.tensor(rng.standard_normal((2, 4))) / 3 for _ in range(2))

    def f(x, v):
        return (perturbed_argmax(x, noise=noise) * v).sum()

    leaf = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(f(leaf, v), leaf)
    assert torch.allclose(torch.func.vmap(torch.func.grad(f))(x, v), slope, atol=1e-11)


def test_compiled_where_the_noise_has_kinks(rng):
    x = torch.tensor(rng.standard_normal((2, 4))) / 3
    torch._dynamo.reset()
    traced = torch.compile(
        lambda x: perturbed_argmax(x, noise="uniform"), fullgraph=True, backend="eager"
    )
    assert torch.allclose(traced(x), perturbed_argmax(x, noise="uniform"), atol=1e-12)


@pytest.mark.full
def test_jax_transforms(rng):
    x, v = rng.standard_normal((2, 5)), rng.standard_normal((2, 5))
    leaf = torch.tensor(x, requires_grad=True)
    slope = torch.autograd.grad((perturbed_argmax(leaf) * torch.tensor(v)).sum(), leaf)[0]
    a, b = jnp.asarray(x), jnp.asarray(v)
    theirs = jax.jit(jax.vmap(jax.grad(lambda x, v: (perturbed_argmax(x) * v).sum())))(a, b)
    assert np.asarray(theirs) == pytest.approx(slope.numpy(), abs=1e-12)


def test_gradients_at_the_edges_are_0_not_nan():
    inf = math.inf
    x = torch.tensor([[1.0, -inf, 0.0], [inf, 1.0, 0.0], [-inf] * 3, [7.0, -inf, -inf]])
    x.requires_grad_()
    (perturbed_argmax(x) * torch.tensor([1.0, 2.0, -1.0])).sum().backward()
    assert torch.isfinite(x.grad).all()
    assert not x.grad[1:].any()
    assert x.grad[0, 0] > 0.1
