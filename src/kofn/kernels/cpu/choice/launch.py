"""Hard choices of rows in main memory: dealt out to threads, each row by worker.py.

As in rows/launch.py, kernels take addresses: one compiled version serves NumPy and torch.
"""

from __future__ import annotations

import sys
from array import array
from math import prod
from typing import Any

import numpy as np

from kofn.arrays.kinds import is_torch
from kofn.kernels.cpu.runtime import native, pool
from kofn.kernels.cpu.runtime.memory import memory_of, zeros
from kofn.kernels.cpu.runtime.native import Code

GRAIN = 16_384  # entries a thread takes at once


def code_of(name: str, size: int) -> Code:
    """What a thread calls, in worker.py or cut.py, for numbers of that size."""
    takes = {"choices": "qqdq", "largest": "qqqq", "cut": "qqqq"}[name]
    return Code(
        "choice.cut" if name == "cut" else "choice.worker",
        f"{name}_{'single' if size == 4 else 'double'}",
        takes,
    )


def hard(x: Any, k: Any) -> Any:
    """The hard top-k of rows, for k per row or one float."""
    memory = memory_of(x)
    x = memory.packed(x)
    out = memory.empty_like(x)
    code = code_of("choices", x.itemsize)
    if type(k) is float:
        _deal(code, x, k, 0, 0, out)
    else:
        k = memory.packed(k)
        _deal(code, x, 0.0, memory.address(k), 0, out, k)
    return out


def largest(x: Any, k: int) -> Any:
    """The indices of the k largest scores of rows, (…, k)."""
    x = memory_of(x).packed(x)
    shape = (*x.shape[:-1], k)
    out = (
        x.new_empty(shape, dtype=sys.modules["torch"].int64)
        if is_torch(x)
        else np.empty(shape, np.int64)
    )
    _deal(code_of("largest", x.itemsize), x, k, 0, 3 * k, out)
    return out


def kth_largest(x: Any, k: int) -> Any:
    """The k-th largest score of each row; −∞ in rows with a NaN or without a score in play."""
    memory = memory_of(x)
    x = memory.packed(x)
    out = memory.empty(x, x.shape[:-1])
    _deal(code_of("cut", x.itemsize), x, k, 0, 0, out)
    return out


def _deal(
    code: Code, x: Any, k: float | int, k_at: int, room: int, out: Any, keep: Any = None
) -> None:
    """Rows to threads, each with `room` words; no answer depends on who works on it."""
    n, count, address = x.shape[-1], prod(x.shape[:-1]), memory_of(x).address
    if count == 0:
        return
    job = array("q", (0, 0, count, max(1, GRAIN // n), n, address(x), k_at, address(out)))
    crew = 1 if n * count < 2 * GRAIN else min(pool.wanted(x), count)
    run, first = native.function(code), job.buffer_info()[0]
    own, scratch = zeros(crew * room)
    if crew > 1:
        shares = [(first, scratch + 8 * room * i, k, False) for i in range(1, crew)]
        pool.offer(shares, run, (job, own, x, out, keep))
    run(first, scratch, k, True)
