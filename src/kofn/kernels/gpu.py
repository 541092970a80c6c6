"""Rows in a GPU's memory: which kernel, how many rows a program takes, how many threads.

Nothing here waits for the device: launches only, whatever the row. Shapes depend on a row's length
alone, so a row's answer does not depend on how many others there are.
"""

from __future__ import annotations

import contextlib
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kofn import links
from kofn.kernels import gpu_entries, gpu_rows

KINDS = {
    links.logistic.id: gpu_entries.LOGISTIC.value,
    links.laplace.id: gpu_entries.LAPLACE.value,
    links.normal.id: gpu_entries.NORMAL.value,
    links.exponential.id: gpu_entries.EXPONENTIAL.value,
    links.linear.id: gpu_entries.LINEAR.value,
}


def kind_of(link: Any) -> int | None:
    """The kernels' number for a link, None where they do not have it."""
    if link.id != links.TABLE["entmax"].id:
        return KINDS.get(link.id)
    alpha = link.alpha
    if not isinstance(alpha, float):
        return None
    at = {
        1.0: gpu_entries.EXPONENTIAL.value,
        1.5: gpu_entries.SQUARE.value,
        2.0: gpu_entries.LINEAR.value,
    }
    # Nearer to 1 the power loses digits; beyond 2 the slope is infinite at the support's end.
    return at.get(alpha, gpu_entries.POWER.value if 1.2 <= alpha < 2 else None)


class Shape(NamedTuple):
    """What a program takes."""

    rows: int
    block: int  # entries of each at a time, a power of 2
    wide: int  # the same for the first visit, which waits for memory
    warps: int


PER_THREAD = 4


def shape_of(n: int) -> Shape:
    """Up to 128 entries some rows to a program, above it a row.

    A row's numbers are computed by each of its threads, so fewer threads are less work.
    """
    whole = max(16, 1 << (n - 1).bit_length())
    if whole <= 128:
        return Shape(512 // whole, whole, whole, 4)
    warps = min(max(1, whole // 1024), 16)
    block = min(whole, 32 * PER_THREAD * warps)
    return Shape(1, block, min(whole, 4 * block), warps)


def weights(x: Tensor, k: Tensor, temperature: Tensor, link: Any) -> tuple[Tensor, Tensor]:
    """(weights, θ): (…, n) and two floats' worth, (2, …)."""
    out = _empty(x, x.shape)
    return out, _forward(x, k, temperature, link, out)


def threshold(x: Tensor, k: Tensor, temperature: Tensor, link: Any) -> Tensor:
    """θ as two floats' worth, (2, …): what kofn.threshold.solve returns."""
    return _forward(x, k, temperature, link, None)


def _forward(x: Tensor, k: Tensor, temperature: Tensor, link: Any, out: Tensor | None) -> Tensor:
    x, k, temperature = x.contiguous(), k.contiguous(), temperature.contiguous()
    theta = _empty(k, (2, *k.shape))
    count, n = prod(x.shape[:-1]), x.shape[-1]
    shape = shape_of(n)
    with _device(x):
        gpu_rows.forward[(-(-count // shape.rows),)](
            x,
            x if out is None else out,
            theta,
            k,
            temperature,
            count,
            n,
            _alpha(link),
            KIND=kind_of(link),
            ROWS=shape.rows,
            BLOCK=shape.block,
            WIDE=shape.wide,
            WRITE=out is not None,
            num_warps=shape.warps,
        )
    return theta


def gradients(
    x: Tensor, cotangent: Tensor, theta: Tensor, k: Tensor, temperature: Tensor, link: Any
) -> tuple[Tensor, Tensor]:
    """Cotangents of the scores, (…, n), and of k and temperature, (2, …)."""
    x, cotangent = x.contiguous(), cotangent.contiguous()
    k, temperature = k.contiguous(), temperature.contiguous()
    out, in_rows = _empty(x, x.shape), _empty(k, (2, *k.shape))
    count, n = prod(x.shape[:-1]), x.shape[-1]
    shape = shape_of(n)
    with _device(x):
        gpu_rows.backward[(-(-count // shape.rows),)](
            x,
            cotangent,
            theta,
            k,
            temperature,
            out,
            in_rows,
            count,
            n,
            _alpha(link),
            KIND=kind_of(link),
            ROWS=shape.rows,
            BLOCK=shape.block,
            num_warps=shape.warps,
        )
    return out, in_rows


def _alpha(link: Any) -> float:
    return link.alpha if isinstance(link.alpha, float) else 1.5


def _empty(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    return like.new_empty(shape)


def _device(x: Tensor) -> contextlib.AbstractContextManager:
    """Launches go to the current device, which need not be that of the tensor."""
    return torch.cuda.device(x.device) if x.is_cuda else contextlib.nullcontext()
