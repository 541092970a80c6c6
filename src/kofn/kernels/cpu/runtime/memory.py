"""Main memory of NumPy arrays and torch tensors, by address."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from kofn.arrays.kinds import native
from kofn.arrays.typing import Array
from kofn.kernels.cpu.runtime.layout import REGISTER


class Memory(NamedTuple):
    """The functions of a launch for arrays of a framework."""

    packed: Callable[[Any], Array]
    """An array in rows without gaps, of native numbers: itself, or one copy."""
    address: Callable[[Any], int]
    empty: Callable[[Any, tuple[int, ...]], Array]
    """empty(like, shape), of the numbers that there are per row; float32 for 16-bit scores"""
    empty_like: Callable[[Any], Array]


_NUMPY = Memory(
    lambda x: native(np.asarray(x, order="C")),
    lambda x: x.__array_interface__["data"][0],
    lambda like, shape: np.empty(shape, np.float32 if like.itemsize == 2 else like.dtype),
    np.empty_like,
)


@lru_cache
def _of_torch() -> Memory:
    torch = sys.modules["torch"]

    def empty(like: Any, shape: tuple[int, ...]) -> Any:
        # Of torch.empty, the memory would be where the default device is.
        half = like.itemsize == 2
        return like.new_empty(shape, dtype=torch.float32) if half else like.new_empty(shape)

    return Memory(
        lambda x: x.resolve_neg().contiguous(), torch.Tensor.data_ptr, empty, torch.empty_like
    )


FEW = 128
"""Rows for which an array of one number is kept."""

_ZERO = array("d", (0.0,))
_FEW_WORDS = 12_288


def memory_of(x: Any) -> Memory:
    return _NUMPY if isinstance(x, (np.ndarray, np.generic)) else _of_torch()


def address(x: Any) -> int:
    return memory_of(x).address(x)


def per_row(numbers: Any, memory: Memory, count: int, size: int) -> tuple[Any, int]:
    """(numbers of each row, their address) of an array, or of one number for all rows.

    Of FEW rows or less, these numbers are only read: the next call has the same.
    """
    if type(numbers) is not float:
        assert numbers.dtype.itemsize == size, f"{numbers.dtype} per row; rows of {size} bytes"
        numbers = memory.packed(numbers)
        return numbers, memory.address(numbers)
    return _kept(numbers, count, size) if count <= FEW else _repeated(numbers, count, size)


def each_per_row(
    numbers: Sequence[Any], memory: Memory, count: int, size: int
) -> list[tuple[Any, int]]:
    """`per_row` of several: short rows wait for every call of a function."""
    few, found = count <= FEW, []
    for each in numbers:
        is_kept = few and type(each) is float
        found.append(_kept(each, count, size) if is_kept else per_row(each, memory, count, size))
    return found


def _repeated(number: float, count: int, size: int) -> tuple[Any, int]:
    each = array("f" if size == 4 else "d", (number,)) * count
    return each, each.buffer_info()[0]


_kept = lru_cache(maxsize=256)(_repeated)


def rooms(
    threads: int, width: int, more: int = 0, cleared: Sequence[range] | None = None
) -> tuple[Any, int]:
    """(memory for threads, `width` words each, and `more` after these, its address).

    It begins where the widest vector may, and is 0. Of much memory only those words of each
    thread's that are to be `cleared` are 0, if they are given: clearing all of it would take as
    long as the work on a long row.
    """
    words = threads * width + more + REGISTER // 8
    if words <= _FEW_WORDS:  # asking NumPy for an address takes longer than clearing these
        few = _ZERO * words
        at, _ = few.buffer_info()
        return few, at + -at % REGISTER
    own = np.zeros(words) if cleared is None else np.empty(words)
    at = address(own)
    first = -at % REGISTER // 8
    each = own[first : first + threads * width].reshape(threads, width)
    for span in cleared or ():
        each[:, span.start : span.stop] = 0
    return own, at + 8 * first
