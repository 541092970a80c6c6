"""Rows of float64 in a GPU's memory: one launch each, without a wait, and no row is given up."""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any

from torch import Tensor

from kofn.kernels.gpu.doubles.programs import Given, backward, forward
from kofn.kernels.gpu.launcher import launch
from kofn.kernels.gpu.rows import launch as rows
from kofn.kernels.gpu.rows.formulas import SERVED as SERVED
from kofn.kernels.gpu.rows.own import kind_of_rows
from kofn.links.link import Link

ANSWERS = "weights", "located"
"""The operations on rows that these kernels are enough for."""
REGISTERS = 255  # float64 takes two for a number
BLOCK = 256  # entries at a time of long rows


@lru_cache
def shape_of(n: int) -> tuple[int, int, int]:
    """Return (rows of a program, entries of each at a time, warps): one entry to a thread."""
    block = min(max(4, rows.power_of_2(n)), BLOCK)
    return max(1, 32 // block), block, max(1, block // 32)


def threshold(
    x: Tensor, k: Tensor, temperature: Tensor, link: Link, prices: Tensor | None = None
) -> tuple[Tensor, bool]:
    """Return (θ as two numbers, (2, …), False), of matrices less `prices` of their columns."""
    theta = rows.empty(x, (2, *x.shape[:-1]))
    _launch(x, k, temperature, link, theta, prices)
    return theta, False


def priced(
    x: Tensor, k: Tensor, temperature: Tensor, link: Link, prices: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (weights, F′ of each entry, θ as two numbers) of such matrices."""
    shapes = x.shape, x.shape, (2, *x.shape[:-1])
    out, slopes, theta = (rows.empty(x, shape) for shape in shapes)
    _launch(x, k, temperature, link, theta, prices, out, slopes)
    return out, slopes, theta


def weights(
    x: Tensor, k: Any, temperature: Any, link: Link, single: bool = False
) -> tuple[Tensor, Tensor, bool]:
    """Return (weights, θ as two numbers, False)."""
    theta, out = rows.empty(x, (2, *x.shape[:-1])), rows.empty(x, x.shape)
    _launch(x, k, temperature, link, theta, None, out, out)
    return out, theta, False


def gradients(
    x: Tensor, cotangent: Tensor, theta: Tensor, k: Any, temperature: Any, link: Link
) -> tuple[Tensor, Tensor]:
    """Return the cotangents of the scores, and of k and temperature, (2, …)."""
    given = _given(x, k, temperature, link, theta, None)
    out, in_rows = rows.empty(x, x.shape), rows.empty(x, theta.shape)
    _started(backward, given, (rows.packed(cotangent), out, in_rows), kind_of_rows(link))
    return out, in_rows


def _launch(
    x: Tensor, k: Any, t: Any, link: Link, theta: Tensor, prices: Tensor | None, *out: Tensor
) -> None:
    given = _given(x, k, t, link, theta, prices)
    # An array that nobody touches stands for one that is not there.
    _started(forward, given, out or (x, x), kind_of_rows(link), prices is not None, bool(out))


def _given(x: Tensor, k: Any, t: Any, link: Link, theta: Tensor, prices: Tensor | None) -> Given:
    x, (of_k, _), (of_t, per_t) = rows.packed(x), _each(k, x, False), _each(t, x, True)
    of_price = x if prices is None else rows.packed(prices)
    per_price = 1 if prices is None else x.shape[-2]
    alpha = _bits(1.5 if link.alpha is None else float(link.alpha))
    numbers = theta[0].numel(), x.shape[-1], per_price, per_t, alpha
    return Given(x, of_price, of_k, of_t, rows.packed(theta), *numbers)


def _started(kernel: Any, given: Given, arrays: tuple[Tensor, ...], kind: Any, *how: bool) -> None:
    if given.count:
        each, block, warps = shape_of(given.n)
        options = rows.options_of(warps, REGISTERS)
        launch(kernel, -(-given.count // each), given, arrays, (kind, each, block, *how), options)


def _each(number: Any, x: Tensor, alike: bool) -> tuple[Tensor, int]:
    """Return numbers of the rows of x, and for how many rows on end one stands, if `alike` may."""
    batch = x.shape[:-1]
    if type(number) is float:
        return x.new_full(batch, number), 1
    number = number.expand(batch)
    if alike and batch and batch[-1] > 1 and number.stride(-1) == 0:
        return rows.packed(number[..., 0]), batch[-1]
    return rows.packed(number), 1


def _bits(number: float) -> int:
    (bits,) = struct.unpack("<q", struct.pack("<d", number))
    return int(bits)
