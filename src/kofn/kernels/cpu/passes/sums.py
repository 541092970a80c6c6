"""Sums over weights by a `Sum` of rows/passes.py, and their ways back: rows dealt out to threads.

As in rows/launch.py, kernels take addresses: one compiled version serves NumPy and torch.
"""

from __future__ import annotations

from array import array
from math import prod
from typing import Any

from kofn.arrays.kinds import namespace
from kofn.arrays.typing import Array
from kofn.kernels.cpu.passes.layout import FIVE
from kofn.kernels.cpu.rows.passes import Sum
from kofn.kernels.cpu.runtime import native, pool
from kofn.kernels.cpu.runtime.layout import PART
from kofn.kernels.cpu.runtime.layout import SUMS as ROOM
from kofn.kernels.cpu.runtime.memory import memory_of
from kofn.kernels.cpu.runtime.native import Code

PASSES = "terms", "slopes"
"""The passes that are made of a Sum."""

WORK = Code("passes.sum_loops", "work", native.WORK)

GRAIN = 16_384  # entries a thread takes at once


def terms(of: Sum, p: Array, numbers: tuple[float, ...]) -> Any:
    """The sums of each row, (…), or (count, …) of more than one."""
    memory = memory_of(p)
    p = memory.packed(p)
    several = () if of.count == 1 else (of.count,)
    parts = max(1, -(-p.shape[-1] // PART))
    out = memory.empty(p, (*several, *p.shape[:-1], *((parts,) if parts > 1 else ())))
    _deal(of, "terms", p, numbers, None, out, parts)
    return out if parts == 1 else namespace(out).sum(out, axis=-1)


def slopes(of: Sum, p: Array, cotangent: Array, numbers: tuple[float, ...]) -> Any:
    """The cotangents of the weights."""
    memory = memory_of(p)
    p, cotangent = memory.packed(p), memory.packed(cotangent)
    out = memory.empty_like(p)
    _deal(of, "slopes", p, numbers, cotangent, out, max(1, -(-p.shape[-1] // PART)))
    return out


def _deal(
    of: Sum, which: str, p: Any, numbers: tuple[float, ...], cotangent: Any, out: Any, parts: int
) -> None:
    """Deal rows and parts of rows to threads; no answer depends on who works on it."""
    memory, n, items = memory_of(p), p.shape[-1], prod(p.shape[:-1]) * parts
    if not items:
        return
    given = array("d", (*numbers, *[0.0] * (FIVE - len(numbers))))
    g = 0 if cotangent is None else memory.address(cotangent)
    chunk = max(1, GRAIN // n) if n else items
    words = 0, 0, items, chunk, native.address(of.code(which, p.itemsize)), n, p.itemsize, parts
    places = memory.address(p), g, memory.address(out), given.buffer_info()[0]
    job = array("q", (*words, of.count, *places))
    keep = given, cotangent, out
    pool.work_on(p, GRAIN, native.function(WORK), job, ROOM + FIVE, 0.0, keep)
