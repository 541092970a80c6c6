"""Rows of k-subsets in main memory: dealt out to threads, each row by sums.py or sampling.py.

As in launch.py, kernels take addresses: one compiled version serves NumPy and torch.
"""

from __future__ import annotations

import sys
from array import array
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from kofn.arrays.kinds import is_torch, namespace
from kofn.arrays.typing import Array
from kofn.kernels import contract
from kofn.kernels.cpu.runtime import native, pool
from kofn.kernels.cpu.runtime.memory import address, memory_of
from kofn.kernels.cpu.runtime.native import Code
from kofn.kernels.cpu.subsets import layout

GRAIN = 4096  # coins a thread takes at once


def code_of(module: str, size: int) -> Code:
    """The function that a thread calls, in sums.py or sampling.py, for numbers of that size."""
    return Code(f"subsets.{module}", "serve", native.WORK, "", 0, f"float{8 * size}")


def evaluate(what: int, z: Array, k: Array, v: Array | None = None) -> Array:
    """`log_count`, `tails` or `covariance` of subsets/quadrature.py."""
    zero = namespace(k).zeros_like(k)
    return at(what, z, zero, zero, k, v)


def at(what: int, y: Array, hi: Array, lo: Array, k: Array, v: Array | None = None) -> Array:
    """The same for logits y and their threshold, with rows that need none: hi = ±∞ or NaN."""
    memory = memory_of(y)
    y, hi, lo, k = map(memory.packed, (y, hi, lo, k))
    v = y if v is None else memory.packed(v)
    out = memory.empty(y, y.shape[:-1] if what == contract.LOG_COUNT else y.shape)
    n, size = y.shape[-1], y.itemsize
    room = layout.room_of_sums(n)
    _deal(code_of("sums", size), room, y, [n, size, what], [y, hi, lo, k, v, out])
    return out


def draw(z: Array, k: Array, uniforms: Array) -> Array:
    """`kofn.subsets.sampling.draw`."""
    z, k, uniforms = map(memory_of(z).packed, (z, k, uniforms))
    n, samples = z.shape[-1], prod(uniforms.shape[: uniforms.ndim - z.ndim])
    shape = (*uniforms.shape[:-1], n)
    out: Any = (
        z.new_empty(shape, dtype=sys.modules["torch"].bool)
        if is_torch(z)
        else np.empty(shape, bool)
    )
    if n == 1:
        out[:] = k[..., None] == 1
    elif prod(shape):
        levels = _levels(n, z.itemsize == 8)
        numbers = [n, z.itemsize, samples, uniforms.shape[-1], len(levels)]
        code, room = code_of("sampling", z.itemsize), layout.room_of_samples(n, levels)
        _deal(code, room, z, numbers, [levels, z, k, uniforms, out])
    return out


@lru_cache(maxsize=64)
def _levels(n: int, double: bool) -> np.ndarray:
    """Lay out the levels of sampling.py: how many nodes each has, on what windows."""
    levels, number, window, size, cells, starts = [], n, 2, 1, 0, 0
    while number > 1:
        number += number % 2
        places = (number, 1) if size <= layout.SMALL else (1, window)
        levels.append((number, window, cells, starts, *places))
        cells, starts = cells + number * window, starts + number
        number, size = number // 2, 2 * size
        window = min(2 * window - 1, contract.window_of(size, double))
    return np.array(levels)


def _deal(code: Code, room: int, y: Array, numbers: list[int], arrays: list[Any]) -> None:
    """Rows of y to threads, each with `room` words; no answer depends on who works on it."""
    n, count = y.shape[-1], prod(y.shape[:-1])
    places = (address(each) for each in arrays)
    job = array("q", (0, 0, count, max(1, GRAIN // n), *numbers, *places))
    pool.work_on(y, GRAIN, native.function(code), job, room, 0.0, arrays)
