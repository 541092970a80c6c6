"""Hard choices by a GPU's kernels: the same bits as array code, ties to the lowest index."""

import math

import pytest
import torch

import kofn
import kofn.nn
from kofn.maps.balance import largest_indices

HALVES = [torch.float32, torch.float16, torch.bfloat16]


def rows(n, dtype):
    """Ordinary, tied, of both zeros, with +inf, masked, with a NaN, next to the least, empty."""
    x = torch.randn(9, n, generator=torch.Generator().manual_seed(n)).to(dtype)
    x[1] = (2 * x[1]).round()
    x[2] = 0.0
    x[2, ::2] = -0.0
    x[3, : n // 3] = math.inf
    x[4, n // 2 :] = -math.inf
    x[5, n // 2] = math.nan
    x[6, ::3] = torch.finfo(dtype).min
    x[7], x[8] = 1.0, -math.inf
    return x


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("n", [1, 7, 200])
def test_hard_choices(n, dtype, reference):
    x = rows(n, dtype)
    every = torch.tensor([0, 1, 2.5, n, n + 1, 3, 0.3, math.nan, 2.0])
    for k in (0, 1, min(3, n), n - 0.5, n, every):
        wanted = reference(kofn.hard_topk, x, k)
        assert torch.equal(kofn.hard_topk(x, k).nan_to_num(-1), wanted.nan_to_num(-1))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("n", [1, 7, 200])
def test_indices_of_the_largest(n, dtype, reference):
    for k in {0, 1, min(5, n), n}:  # those of 200 by a sort
        found = largest_indices(rows(n, dtype), k)
        assert torch.equal(found, reference(largest_indices, rows(n, dtype), k))


@pytest.mark.parametrize("options", [{}, dict(balance=1e-3), dict(balance="quantile")], ids=str)
def test_a_router_counts_tokens_without_a_nan(options, reference):
    def counts():
        torch.manual_seed(0)
        router = kofn.nn.TopKRouter(5, 7, 3, **options)
        hidden = torch.randn(20, 5)
        hidden[4] = math.nan
        for _ in range(2):
            weights = router(hidden)[1]
        load = getattr(router.balance, "counts", router.counts)
        return weights.isnan().any(-1).nonzero().tolist(), router.counts.tolist(), load.tolist()

    assert counts() == reference(counts)


def test_a_hard_choice_has_the_gradient_of_weights(reference):
    x, t = rows(7, torch.float32), torch.full((9,), 0.7)
    t[0] = math.nan

    def called(x):
        x = x.clone().requires_grad_()
        out = kofn.soft_topk(x, 2, temperature=t.to(x.dtype), hard=True)
        return out, torch.autograd.grad(out, x, torch.arange(7.0).to(x.dtype).expand(9, 7))[0]

    for found, wanted in zip(called(x), reference(called, x.double()), strict=True):
        torch.testing.assert_close(found, wanted.float(), rtol=1e-4, atol=1e-5, equal_nan=True)
