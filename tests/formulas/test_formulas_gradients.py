"""First and second derivatives in scores, k, temperature and alpha, in both directions.

Tangents are random: a tangent of ones is in the null space of the Jacobian and hides everything.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import kofn
import oracles
from kofn import links
from kofn.links import table
from support import BOUNDED, CAUCHY, LINKS, Framework, every_link, full_but, with_gradients

X = torch.tensor(np.random.default_rng(5).standard_normal((2, 4)), requires_grad=True)
K = torch.tensor([1.3, 3.6], dtype=torch.float64, requires_grad=True)
T = torch.tensor([0.7, 1.9], dtype=torch.float64, requires_grad=True)
ALPHA = torch.tensor([1.3, 1.9], dtype=torch.float64, requires_grad=True)
TARGET = torch.tensor([[1, 0, 0, 1], [0.3, 0.7, 1, 0]], dtype=torch.float64)


def exact(function, *arguments):
    first = gradcheck(
        function,
        arguments,
        check_forward_ad=True,
        check_batched_grad=True,
        check_batched_forward_grad=True,
        fast_mode=True,
    )
    # On random directions: the whole tables take minutes.
    return first and gradgradcheck(function, arguments, check_fwd_over_rev=True, fast_mode=True)


@pytest.mark.parametrize("link", [*LINKS, "cauchy"])
def test_weights_in_scores_k_and_temperature(link):
    link = CAUCHY["torch"] if link == "cauchy" else link
    assert exact(lambda x, k, t: kofn.soft_topk(x, k, link=link, temperature=t), X, K, T)


@pytest.mark.parametrize(
    "function",
    [
        "soft_topk",
        pytest.param("soft_topk_sum", marks=pytest.mark.full),
        pytest.param("soft_topk_threshold", marks=pytest.mark.full),
    ],
)
def test_alpha_may_be_learned_per_row(function):
    f = getattr(kofn, function)
    assert exact(lambda x, a: f(x, K.detach(), link=links.entmax(a)), X, ALPHA)


@pytest.mark.parametrize("alpha", [1.0, 2.0])
def test_alpha_has_its_gradient_at_1_and_2(alpha):
    """Where the formula changes its form: against a difference across the point."""
    x = X.detach()
    a = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
    v = torch.tensor(np.random.default_rng(0).standard_normal((2, 4)))
    got = torch.autograd.grad((kofn.entmax(x, a) * v).sum(), a, create_graph=True)[0]
    assert torch.isfinite(torch.autograd.grad(got, a)[0])
    if alpha == 2.0:
        h = 1e-5
        difference = (kofn.entmax(x, alpha + h) - kofn.entmax(x, alpha - h)) / (2 * h)
        assert got.item() == pytest.approx((difference * v).sum().item(), rel=1e-6)
    else:  # one-sided, second order: alpha < 1 is not allowed
        h = 1e-4
        f = [kofn.entmax(x, alpha + i * h) for i in range(3)]
        difference = (-3 * f[0] + 4 * f[1] - f[2]) / (2 * h)
        assert got.item() == pytest.approx((difference * v).sum().item(), rel=1e-5)


@every_link
@pytest.mark.parametrize("function", ["soft_topk_threshold", "soft_topk_sum"])
def test_threshold_and_value(function, link):
    f = getattr(kofn, function)
    assert exact(lambda x, k, t: f(x, k, link=link, temperature=t), X, K, T)


@every_link
def test_loss(link):
    assert exact(
        lambda x, t: kofn.fenchel_young_loss(x, TARGET, link=link, temperature=t, reduction="none"),
        X,
        T,
    )


def test_softmax():
    assert exact(lambda x, t: kofn.softmax(x, temperature=t), X, T)


def test_gates():
    assert exact(lambda x, t: kofn.topk_gates(x, 2, temperature=t)[0], X, T)


def test_with_masks_infinities_and_ties():
    x = torch.tensor(
        [[1.0, 1.0, -0.5, -torch.inf, 2.0, 0.3], [torch.inf, 0.5, 1.0, 2.0, -1.0, -torch.inf]],
        dtype=torch.float64,
    )
    hidden = torch.isinf(x)
    free = torch.where(hidden, 0.0, x).requires_grad_()
    assert exact(lambda f, k: kofn.soft_topk(torch.where(hidden, x, f), k), free, K)


@every_link
def test_value_has_the_weights_as_its_gradient(framework, link):
    if framework.name == "numpy":
        x = X.detach().numpy()
        v = np.random.default_rng(0).standard_normal(x.shape)
        slope = oracles.finite_difference(lambda x: kofn.soft_topk_sum(x, 2, link=link), x, v)
        assert slope == pytest.approx((kofn.soft_topk(x, 2, link=link) * v).sum(-1), abs=1e-8)
        return
    x = framework.array(X.detach().numpy())
    one = framework.array(np.ones(2))
    slope = framework.vjp(lambda x: kofn.soft_topk_sum(x, 2, link=link), (x,), one)[0]
    assert slope == pytest.approx(framework.numpy(kofn.soft_topk(x, 2, link=link)), abs=1e-13)


@every_link
def test_value_has_theta_as_its_slope_in_k_and_minus_omega_in_temperature(link):
    one = torch.ones(2, dtype=torch.float64)
    value = kofn.soft_topk_sum(X, K, link=link, temperature=T)
    in_k, in_t = torch.autograd.grad(value, (K, T), one)
    theta = kofn.soft_topk_threshold(X, K, link=link, temperature=T)
    omega = table.TABLE[link].omega(kofn.soft_topk(X, K, link=link, temperature=T)).sum(-1)
    assert torch.allclose(in_k, theta, atol=1e-12)
    assert torch.allclose(in_t, -omega, atol=1e-12)


@with_gradients
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_k_keeps_its_gradient_when_the_choice_is_nearly_hard(name, dtype):
    """softmax(log f) never underflows, W does: float32 at T = 0.1."""
    framework = Framework(name)
    x = framework.array([10.0, 9, -9, -10], dtype)
    v = np.array([1.0, -2.0, 0.5, 3.0])
    published = {
        0.3: (0.0172226, 0.4827774),
        0.2: (0.0033464, 0.4966536),
        0.1: (2.27e-5, 0.4999773),
    }
    for temperature, (end, middle) in published.items():
        got = framework.vjp(
            lambda k, t=temperature: kofn.soft_topk(x, k, temperature=t),
            (framework.array(2.0, dtype),),
            framework.array(v, dtype),
        )[0]
        assert got == pytest.approx(v @ [end, middle, middle, end], abs=1e-6)


@with_gradients
def test_nearly_hard_choices_keep_their_second_derivatives(name):
    """In float32, down to the smallest number there is."""
    x = np.array([10.0, 9, -9, -10], np.float32)
    hessian, array = {
        "torch": (torch.func.hessian, torch.tensor),
        "jax": (jax.hessian, jnp.asarray),
    }[name]
    for temperature in (0.3, 0.15, 0.1, 0.01):
        f = partial(kofn.soft_topk, k=2, temperature=temperature)
        wanted = oracles.logistic_hessian(x, 2, temperature)
        found = np.asarray(hessian(f)(array(x)), float)
        assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max() + 1e-37


@with_gradients
def test_a_bounded_link_with_no_entry_in_its_support_has_gradient_0(name):
    framework = Framework(name)
    x = framework.array([9.0, 5.0, 1.0, -3.0])
    for link in BOUNDED:
        for answer in framework.vjp(
            lambda x, k, t, link=link: kofn.soft_topk(x, k, link=link, temperature=t),
            (x, framework.array(2.0), framework.array(0.5)),
            framework.array([1.0, -2.0, 0.3, 0.7]),
        ):
            assert not np.any(answer)


@with_gradients
def test_the_gradient_in_temperature_survives_a_shift_of_the_scores(name):
    """−Σ u (x − θ)/T, not −Σ u x/T, which loses three digits at scores + 10⁴."""
    framework = Framework(name)
    rng = np.random.default_rng(2)
    # Multiples of 2⁻⁹ are exact in float32 at 10⁴.
    x, v = np.round(rng.standard_normal(30) * 512) / 512, rng.standard_normal(30)

    def slope(shift):
        return framework.vjp(
            lambda t: kofn.soft_topk(framework.array(x + shift, "float32"), 4, temperature=t),
            (framework.array(1.0, "float32"),),
            framework.array(v, "float32"),
        )[0]

    assert slope(1e4) == pytest.approx(float(slope(0.0)), rel=2e-5)


@pytest.mark.parametrize(
    "link", ["logistic", *(pytest.param(n, marks=pytest.mark.full) for n in LINKS[1:])]
)
def test_jax_second_derivatives_meet_torch(link):
    v = np.random.default_rng(7).standard_normal((2, 4))
    x, k, t = (a.detach().numpy() for a in (X, K, T))

    def of(array):
        return lambda x, k, t: (kofn.soft_topk(x, k, link=link, temperature=t) * array(v)).sum()

    ours = torch.func.hessian(of(torch.tensor), argnums=(0, 1, 2))(*map(torch.tensor, (x, k, t)))
    theirs = jax.jit(jax.hessian(of(jnp.asarray), argnums=(0, 1, 2)))(*map(jnp.asarray, (x, k, t)))
    for a, b in zip(jax.tree.leaves(theirs), [h for row in ours for h in row], strict=True):
        assert np.asarray(a) == pytest.approx(b.numpy(), abs=1e-10)


@pytest.mark.parametrize("function", [kofn.soft_topk, kofn.soft_topk_threshold, kofn.soft_topk_sum])
def test_a_third_derivative_is_not_quietly_wrong(function):
    x, v, by = (
        torch.tensor(values, dtype=torch.float64)
        for values in ([0.3, -0.2, 1.1, 0.6], [1.0, 0.5, -0.3, 2.0], [1.0, -2.0, 0.5, 3.0])
    )
    step = torch.zeros((), dtype=torch.float64, requires_grad=True)
    value = (function(x + step * v, 1.5) * by).sum()
    for finite in (True, True, False):
        (value,) = torch.autograd.grad(value, step, create_graph=True)
        assert torch.isfinite(value) == finite


@pytest.mark.parametrize("at", full_but((0.4,), (0.0, 0.4)))
def test_jax_has_derivatives_of_any_order(at):
    """soft_topk of the exponential link at k = 1 is softmax, whose derivatives JAX knows itself."""
    x, v, by = (
        jax.numpy.asarray(values)
        for values in ([0.3, -0.2, 1.1, 0.6], [1.0, 0.5, -0.3, 2.0], [1.0, -2.0, 0.5, 3.0])
    )

    def third(function):
        def along(step):
            return (function(x + step * v) * by).sum()

        return np.asarray(jax.jit(jax.grad(jax.jacfwd(jax.grad(along))))(at))

    wanted = third(lambda x: jax.nn.softmax(x / 0.7))
    got = third(lambda x: kofn.soft_topk(x, 1, link="exponential", temperature=0.7))
    assert got == pytest.approx(wanted, rel=1e-10)


def test_softmax_has_derivatives_of_any_order():
    x = torch.tensor([0.3, -0.2, 1.1, 0.6], dtype=torch.float64)
    v = torch.tensor([1.0, 0.5, -0.3, 2.0], dtype=torch.float64)
    answers = []
    for function in (kofn.softmax, lambda x: torch.softmax(x, -1)):
        step = torch.zeros((), dtype=torch.float64, requires_grad=True)
        value = (function(x + step * v) * v).sum()
        for _ in range(3):
            (value,) = torch.autograd.grad(value, step, create_graph=True)
        answers.append(value.item())
    assert answers[0] == pytest.approx(answers[1], rel=1e-12)


@with_gradients
def test_softmax_pushes_a_winner_that_float32_rounds_to_1(name):
    framework = Framework(name)
    x = framework.array([20.0, 0.0, 1.0], "float32")
    p = framework.numpy(kofn.softmax(x))
    (g,) = framework.vjp(kofn.softmax, (x,), framework.array([0.0, 1 / p[1], 0.0], "float32"))
    assert g == pytest.approx([-1.0, 1.0, -5.6e-9], rel=1e-3)


@with_gradients
@pytest.mark.parametrize("link", ["exponential", links.entmax(1.0), links.entmax(1.0625)], ids=str)
@pytest.mark.parametrize("lead", [8.0, 14.0, 17.0, 23.0])
def test_a_winner_that_float32_rounds_to_1_keeps_its_slope(name, link, lead):
    framework = Framework(name)
    x, v = [lead, 0.0, 1.0], [0.0, 1e3, -2e3]
    exact = Framework("torch")

    def chosen(x):
        return kofn.soft_topk(x, 1, link=link)

    (wanted,) = exact.vjp(chosen, (exact.array(x),), exact.array(v))
    (got,) = framework.vjp(chosen, (framework.array(x, "float32"),), framework.array(v, "float32"))
    assert np.linalg.norm(got - wanted) <= 1e-5 * np.linalg.norm(wanted)


@pytest.mark.parametrize("lead", [30.0, 90.0, 1e4])
def test_second_derivatives_of_confident_rows_are_finite(lead):
    """PyTorch's own logaddexp has NaN beyond 88."""
    x = torch.tensor([lead, 0.5, 0.0, -lead], requires_grad=True)
    v = torch.tensor([1.0, -2.0, 0.5, 3.0])
    for f in (
        lambda x: kofn.soft_topk_sum(x, 2),
        lambda x: kofn.losses.topk_loss(x, torch.tensor([0, 1, 0, 1.0])),
        lambda x: kofn.losses.topk_cross_entropy(x, torch.tensor(3), (0.5, 0.5)),
    ):
        (slope,) = torch.autograd.grad(f(x), x, create_graph=True)
        (curve,) = torch.autograd.grad(slope @ v, x)
        h = 1e-4
        wide = [(x.detach().double() + s * h * v.double()).requires_grad_() for s in (1, -1)]
        ends = [torch.autograd.grad(f(y), y)[0] for y in wide]
        assert torch.allclose(curve.double(), (ends[0] - ends[1]) / (2 * h), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("backend", ["reference", pytest.param("fused", marks=pytest.mark.full)])
@pytest.mark.parametrize("k", [1e-6, 8 - 3e-6])
@every_link
def test_choices_of_next_to_nothing_or_all_meet_the_oracle(link, k, backend):
    """In single precision. One entry may move nearly all of Σp; then its own gradient is a small
    difference of large numbers, of which rounding leaves no digit unless it is taken out.
    """
    rows = np.random.default_rng(0).standard_normal((3, 2, 8)).astype(np.float32)
    for x, v in rows:
        leaves = [torch.tensor(np.float32(a), requires_grad=True) for a in (x, k, 0.7)]
        exact = oracles.vjp(x, leaves[1].item(), leaves[2].item(), link, v)

        def weights(x, k, t):
            return kofn.soft_topk(x, k, link=link, temperature=t)

        if backend == "fused":
            found = torch.autograd.grad(weights(*leaves), leaves, torch.tensor(v))
        else:
            pulled = torch.func.vjp(weights, *(a.detach() for a in leaves))[1]
            found = pulled(torch.tensor(v))
        for got, wanted, size in zip(found, *exact, strict=True):
            error = np.linalg.norm(got.double().numpy() - np.asarray(wanted, float))
            assert error <= 3e-5 * np.linalg.norm(wanted) + 1e-12 * size, (got, wanted)


@pytest.mark.parametrize(
    ("name", "link", "temperature"),
    [
        ("soft_topk", "linear", 1e-19),
        ("soft_topk", "linear", 1e-31),
        ("soft_topk_threshold", "logistic", 1e-12),
    ],
)
def test_a_hard_choice_does_not_move_with_a_tiny_temperature(name, link, temperature):
    """In float32 by the plain code: entries that are out of reach are divided by T³ = 0 there."""
    v = torch.tensor([1.0, -2.0, 0.5, 3.0])
    leaves = [
        torch.tensor(a, requires_grad=True) for a in ([1.5, 0.3, -0.2, -1.0], 2.0, temperature)
    ]
    answer = getattr(kofn, name)(*leaves[:2], link=link, temperature=leaves[2])
    first = torch.autograd.grad(
        (answer * v if answer.ndim else answer).sum(), leaves, create_graph=True
    )
    assert first[2] == 0
    pushed = (first[0] * v).sum() + 1.3 * first[1] + 0.7 * first[2]
    assert all(bool((part == 0).all()) for part in torch.autograd.grad(pushed, leaves))
