"""Rows of k-subsets in main memory: dealt out to threads, each row by nodes.py.

As in cpu.py, kernels take addresses: one compiled version serves NumPy and torch.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from kofn._array import is_torch, namespace
from kofn.kernels import cpu, nodes, threads
from kofn.kernels.cpu import address, packed

GRAIN = 4096  # coins a thread takes at once


def evaluate(what: int, z: Any, k: Any, v: Any = None) -> Any:
    """`log_count`, `tails` or `covariance` of kofn._nodes, for NumPy arrays or torch tensors."""
    zero = namespace(k).zeros_like(k)
    return at(what, z, zero, zero, k, v)


def at(what: int, y: Any, hi: Any, lo: Any, k: Any, v: Any = None) -> Any:
    """The same for logits y and their threshold, with rows that need none: hi = ±∞ or NaN."""
    y, hi, lo, k = packed(y), packed(hi), packed(lo), packed(k)
    v = y if v is None else packed(v)
    shape = y.shape[:-1] if what == nodes.LOG_COUNT else y.shape
    out = y.new_empty(shape) if is_torch(y) else np.empty(shape, y.dtype)
    n, count = y.shape[-1], prod(y.shape[:-1])
    chunk = max(1, min(GRAIN // n, count))
    arrays = [address(a) for a in (y, hi, lo, k, v, out)]
    job = np.array([0, 0, count, chunk, n, y.itemsize, what, *arrays])
    crew = 1 if n * count < 2 * GRAIN else min(threads.wanted(y), count)
    run = cpu.compiled(nodes.serve_single if y.itemsize == 4 else nodes.serve_double)
    first = address(job)
    threads.offer([(first,)] * (crew - 1), run, (job, y, hi, lo, k, v, out))
    run(first)
    cpu.compiled(nodes.wait)(first)
    return out
