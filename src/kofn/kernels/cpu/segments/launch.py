"""Segments of NumPy arrays and CPU tensors as dense rows, and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from kofn.kernels.cpu.runtime import native
from kofn.kernels.cpu.runtime.memory import address, memory_of
from kofn.kernels.cpu.runtime.native import Code


def code_of(name: str, size: int) -> Code:
    """Return what copies numbers of that size, by `pack` or `unpack` in worker.py."""
    return Code("segments.worker", name, "qqqqqqqd", "", 0, f"float{8 * size}")


def pack(
    entries: Any, starts: np.ndarray, lengths: np.ndarray, which: np.ndarray, length: int,
    fill: float,
) -> Any:  # fmt: skip
    """Return some of the segments as rows of one length, filled up; entries are sorted."""
    memory = memory_of(entries)
    entries = memory.packed(entries)
    rows = memory.empty(entries, (len(which), length))
    _copy("pack", entries, starts, lengths, which, rows, fill)
    return rows


def unpack(
    rows: Any, starts: np.ndarray, lengths: np.ndarray, which: np.ndarray, entries: Any
) -> None:
    """Write rows back to the entries of their segments."""
    _copy("unpack", entries, starts, lengths, which, memory_of(rows).packed(rows), 0.0)


def _copy(
    name: str, entries: Any, starts: np.ndarray, lengths: np.ndarray, which: np.ndarray, rows: Any,
    fill: float,
) -> None:  # fmt: skip
    run = native.function(code_of(name, entries.itemsize))
    places = (address(each) for each in (entries, starts, lengths, which))
    run(*places, len(which), rows.shape[-1], address(rows), fill)
