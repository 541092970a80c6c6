"""Compiled functions by where they are written: from the library, or compiled in this process.

A process that has a library imports neither their sources nor a compiler.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from functools import cache
from typing import Any, cast

from kofn.kernels.cpu.runtime import library
from kofn.kernels.cpu.runtime.code import PASS as PASS
from kofn.kernels.cpu.runtime.code import WORK as WORK
from kofn.kernels.cpu.runtime.code import Code as Code

_lock = threading.RLock()
_addresses: dict[Code, int] = {}


def address(code: Code) -> int:
    """Return the address of a compiled function."""
    if code not in _addresses:
        with _lock:
            if code not in _addresses:
                _addresses[code] = library.address(code.symbol) or _compiled(code)
    return _addresses[code]


def _compiled(code: Code) -> int:
    from kofn.kernels.cpu.compiler import now

    return now.address(code)


if library.found() is None:
    from kofn.kernels.cpu.compiler.now import require_numba

    require_numba()


def vector_bits() -> int:
    """Return how wide the vectors of compiled code here are: 512 bits, 256 or 128."""
    level = library.level()
    if level is None:
        from kofn.kernels.cpu.compiler.machine import features_of
        from kofn.kernels.cpu.compiler.target import target

        has = features_of(*target())
        level = "v4" if "avx512f" in has else ("v3" if "avx2" in has else "")
    return {"v4": 512, "v3": 256}.get(level, 128)


_CTYPES: dict[str, Any] = {"q": ctypes.c_int64, "d": ctypes.c_double, "": None}


@cache
def function(code: Code) -> Callable[..., Any]:
    """Return a compiled function to call from Python, whose lock it releases.

    Its `address` is where other compiled code calls it.
    """
    kind = ctypes.CFUNCTYPE(_CTYPES[code.returns], *(_CTYPES[each] for each in code.takes))
    found: Any = kind(address(code))
    found.address = address(code)
    return cast("Callable[..., Any]", found)


def _forget() -> None:
    """Have a lock of its own in a forked child: another thread may have held this one."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
