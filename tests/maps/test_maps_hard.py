"""The hard choice: k-hot weights, gates, ties to the lowest index."""

import math

import numpy as np

import kofn
from kofn import (
    hard_topk,
    soft_topk,
    topk_gates,
)
from support import Framework, with_gradients

INF, NAN = math.inf, math.nan
X = [[2.0, -1.0, 0.5, 1.0], [0.0, 3.0, 3.0, -2.0]]


def test_hard_is_k_hot_forward_with_the_soft_gradient():
    for name in ("torch", "jax"):
        framework = Framework(name)
        x = framework.array([[2.0, 0.0, 0.0, -1.0], X[0]])
        p = framework.numpy(soft_topk(x, 2, hard=True))
        assert np.array_equal(p, [[1, 1, 0, 0], [1, 0, 0, 1]])
        v = framework.array(np.random.default_rng(0).standard_normal((2, 4)))
        soft = framework.vjp(lambda x: soft_topk(x, 2), (x,), v)[0]
        hard = framework.vjp(lambda x: soft_topk(x, 2, hard=True), (x,), v)[0]
        assert np.array_equal(soft, hard)


@with_gradients
def test_hard_topk_gives_no_gradient(name):
    framework = Framework(name)
    x = framework.array(X)
    if name == "torch":
        assert not hard_topk(x.requires_grad_(), 2).requires_grad
    else:
        assert not np.any(framework.vjp(lambda x: hard_topk(x, 2), (x,), framework.array(X))[0])


def test_ties_go_to_the_lowest_index_when_hard(framework):
    x = framework.array(np.ones((1, 40)))
    assert np.array_equal(framework.numpy(hard_topk(x, 3))[0], [1] * 3 + [0] * 37)
    assert np.array_equal(framework.numpy(topk_gates(x, 3)[1])[0], [0, 1, 2])


def test_zeros_of_either_sign_are_equal_scores(framework):
    x = framework.array([-0.0, 0.0, -0.0, 0.0])
    assert np.array_equal(framework.numpy(hard_topk(x, 2)), [1, 1, 0, 0])
    assert np.array_equal(framework.numpy(kofn.topk_gates(x, 2)[1]), [0, 1])


@with_gradients
def test_gates_send_a_gradient_to_every_score(name):
    framework = Framework(name)
    x = framework.array(X[:1])
    v = framework.array([[1.0, -0.3]])
    gradient = framework.vjp(lambda x: topk_gates(x, 2)[0], (x,), v)[0]
    assert np.all(gradient != 0)


def test_gates_of_a_row_with_fewer_left_are_0(framework):
    gates, indices = topk_gates(framework.array([[-INF, 1.0, -INF, 2.0]]), 3)
    assert np.array_equal(framework.numpy(gates), [[1, 1, 0]])
    assert framework.numpy(indices)[0, :2].tolist() == [3, 1]
    assert framework.numpy(indices)[0, 2] in (0, 2)
