"""The rows of k-subsets on a GPU, by Triton's interpreter."""

import math

import pytest
import torch

from kofn import KSubset
from kofn.kernels import contract
from kofn.kernels.gpu.subsets import launch
from support import double, single

INF, NAN = math.inf, math.nan
TOLERANCE = 1e-6  # as for the CPU's in test_kernels_subsets.py


ONE = pytest.param(2048, marks=pytest.mark.full, id="one part")
in_parts = pytest.mark.parametrize("part", [ONE, pytest.param(32, id="parts")])


def answers(y, k, v):
    choice = KSubset(y, k)
    spread = max(1.0, float(torch.where(torch.isfinite(y), y, 0.0).abs().max()))
    return (
        choice.marginals(),
        choice.log_partition() / y.shape[-1] / spread,
        choice.covariance_vector_product(v),
    )


def against_the_reference(y, k, v, reference):
    (y, v), k = single(y, v), torch.tensor(k)
    exact = reference(answers, *double(y), k, v.double())
    for got, wanted in zip(answers(y, k, v), exact, strict=True):
        assert got.dtype == torch.float32
        assert got.numpy() == pytest.approx(wanted.numpy(), abs=TOLERANCE, nan_ok=True)


@in_parts
def test_answers_are_those_of_the_reference(part, reference, rng, monkeypatch):
    """Few nodes and many; an end of k; masked, sure and NaN entries; no choice left."""
    monkeypatch.setattr(launch, "PART", part)
    y = [[0.3], [3.0], [1.0], [1.0], [1.0]] * rng.standard_normal((5, 40))
    y[1, ::3], y[2, :2], y[3, 20], y[4, 1:] = -INF, INF, NAN, -INF
    v = rng.standard_normal(y.shape) + 100
    v[y == -INF] = NAN  # what is not in play may carry anything
    against_the_reference(y, [20, 9, 4, 1, 2], v, reference)


@pytest.mark.full
@in_parts
def test_more_of_the_reference(part, reference, rng, monkeypatch):
    monkeypatch.setattr(launch, "PART", part)
    y = [[0.0], [0.3], [3.0], [1000.0], [1.0], [1.0]] * rng.standard_normal((6, 70))
    y[4, :30], y[5] = INF, -INF
    v = rng.standard_normal(y.shape)
    against_the_reference(y, [30, 1, 69, 20, 7, 40], v, reference)


def test_gradients_are_those_of_the_reference(reference, rng):
    def gradients(y, v):
        y = y.requires_grad_()
        choice = KSubset(y, 9)
        (first,) = torch.autograd.grad(choice.marginals(), y, v)
        (second,) = torch.autograd.grad(choice.entropy().sum(), y)
        return first, second

    given = single(rng.standard_normal((2, 33)), rng.standard_normal((2, 33)))
    exact = reference(gradients, *double(*given))
    for got, wanted in zip(gradients(*given), exact, strict=True):
        assert got.numpy() == pytest.approx(wanted.numpy(), abs=TOLERANCE)


@pytest.mark.parametrize("n", [1, *(pytest.param(n, marks=pytest.mark.full) for n in (2, 3, 300))])
def test_any_length(n, reference, rng):
    y, v = rng.standard_normal((2, n)), rng.standard_normal((2, n))
    against_the_reference(y, [n // 2, n // 2 + n % 2], v, reference)


def test_every_answer_is_a_kernels(monkeypatch):
    """Otherwise the tests above compare the reference with itself."""
    served, at = [], launch.at
    monkeypatch.setattr(launch, "at", lambda what, *a: (served.append(what), at(what, *a))[1])
    choice = KSubset(torch.tensor([[1.0, 2.0, 0.5]]), 2)
    answers(choice.logits, 2, torch.ones(1, 3))
    assert choice.entropy() <= math.log(3)
    assert set(served) == {
        contract.LOG_COUNT,
        contract.TAILS,
        contract.MARGINALS,
        contract.COVARIANCE,
    }
    assert KSubset(choice.logits[:0], 2).marginals().shape == (0, 3)
    rng = torch.Generator().manual_seed(0)
    assert torch.all(choice.sample((5,), rng).sum(-1) == 2)


@pytest.mark.full
@in_parts
def test_a_row_does_not_depend_on_the_others(part, rng, monkeypatch):
    monkeypatch.setattr(launch, "PART", part)
    y = torch.tensor(rng.standard_normal((3, 70)), dtype=torch.float32)
    y[1] *= 30
    together = KSubset(y, 20).marginals()
    for i in range(3):
        assert torch.equal(KSubset(y[i], 20).marginals(), together[i])
