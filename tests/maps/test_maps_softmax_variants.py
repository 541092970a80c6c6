"""taylor_softmax and sparse_softmax: what they are, which laws they keep and which they lack."""

import math
from fractions import Fraction

import jax
import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import kofn
from kofn import softmax, sparse_softmax, taylor_softmax
from kofn.maps import taylor_zeros
from kofn.maps.taylor_zeros import zeros
from support import WEIGHTS, Framework, names_of, weight_tolerance, with_gradients

RNG = np.random.default_rng(6)
X = RNG.standard_normal((4, 7)) * 2


def polynomial(v, order):
    term = total = Fraction(1)
    for m in range(1, order + 1):
        term = term * Fraction(float(v)) / m
        total += term
    return total


def taylor(x, order):
    f = [polynomial(v, order) for v in x]
    return np.array([float(v / sum(f)) for v in f])


@pytest.mark.parametrize("order", [2, 4, 10])
def test_taylor_meets_the_polynomial_in_fractions(framework, order):
    x = np.round(X * 8) / 8
    wanted = np.array([taylor(row, order) for row in x])
    for dtype in ("float64", "float32"):
        got = framework.numpy(taylor_softmax(framework.array(x, dtype), order))
        assert got == pytest.approx(wanted, abs=WEIGHTS[dtype])
    hotter = taylor_softmax(framework.array(x * 4), order, temperature=4.0)
    assert framework.numpy(hotter) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize(
    "order", [12, 30, 60, *(pytest.param(n, marks=pytest.mark.full) for n in (20, 100, 200))]
)
def test_taylor_of_high_orders_keeps_the_digits_of_its_smallest_weights(order):
    """Near −0.28 times the order, where f is least, its terms cancel up to e^(0.56·order) to 1."""
    rng = np.random.default_rng(order)
    for scale in (1.0, 0.28 * order, order, 100.0 * order):
        for signs in (rng.choice([-1, 1], 6), -np.ones(6)):
            x = np.float32(scale * signs * rng.random(6)).astype(float)
            wanted = taylor(x, order)
            some = wanted > 1e-30
            for dtype, relative in (("float64", 1e-13), ("float32", 5e-5)):
                got = taylor_softmax(x.astype(dtype), order)
                assert got == pytest.approx(wanted, abs=weight_tolerance(x, 1, dtype))
                assert got[some] == pytest.approx(wanted[some], rel=relative)


def test_the_zeros_are_those_of_the_polynomial():
    for order in (2, 10, 46, 60):
        found = zeros(order)
        assert len(set(found)) == order // 2
        assert sum(2 * a for a, _ in found) == pytest.approx(-order)  # the first two coefficients
        assert sum(math.log(a * a + b * b) for a, b in found) == pytest.approx(
            math.lgamma(order + 1)
        )
        for a, b in found:  # f at what was rounded: small to the size of its slope
            terms = [(Fraction(1), Fraction(0))]
            for m in range(1, order + 1):
                re, im = terms[-1]
                x, y = Fraction(a), Fraction(b)
                terms.append(((re * x - im * y) / m, (re * y + im * x) / m))
            f = complex(*(float(sum(part)) for part in zip(*terms, strict=True)))
            below = complex(*(float(sum(part)) for part in zip(*terms[:-1], strict=True)))
            assert abs(f / below) < 1e-15 * order


def test_taylor_of_a_high_order_compiles_and_has_derivatives(framework):
    x = np.array([[9.0, 3.0, -4.0, -20.0], [1.0, 0.0, -9.0, -9.5]])
    wanted = np.array([taylor(row, 24) for row in x])
    arrays = framework.array(x)
    function = lambda x: taylor_softmax(x, 24)  # noqa: E731
    if framework.name == "torch":
        torch._dynamo.reset()
        function = torch.compile(function, fullgraph=True, backend="eager")
        leaf = (X[:2, :4]).copy()
        assert gradcheck(lambda x: taylor_softmax(x, 24), torch.tensor(leaf, requires_grad=True))
    elif framework.name == "jax":
        function = jax.jit(function)
    assert framework.numpy(function(arrays)) == pytest.approx(wanted, abs=1e-13)


@with_gradients
def test_taylor_has_a_gradient_in_t_where_differences_of_scores_overflow(name):
    framework = Framework(name)
    x = framework.array([[3e38, -1.5e38, 1.0], [3e38, 1e38, -1e38]], "float32")
    t, ones = framework.array([2.0, 3e37], "float32"), framework.array(np.ones(2), "float32")
    for order in (2, 12):
        in_x, in_t = framework.vjp(
            lambda x, t, n=order: taylor_softmax(x, n, temperature=t)[:, 0], (x, t), ones
        )
        assert np.isfinite(in_x).all()
        step = 1e33
        sides = [
            taylor_softmax(framework.numpy(x)[1], order, temperature=3e37 + d)
            for d in (step, -step)
        ]
        assert in_t[0] == pytest.approx(0, abs=1e-37)
        assert in_t[1] == pytest.approx((sides[0] - sides[1])[0] / (2 * step), rel=1e-3)


@pytest.mark.parametrize("order", [2, 8])
def test_taylor_of_usual_scores_takes_few_passes_that_meet_the_others(order):
    """A score out of play, in another row, is what makes it take the others."""
    rng = np.random.default_rng(order)
    x, v = rng.standard_normal((2, 5, 9)) * 4
    x[-1] = math.inf
    found = []
    for rows, dtype in ((x[:-1], torch.float32), (x, torch.float64)):
        leaf = torch.tensor(rows).to(dtype).requires_grad_()
        t = torch.tensor([0.5, 1, 2, 3, 1][: len(rows)], dtype=dtype).requires_grad_()
        p = taylor_softmax(leaf, order, temperature=t)
        assert ("_Recorded" in names_of(p.grad_fn)) == (len(rows) == 4)
        slopes = torch.autograd.grad(p, (leaf, t), torch.tensor(v[: len(rows)]).to(dtype))
        found.append([a.detach()[:4].double() for a in (p, *slopes)])
    for got, wanted in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)
    for number in (1.0, 2.5):
        leaf = torch.tensor(x[:-1], requires_grad=True)
        assert gradcheck(lambda x, t=number: taylor_softmax(x, order, temperature=t), leaf)


def test_taylor_tends_to_softmax_and_has_heavier_tails():
    assert taylor_softmax(X / 4, 10) == pytest.approx(softmax(X / 4), abs=1e-6)
    x = np.array([6.0, 1.0, 0.0])
    assert taylor_softmax(x)[2] > 5 * softmax(x)[2]


def test_taylor_lacks_the_laws_its_docstring_says_it_lacks():
    x = np.array([1.0, 0.0, -0.5])
    assert np.max(np.abs(taylor_softmax(x + 1) - taylor_softmax(x))) > 0.05  # a shift
    rising = taylor_softmax(np.array([0.0, -1.0, -5.0]))  # the order, below −1
    assert rising[2] > rising[0] > rising[1]


def test_taylor_does_not_overflow(framework):
    p = framework.numpy(taylor_softmax(framework.array([1e30, 2e30, -np.inf], "float32"), 6))
    assert p == pytest.approx([1 / 65, 64 / 65, 0], abs=1e-6)
    # Nor where scores/T would; towards T = 0 the highest power alone is left.
    x = framework.array([[3e38, -1.5e38, 0.0, 1.0], [-1.5e38] * 4, [0.0] * 4], "float32")
    p = framework.numpy(taylor_softmax(x, 2, temperature=1e-30))
    assert p == pytest.approx(np.array([[0.8, 0.2, 0, 0], [0.25] * 4, [0.25] * 4]), abs=1e-6)


@pytest.mark.parametrize("order", [1, 3, 0, 202, -2])
def test_taylor_refuses_an_order(order):
    reason = "negative for scores far below 0" if order % 2 else "an even integer from 2 to 200"
    with pytest.raises(ValueError, match=reason):
        taylor_softmax(X, order)
    with pytest.raises(TypeError, match="order must be"):
        taylor_softmax(X, 2.0)


def test_sparse_is_softmax_of_the_largest(framework):
    for k in (1, 3, 7):
        kept = np.sort(X, -1)[:, -k, None] <= X
        got = sparse_softmax(framework.array(X), k=k, temperature=0.7)
        wanted = softmax(np.where(kept, X, -np.inf), temperature=0.7)
        assert framework.numpy(got) == pytest.approx(wanted, abs=1e-6)
        assert np.array_equal(framework.numpy(got) > 0, kept)


def test_the_nucleus_is_the_fewest_that_reach_p(framework):
    for p in (0.3, 0.8, 0.95, 1.0):
        got = framework.numpy(sparse_softmax(framework.array(X), p=p))
        for row, answer in zip(X, got, strict=True):
            share = np.sort(softmax(row))[::-1]
            count = int(np.searchsorted(np.cumsum(share), p - 1e-12)) + 1
            assert (answer > 0).sum() == min(count, 7)


def test_scores_equal_to_the_last_one_kept_are_kept(framework):
    x = framework.array([2.0, 1.0, 1.0, 0.0])
    for settings in (dict(k=2), dict(p=0.7)):
        p = framework.numpy(sparse_softmax(x, **settings))
        assert p[1] == p[2] > 0
        assert p[3] == 0


def test_sparse_at_the_edges(framework):
    inf, nan = math.inf, math.nan
    x = framework.array([[-inf] * 4, [inf, 1, inf, 0], [nan, 3, 1, 0], [1, -inf, -inf, -inf]])
    for settings in (dict(k=2), dict(p=0.9)):
        p = framework.numpy(sparse_softmax(x, **settings))
        assert np.array_equal(p[[0, 1, 3]], [[0] * 4, [0.5, 0, 0.5, 0], [1, 0, 0, 0]])
        assert np.all(np.isnan(p[2]))
    mask = framework.array([False, True, True, True], "bool")
    p = framework.numpy(sparse_softmax(framework.array([9.0, 1.0, 0.0, -1.0]), k=2, mask=mask))
    assert p == pytest.approx([0, 0.7310586, 0.2689414, 0], abs=1e-6)
    assert sparse_softmax(framework.array(np.zeros((2, 0))), p=0.5).shape == (2, 0)
    column = framework.numpy(sparse_softmax(framework.array(X.T.copy()), k=2, dim=0))
    assert pytest.approx(sparse_softmax(X, k=2), abs=1e-6) == column.T


def test_their_gradients_are_exact_and_0_outside_the_support():
    x = torch.tensor(X[:2, :5], requires_grad=True)
    t = torch.tensor([0.7, 1.9], dtype=torch.float64, requires_grad=True)
    for f in (
        lambda x, t: sparse_softmax(x, k=3, temperature=t),
        lambda x, t: sparse_softmax(x, p=0.8, temperature=t),
        lambda x, t: taylor_softmax(x, 4, temperature=t),
    ):
        assert gradcheck(f, (x, t), check_forward_ad=True, check_batched_grad=True)
        assert gradgradcheck(f, (x, t), check_fwd_over_rev=True, fast_mode=True)
    p = sparse_softmax(x, k=3)
    (slope,) = torch.autograd.grad((p * torch.randn_like(p)).sum(), x)
    assert torch.equal(slope != 0, p != 0)


@pytest.mark.parametrize("name", ["sparse", "taylor"])
def test_they_compile_and_map(name):
    f = {"sparse": lambda x: sparse_softmax(x, p=0.8), "taylor": lambda x: taylor_softmax(x, 4)}[
        name
    ]
    x = torch.tensor(X)
    torch._dynamo.reset()
    assert torch.allclose(torch.compile(f, fullgraph=True, backend="aot_eager")(x), f(x))
    assert torch.allclose(torch.func.vmap(f)(x), f(x))


def test_errors_of_sparse_softmax():
    with pytest.raises(ValueError, match="give k, p or min_p, or kept; got none of them"):
        sparse_softmax(X)
    for k in (0, 8, -1):
        with pytest.raises(ValueError, match=r"k must be an integer in \[1, n\] \(here n = 7\)"):
            sparse_softmax(X, k=k)
    with pytest.raises(TypeError, match="k must be an integer"):
        sparse_softmax(X, k=1.5)
    for p in (0, 1.5, -0.1, math.nan):
        with pytest.raises(ValueError, match=r"p must be a number in \(0, 1\]"):
            sparse_softmax(X, p=p)
    assert kofn.sparse_softmax(X, k=np.int64(2)).shape == X.shape


def test_the_search_for_the_zeros_of_a_polynomial_has_a_bound(monkeypatch):
    usual = taylor_zeros._upper_half(20)
    monkeypatch.setattr(taylor_zeros, "ROUNDS", 7)
    assert taylor_zeros._upper_half(20) == usual
    monkeypatch.setattr(taylor_zeros, "ROUNDS", 1)
    assert np.abs(np.array(taylor_zeros._upper_half(20)) - usual).max() < 2
