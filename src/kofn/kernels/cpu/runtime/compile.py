"""Kernels compiled on first use and kept on disk."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit

from kofn.kernels.cpu.runtime.memory import address

# Numba's cache on disk goes by a function's name, its file and the value of what it closes over.
# What that misses, the other files a kernel is made of, becomes part of the name.
_SOURCES = zlib.crc32(
    b"".join(
        file.read_bytes()
        for file in sorted(Path(__file__).parents[2].rglob("*.py"))
        if "gpu" not in file.parts
    )
)


def named_by_sources(function: Callable[..., Any]) -> Callable[..., Any]:
    function.__qualname__ = f"{function.__qualname__}_{_SOURCES:08x}"
    return function


def kept(compiler: Callable[..., Any], function: Callable[..., Any]) -> Any:
    """compiler(cache=True)(function), or without a cache where Numba may write nowhere."""
    function = named_by_sources(function)
    try:
        return compiler(cache=True)(function)
    except RuntimeError:  # "no locator available"
        return compiler(cache=False)(function)


@cache
def compiled(function: Callable[..., Any]) -> Callable[..., None]:
    """What a thread calls, by addresses; compiled or from the disk."""
    return kept(partial(njit, error_model="numpy", nogil=True), function)


def zeros(words: int) -> tuple[Any, int]:
    """(so many words of memory, all 0, its address)."""
    if words <= 4096:  # asking NumPy for an address takes longer than clearing these
        own = array("d", bytes(8 * words))
        return own, own.buffer_info()[0]
    large = np.zeros(words)
    return large, address(large)
