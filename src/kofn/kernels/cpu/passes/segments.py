"""Segments of NumPy arrays and CPU tensors: their order, and copies to dense rows and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from kofn.kernels.cpu.runtime import native
from kofn.kernels.cpu.runtime.memory import address, memory_of
from kofn.kernels.cpu.runtime.native import Code

STATISTICS = Code("passes.segment_loops", "statistics", "qqq")
LENGTHS = Code("passes.segment_loops", "lengths_of", "qqq")
SORT = Code("passes.segment_loops", "sort", "qqqq")


def code_of(name: str, size: int) -> Code:
    """Return what copies numbers of that size, by `pack` or `unpack` in segment_loops.py."""
    return Code("passes.segment_loops", name, "qqqqqqqqd", "", 0, f"float{8 * size}")


def codes(size: int) -> list[Code]:
    return [STATISTICS, LENGTHS, SORT, code_of("pack", size), code_of("unpack", size)]


def statistics(ids: np.ndarray) -> tuple[bool, int, int]:
    """Return whether ids, of int64, are sorted, their least and their greatest."""
    answers = np.empty(3, np.int64)
    native.function(STATISTICS)(address(ids), len(ids), address(answers))
    is_sorted, least, greatest = answers.tolist()
    return bool(is_sorted), least, greatest


def lengths_of(ids: np.ndarray, count: int) -> np.ndarray:
    """Return how many entries each segment has."""
    lengths = np.zeros(count, np.int64)
    native.function(LENGTHS)(address(ids), len(ids), address(lengths))
    return lengths


def places_of(ids: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Return the places of the entries in the order of the segments, which begin at `starts`."""
    places, ends = np.empty(len(ids), np.int64), starts.copy()
    native.function(SORT)(address(ids), len(ids), address(ends), address(places))
    return places


def pack(entries: Any, order: Any, which: np.ndarray, length: int, fill: float) -> Any:
    """Return some of the segments of an `Order` as rows of one length, filled up."""
    memory = memory_of(entries)
    entries = memory.packed(entries)
    rows = memory.empty(entries, (len(which), length))
    _copy("pack", entries, order, which, rows, fill)
    return rows


def unpack(rows: Any, order: Any, which: np.ndarray, entries: Any) -> None:
    """Write rows back to the entries of their segments."""
    _copy("unpack", entries, order, which, memory_of(rows).packed(rows), 0.0)


def _copy(name: str, entries: Any, order: Any, which: np.ndarray, rows: Any, fill: float) -> None:
    run = native.function(code_of(name, entries.itemsize))
    places = 0 if order.places is None else address(order.places)
    at = (address(each) for each in (order.starts, order.lengths, which))
    run(address(entries), places, *at, len(which), rows.shape[-1], address(rows), fill)
