"""k and T as tensors on a device: one launch says what array code says of each number."""

import math
import os
from unittest import mock

import pytest
import torch

from benchmarks.gpu import stand_in
from kofn import hard_topk, soft_topk, soft_topk_threshold, topk_gates
from kofn.arrays import torch as of_torch
from kofn.rows import numbers, torch_numbers

N = 6
OF_K = (0.0, 2.5, 6.0, -0.0, -1e-9, -1.0, 6.5, 7.0, math.inf, -math.inf, math.nan)
OF_T = (1.0, 0.5, 1e-50, 1e-35, 1e-31, 5e31, 1e300, 0.0, -1.0, math.inf, math.nan)
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.int8, torch.uint8)


@pytest.fixture(autouse=True)
def on_a_device():
    with stand_in.for_device():
        yield


def of(values, dtype):
    if dtype.is_floating_point:
        return torch.tensor(values, dtype=torch.float64).to(dtype)
    known = [int(one) for one in values if math.isfinite(one) and abs(one) < 100]
    known = [max(one, 0) if dtype == torch.uint8 else one for one in known]
    return torch.tensor(known + [1] * (len(values) - len(known)), dtype=dtype)


def by_array_code(k, t, x):
    batch = tuple(x.shape[:-1])
    return numbers.k_of(k, batch, N, x, -1), numbers.temperature_or_number(t, batch, x, -1)


def alike(ours, theirs):
    assert [type(one) for one in ours] == [type(one) for one in theirs]
    for one, other in zip(ours, theirs, strict=True):
        if isinstance(one, torch.Tensor):
            assert one.dtype == other.dtype
            assert one.requires_grad == other.requires_grad
            assert torch.equal(one.detach().nan_to_num(-9), other.detach().nan_to_num(-9))
        else:
            assert one == other


def learned(one):
    return one.clone().requires_grad_(one.is_floating_point())


@pytest.mark.parametrize("of_t", [*FLOATS, *INTEGERS], ids=str)
@pytest.mark.parametrize("of_k", [*FLOATS, *INTEGERS], ids=str)
def test_numbers_and_their_cotangents(of_k, of_t):
    x, launched = torch.zeros(len(OF_K), N), mock.Mock(wraps=torch_numbers.limited)
    k, t = of(OF_K, of_k), of(OF_T, of_t)
    cases = (k, t), (k, 0.7), (2, t), (k[1], t), (k, t[0]), (k[:, None], t[:1]), (k[:1], t[1])
    for given in cases:
        ours, theirs = ([learned(o) if torch.is_tensor(o) else o for o in given] for _ in range(2))
        with mock.patch.object(torch_numbers, "limited", launched):
            found = numbers.k_and_temperature(*ours, (len(OF_K),), N, x, -1)
        wanted = by_array_code(*theirs, x)
        alike(found, wanted)
        pairs = [
            (f, w, o, h)
            for f, w, o, h in zip(found, wanted, ours, theirs, strict=True)
            if torch.is_tensor(o) and o.requires_grad
        ]
        for place, (answer, truth, mine, other) in enumerate(pairs):
            g = torch.linspace(-1, 2, len(OF_K))
            g[3] = torch.inf
            more = dict(retain_graph=place + 1 < len(pairs))
            (got,) = torch.autograd.grad(answer, mine, g, **more)
            (known,) = torch.autograd.grad(truth, other, g, **more)
            alike([got], [known])
    assert launched.call_count == len(cases)


def test_no_rows_and_one_row():
    for batch in ((0,), (), (1,), (2, 1000)):
        x, k = torch.zeros(*batch, N), learned(torch.full(batch, 2.0))
        found = numbers.k_and_temperature(k, torch.tensor(0.5), batch, N, x, -1)
        alike(found, by_array_code(k, torch.tensor(0.5), x))
        (got,) = torch.autograd.grad(found[0].sum(), k)
        assert torch.equal(got, torch.ones(batch))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("call", [soft_topk, soft_topk_threshold], ids=lambda one: one.__name__)
def test_maps_and_their_derivatives(call, dtype):
    """Rows whose k or T is out of range have NaN, and no gradient there; the others have theirs."""
    x = torch.linspace(-2, 2, 9 * N).sin().reshape(9, N).to(dtype)
    k = torch.tensor([2.0, 1.5, 0.0, 6.0, -1.0, 7.0, 3.0, 2.0, 2.0])
    t = torch.tensor([0.7, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, math.nan, 1e-35])

    def answers(x, k, t):
        x, k, t = map(learned, (x, k, t))
        out = call(x, k, temperature=t)
        some = torch.where(out.isfinite(), out, 0.0).float()
        first = torch.autograd.grad(some.square().sum(), (x, k, t), create_graph=True)
        total = sum(one.double().nan_to_num().square().sum() for one in first)
        second = torch.autograd.grad(total, (x, k, t), allow_unused=True, materialize_grads=True)
        return [out, *first, *second]

    found = answers(x, k, t)
    with mock.patch.dict(os.environ, {"KOFN_KERNELS": "reference"}):
        wanted = answers(x.double(), k.double(), t.double())
    tolerance = 2e-5 if dtype == torch.float32 else 2e-2
    for place, (one, other) in enumerate(zip(found, wanted, strict=True)):
        scale = float(other.detach().nan_to_num(posinf=0, neginf=0).abs().max().clamp(min=1))
        atol, rtol = tolerance * scale * (1 if place < 4 else 20), 0.0
        torch.testing.assert_close(one.double(), other, atol=atol, rtol=rtol, equal_nan=True)


def test_what_is_constant_has_no_graph():
    """A choice takes k as a constant, and autograd asks whether it is learned."""
    x, t = torch.zeros(3, N), torch.full((3,), 0.5, requires_grad=True)
    k, found = numbers.k_and_temperature(torch.full((3,), 2.0), t, (3,), N, x, -1)
    assert found.requires_grad
    assert not k.requires_grad
    assert hard_topk(x, torch.full((3,), 2)).sum() == 6


def test_errors_are_those_of_array_code():
    x = torch.zeros(3, N)
    for arguments in (
        dict(k=torch.ones(4)),
        dict(k=torch.ones(3, dtype=torch.bool)),
        dict(k=7, temperature=torch.ones(3)),
        dict(k=torch.ones(3), temperature=-1.0),
        dict(k=torch.ones(3), temperature=torch.ones(2, 3)),
        dict(k=torch.ones(4), temperature=torch.ones(2, 3)),
    ):
        said = []
        for how in ("on", "reference"):
            kernels, refused = {"KOFN_KERNELS": how}, pytest.raises((TypeError, ValueError))
            with mock.patch.dict(os.environ, kernels), refused as error:
                soft_topk(x, **arguments)
            said.append(str(error.value))
        assert said[0] == said[1]


def test_other_tensors_are_left_to_array_code():
    """Those of another device, or that something transforms."""
    x, k = torch.zeros(3, N), torch.full((3,), 2.0)
    kernel = numbers._kernel_of
    assert kernel(x, k, 1.0) is not None
    assert kernel(x.double(), k, 1.0) is None
    assert kernel(x, k.to("meta"), 1.0) is None
    seen = []
    torch.func.vmap(lambda k: seen.append(kernel(x, k, 1.0)) or k)(k)
    torch.func.jvp(lambda k: seen.append(kernel(x, k, 1.0)) or k, (k,), (k,))
    assert seen == [None, None]
    assert of_torch.state.is_plain(k)
    gates = topk_gates(torch.randn(3, N), 2, temperature=torch.full((3,), 0.5))[0]
    assert gates.shape == (3, 2)
