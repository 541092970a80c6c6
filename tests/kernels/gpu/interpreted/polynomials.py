"""Taylor softmax by a GPU's kernel, against array code in float64."""

import math
from unittest import mock

import pytest
import torch

from benchmarks.gpu import stand_in
from kofn import taylor_softmax
from kofn.kernels.gpu.choice import launch

N = 9
T = torch.linspace(0.5, 1.5, N)


@pytest.fixture(autouse=True)
def on_a_device():
    with stand_in.for_device(), mock.patch.object(launch, "taylor", wraps=launch.taylor) as kernel:
        yield kernel


def rows(dtype=torch.float32):
    """Ordinary, with +inf, masked, tied, with a NaN, next to the least number, far apart, empty."""
    x = 2 * torch.randn(N, N, generator=torch.Generator().manual_seed(0)).to(dtype)
    x[1, 2] = x[6, 2] = x[6, 5] = math.inf
    x[2, 3], x[3], x[4, 1], x[5, 4] = -math.inf, 1.0, math.nan, torch.finfo(dtype).min
    x[3, 4:6], x[3, 7] = 2.0, 0.0
    x[7], x[8] = torch.arange(9.0) * 40 - 200, -math.inf
    return x


def answers(x, t, order, dtype, **how):
    g = torch.linspace(1, 2, x.numel(), dtype=dtype).reshape(x.shape).cos()
    x, t = x.to(dtype).requires_grad_(), t.to(dtype).requires_grad_()
    p = taylor_softmax(x, order, temperature=t, **how)
    return p.detach().double(), *(one.double() for one in torch.autograd.grad(p, (x, t), g))


def compared(x, t, order, rtol=2e-5, atol=2e-6, **how):
    wide = torch.where(x <= torch.finfo(x.dtype).min, -math.inf, x)
    found = answers(x, t, order, x.dtype, **how)
    with mock.patch.dict("os.environ", {"KOFN_KERNELS": "reference"}):
        wanted = answers(wide, t, order, torch.float64, **how)
    torch.testing.assert_close(found[0], wanted[0], rtol=rtol, atol=atol, equal_nan=True)
    # Beside a NaN kernels answer NaN, and array code NaN or 0.
    known = ~wanted[0].isnan().any(-1) & (t > 0)
    for got, truth in zip(found[1:], wanted[1:], strict=True):
        torch.testing.assert_close(got[known], truth[known], rtol=rtol, atol=atol)


@pytest.mark.parametrize("order", [2, 4, 8])
def test_weights_and_gradients(order, on_a_device):
    compared(rows(), T, order)
    compared(rows(), T, order, mask=torch.arange(N * N).reshape(N, N) % 5 > 0)
    assert on_a_device.call_count == 2


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1e3, 1e15, 1e30])
@pytest.mark.parametrize("order", [2, 8])
def test_scores_and_temperatures_of_any_size(order, scale):
    x = torch.randn(N, 50, generator=torch.Generator().manual_seed(1)) * scale
    compared(x, T, order)
    compared(x, T * scale, order, atol=2e-6 / min(scale, 1.0))
    compared(x[:, :1], T, order)


@pytest.mark.parametrize("order", [2, 8])
def test_where_differences_of_scores_overflow(order):
    x = torch.tensor([[3e38, -1.5e38, 1.0], [3e38, 1e38, -1e38]])
    compared(x, torch.tensor([2.0, 3e31]), order)


def test_bad_temperatures():
    t = T.clone()
    t[0], t[1], t[2], t[8] = math.nan, -1.0, 0.0, math.nan
    compared(rows(), t, 2)


def test_numbers_long_rows_and_second_derivatives(on_a_device):
    x = torch.randn(3, 200, generator=torch.Generator().manual_seed(2))
    found = taylor_softmax(x.requires_grad_(), temperature=0.7)
    with mock.patch.dict("os.environ", {"KOFN_KERNELS": "reference"}):
        wanted = taylor_softmax(x.detach().double().requires_grad_(), temperature=0.7)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-7)

    twice = []
    for dtype, how in ((torch.float32, "on"), (torch.float64, "reference")):
        with mock.patch.dict("os.environ", {"KOFN_KERNELS": how}):
            leaf = x.detach().to(dtype).requires_grad_()
            p = taylor_softmax(leaf, 4, temperature=0.7)
            (first,) = torch.autograd.grad(p.square().sum(), leaf, create_graph=True)
            twice.append(torch.autograd.grad(first.square().sum(), leaf)[0].double())
    torch.testing.assert_close(*twice, rtol=1e-4, atol=1e-8)
    assert on_a_device.call_count == 2
    assert taylor_softmax(torch.zeros(0, 5)).shape == (0, 5)
    assert taylor_softmax(torch.zeros(2, 0)).shape == (2, 0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_halves(dtype):
    x = rows(dtype)
    found, wide = taylor_softmax(x), torch.where(x <= torch.finfo(dtype).min, -math.inf, x).double()
    with mock.patch.dict("os.environ", {"KOFN_KERNELS": "reference"}):
        wanted = taylor_softmax(wide).to(dtype)
    assert found.dtype == dtype
    torch.testing.assert_close(found, wanted, rtol=1e-2, atol=1e-3, equal_nan=True)


def test_an_order_with_more_zeros_is_left_to_array_code(on_a_device):
    taylor_softmax(rows(), 10)
    assert not on_a_device.called
