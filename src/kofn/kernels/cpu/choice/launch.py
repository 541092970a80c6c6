"""Hard choices of rows in main memory: dealt out to threads, each row by worker.py.

As in rows/launch.py, kernels take addresses: one compiled version serves NumPy and torch.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from kofn.arrays.kinds import is_torch
from kofn.kernels.cpu.choice import worker
from kofn.kernels.cpu.runtime import compile, pool
from kofn.kernels.cpu.runtime.memory import memory_of

GRAIN = 16_384  # entries a thread takes at once


def hard(x: Any, k: Any) -> Any:
    """The hard top-k of rows, for k per row or one float."""
    memory = memory_of(x)
    x = memory.packed(x)
    out = memory.empty_like(x)
    run = worker.choices_single if x.itemsize == 4 else worker.choices_double
    if type(k) is float:
        _deal(run, x, k, 0, out)
    else:
        k = memory.packed(k)
        _deal(run, x, 0.0, memory.address(k), out, k)
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
    run = worker.largest_single if x.itemsize == 4 else worker.largest_double
    _deal(run, x, k, 0, out)
    return out


def _deal(
    function: Callable[..., None], x: Any, k: float | int, k_at: int, out: Any, keep: Any = None
) -> None:
    """Rows to threads; no answer depends on who works on it."""
    n, count, address = x.shape[-1], prod(x.shape[:-1]), memory_of(x).address
    if count == 0:
        return
    job = array("q", (0, 0, count, max(1, GRAIN // n), n, address(x), k_at, address(out)))
    crew = 1 if n * count < 2 * GRAIN else min(pool.wanted(x), count)
    run, first = compile.compiled(function), job.buffer_info()[0]
    if crew > 1:
        pool.offer([(first, k, False)] * (crew - 1), run, (job, x, out, keep))
    run(first, k, True)
