"""Softmax over sets of the largest scores by a GPU's kernels, against array code in float64."""

import math

import pytest
import torch

import kofn
from kofn import losses, metrics

N = 9
SETS = (
    *(dict(k=1), dict(k=3), dict(k=9), dict(p=0.7), dict(p=1e-6), dict(min_p=0.3)),
    dict(k=6, p=0.8, min_p=0.05),
)
LABELS = torch.tensor([[0, 2, 3, 1, 5, 4, 2, 8, 1], [3, 1, 0, 1, 1, 2, 4, 0, 1]])


def rows(dtype=torch.float32):
    """Ordinary, with +inf, masked, tied, with a NaN, next to the least number, far apart, empty."""
    x = torch.randn(N, N, generator=torch.Generator().manual_seed(0)).to(dtype)
    x[1, 2] = x[6, 2] = x[6, 5] = math.inf
    x[2, 3], x[3], x[4, 1], x[5, 4] = -math.inf, 1.0, math.nan, torch.finfo(dtype).min
    x[3, 4:6], x[3, 7] = 2.0, 0.0
    x[7], x[8] = torch.arange(9.0) * 40, -math.inf
    return x


def compared(function, reference, x, rtol=2e-5):
    """Compare answers and their gradients in scores and temperature."""
    wide = torch.where(x <= torch.finfo(x.dtype).min, -math.inf, x).double()

    def called(x):
        t = torch.linspace(0.5, 1.5, N, dtype=torch.float64).to(x.dtype)
        given = [x.clone().requires_grad_(), t.requires_grad_()]
        out = function(given[0], temperature=given[1])
        if not out.requires_grad:
            return (out,)
        cotangent = torch.linspace(1, 2, out.numel(), dtype=out.dtype).reshape(out.shape)
        # Beside a NaN kernels answer NaN, and array code NaN or 0.
        known = ~out.isnan().reshape(N, -1).any(-1)
        slopes = torch.autograd.grad(out, given, cotangent)
        return out.detach(), *(each[known] for each in slopes)

    for found, wanted in zip(called(x), reference(called, wide), strict=True):
        torch.testing.assert_close(
            found, wanted.to(found.dtype), rtol=rtol, atol=2e-6, equal_nan=True
        )


@pytest.mark.parametrize("of", SETS, ids=str)
def test_weights(of, reference):
    compared(lambda x, **how: kofn.sparse_softmax(x, **of, **how), reference, rows())


@pytest.mark.parametrize("labels", LABELS, ids=["usual", "others"])
@pytest.mark.parametrize("of", SETS, ids=str)
def test_losses(of, labels, reference):
    def loss(x, **how):
        return losses.sparse_softmax_loss(x, labels, reduction="none", **of, **how)

    compared(loss, reference, rows())


@pytest.mark.parametrize("outside", ["kept", "infinite"])
@pytest.mark.parametrize("of", [SETS[1], SETS[3], SETS[6]], ids=str)
def test_labels_outside_of_a_set(of, outside, reference):
    def loss(x, **how):
        return losses.sparse_softmax_loss(
            x, LABELS[1], reduction="none", outside=outside, **of, **how
        )

    compared(loss, reference, rows())


@pytest.mark.parametrize("of", SETS[1:], ids=str)
def test_entropies(of, reference):
    compared(lambda x, **how: metrics.sparse_softmax_entropy(x, **of, **how), reference, rows())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_halves(dtype, reference):
    x = rows(dtype)
    wide = torch.where(x <= torch.finfo(dtype).min, -math.inf, x).double()
    for of in (SETS[1], SETS[3]):
        for function in (
            lambda x, of=of: kofn.sparse_softmax(x, **of).float(),
            lambda x, of=of: losses.sparse_softmax_loss(x, LABELS[0], reduction="none", **of),
        ):
            found, wanted = function(x), reference(function, wide)
            torch.testing.assert_close(found, wanted.float(), rtol=1e-2, atol=1e-2, equal_nan=True)


@pytest.mark.parametrize("n", [1, 200])
def test_rows_of_other_lengths(n, reference):
    x = torch.randn(N, n, generator=torch.Generator().manual_seed(n))
    x[:, ::3] = x[:, :1].clone()
    for of in (dict(k=min(n, 50)), dict(p=0.9), dict(k=min(n, 70), p=0.6)):
        compared(lambda x, of=of, **how: kofn.sparse_softmax(x, **of, **how), reference, x)


def test_small_losses_keep_their_digits(reference):
    x = torch.tensor([[20.0, 0.0, -3.0, 1.0], [3.0, -15.0, -1.0, 0.5]])
    target = torch.tensor([0, 0])
    found = losses.sparse_softmax_loss(x, target, k=3, reduction="none")
    wanted = reference(losses.sparse_softmax_loss, x.double(), target, k=3, reduction="none")
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=0)


def test_empty_rows():
    assert kofn.sparse_softmax(torch.empty(0, 5), p=0.5).shape == (0, 5)
