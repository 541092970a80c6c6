"""What tests on a GPU compare with: array code in float64 on the CPU."""

import contextlib
from unittest import mock

import torch

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
WEIGHTS = {torch.float32: 2e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}
"""What docs/behaviour.md promises of weights; for other numbers a part of the largest of a row."""

GRADIENT = {torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 6e-3}
"""Of the norm of a gradient."""


@contextlib.contextmanager
def array_code():
    """No kernels: those of the CPU may need a compiler that is not there."""
    with mock.patch.dict("os.environ", {"KOFN_KERNELS": "reference"}):
        yield


def answers(function, leaves, order=0, seed=1, learned=True):
    """(the answer, its gradients, those of a sum of the first gradient) as float64 on the CPU.

    Cotangents are the same numbers wherever the answer is.
    """
    leaves = [leaf.detach().clone().requires_grad_(learned) for leaf in leaves]
    out = function(*leaves)
    found = [out]
    if learned and order:
        first = _pulled(out, leaves, seed, order > 1)
        found += first
        if order > 1:
            learn = [one for one in first if one.requires_grad]
            if learn:
                total = sum((one.double() * _like(one, seed + 1).double()).sum() for one in learn)
                found += _filled(total, leaves, None, False)
    return [one.detach().double().cpu() if one.is_floating_point() else one.cpu() for one in found]


def _pulled(out, leaves, seed, create):
    return _filled(out, leaves, _like(out, seed), create)


def _filled(out, leaves, cotangent, create):
    return list(
        torch.autograd.grad(
            out, leaves, cotangent, create_graph=create, allow_unused=True, materialize_grads=True
        )
    )


def _like(out, seed):
    drawn = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed))
    return drawn.to(out.device, out.dtype)


def off(got, wanted):
    """How far the rows of an answer are from what they should be, relative where that is above 1.

    The same infinities and NaN do not differ; others do, infinitely.
    """
    if not got.is_floating_point():
        return float((got != wanted).sum())
    same = (got == wanted) | (got.isnan() & wanted.isnan())
    scale = torch.where(wanted.isfinite(), wanted.abs(), 0.0)
    scale = scale.amax(-1, keepdim=True) if scale.ndim else scale
    difference = ((got - wanted).abs() / scale.clamp(min=1)).masked_fill(same, 0.0)
    return float(difference.nan_to_num(nan=torch.inf).max()) if difference.numel() else 0.0


def off_in_norm(got, wanted, part=0.9):
    """The error of a gradient as a part of its norm, of rows: the quantile `part` of them.

    In the other rows an entry lies on a kink, as coarse scores often do, and may take either of its
    two slopes. The norm of all rows is what small rows are measured by.
    """
    if got.ndim < 2:
        got, wanted = got.reshape(1, -1), wanted.reshape(1, -1)
    same = (got == wanted) & ~wanted.isfinite()
    got, wanted = (one.masked_fill(same, 0.0).flatten(0, -2) for one in (got, wanted))
    size = wanted.norm(dim=-1)
    typical = float(size.square().mean().sqrt())
    if not got.isfinite().all():
        return torch.inf
    parts = (got - wanted).norm(dim=-1) / size.clamp(min=max(0.1 * typical, 1e-9))
    return float(parts.sort().values[max(0, int(part * len(parts)) - 1)])
