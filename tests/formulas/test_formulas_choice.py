"""Hard choices by kernels and by array code, against a sort of each row in plain Python."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import kofn
from kofn import hard_topk, soft_topk, topk_gates
from support import Framework

INF, NAN = math.inf, math.nan


@pytest.fixture(params=["on", "reference"])
def kernels(request, monkeypatch):
    monkeypatch.setenv("KOFN_KERNELS", request.param)


def order_of(row):
    """Indices by falling score, ties by index, NaN and masked scores last."""
    masked = np.isnan(row) | (row <= np.finfo(row.dtype).min / 2)
    return sorted(range(len(row)), key=lambda i: (masked[i], 0.0 if masked[i] else -row[i], i))


def choice_of(row, k):
    answer = np.zeros_like(row)
    answer[order_of(row)] = np.clip(row.dtype.type(k) - np.arange(len(row), dtype=row.dtype), 0, 1)
    playing = ~(row <= np.finfo(row.dtype).min / 2)
    if np.isnan(k):
        return np.where(playing, NAN, 0)
    if np.isnan(row).any():
        answer[playing & (row != INF)] = NAN
    return np.where(playing, answer, 0)


def rows(rng, kind, n, dtype):
    x = rng.standard_normal((3, n)) * 10.0 ** rng.integers(-2, 30)
    if kind == "ties":
        x = np.maximum(np.round(x / np.abs(x).max() * 4), -1)
    if kind == "odd":
        some = [0.0, -0.0, 1.0, INF, -INF, NAN, 3e38, -3e38, -1e38, 2e-38]
        x = rng.choice(some, (3, n))
    if kind == "masked":
        x[rng.random((3, n)) < 0.6] = -INF
    return x.astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["wide", "ties", "odd", "masked"])
def test_choices_are_those_of_a_sort(kernels, kind, dtype, rng):
    for n in (1, 2, 5, 17, 64, 300):
        x = rows(rng, kind, n, dtype)
        whole = int(rng.integers(0, n + 1))
        each = (rng.random(3) * n).astype(dtype)
        each[2] = NAN
        for k in (0, whole, n, whole * 0.7, each):
            wanted = [choice_of(row, c) for row, c in zip(x, np.broadcast_to(k, 3), strict=True)]
            for framework in map(Framework, ("numpy", "torch")):
                array = framework.array(x, dtype)
                count = framework.array(k, dtype) if k is each else k
                for found in (hard_topk(array, count), soft_topk(array, count, hard=True)):
                    assert np.array_equal(framework.numpy(found), wanted, equal_nan=True)
            if isinstance(k, int):
                places = np.array([order_of(row)[:k] for row in x], int)
                finite = np.where(np.isnan(x), -INF, np.where(x < -1.5e38, -INF, x))
                for framework in map(Framework, ("numpy", "torch")):
                    found = topk_gates(framework.array(x, dtype), k)[1]
                    assert found.shape == places.shape
                    chosen = np.take_along_axis(finite, framework.numpy(found), -1)
                    assert np.array_equal(chosen, np.take_along_axis(finite, places, -1))
                    some = chosen != -INF
                    assert np.array_equal(framework.numpy(found)[some], places[some])


def test_jax_chooses_as_numpy(rng):
    jax = Framework("jax")
    for kind in ("ties", "odd", "masked"):
        x = rows(rng, kind, 9, "float32")
        for k in (0, 3, 2.5, 9, np.array([1.5, 0, NAN], "f4")):
            count = jax.array(k, "float32") if isinstance(k, np.ndarray) else k
            for function in (hard_topk, lambda x, k: soft_topk(x, k, hard=True)):
                found = jax.numpy(function(jax.array(x, "float32"), count))
                assert np.array_equal(found, function(x, k), equal_nan=True)


def test_rows_of_many_sizes_on_several_threads(monkeypatch, rng):
    monkeypatch.setenv("KOFN_NUM_THREADS", "3")
    for shape, k in (((300, 200), 7), ((2, 40_000), 900), ((5000, 8), 2)):
        x = np.round(rng.standard_normal(shape), 2).astype("f4")
        order = np.argsort(-x, axis=-1, kind="stable")[:, :k]
        assert np.array_equal(topk_gates(x, k)[1], order)
        wanted = np.zeros_like(x)
        np.put_along_axis(wanted, order, 1, -1)
        assert np.array_equal(hard_topk(x, k), wanted)


@pytest.mark.usefixtures("kernels_on")
def test_no_row_is_sorted(monkeypatch):
    def fail(*arguments, **options):
        raise AssertionError("a row was sorted")

    for module, name in ((torch, "sort"), (torch, "argsort"), (np, "sort"), (np, "argsort")):
        monkeypatch.setattr(module, name, fail)
    x = torch.randn(3, 40, requires_grad=True)
    soft_topk(x, 3, hard=True).square().sum().backward()
    topk_gates(x, 3)[0].sum().backward()
    hard_topk(x.detach().numpy(), 3)
    torch.func.vmap(lambda x: hard_topk(x, 3))(x.detach())  # array code


def test_hard_choices_have_all_derivatives_of_soft_ones(rng):
    x, v, w = (torch.tensor(rng.standard_normal((4, 6))) for _ in range(3))
    t = torch.tensor([0.5, 1.0, 2.0, NAN], dtype=torch.float64)
    k = torch.tensor([1.0, 2.5, 3.0, 2.0], dtype=torch.float64)

    def derivatives(hard):
        leaves = [a.clone().requires_grad_() for a in (x, k, t)]
        p = soft_topk(leaves[0], leaves[1], temperature=leaves[2], hard=hard)
        first = torch.autograd.grad(p, leaves, v, create_graph=True)
        return p, *first, *torch.autograd.grad(first[0], leaves, w)

    (h, *hard), (p, *soft) = derivatives(True), derivatives(False)
    for one, other in zip(hard, soft, strict=True):
        assert torch.equal(one.nan_to_num(7), other.nan_to_num(7))
    assert h[3].isnan().all() == p[3].isnan().all() == True  # noqa: E712
    assert torch.equal(h[:3].sum(-1), k[:3])
    _, forward = torch.func.jvp(lambda x: soft_topk(x, 2, hard=True), (x,), (v,))
    assert torch.allclose(forward, torch.func.jvp(lambda x: soft_topk(x, 2), (x,), (v,))[1])


def test_scores_are_not_written_to():
    x = np.random.default_rng(0).standard_normal((3, 50))
    x.flags.writeable = False
    hard_topk(x, 3)
    kofn.topk_gates(x[:, ::2], 3)
    assert hard_topk(np.broadcast_to(x[:1], (4, 50)), 3).sum() == 12
