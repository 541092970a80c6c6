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


def has_wide_vectors() -> bool:
    """Return whether compiled code here has vectors of 512 bits."""
    level = library.level()
    if level is not None:
        return level == "v4"
    from kofn.kernels.cpu.compiler.target import target

    name, features = target()
    return name == "x86-64-v4" or "+avx512f" in features.split(",")


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
