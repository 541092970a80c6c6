"""topk_gates: a bias for the choice, gates divided by their sum, float32 inside autocast."""

import math

import jax
import numpy as np
import pytest
import torch

import kofn
from kofn import soft_topk, topk_gates
from support import Framework, with_gradients

INF, NAN = math.inf, math.nan
X = [[2.0, -1.0, 0.5, 1.0], [0.0, 3.0, 3.0, -2.0]]


def test_a_bias_decides_the_choice_and_leaves_the_gates(framework):
    bias = [0.0, 9.0, 0.0, 1.5]
    x = framework.array(X)
    gates, indices = topk_gates(x, 2, bias=framework.array(bias))
    assert np.array_equal(framework.numpy(indices), [[1, 3], [1, 2]])
    p = framework.numpy(soft_topk(x, 2))
    assert np.array_equal(
        framework.numpy(gates), np.take_along_axis(p, np.array([[1, 3], [1, 2]]), -1)
    )


def test_a_bias_breaks_ties_and_leaves_masked_entries_out(framework):
    x = framework.array([[1.0, 1.0, -INF, NAN], [0.0, 0.0, 0.0, 0.0]])
    mask = framework.array([[True, True, True, False], [False, True, True, True]], "bool")
    bias = framework.array([0.0, 1e-3, INF, 5.0])
    gates, indices = topk_gates(x, 2, bias=bias, mask=mask)
    assert np.array_equal(framework.numpy(indices), [[1, 0], [2, 3]])
    assert framework.numpy(gates) == pytest.approx(np.array([[1, 1], [2 / 3, 2 / 3]]), abs=1e-6)


def test_a_bias_along_another_dimension(framework):
    x = np.array(X).T
    gates, indices = topk_gates(
        framework.array(x), 2, dim=0, bias=framework.array([[0.0], [9.0], [0.0], [1.5]])
    )
    assert np.array_equal(framework.numpy(indices), [[1, 1], [3, 2]])
    whole = topk_gates(framework.array(X), 2, bias=framework.array([0.0, 9.0, 0.0, 1.5]))[0]
    assert np.array_equal(framework.numpy(gates), framework.numpy(whole).T)


def test_gates_divided_by_their_sum_add_up_to_1_or_0(framework):
    x = framework.array([X[0], [-INF] * 4, [INF, 1.0, -INF, -INF]])
    gates = framework.numpy(topk_gates(x, 2, normalize=True)[0])
    assert gates.sum(-1) == pytest.approx([1, 0, 1], abs=1e-6)
    assert np.array_equal(gates[1:], [[0, 0], [0.5, 0.5]])
    raw = framework.numpy(topk_gates(x, 2)[0])[0]
    assert gates[0] == pytest.approx(raw / raw.sum(), abs=1e-6)
    assert topk_gates(x, 0, normalize=True)[0].shape == (3, 0)


@with_gradients
def test_a_bias_has_no_gradient_and_empty_rows_have_none(name):
    framework = Framework(name)
    x = framework.array([X[0], [-INF] * 4])
    bias = framework.array([0.0, 9.0, 0.0, 1.5])
    v = framework.array([[1.0, -0.3], [2.0, 1.0]])
    in_x, in_bias = framework.vjp(
        lambda x, bias: topk_gates(x, 2, bias=bias, normalize=True)[0], (x, bias), v
    )
    assert np.all(in_x[0] != 0)
    assert not np.any(in_x[1])
    assert in_bias is None or not np.any(in_bias)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_inside_autocast_gates_of_half_precision_scores_are_float32(half):
    x = torch.tensor(X, dtype=half, requires_grad=True)
    assert topk_gates(x, 2)[0].dtype == half

    def gates(x):
        return topk_gates(x, 2, normalize=True)[0]

    for function in (gates, torch.compile(gates, fullgraph=True, backend="aot_eager")):
        with torch.autocast("cpu", torch.bfloat16):
            found = function(x)
            assert found.dtype == torch.float32
            assert gates(x.double()).dtype == torch.float64
            assert soft_topk(x, 2).dtype == half
        (slope,) = torch.autograd.grad(found[:, 0].sum(), x)
        assert slope.dtype == half
        assert slope.any()
        assert found.detach().numpy() == pytest.approx(gates(x.detach().float()).numpy(), abs=0)


def test_arguments_of_gates(framework):
    x = framework.array(X)
    with pytest.raises(ValueError, match="normalize must be False for k = 1"):
        topk_gates(x, 1, normalize=True)
    with pytest.raises(ValueError, match=r"bias has shape \(3,\); it must broadcast to the shape"):
        topk_gates(x, 2, bias=framework.array(np.zeros(3)))
    with pytest.raises(TypeError, match="bias must be real numbers"):
        topk_gates(x, 2, bias=framework.array(np.zeros(4, bool), "bool"))
    with pytest.raises(TypeError, match="bias must be an array"):
        topk_gates(x, 2, bias=0.5)


@pytest.mark.parametrize(
    "function",
    [
        kofn.topk_gates,
        lambda x, k: kofn.sparse_softmax(x, k=k),
        lambda x, k: kofn.PlackettLuce(x).sample(k, (), jax.random.key(0)),
    ],
    ids=["topk_gates", "sparse_softmax", "PlackettLuce"],
)
def test_a_traced_k_is_told_to_be_static(function):
    """It decides the shape, or the search, and what JAX traces has no number yet."""
    x = jax.numpy.arange(5.0)
    with pytest.raises(TypeError, match=r'^k must be .* traces; .* static_argnames="k"\)'):
        jax.jit(function)(x, 2)
    with pytest.raises(TypeError, match=r"^k must be .* got 2\.5$"):
        function(x, 2.5)


def test_a_static_k_is_a_number():
    gates, indices = jax.jit(topk_gates, static_argnames="k")(jax.numpy.arange(5.0), k=2)
    assert indices.tolist() == [4, 3]
    assert (gates > 0.5).all()
