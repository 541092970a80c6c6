"""softmax(weights=): an entry of weight w is as good as w entries of its score."""

import math

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

import kofn
from kofn import softmax
from support import WEIGHTS

RNG = np.random.default_rng(8)
X = RNG.standard_normal((3, 5)) * 3
W = RNG.integers(1, 4, (3, 5)).astype(float)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_weight_counts_repetitions(framework, dtype):
    temperature = np.array([0.3, 1.0, 7.0])
    raised = W * np.exp((X - X.max(-1, keepdims=True)) / temperature[:, None])
    got = softmax(
        framework.array(X, dtype),
        weights=framework.array(W, dtype),
        temperature=framework.array(temperature, dtype),
    )
    assert framework.numpy(got) == pytest.approx(
        raised / raised.sum(-1, keepdims=True), abs=WEIGHTS[dtype]
    )
    twice = softmax(np.repeat(X[0], W[0].astype(int)))
    ends = np.cumsum(W[0].astype(int))
    assert softmax(X[0], weights=W[0]) == pytest.approx(np.add.reduceat(twice, [0, *ends[:-1]]))


def test_0_deletes_and_what_is_deleted_stays_so(framework):
    inf, nan = math.inf, math.nan
    x = framework.array([[nan, 1.0, 0.0], [1.0, -inf, 0.0], [1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])
    w = framework.array([[0.0, 1, 3], [1, 1e300, 1], [0, 0, 0], [1, -1, 1]])
    p = framework.numpy(softmax(x, weights=w))
    two = softmax(np.array([1.0, 0.0]))
    assert p[0] == pytest.approx([0, *softmax(np.array([1.0, math.log(3)]))], abs=1e-12)
    assert p[1] == pytest.approx([two[0], 0, two[1]], abs=1e-12)
    assert not p[2].any()
    assert np.isnan(p[3]).all()
    column = softmax(framework.array(X.T.copy()), weights=framework.array(W.T.copy()), dim=0)
    assert pytest.approx(softmax(X, weights=W), abs=1e-12) == framework.numpy(column).T
    assert softmax(
        framework.array(np.zeros((2, 0))), weights=framework.array(np.ones((2, 0)))
    ).shape == (2, 0)


def test_derivatives_in_scores_weights_and_temperature():
    x, w = torch.tensor(X, requires_grad=True), torch.tensor(W, requires_grad=True)
    t = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64, requires_grad=True)

    def f(x, w, t):
        return softmax(x, weights=w, temperature=t)

    assert gradcheck(f, (x, w, t), check_forward_ad=True, fast_mode=True)
    zero = torch.tensor([[0.0, 2.0, 1.0, 0.0, 1.0]], dtype=torch.float64, requires_grad=True)
    p = f(x[:1], zero, t[:1])
    (slope,) = torch.autograd.grad(p[0, 1], zero)
    assert slope.isfinite().all()
    assert not slope[zero == 0].any()


def test_errors_of_weights():
    for weights, error in ((np.ones(4), ValueError), (np.ones((2, 3, 5)), ValueError),
                           (2.0, TypeError), (np.ones(5, bool), TypeError)):  # fmt: skip
        with pytest.raises(error, match="weights"):
            kofn.softmax(X, weights=weights)
