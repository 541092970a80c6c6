"""Softmax over the largest scores, and its loss, from the kernels: against a sort in float64."""

import math

import numpy as np
import pytest
import torch

import kofn
from kofn.losses import sparse_softmax_loss
from support import names_of

INF, NAN = math.inf, math.nan
DTYPES = pytest.mark.parametrize("dtype", ["float32", "float64"])


def by_sorting(x, temperature, k, p, accuracy):
    """(weights, log of the sum of e^{x/T} over them with ties sharing the last places, whether a
    rounding may decide what is kept).
    """
    order = np.argsort(-x, kind="stable")
    z = x / temperature
    raised = np.exp(z - z.max())
    before = np.cumsum(raised[order]) - raised[order]
    if k is None:
        firsts = np.r_[True, np.diff(x[order]) != 0]  # of equal scores
        reached = before[firsts] / raised.sum()
        last = x[order][firsts][reached < p].min()
        unsure = np.abs(reached - p).min() < accuracy
    else:
        last, unsure = x[order[k - 1]], False
    kept = x >= last
    share = np.where(
        x > last, 1.0, 1.0 if k is None else (k - (x > last).sum()) / (x == last).sum()
    )
    weights = np.where(kept, raised, 0)
    return weights / weights.sum(), np.log((weights * share).sum()) + z.max(), unsure


def rows(rng):
    """Rows of all lengths and widths, many with ties."""
    for _ in range(60):
        n = int(rng.integers(1, 60)) if rng.random() < 0.8 else int(rng.integers(500, 1500))
        x = rng.standard_normal((3, n)) * 10.0 ** rng.uniform(-3, 2)
        if rng.random() < 0.5:
            x = np.round(x * rng.choice([1, 4]))
        k, p = int(rng.integers(1, n + 1)), float(rng.choice([rng.random(), 1e-12, 1 - 1e-9, 1.0]))
        yield x, float(np.float32(10.0 ** rng.uniform(-1.5, 2))), k, p


@DTYPES
def test_what_is_kept_is_what_a_sort_keeps(dtype, rng):
    accuracy = 3e-6 if dtype == "float32" else 1e-13
    kept = 0
    for x, temperature, k, p in rows(rng):
        x = x.astype(dtype)
        labels = rng.integers(0, x.shape[1], 3)
        for settings in (dict(k=k), dict(p=p)):
            got = kofn.sparse_softmax(x, temperature=temperature, **settings)
            loss = sparse_softmax_loss(
                x, labels, temperature=temperature, reduction="none", **settings
            )
            for row, label, ours, cost in zip(x.astype(float), labels, got, loss, strict=True):
                k_or_p = settings.get("k"), settings.get("p")
                wanted, log_sum, unsure = by_sorting(row, temperature, *k_or_p, accuracy)
                if unsure:
                    continue
                kept += 1
                size = max(1, np.abs(row / temperature).max())
                assert ours == pytest.approx(wanted, abs=accuracy * min(size, 60))
                right = log_sum - row[label] / temperature
                assert cost == pytest.approx(right, abs=accuracy * size / 3)
    assert kept > 250


def test_a_nucleus_is_found_among_scores_far_apart():
    """Halving the distance between the ends alone would take a thousand steps."""
    for dtype in ("float32", "float64"):
        x = np.array([[1e30, 1.0, -1e30, 0.5], [1e-30, 0.0, -1e-30, -3e-38]], dtype)
        got = kofn.sparse_softmax(x, p=0.6)
        assert got == pytest.approx(np.array([[1, 0, 0, 0], [1 / 3, 1 / 3, 0, 1 / 3]]), abs=1e-6)
    tied = np.zeros((1, 5000), "float32")
    assert np.all(kofn.sparse_softmax(tied, p=1e-30) == np.float32(1 / 5000))


def special():
    x = np.random.default_rng(0).standard_normal((7, 40)).astype("float32") * 2
    x[1, 3], x[2, 5], x[3, 7], x[4], x[5, ::2] = INF, -INF, NAN, -INF, -300
    x[6, 1], x[1, 9] = np.finfo("float32").min, INF
    return x, np.array([3, 3, 5, 2, 1, 39, 1])


@pytest.mark.parametrize("settings", [dict(k=7), dict(k=40), dict(p=0.7), dict(p=1.0)], ids=str)
def test_special_rows_and_slopes_are_those_of_array_code(settings, monkeypatch):
    """Kernels serve; where a temperature is learned, too, and for a second derivative."""
    found = []
    x, labels = special()
    temperature = np.array([0.5, 1, 2, 1, 1, 0.7, 3], "float32")
    for backend, dtype in (("on", torch.float32), ("reference", torch.float64)):
        monkeypatch.setenv("KOFN_KERNELS", backend)
        leaves = [torch.tensor(a).to(dtype).requires_grad_() for a in (x, temperature)]
        options = dict(temperature=leaves[1], **settings)
        # In float64 the least of float32 is an ordinary score.
        mask = torch.tensor(x > np.finfo("float32").min)
        weights = kofn.sparse_softmax(leaves[0], mask=mask, **options)
        loss = sparse_softmax_loss(
            leaves[0], torch.tensor(labels), mask=mask, reduction="none", **options
        )
        rng = np.random.default_rng(3)
        for answer in (weights, loss):
            assert ("_Recorded" in names_of(answer.grad_fn)) == (backend == "on")
            cotangent = torch.tensor(rng.standard_normal(answer.shape)).to(dtype)
            slopes = torch.autograd.grad(answer, leaves, cotangent, retain_graph=True)
            found.append([a.detach().double().numpy() for a in (answer, *slopes)])
    half = len(found) // 2
    for got, wanted in zip(found[:half], found[half:], strict=True):
        for ours, right in zip(got, wanted, strict=True):
            known = [0, 1, 2, 4, 5, 6]  # row 3 has the NaN
            assert ours[known] == pytest.approx(right[known], rel=1e-5, abs=3e-6)
        assert np.array_equal(np.isnan(got[0]), np.isnan(wanted[0]))


def test_a_score_below_all_of_its_type_is_out_of_play():
    x, labels = special()
    assert kofn.sparse_softmax(x, p=0.999)[6, 1] == 0
    assert sparse_softmax_loss(x, labels, k=7, reduction="none")[6] == INF


def test_a_temperature_of_nan_gives_nan(framework):
    x, t = framework.array(np.ones((2, 3))), framework.array([NAN, 1.0])
    for settings in (dict(k=2), dict(p=0.5)):
        got = framework.numpy(kofn.sparse_softmax(x, temperature=t, **settings))
        assert np.array_equal(np.isnan(got).all(-1), [True, False])


def test_second_derivatives_take_array_code():
    x = torch.randn(2, 6, dtype=torch.float64, requires_grad=True)
    t = torch.tensor([0.7, 1.5], dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([1, 5])
    for settings in (dict(k=3), dict(p=0.7)):
        assert torch.autograd.gradgradcheck(
            lambda x, t, s=settings: sparse_softmax_loss(
                x, labels, temperature=t, reduction="none", **s
            ),
            (x, t),
            fast_mode=True,
        )
