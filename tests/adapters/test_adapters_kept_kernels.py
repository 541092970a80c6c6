"""Operators, which compiled programs call, by kernels that are kept."""

import math

import pytest
import torch

import kofn
from kofn.adapters import kept_kernels
from kofn.adapters.torch import operators
from kofn.kernels.cpu.runtime.layout import HALF_TYPES
from kofn.links.table import TABLE
from kofn.operations.topk import WEIGHTS

DTYPES = [torch.float32, torch.float64, *(getattr(torch, name) for name in HALF_TYPES)]
ROWS = torch.tensor([[0.3, -1.0, 0.2, 2.0], [1.0, 0.4, -0.7, 0.1], [3e8, -3e8, 0.0, 1.0]])


@pytest.fixture(autouse=True)
def _nothing_is_kept(monkeypatch):
    monkeypatch.setattr(kept_kernels, "_kept", {})
    monkeypatch.delenv("KOFN_KERNELS", raising=False)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", TABLE)
def test_operators_have_the_same_bits(name, dtype, monkeypatch):
    """They are what compiled programs call; a row is among them that a kernel gives up on."""
    alpha, weights = TABLE[name].inner.alpha, torch.ops.kofn.weights.default
    options = None, 2.0, None, 0.7, TABLE[name].inner.id, alpha
    for x in (ROWS.to(dtype), ROWS[:2].to(dtype), torch.randn(3, 7, dtype=dtype)[:, ::2]):

        def run(x=x):
            answers = weights(x, *options)
            back = torch.ops.kofn.weights_backward.default
            slopes, in_rows = back(x.cos(), x, answers[1], *options)
            assert in_rows.numel() == 0
            return *answers, slopes

        found = run()
        assert any(type(each) is not bool for each in kept_kernels._kept.values())
        with monkeypatch.context() as patch:
            patch.setattr(kept_kernels, "run_of", lambda *_: None)
            for one, other in zip(found, run(), strict=True):
                assert torch.equal(one.nan_to_num(7), other.nan_to_num(7))


CHOICES = {
    "hard": lambda x: [torch.ops.kofn.hard.default(x, None, 1.5)],
    "hard_weights": lambda x: torch.ops.kofn.hard_weights.default(
        x, None, 2.0, None, 0.7, "logistic", None
    ),
    "largest": lambda x: [torch.ops.kofn.largest.default(x, 3)],
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CHOICES)
def test_operators_of_choices_have_the_same_bits(name, dtype, monkeypatch):
    assert {*CHOICES} == {*operators._SHORTLY} - {"weights", "weights_backward"}
    copy = ROWS.to(dtype, copy=True)
    for x in (copy, copy[0], torch.randn(3, 7, dtype=dtype)[:, ::2]):
        x[..., 2] = math.nan if x.ndim == 1 else -math.inf
        found = CHOICES[name](x)
        with monkeypatch.context() as patch:
            patch.setattr(kept_kernels, "run_of", lambda *_: None)
            for one, other in zip(found, CHOICES[name](x), strict=True):
                assert torch.equal(one.nan_to_num(7), other.nan_to_num(7))
    assert sum(type(each) is not bool for each in kept_kernels._kept.values()) == 2


def test_integers_and_many_rows_of_16_bits_are_chosen_from_too(monkeypatch):
    """By operators alone: functions take other ones for them."""
    largest = torch.ops.kofn.largest.default
    x = torch.tensor([[-4, 2, -2, -3, 5, -3]])
    for dtype in (torch.int64, torch.int32):
        for _ in range(2):
            assert largest(x.to(dtype), 3).tolist() == [[4, 1, 2]]
    monkeypatch.setattr(kept_kernels, "run_of", lambda *_: None)
    x = torch.randn(1025, 100, generator=torch.Generator().manual_seed(0))
    for name in HALF_TYPES:
        half = x.to(getattr(torch, name))
        assert torch.equal(largest(half, 2), largest(half.float(), 2))


def test_kept_kernels_are_for_tensors_in_main_memory():
    for device in ("cpu", "meta", "cpu"):
        run = kept_kernels.run_of(WEIGHTS, ROWS.to(device), 2.0, 1.0, "logistic", None)
        assert (run is not None) == (device == "cpu")


def test_an_operator_is_differentiated_in_each_of_its_tensors():
    for learned in range(3):
        x, k, t = ROWS.double(), torch.full((3,), 1.5).double(), torch.full((3,), 0.7).double()
        each = (x, k, t)[learned].requires_grad_()
        p = torch.ops.kofn.weights.default(x, k, None, t, None, "logistic", None)[0]
        wanted = kofn.soft_topk(x, k, temperature=t)
        slopes = (torch.autograd.grad(y.square().sum(), each)[0] for y in (p, wanted))
        torch.testing.assert_close(*slopes)
