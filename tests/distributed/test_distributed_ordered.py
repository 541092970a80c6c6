"""kofn.distributed.topk and quantile: those of whole rows, in every process."""

import numpy as np
import pytest
import torch
from torch import distributed

import kofn
from kofn.maps.ordered.interpolated import INTERPOLATIONS
from ranks import joined, run_on_ranks
from test_distributed import counted, mine, special_rows

pytestmark = pytest.mark.skipif(
    not distributed.is_available(), reason="PyTorch without torch.distributed"
)
F = kofn.distributed
NAN = float("nan")


def equal(found, wanted):
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    same = (found == wanted) | ((found != found) & (wanted != wanted))
    assert same.all(), (found, wanted)


def some_rows():
    """Ties, ends, NaN of both signs, and rows with few numbers."""
    x = torch.cat([special_rows(), special_rows().round()])
    x[0, 7] = -NAN
    x[3, 9] = -0.0
    x[14] = torch.inf
    return x


def masks(x):
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand(x.shape, generator=generator) < 0.4
    mask[4] = False
    return None, mask


def largest():
    x = some_rows()
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.uint8):
        y = x if dtype.is_floating_point else x.nan_to_num(1, 9, 0).abs().clamp(max=200)
        y = y.to(dtype)
        for mask in masks(x):
            for k in (0, 1, 5, 40):
                for end in (True, False):
                    wanted = kofn.topk(y, k, largest=end, mask=mask)
                    part = None if mask is None else mine(mask)
                    found = F.topk(mine(y), k, largest=end, mask=part)
                    equal(found.values, wanted.values)
                    equal(found.indices, wanted.indices)
    turned = x.T.contiguous()
    found = F.topk(mine(turned, 0), 3, dim=0)
    equal(found.indices, kofn.topk(turned, 3, dim=0).indices)
    assert F.topk(mine(x[:0]), 3).values.shape == (0, 3)


def quantiles():
    x = some_rows()
    q = torch.tensor([0.0, 0.3, 0.77, 1.0, -1.0])
    ways = [dict(interpolation=how, ignore_nan=how != "linear") for how in INTERPOLATIONS]
    for dtype in (torch.float32, torch.float64, torch.float16):
        y = x.to(dtype)
        for mask in masks(x):
            part = None if mask is None else mine(mask)
            for options in (*ways, dict(ignore_nan=True)) if dtype == torch.float32 else ways[:2]:
                wanted = kofn.quantile(y, q, dim=-1, mask=mask, **options)
                equal(F.quantile(mine(y), q, mask=part, **options), wanted)
                one = kofn.quantile(y, 1.0, dim=-1, mask=mask, **options)
                equal(F.quantile(mine(y), 1.0, mask=part, **options), one)
    turned = x.T.contiguous()
    for q in (0.3, torch.tensor([0.3, 0.6])):
        for keep in (False, True):
            wanted = kofn.quantile(turned, q, dim=0, keepdim=keep)
            equal(F.quantile(mine(turned, 0), q, dim=0, keepdim=keep), wanted)
    smooth = F.quantile(mine(x), 0.3, temperature=0.5)
    wanted = kofn.quantile(x, 0.3, dim=-1, temperature=0.5)
    assert torch.allclose(smooth, wanted, atol=1e-5, equal_nan=True)
    half = torch.randn(3, 40, generator=torch.Generator().manual_seed(0)).to(torch.float16)
    half[:, 5] = torch.finfo(torch.float16).min  # a number, as for the exact quantile
    wanted = kofn.quantile(half, 0.0, dim=-1, temperature=0.5)
    equal(F.quantile(mine(half), 0.0, temperature=0.5), wanted)


def gradients():
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(4, 40))).round(decimals=1)
    q = torch.tensor([0.2, 0.63], dtype=torch.float64)
    v = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(4, 3)
    w = torch.linspace(-1, 2, 8, dtype=torch.float64).reshape(2, 4)

    def of(f, x, q, **dim):
        x, q = x.clone().requires_grad_(), q.clone().requires_grad_()
        total = (f.topk(x, 3).values * v).sum()
        for temperature in (0.0, 0.7):
            total = total + (f.quantile(x, q, temperature=temperature, **dim) * w).sum()
        return torch.autograd.grad(total, (x, q))

    found, wanted = of(F, mine(x), q), of(kofn, x, q, dim=-1)
    y = x.clone()
    y[:, 3], y[:, 30] = torch.inf, -torch.inf
    (infinite,) = (
        F.topk(part, 2).values.sum().backward() or part.grad for part in [mine(y).requires_grad_()]
    )
    assert torch.equal(infinite, mine(kofn.hard_topk(y, 2)))
    assert torch.allclose(found[0], mine(wanted[0]), atol=1e-6)
    assert torch.allclose(found[1], wanted[1], atol=1e-6)


def messages():
    x = torch.randn(3, 40, generator=torch.Generator().manual_seed(0))
    with counted() as sizes:
        F.quantile(mine(x), 0.4)
    assert len(sizes) <= 16, sizes
    assert max(sizes) <= 3 * 3 * 56, sizes
    with counted() as sizes:
        F.topk(mine(x), 5)
    assert len(sizes) == 2


def refusals():
    x = mine(torch.randn(3, 40, generator=torch.Generator().manual_seed(0)))
    rank = distributed.get_rank()
    for call, error, words in (
        (lambda: F.topk(x, 41), ValueError, r"k must be an integer in \[0, n\] \(here n = 40"),
        (lambda: F.topk(x, 2 + (rank == 0)), ValueError, "different arguments"),
        (lambda: F.quantile(x, 0.1 * (1 + (rank == 0))), ValueError, "different arguments"),
        (lambda: F.quantile(x, 2.0), ValueError, "q must be a number in"),
        (lambda: F.quantile(x.long(), 0.5), TypeError, "x must have dtype float"),
        (lambda: F.topk(x, 2, mask=x), TypeError, "mask must be boolean"),
        (lambda: F.topk(x, torch.tensor(2)), TypeError, "k must be an integer"),
    ):
        with pytest.raises(error, match=words):
            call()


def on_dtensors():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    x = torch.from_numpy(np.random.default_rng(0).normal(size=(4, 40)))
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    q = torch.tensor([0.2, 0.6])
    for placement in (Shard(1), Shard(0), Replicate()):
        given = distribute_tensor(x, mesh, [placement]).requires_grad_()
        plain = x.clone().requires_grad_()
        total = 0
        for f, y, dim in ((F, given, {}), (kofn, plain, {"dim": -1})):
            answers = [
                *f.topk(y, 3),
                f.quantile(y, 0.3, **dim),
                f.quantile(y, q, **dim),
                f.quantile(y, q, keepdim=True, **dim),
                f.quantile(y, 0.3, keepdim=True, temperature=0.3, **dim),
            ]
            if f is F:
                assert all(isinstance(each, DTensor) for each in answers)
                assert answers[0].shape == (4, 3)
                found = answers
            total = sum((each**2).sum() for each in answers if each.is_floating_point())
            total.backward()
        for ours, theirs in zip(found, answers, strict=True):
            whole = ours.full_tensor()
            assert whole.shape == theirs.shape
            assert torch.allclose(whole, theirs, atol=1e-6)
        assert torch.allclose(given.grad.full_tensor(), plain.grad, atol=1e-6)


TASKS = (largest, quantiles, gradients, messages, refusals, on_dtensors)


def test_in_one_process():
    with joined(distributed.HashStore(), 0, 1):
        for task in (largest, quantiles, gradients, on_dtensors):
            task()


def test_in_two_processes(tmp_path):
    run_on_ranks(tmp_path / "store", 2, *TASKS)


@pytest.mark.full
def test_in_four_processes(tmp_path):
    run_on_ranks(tmp_path / "store", 4, *TASKS)


def test_transforms_are_refused():
    with joined(distributed.HashStore(), 0, 1):
        x = torch.randn(3, 5)
        with pytest.raises(TypeError, match="cannot follow its all-reduces"):
            torch.func.vmap(lambda x: F.topk(x, 2).values)(x)
