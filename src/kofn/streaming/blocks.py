"""A row that is never held as one array: the entries of arrays and files, a block at a time.

A pass goes over all blocks in their order. Blocks are at fixed places, and what they give is put
together in their order, so no answer depends on the number of threads.
"""

from __future__ import annotations

import mmap
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from kofn import kernels
from kofn.arrays.kinds import (
    Array,
    cast,
    compute_dtype,
    contiguous,
    deleted,
    dtype_name,
    is_torch,
    namespace,
)

BLOCK = 1 << 17
"""Entries of a block: with the results for them, they stay in the caches of a processor."""

R = TypeVar("R")


class Source(Protocol):
    """Entries in an order, to be read some at a time."""

    @property
    def size(self) -> int:
        """Return how many there are."""

    @property
    def is_double(self) -> bool:
        """Return whether they are float64."""

    def read(self, start: int, stop: int) -> Array:
        """Return some of them, in one dimension, in float32 or float64."""

    def release(self, start: int, stop: int) -> None:
        """Give back what memory a read took, if that is known."""


class Part(NamedTuple):
    """Where a block is: the number of its source, and its first entry there and in the row."""

    source: int
    start: int
    place: int


class Blocks:
    """One row of all entries of some sources."""

    def __init__(
        self, sources: Sequence[Source], tell: Callable[[str, int, int], None] | None = None
    ) -> None:
        self.sources, self.tell = sources, tell
        self.size = sum(source.size for source in sources)
        self.passes = 0

    @property
    def is_double(self) -> bool:
        """Return whether the answer is computed in float64."""
        return any(source.is_double for source in self.sources)

    @property
    def is_of_numpy(self) -> bool:
        """Return whether all blocks are NumPy arrays."""
        return not any(getattr(source, "is_of_torch", False) for source in self.sources)

    def each(self, what: str, function: Callable[[Array, Part], R], first: int = 0) -> Iterator[R]:
        """Yield function(block, part) of all blocks, in their order; `what` names the pass.

        It begins with the block of entry `first`.
        """
        self.passes += 1

        def work(part: Part, stop: int) -> tuple[R, int]:
            block = self._read(part, stop)
            with np.errstate(all="ignore"):
                result = function(block, part), part.place + len(block)
            self.sources[part.source].release(part.start, stop)
            return result

        for result, done in _in_order(work, self._parts(first), _crew(self.size)):
            if self.tell is not None:
                self.tell(what, done, self.size)
            yield result

    def run(self, what: str, function: Callable[[Array, Part], object]) -> None:
        """Call function(block, part) of all blocks."""
        deque(self.each(what, function), maxlen=0)

    def _parts(self, first: int) -> Iterator[tuple[Part, int]]:
        place = 0
        for i, source in enumerate(self.sources):
            for start in range(0, source.size, BLOCK):
                stop = min(start + BLOCK, source.size)
                if place + stop > first:
                    yield Part(i, start, place + start), stop
            place += source.size

    def _read(self, part: Part, stop: int) -> Array:
        block = self.sources[part.source].read(part.start, stop)
        if not self.is_double or dtype_name(block) == "float64":
            return block
        # What masks is the least number of the dtype that the scores have.
        xp = namespace(block)
        return xp.where(deleted(block), -np.inf, cast(block, xp.float64))


def _crew(size: int) -> int:
    return kernels.threads() if size > 2 * BLOCK else 1


def _in_order(
    work: Callable[..., R], arguments: Iterator[tuple[Any, ...]], crew: int
) -> Iterator[R]:
    """Yield the results in the order of the arguments; threads are a little ahead."""
    if crew == 1:
        for each in arguments:
            yield work(*each)
        return
    waiting: deque[Future[R]] = deque()
    with ThreadPoolExecutor(crew, "kofn_blocks") as threads:
        try:
            for each in arguments:
                waiting.append(threads.submit(work, *each))
                if len(waiting) > 2 * crew:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:  # an interrupt need not wait for those that have not begun
            for future in waiting:
                future.cancel()


class OfArray:
    """The entries of an array or a tensor, in C order whatever its layout."""

    def __init__(self, array: Any) -> None:
        self.array: Any = array.detach() if is_torch(array) else array
        self.size = int(array.numel() if is_torch(array) else array.size)
        self.is_of_torch = is_torch(array)
        self.is_double = dtype_name(array) == "float64"
        packed = array.is_contiguous() if is_torch(array) else array.flags.c_contiguous
        self.flat: Any = self.array.reshape(-1) if packed or is_torch(array) else array.flat
        self.pages = Pages(array) if packed and isinstance(array, np.memmap) else None

    def read(self, start: int, stop: int) -> Array:
        return computed(self.flat[start:stop])

    def write(self, start: int, values: np.ndarray) -> None:
        """Write entries of an array that shares its memory with `flat`."""
        if is_torch(self.array):
            import torch

            self.flat[start : start + len(values)] = torch.from_numpy(values)
        else:
            self.flat[start : start + len(values)] = values
        self.release(start, start + len(values))

    def release(self, start: int, stop: int) -> None:
        """Let the process forget pages of a file; the system keeps what it has read or written."""
        if self.pages is not None:
            self.pages.release(start, stop)


class Pages:
    """The pages of a mapped file, which would count as this process's memory for as long as they
    are mapped.
    """

    def __init__(self, array: np.memmap) -> None:
        pages: Any = getattr(array, "_mmap", None)
        # Pages that are private to this process may have been written to.
        if array.mode == "c" or not hasattr(pages, "madvise"):
            self.file: Any = None
            return
        self.file, first = pages, np.frombuffer(pages, np.uint8).ctypes.data
        self.offset, self.size = array.ctypes.data - first, array.itemsize

    def release(self, start: int, stop: int) -> None:
        if self.file is None:
            return
        begin, end = (self.offset + self.size * place for place in (start, stop))
        begin -= begin % mmap.PAGESIZE
        self.file.madvise(mmap.MADV_DONTNEED, begin, end - begin)


def computed(block: Array) -> Array:
    """Return scores in the dtype to compute in, −inf where the given dtype's least masks them."""
    block = contiguous(block)
    dtype = compute_dtype(block)
    if block.dtype == dtype:
        return block
    xp = namespace(block)
    return xp.where(deleted(block), -np.inf, cast(block, dtype))


def in_memory(block: Any) -> np.ndarray:
    """Return a block as a NumPy array, which shares its memory if it is there."""
    if is_torch(block):
        return block.numpy(force=True)  # of a view with the other sign, a copy
    return block


class Shared(threading.local):
    """An array of zeros for each thread that asks, kept in a list of all of them."""

    def __init__(self, size: int, every: list[np.ndarray]) -> None:
        self.counts = np.zeros(size, np.int64)
        every.append(self.counts)


def added(every: list[np.ndarray]) -> np.ndarray:
    """Return the sum of the arrays of all threads."""
    return sum(every[1:], start=every[0])
