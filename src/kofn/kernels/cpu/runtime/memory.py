"""Main memory of NumPy arrays and torch tensors, by address: which of the two is asked once."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Memory(NamedTuple):
    """What a launch does with arrays of a framework."""

    packed: Callable[[Any], Any]
    """An array in rows without gaps: itself, or one copy."""
    address: Callable[[Any], int]
    empty: Callable[[Any, tuple[int, ...]], Any]
    """empty(like, shape), of the numbers that there are per row; float32 for 16-bit scores"""
    empty_like: Callable[[Any], Any]


def _per_row_in_torch(like: Any) -> Any:
    return sys.modules["torch"].float32 if like.itemsize == 2 else like.dtype


_NUMPY = Memory(
    lambda x: np.asarray(x, order="C"),
    lambda x: x.__array_interface__["data"][0],
    lambda like, shape: np.empty(shape, np.float32 if like.itemsize == 2 else like.dtype),
    np.empty_like,
)
_TORCH = Memory(
    lambda x: x.resolve_neg().contiguous(),
    lambda x: x.data_ptr(),
    lambda like, shape: like.new_empty(shape, dtype=_per_row_in_torch(like)),
    lambda x: sys.modules["torch"].empty_like(x),
)


def memory_of(x: Any) -> Memory:
    return _NUMPY if isinstance(x, (np.ndarray, np.generic)) else _TORCH


def address(x: Any) -> int:
    return memory_of(x).address(x)


def per_row(numbers: Any, memory: Memory, count: int, size: int) -> tuple[Any, int]:
    """(numbers of each row, their address) of an array, or of one number for all rows."""
    if type(numbers) is not float:
        assert numbers.dtype.itemsize == size, f"{numbers.dtype} per row; rows of {size} bytes"
        numbers = memory.packed(numbers)
        return numbers, memory.address(numbers)
    each = array("f" if size == 4 else "d", (numbers,)) * count
    return each, each.buffer_info()[0]


def zeros(words: int) -> tuple[Any, int]:
    """(so many words of memory, all 0, its address)."""
    if words <= 4096:  # asking NumPy for an address takes longer than clearing these
        own = array("d", bytes(8 * words))
        return own, own.buffer_info()[0]
    large = np.zeros(words)
    return large, address(large)
