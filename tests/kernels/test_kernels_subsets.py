"""The kernels of KSubset against the reference, edges included."""

import math

import numpy as np
import pytest
import torch

from kofn import KSubset
from kofn.kernels import contract
from kofn.kernels.cpu.subsets import launch

INF = math.inf
TOLERANCE = {"float64": 1e-13, "float32": 1e-6}


@pytest.fixture(autouse=True)
def _fused_rows_serve(monkeypatch):
    monkeypatch.delenv("KOFN_KERNELS", raising=False)


def rows(n, std, dtype):
    """Plain, masked, tied, with +inf, with too many of those, NaN, and nothing left; k for each."""
    y = (np.random.default_rng(n).standard_normal((8, n)) * std).astype(dtype)
    y[1, ::3] = -INF
    y[2] = 0.5
    y[3, :2] = INF
    y[4, : n // 2 + 1] = INF
    y[5, n // 2] = math.nan
    y[6, 1:] = -INF
    y[7] = -INF
    k = np.array([n // 3 + 1, n // 4, n // 2, min(3, n), n // 2, 1, min(2, n), 1])
    return y, k


def both(monkeypatch, function):
    fused = function()
    monkeypatch.setenv("KOFN_KERNELS", "reference")
    return fused, function()


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("n", [2, 5, 63, 64, 65, 513, 1300])
@pytest.mark.parametrize("std", [0.1, 3.0, 1000.0])
def test_answers_are_those_of_the_reference(monkeypatch, dtype, n, std):
    y, k = rows(n, std, dtype)
    v = np.random.default_rng(0).standard_normal(y.shape).astype(dtype)
    v[y == -INF] = math.nan  # what is not in play may carry anything

    def answers():
        choice = KSubset(y, k)
        return (
            choice.marginals(),
            choice.entropy(),
            choice.log_partition() / n / std,
            choice.covariance_vector_product(v),
        )

    for a, b in zip(*both(monkeypatch, answers), strict=True):
        assert a.dtype == b.dtype
        assert np.allclose(a, b, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype], equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_gradients_are_those_of_the_reference(monkeypatch, dtype):
    y, k = rows(70, 2.0, "float64")
    v = torch.tensor(np.random.default_rng(0).standard_normal(y.shape), dtype=dtype)

    def gradient():
        leaf = torch.tensor(y, dtype=dtype, requires_grad=True)
        return torch.autograd.grad(KSubset(leaf, torch.tensor(k)).marginals(), leaf, v)[0]

    fused, reference = both(monkeypatch, gradient)
    tolerance = TOLERANCE[str(dtype).removeprefix("torch.")]
    assert torch.allclose(fused, reference, atol=tolerance, equal_nan=True)
    assert torch.equal(torch.isfinite(reference).all(-1), torch.tensor(~np.isnan(y).any(-1)))


def test_no_answer_depends_on_the_threads(monkeypatch):
    y = np.random.default_rng(0).standard_normal((40, 700)).astype(np.float32)
    answers = []
    for count in ("1", "3"):
        monkeypatch.setenv("KOFN_NUM_THREADS", count)
        answers.append(KSubset(y, 50).marginals())
    alone = np.stack([KSubset(row, 50).marginals() for row in y])
    assert np.array_equal(answers[0], answers[1])
    assert np.array_equal(answers[0], alone)


def test_any_memory_layout():
    y = np.random.default_rng(0).standard_normal((6, 10))
    expected = KSubset(y, 3).marginals()
    frozen = y.copy()
    frozen.flags.writeable = False
    assert np.array_equal(KSubset(frozen, 3).marginals(), expected)
    assert np.array_equal(KSubset(np.asfortranarray(y), 3).marginals(), expected)
    wide = np.repeat(y, 2, axis=-1)
    assert np.array_equal(KSubset(wide[:, ::2], 3).marginals(), expected)
    t = torch.tensor(y)
    assert np.array_equal(KSubset(t.T.contiguous().T, 3).marginals(), expected)
    assert np.array_equal(KSubset(torch.conj(-t).neg(), 3).marginals(), expected)


def test_every_cell_of_the_answer_is_written(monkeypatch):
    empty = np.empty

    def poisoned(shape, dtype=float):
        array = empty(shape, dtype)
        array.fill(math.nan)
        return array

    y = np.random.default_rng(0).standard_normal((3, 77))
    monkeypatch.setattr(launch.np, "empty", poisoned)
    assert np.isfinite(KSubset(y, 5).marginals()).all()
    assert np.isfinite(KSubset(y, 5).covariance_vector_product(y)).all()
    assert np.isfinite(KSubset(y, 5).entropy()).all()


def test_the_fused_rows_are_what_serves():
    """Otherwise the tests above compare the reference with itself."""
    served = []
    original = launch.at

    def spy(*arguments):
        served.append(arguments[0])
        return original(*arguments)

    launch.at = spy
    try:
        KSubset(np.zeros((2, 4)), 2).marginals()
        leaf = torch.zeros(2, 4, requires_grad=True)
        KSubset(leaf, 2).marginals().square().sum().backward()
        KSubset(leaf, 2).entropy().sum().backward()
    finally:
        launch.at = original
    assert served[:3] == [contract.MARGINALS, contract.MARGINALS, contract.COVARIANCE]
    assert {contract.TAILS, contract.LOG_COUNT} <= set(served[3:])


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("n", [1, 2, 3, 7, 64, 65, 130, 513])
@pytest.mark.parametrize("std", [0.0, 3.0])
def test_the_same_numbers_give_the_same_subsets(monkeypatch, dtype, n, std):
    """Levels of one coin up to levels on windows, with groups that have no partner."""
    y, k = rows(n, std, dtype) if n > 1 else (np.zeros((3, 1), dtype), np.array([0, 1, 1]))
    fused, reference = both(
        monkeypatch, lambda: KSubset(y, k).sample((2, 3), np.random.default_rng(n))
    )
    assert fused.shape == (2, 3, *y.shape)
    differ = np.any(~((fused == reference) | np.isnan(fused)), axis=-1)
    assert differ.mean() < 0.02  # where rounding decides
