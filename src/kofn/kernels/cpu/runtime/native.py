"""Compiled functions: from this process, from the disk, or compiled now.

They are known by where they are written, so that a process that finds them on the disk imports
neither their sources nor Numba. All of them end in the same native code.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import warnings
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np

from kofn.kernels.cpu.runtime import machine, shipped, store
from kofn.kernels.cpu.runtime.shipped import digest, sources

PASS = "qqqqqddddd"
"""What all passes over a row take: (x, g, out, n, sums, a, b, c, d, e), by array's letters."""

WORK = "qqdq"
"""What the work of a thread takes: (job, own, number, leads), as shares.py has it."""

_HOME = "kofn.kernels.cpu"


class Code(NamedTuple):
    """A function: its module in this folder and its name there, and what it takes and returns.

    With a kind of link and a type, the name is that of a function that makes it.
    """

    module: str
    name: str
    takes: str
    returns: str = ""
    kind: int | None = None
    number: str = ""

    @property
    def symbol(self) -> str:
        kind = () if self.kind is None else (str(self.kind), self.number)
        return "kofn_" + "_".join((*self.module.split("."), self.name, *kind))


@cache
def _folder() -> str:
    """Return the folder in the store for this machine's processor and these sources."""
    return f"kofn-{digest(sources().encode(), machine.identity().encode())}"


_lock = threading.RLock()
_addresses: dict[Code, int] = {}


def address(code: Code) -> int:
    """Return the address of a compiled function."""
    if code not in _addresses:
        with _lock:
            if code not in _addresses:
                _addresses[code] = _stored(code) or _compiled(code)
    return _addresses[code]


def _stored(code: Code) -> int:
    found = store.read(f"{_folder()}/{code.symbol}")
    return 0 if found is None else machine.load(found, code.symbol)


def _tell_terminal() -> None:
    if sys.stderr is not None and sys.stderr.isatty():
        print(COMPILING, file=sys.stderr)


COMPILING = "kofn: compiling kernels for this machine, once; this may take some seconds"
tell: Callable[[], None] | None = _tell_terminal
"""What is called once, before anything is compiled."""


def _tell() -> None:
    global tell
    once, tell = tell, None
    if once is not None:
        once()


def _compiled(code: Code) -> int:
    _tell()
    return machine.load(_written(code), code.symbol)


def _written(code: Code) -> bytes:
    found = machine.native(translated(code), code.symbol)
    store.write(f"{_folder()}/{code.symbol}", found)
    return found


def is_kept(code: Code) -> bool:
    """Return whether later processes find a function on the disk."""
    return store.read(f"{_folder()}/{code.symbol}") is not None


def keep(code: Code) -> bool:
    """Compile a function for later processes; return whether that was necessary."""
    if is_kept(code):
        return False
    _written(code)
    return True


def translated(code: Code) -> str:
    """Return the function as LLVM's intermediate code."""
    return shipped.find(code.symbol) or by_numba(code)


def by_numba(code: Code) -> str:
    """Return the same, translated now: many seconds."""
    from kofn.kernels.cpu.runtime.translate import translated

    function = getattr(import_module(f"{_HOME}.{code.module}"), code.name)
    options: dict[str, Any] = {"error_model": "numpy"}
    if code.kind is not None:
        function = function(code.kind, np.dtype(code.number).type)
        options = import_module(f"{_HOME}.rows.frame").OPTIONS
    return translated(function, code.takes, code.returns, code.symbol, options)


NUMBA = (0, 62), (0, 68)
"""The first and the last release whose inner parts are known to be as translate.py needs them."""

_SAMPLE = Code("rows.loops", "total", PASS, kind=0, number="f4")


def require_numba() -> None:
    """Raise ImportError, with a warning, if the installed Numba cannot translate functions."""
    installed = version("numba")
    release = tuple(int(part) for part in installed.split(".")[:2])
    if NUMBA[0] <= release <= NUMBA[1]:
        return
    try:
        by_numba(_SAMPLE)
    except Exception as error:
        (_, first), (_, last) = NUMBA
        warnings.warn(
            f"kofn's kernels work with Numba 0.{first} to 0.{last}, not with {installed} "
            f"({error!r}); the slower array code serves instead",
            RuntimeWarning,
            stacklevel=2,
        )
        raise ImportError(f"Numba {installed}") from error


require_numba()

_CTYPES: dict[str, Any] = {"q": ctypes.c_int64, "d": ctypes.c_double, "": None}


@cache
def function(code: Code) -> Callable[..., Any]:
    """Return a compiled function to call from Python, whose lock it releases."""
    kind = ctypes.CFUNCTYPE(_CTYPES[code.returns], *(_CTYPES[each] for each in code.takes))
    return kind(address(code))


def _forget() -> None:
    """Have a lock of its own in a forked child: another thread may have held this one."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
