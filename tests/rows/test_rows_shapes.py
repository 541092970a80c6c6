"""Shapes, layouts and types, and that a row is answered by itself."""

import math
import re
import threading

import numpy as np
import pytest

from kofn import (
    KSubset,
    RelaxedOneHot,
    entmax,
    fenchel_young_loss,
    links,
    soft_topk,
    soft_topk_sum,
    soft_topk_threshold,
    softmax,
    sparsemax,
    temperature_for,
    topk_gates,
)

INF, NAN = math.inf, math.nan
X = [[2.0, -1.0, 0.5, 1.0], [0.0, 3.0, 3.0, -2.0]]


def test_one_entry_and_an_empty_batch_and_an_empty_row(framework):
    assert framework.numpy(soft_topk(framework.array([3.0]), 0.3)) == pytest.approx([0.3])
    empty = soft_topk(framework.array(np.zeros((0, 4))), 2)
    assert empty.shape == (0, 4)
    nothing = framework.array(np.zeros((2, 0)))
    for answer in (soft_topk(nothing, 0), softmax(nothing), sparsemax(nothing), entmax(nothing)):
        assert answer.shape == (2, 0)
    assert np.all(np.isnan(framework.numpy(soft_topk_threshold(nothing, 0))))
    assert np.array_equal(framework.numpy(soft_topk_sum(nothing, 0)), [0, 0])
    assert topk_gates(nothing, 0)[0].shape == (2, 0)
    assert framework.numpy(fenchel_young_loss(nothing, nothing)) == 0


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -2, -3])
def test_dim_is_any_dimension(framework, dim, rng):
    x = rng.standard_normal((3, 4, 5))
    moved = np.moveaxis(x, dim, -1)
    k = rng.uniform(0.5, 2.5, moved.shape[:-1])
    expected = np.moveaxis(soft_topk(moved, k), -1, dim)
    got = soft_topk(framework.array(x), framework.array(k), dim=dim)
    assert framework.numpy(got) == pytest.approx(expected, abs=1e-13)
    theta = soft_topk_threshold(framework.array(x), framework.array(k), dim=dim)
    assert theta.shape == k.shape
    gates, indices = topk_gates(framework.array(x), 2, dim=dim)
    size = list(x.shape)
    size[dim] = 2
    assert list(gates.shape) == list(indices.shape) == size


def test_layouts_do_not_matter(framework, rng):
    x = rng.standard_normal((6, 8))
    expected = soft_topk(np.ascontiguousarray(x[::2, 1::2]), 2)
    strided = framework.array(x)[::2, 1::2]
    assert framework.numpy(soft_topk(strided, 2)) == pytest.approx(expected, abs=1e-14)
    transposed = framework.array(np.ascontiguousarray(x.T)).T
    got = framework.numpy(soft_topk(transposed, 2))
    assert got == pytest.approx(soft_topk(x, 2), abs=1e-14)


def test_broadcast_and_read_only_inputs_work_and_are_never_written_to(framework):
    row = np.array([2.0, -1.0, 0.5, 1.0])
    if framework.name == "numpy":
        spread = np.broadcast_to(row, (3, 4))
        row.setflags(write=False)
    else:
        base = framework.array(row)
        spread = base.expand(3, 4) if framework.name == "torch" else base + np.zeros((3, 1))
    before = framework.numpy(spread).copy()
    k, t = framework.array([1.0, 2.0, 3.0]), framework.array([0.5, 1.0, 2.0])
    p = framework.numpy(soft_topk(spread, k, temperature=t))
    assert p.sum(-1) == pytest.approx([1, 2, 3])
    assert np.array_equal(framework.numpy(spread), before)
    assert np.array_equal(framework.numpy(k), [1, 2, 3])
    assert np.array_equal(framework.numpy(t), [0.5, 1, 2])


def test_k_temperature_and_alpha_are_per_row(framework, rng):
    x = rng.standard_normal((2, 3, 6))
    k = rng.uniform(0.5, 5, (2, 3))
    t = rng.uniform(0.3, 2, (3,))
    alpha = np.array([[1.2], [2.0]])
    got = framework.numpy(
        soft_topk(
            framework.array(x),
            framework.array(k),
            temperature=framework.array(t),
            link=links.entmax(framework.array(alpha)),
        )
    )
    for i in range(2):
        for j in range(3):
            link = links.entmax(float(alpha[i, 0]))
            expected = soft_topk(x[i, j], float(k[i, j]), temperature=float(t[j]), link=link)
            assert got[i, j] == pytest.approx(expected, abs=1e-12)


# (scores, dim, what keepdim leaves, the shape that is meant)
KEPT = [
    ((6,), -1, (1,), ()),
    ((5, 6), -1, (5, 1), (5,)),
    ((5, 6), 0, (1, 6), (6,)),
    ((2, 3, 6), -1, (2, 3, 1), (2, 3)),
    ((2, 3, 6), -1, (1, 3, 1), (1, 3)),
    ((2, 6, 3), 1, (2, 1, 3), (2, 3)),
    ((3, 3, 3), 1, (3, 1, 3), (3, 3)),
]


@pytest.mark.parametrize(("shape", "dim", "kept", "batch"), KEPT)
def test_what_keepdim_leaves_is_taken_without_that_dimension(
    framework, shape, dim, kept, batch, rng
):
    if framework.name == "jax" and shape != (2, 6, 3):  # one compile is enough
        pytest.skip("the backend is NumPy's")
    x = framework.array(rng.standard_normal(shape))
    k, t, a = (rng.uniform(1.2, 2, kept) for _ in range(3))

    def answer(size):
        k_, t_, a_ = (framework.array(v.reshape(size)) for v in (k, t, a))
        p = soft_topk(x, k_, temperature=t_, link=links.entmax(a_), dim=dim)
        return framework.numpy(p)

    assert np.array_equal(answer(kept), answer(batch))


def test_the_gradient_of_what_keepdim_left_has_its_shape():
    import torch

    x = torch.tensor(X, dtype=torch.float64)
    k = torch.tensor([[1.5], [2.0]], dtype=torch.float64, requires_grad=True)
    t = torch.tensor([[0.5], [1.0]], dtype=torch.float64, requires_grad=True)
    (soft_topk(x, k, temperature=t)[:, 1]).sum().backward()
    flat = [v.detach().squeeze(-1).requires_grad_() for v in (k, t)]
    (soft_topk(x, flat[0], temperature=flat[1])[:, 1]).sum().backward()
    for kept, bare in zip((k, t), flat, strict=True):
        assert kept.grad.shape == (2, 1)
        assert torch.equal(kept.grad.squeeze(-1), bare.grad)


def test_per_head_temperatures(framework, rng):
    if framework.name == "jax":
        pytest.skip("the backend is NumPy's")
    x, t = rng.standard_normal((2, 3, 6)), np.array([0.5, 1.0, 2.0])
    got = framework.numpy(soft_topk(framework.array(x), 2, temperature=framework.array(t)))
    for head in range(3):
        assert got[:, head] == pytest.approx(soft_topk(x[:, head], 2, temperature=t[head]))


def test_a_shape_that_does_not_fit_is_refused_with_the_one_that_was_meant():
    x = np.zeros((2, 3, 6))

    def refused(name, shape, meant):
        hint = f"; give it the shape {meant}" if meant is not None else ""
        wanted = re.escape(f"{name} has shape {shape}; it must broadcast to ") + r"[^;]*"
        return pytest.raises(ValueError, match=wanted + re.escape(hint) + "$")

    for shape, meant in [
        ((3, 1), (3,)),  # per head
        ((2,), (2, 1)),  # per item of the batch
        ((1, 2, 1, 1), (2, 1)),
        ((2, 3, 6), None),
        ((4,), None),
    ]:
        some = np.ones(shape)
        with refused("temperature", shape, meant):
            soft_topk(x, 2, temperature=some)
        with refused("k", shape, meant):
            soft_topk(x, some)
        with refused("alpha", shape, meant):
            entmax(x, some + 0.5)
        with refused("support", shape, meant):
            temperature_for(x, 2, support=some, per_row=True)
        with refused("k", shape, meant):
            KSubset(x, some.astype(int))
        with refused("temperature", shape, meant):
            RelaxedOneHot(x, some)
    for shape, meant in [((2,), (2, 1, 1)), ((2, 6), (2, 1, 6)), ((2, 3), (2, 3, 1)), ((5,), None)]:
        with refused("mask", shape, meant):
            soft_topk(x, 2, mask=np.ones(shape, bool))


def test_keepdim_reaches_temperature_for_and_distributions(rng):
    x = rng.standard_normal((3, 6))
    support = np.array([2.5, 3.0, 4.0])
    kept = temperature_for(x, 2, support=support[:, None], per_row=True)
    assert np.array_equal(kept, temperature_for(x, 2, support=support, per_row=True))
    k = np.array([1, 2, 3])
    assert np.array_equal(KSubset(x, k[:, None]).marginals(), KSubset(x, k).marginals())
    value = softmax(rng.standard_normal((4, 3, 6)))
    laws = [RelaxedOneHot(x, t) for t in (support, support[:, None])]
    assert np.array_equal(*(law.log_prob(value) for law in laws))


def test_integer_arrays_of_k_are_welcome(framework):
    k = framework.array([1, 3], "int32")
    assert framework.numpy(soft_topk(framework.array(X), k)).sum(-1) == pytest.approx([1, 3])


def test_numpy_arrays_mix_with_jax_ones():
    import jax.numpy as jnp

    p = soft_topk(jnp.asarray(X), np.array([1.0, 2.0]), mask=np.ones((2, 4), bool))
    assert np.asarray(p).sum(-1) == pytest.approx([1, 2])


# --- the row alone decides ---


def test_a_row_does_not_depend_on_the_others(framework, rng):
    x = rng.standard_normal((50, 33)).astype(np.float32)
    together = framework.numpy(soft_topk(framework.array(x, "float32"), 5))
    for i in (0, 7, 49):
        alone = framework.numpy(soft_topk(framework.array(x[i], "float32"), 5))
        assert np.max(np.abs(alone - together[i])) <= 2e-7
    again = framework.numpy(soft_topk(framework.array(x, "float32"), 5))
    assert np.array_equal(again, together)


def test_calls_from_several_threads(rng):
    import torch

    x = torch.tensor(rng.standard_normal((8, 20)))
    expected, answers = soft_topk(x, 3), []
    threads = [threading.Thread(target=lambda: answers.append(soft_topk(x, 3))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 8
    assert all(torch.equal(answer, expected) for answer in answers)


def test_half_precision_scores_give_float32_thresholds_values_and_losses(framework):
    x = framework.array(X, "float16")
    for answer in (
        soft_topk_threshold(x, 2),
        soft_topk_sum(x, 2),
        fenchel_young_loss(x, framework.array([[1, 0, 0, 0], [0, 1, 0, 0]], "float16")),
    ):
        assert framework.dtype(answer) == "float32"


def test_autocast_computes_in_float32():
    import torch

    x = torch.tensor(X, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        p = soft_topk(x, 2)
        q = soft_topk(x.float(), 2)
    assert p.dtype == torch.bfloat16
    assert torch.allclose(q, soft_topk(x.float(), 2), atol=1e-6)
