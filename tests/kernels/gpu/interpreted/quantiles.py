"""Quantiles of rows by a GPU's kernels, against array code in float64."""

import math
from unittest import mock

import pytest
import torch

import kofn
from kofn import kernels
from kofn.kernels.gpu.choice import launch
from kofn.maps.ordered.interpolated import INTERPOLATIONS


def rows(n, dtype):
    """Ordinary, tied, of both zeros, with ±inf, with a NaN, next to the least, with a wide gap."""
    x = torch.randn(9, n, generator=torch.Generator().manual_seed(n)).to(dtype)
    x[1] = (2 * x[1]).round()
    x[2] = 0.0
    x[2, ::2] = -0.0
    x[3, : n // 3] = math.inf
    x[4, n // 2 :] = -math.inf
    x[5, n // 2] = math.nan
    x[6, ::3] = torch.finfo(dtype).min
    x[7], x[8, : n // 2] = torch.finfo(dtype).max, torch.finfo(dtype).min
    return x


CASES = [
    *((n, how, torch.float32) for n in (1, 6) for how in INTERPOLATIONS),
    *((n, "linear", dtype) for n in (6, 200) for dtype in (torch.float16, torch.bfloat16)),
    (200, "linear", torch.float32),
]


@pytest.mark.parametrize(("n", "interpolation", "dtype"), CASES, ids=str)
def test_numbers_and_their_gradients(n, interpolation, dtype, reference):
    v = torch.arange(1.0, 10.0)

    assert kernels.serving_of("choice", rows(n, dtype), "torch", offered="quantile") is not None

    def called(x, q):
        x = x.clone().requires_grad_()
        out = kofn.quantile(x, q, dim=-1, interpolation=interpolation)
        return out.detach(), torch.autograd.grad(out, x, v.to(x.dtype))[0]

    for q in (0.0, 0.3, 1) if n == 6 else (0.3,):
        wide = reference(called, rows(n, dtype).double(), q)
        for found, wanted in zip(called(rows(n, dtype), q), wide, strict=True):
            eps = torch.finfo(dtype).eps
            torch.testing.assert_close(
                found, wanted.to(dtype), rtol=4 * eps, atol=1e-6 + 4 * eps, equal_nan=True
            )


@pytest.mark.parametrize(("n", "interpolation", "dtype"), CASES, ids=str)
def test_smooth_numbers_and_their_gradients(n, interpolation, dtype, reference, monkeypatch):
    v, x = torch.arange(1.0, 10.0), rows(n, dtype)
    x[8, : n // 2] = 0.0  # kept here: a threshold next to the least number of a type overflows
    x[6], x[7] = -math.inf, x[7].sign() * 3
    kernel = mock.Mock(wraps=launch.smooth_quantile)
    monkeypatch.setattr(launch, "smooth_quantile", kernel)

    def called(x, q, temperature):
        x = x.clone().requires_grad_()
        out = kofn.quantile(
            x, q, dim=-1, interpolation=interpolation, temperature=float(temperature)
        )
        return out.detach(), torch.autograd.grad(out, x, v.to(x.dtype))[0]

    cases = [(0.3, 0.7), (0.0, 1e-3), (1, 2)] if n == 6 else [(0.3, 0.7)]
    for q, t in cases:
        found, wanted = called(x, q, t), reference(called, x.double(), q, t)
        eps = 4 * torch.finfo(dtype).eps
        for place, (got, truth) in enumerate(zip(found, wanted, strict=True)):
            # Next to T = 0 a gradient is as exact as θ in temperatures.
            atol = max(2e-5, eps) if not place else max(2e-4, 9 * eps)
            atol = atol * (20 if t < 0.1 and place else 1)
            torch.testing.assert_close(
                got, truth.to(dtype), rtol=max(1e-4, eps), atol=atol, equal_nan=True
            )
    assert kernel.call_count == len(cases)


def test_second_derivatives_of_smooth_numbers(reference):
    def called(x):
        x = x.clone().requires_grad_()
        out = kofn.quantile(x, 0.3, dim=-1, temperature=0.8)
        (first,) = torch.autograd.grad((out**2).sum(), x, create_graph=True)
        return torch.autograd.grad((first * torch.arange(6.0)).sum(), x)[0]

    x = rows(6, torch.float32)[:3]
    wanted = reference(called, x.double()).float()
    torch.testing.assert_close(called(x), wanted, rtol=1e-4, atol=1e-5)


def test_errors_are_those_of_array_code(reference):
    x = torch.zeros(2, 3)
    for arguments in (
        dict(q=1.5),
        dict(q=0.5, temperature=-1.0),
        dict(q=0.5, temperature=math.nan),
        dict(q=0.5, temperature=torch.ones(2)),
        dict(q=2, temperature=1.0, interpolation="none"),
        dict(q=2, temperature=1.0),
    ):
        said = []
        for call in (kofn.quantile, lambda *a, **how: reference(kofn.quantile, *a, **how)):
            with pytest.raises((TypeError, ValueError)) as error:
                call(x, dim=-1, **arguments)
            said.append(str(error.value))
        assert said[0] == said[1]


def test_second_derivatives_are_those_of_array_code(reference):
    def called(x):
        x = x.clone().requires_grad_()
        out = kofn.quantile(x, 0.3, dim=-1)
        (first,) = torch.autograd.grad((out**2).sum(), x, create_graph=True)
        return torch.autograd.grad((first * torch.arange(6.0)).sum(), x)[0]

    x = rows(6, torch.float32)[:3]
    torch.testing.assert_close(called(x), reference(called, x.double()).float())


def test_all_of_an_array_is_one_row_and_columns_are_rows():
    x = rows(6, torch.float32)[:3]
    assert kofn.quantile(x, 0.5) == x.flatten().sort()[0][8:10].mean()
    assert torch.equal(kofn.quantile(x, 0.5, dim=0), x.sort(0)[0][1])
    assert kofn.quantile(x, 0.5, dim=-1, keepdim=True).shape == (3, 1)
    assert kofn.quantile(torch.empty(0, 3), 0.5, dim=-1).shape == (0,)


def test_what_is_out_of_range_is_an_error():
    for how in (dict(q=1.5), dict(q=0.5, interpolation="next")):
        with pytest.raises(ValueError, match="must be"):
            kofn.quantile(torch.ones(3), **how)
