"""taylor_softmax and sparse_softmax: what they are, which laws they keep and which they lack."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import kofn
from kofn import softmax, sparse_softmax, taylor_softmax
from support import WEIGHTS

RNG = np.random.default_rng(6)
X = RNG.standard_normal((4, 7)) * 2


@pytest.mark.parametrize("order", [2, 4, 10])
def test_taylor_meets_the_polynomial_in_fractions(framework, order):
    x = np.round(X * 8) / 8
    f = np.array(
        [
            [
                float(sum(Fraction(v) ** m / math.factorial(m) for m in range(order + 1)))
                for v in row
            ]
            for row in x
        ]
    )
    wanted = f / f.sum(-1, keepdims=True)
    for dtype in ("float64", "float32"):
        got = framework.numpy(taylor_softmax(framework.array(x, dtype), order))
        assert got == pytest.approx(wanted, abs=WEIGHTS[dtype])
    hotter = taylor_softmax(framework.array(x * 4), order, temperature=4.0)
    assert framework.numpy(hotter) == pytest.approx(wanted, abs=1e-12)


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
    x = framework.array([[3e38, -1.5e38, 0.0, 1.0], [-3e38] * 4, [0.0] * 4], "float32")
    p = framework.numpy(taylor_softmax(x, 2, temperature=1e-30))
    assert p == pytest.approx(np.array([[0.8, 0.2, 0, 0], [0.25] * 4, [0.25] * 4]), abs=1e-6)


@pytest.mark.parametrize("order", [1, 3, 0, 12, -2])
def test_taylor_refuses_an_order(order):
    reason = "negative for scores far below 0" if order % 2 else "an even integer from 2 to 10"
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
    for settings in ({}, dict(k=2, p=0.5)):
        with pytest.raises(ValueError, match="give k or p, one of the two"):
            sparse_softmax(X, **settings)
    for k in (0, 8, -1):
        with pytest.raises(ValueError, match=r"k must be an integer in \[1, n\] \(here n = 7\)"):
            sparse_softmax(X, k=k)
    with pytest.raises(TypeError, match="k must be an integer"):
        sparse_softmax(X, k=1.5)
    for p in (0, 1.5, -0.1, math.nan):
        with pytest.raises(ValueError, match=r"p must be a number in \(0, 1\]"):
            sparse_softmax(X, p=p)
    assert kofn.sparse_softmax(X, k=np.int64(2)).shape == X.shape
