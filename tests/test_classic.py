"""The older constructions do what their articles say, and have the flaws their docstrings state."""

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

from kofn import classic, soft_topk

X = np.random.default_rng(0).standard_normal((500, 8)) * 3
ALL = [getattr(classic, name) for name in classic.__all__]


def iterative(x, k):
    """As the article has it."""
    x, p = x - x.min(), np.zeros_like(x)
    for _ in range(k):
        y = np.exp((1 - p) * x)
        p = p + y / y.sum()
    return p


def weighted(x, k):
    p = np.zeros_like(x)
    for _ in range(k):
        y = (1 - p) * np.exp(x)
        p = p + y / y.sum()
    return p


def test_they_are_what_the_articles_write(framework):
    for k in (1, 2, 4):
        x = framework.array(X[:5])
        for function, plain in (
            (classic.iterative_soft_topk, iterative),
            (classic.weighted_soft_topk, weighted),
        ):
            got = framework.numpy(function(x * 0.5, k, temperature=0.5))
            assert got == pytest.approx(np.array([plain(row, k) for row in X[:5]]), abs=2e-5)


@pytest.mark.parametrize("function", ALL, ids=lambda f: f.__name__)
def test_what_holds_for_all(function):
    for k in (0, 1, 3, 8):
        p = function(X, k)
        assert p.sum(-1) == pytest.approx(np.full(500, float(k)), abs=1e-9)
        assert function(X + 5, k) == pytest.approx(p, abs=1e-9)
    x = X[:3].copy()
    x[0, 2], x[1] = -np.inf, -np.inf
    p = function(x, 2)
    assert p[0, 2] == 0
    assert not p[1].any()
    assert np.isfinite(function(x, 2, mask=x < 2)).all()
    leaf = torch.tensor(x[[0, 2]], requires_grad=True)
    t = torch.tensor([0.7, 3.0], dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda x, t: function(x, 2, temperature=t, mask=leaf < 3), (leaf, t))
    with pytest.raises(ValueError, match="k must be an integer"):
        function(X, 9)


def test_iterative_leaves_the_interval_and_the_order():
    p = classic.iterative_soft_topk(X, 3)
    assert p.max() > 1.1
    sorted_p = np.take_along_axis(p, np.argsort(X, axis=-1), -1)
    assert 50 < np.any(np.diff(sorted_p) < -1e-6, axis=-1).sum() < 150
    everything = classic.iterative_soft_topk(np.arange(5.0), 5, temperature=0.01)
    assert everything == pytest.approx([0.2, 1.2, 1.2, 1.2, 1.2])


def test_weighted_does_not_tend_to_the_hard_topk():
    x = np.array([3.0, 2.0, 1.0, 0.0])
    p = classic.weighted_soft_topk(x, 2, temperature=0.05)
    assert p == pytest.approx([1.5, 0.5, 0, 0], abs=1e-3)
    assert soft_topk(x, 2, temperature=0.05) == pytest.approx([1, 1, 0, 0], abs=1e-3)
    third = classic.weighted_soft_topk(x, 3, temperature=0.05)
    assert third.min() < -0.1 or third.max() > 1.2
    # Rounding hides it once 1 − p is 0.
    assert classic.weighted_soft_topk(x, 2, temperature=0.02) == pytest.approx([1, 1, 0, 0])


def test_ones_and_softmax_jumps_and_parts_equals():
    x = np.array([1.0, 1.0 + 1e-9, 0.0])
    before, after = (classic.ones_and_softmax(row, 2) for row in (x, x[[1, 0, 2]]))
    assert np.abs(before - after).max() > 0.2
    assert np.abs(soft_topk(x, 2) - soft_topk(x[[1, 0, 2]], 2)).max() < 1e-8
    tied = classic.ones_and_softmax(np.array([2.0, 2.0, 1.0]), 2)
    assert tied[0] != tied[1]
    leaf = torch.tensor([3.0, 1.0, 0.0], requires_grad=True)
    classic.ones_and_softmax(leaf, 2)[1].backward()
    assert leaf.grad[0] == 0
