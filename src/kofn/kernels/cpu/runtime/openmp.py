"""The threads of PyTorch's own operations, where they are OpenMP's.

They stay awake for some milliseconds after each operation. Threads of kofn's own had to share
processors with them, and two took as long as one (docs/speed.md).
"""

from __future__ import annotations

import ctypes
import os
import sys
from array import array
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from kofn.kernels.cpu.runtime import native
from kofn.kernels.cpu.runtime.code import Code
from kofn.kernels.cpu.runtime.layout import PLACE, PLACES

TEAM = Code("runtime.shares", "take_a_place", "q")

_is_forked = False


def parallel() -> Callable[[int, int, int, int], None] | None:
    """Return OpenMP's function for a parallel region, of the library that PyTorch itself calls.

    None where there is no such library, and in a forked child, which has none of its threads: a
    region would wait for them for ever.
    """
    return None if _is_forked else _parallel()


@cache
def _parallel() -> Any:
    if sys.platform != "linux":  # nobody has tried it elsewhere
        return None
    try:
        # By its name alone: loaded already. A symbol is looked up in what it was linked with, too.
        torch = ctypes.CDLL("libtorch_cpu.so", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        found = torch.GOMP_parallel
    except (OSError, AttributeError):
        return None
    found.argtypes = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint
    found.restype = None
    return found


def work(
    region: Callable[[int, int, int, int], None], works: Sequence[tuple[Any, tuple[Any, ...]]]
) -> None:
    """Have the threads of a region do each of these works, a function and its arguments.

    All threads of PyTorch's are called, as its operations do: OpenMP ends those that are left out.
    """
    number = array("d", works[0][1][2:3])
    words = array("q", (0, len(works), number.buffer_info()[0]))
    for function, arguments in works:
        job, own, _, leads = arguments if len(arguments) > 1 else (*arguments, 0, 0.0, False)
        words.extend((function.address, job, own, leads))
    assert len(words) == PLACES + PLACE * len(works)
    threads = max(len(works), sys.modules["torch"].get_num_threads())
    region(native.address(TEAM), words.buffer_info()[0], threads, 0)


def _forget() -> None:
    global _is_forked
    _is_forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
