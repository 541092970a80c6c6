"""The names by which XLA knows these kernels, and what a compiled program tells them."""

from __future__ import annotations

import ctypes
import sys
import traceback
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax.ffi
import numpy as np
from llvmlite import binding
from numba import cfunc, types

from kofn.kernels.contract import KINDS, kind_of
from kofn.kernels.cpu.rows import interleaved, launch, worker
from kofn.kernels.cpu.runtime import shares
from kofn.kernels.cpu.runtime.compile import kept
from kofn.kernels.cpu.runtime.memory import address
from kofn.kernels.cpu.subsets import launch as subsets
from kofn.kernels.cpu.xla import handler

ROWS = "kofn_rows"
"""The handler's name in programs."""

_TABLE = np.zeros(handler.TABLE, np.int64)
_KEPT: list[Any] = [_TABLE]  # memory that native code may read as long as the process lives

_MESSAGES = {
    handler.MISSING: b"kofn: the program was compiled elsewhere; trace and compile it here first",
    handler.MEMORY: b"kofn: out of memory",
    handler.FAILED: b"kofn: the reference failed to solve a row; see the error above",
}

Finish = Callable[[int, float, int, tuple[int, int], list[int]], None]
"""(kind, alpha, itemsize, (rows, n), addresses of x, out, hi, lo, k, T) -> None"""


@cache
def available(finish: Finish) -> bool:
    """Register the handler; whether XLA takes it, which it does if it has that interface.

    `finish` solves the rows that a kernel gives up on.
    """
    # Untried there: data by the name of a symbol.
    if sys.platform == "win32":
        return False
    binding.add_symbol(handler.SYMBOL, address(_TABLE))
    _TABLE[handler.CALLOC] = _in_python("PyMem_RawCalloc")
    _TABLE[handler.FREE] = _in_python("PyMem_RawFree")
    for place, text in _MESSAGES.items():
        message = ctypes.create_string_buffer(text)
        _TABLE[place] = ctypes.addressof(message)
        _KEPT.append(message)
    try:
        jax.ffi.register_ffi_target(ROWS, _capsule(handler.serve), platform="cpu")
    except Exception:  # of another version
        return False
    _have(finish)
    return True


def _have(finish: Finish) -> None:
    @ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
    def called(at: int) -> int:
        try:
            _finish(finish, at)
        except Exception:  # XLA has no use for it; the program ends with an error of its own
            traceback.print_exc()
            return 1
        return 0

    _TABLE[handler.FINISH] = _address(called)
    _KEPT.append(called)


_PLACES = (worker.X, worker.OUT, worker.HI, worker.LO, worker.K, worker.TEMPERATURE)


def _finish(finish: Finish, at: int) -> None:
    """Call `finish` with the job that stands behind α at an address."""
    alpha = ctypes.c_double.from_address(at).value
    job = (ctypes.c_int64 * worker.WORDS).from_address(at + 8)
    rows = job[shares.COUNT], job[worker.N]
    finish(job[worker.KIND], alpha, job[worker.SIZE], rows, [job[place] for place in _PLACES])


def plan(back: bool, link: Any, n: int, dtype: Any, answer: bool) -> dict[str, Any]:
    """The attributes of a call for rows of n, whose visits are compiled then."""
    kind, size = kind_of(link), dtype.itemsize
    assert kind is not None  # it was asked for by `serving`
    task = handler.AFTER if back else handler.FORWARD
    _compile(task)
    _compile(handler.ASSIST)
    function = worker.after if back else worker.forward
    found = launch.plan_of(function, kind, size, n, back, answer)
    short = n <= interleaved.SHORT
    slot = handler.VISITS + (((back * 2 + short) * len(KINDS) + kind) * 2 + (size == 8))
    _TABLE[slot] = found.visits_at
    _KEPT.append(found.visits)
    room = [found.group, found.chunk, found.room, found.width, 2 * launch.GRAIN]
    alpha = link.alpha if isinstance(link.alpha, float) else 0.0
    numbers = [task, slot, kind, size, *room]
    return {"alpha": np.float64(alpha), "plan": np.array(numbers, np.int64)}


def plan_of_sums(what: int, n: int, dtype: Any) -> dict[str, Any]:
    """The attributes of a call for `what` of contract.py, sums of k-subsets of n."""
    task = handler.SINGLE if dtype.itemsize == 4 else handler.DOUBLE
    _compile(task)
    chunk = max(1, subsets.GRAIN // max(n, 1))
    numbers = [task, task, what, dtype.itemsize, 1, chunk, 0, 0, 2 * subsets.GRAIN]
    return {"alpha": np.float64(0), "plan": np.array(numbers, np.int64)}


_TASKS = {
    handler.FORWARD: handler.forward,
    handler.AFTER: handler.after,
    handler.ASSIST: handler.assist,
    handler.SINGLE: handler.single,
    handler.DOUBLE: handler.double,
}


@cache
def _compile(task: int) -> None:
    """Compile what a thread does, or take it from the disk."""
    _TABLE[task] = _native(_TASKS[task]).address


@cache
def _native(function: Callable[[int], int]) -> Any:
    return kept(partial(cfunc, types.int64(types.int64), error_model="numpy"), function)


def _capsule(function: Callable[[int], int]) -> Any:
    return jax.ffi.pycapsule(_native(function).ctypes)


def _in_python(name: str) -> int:
    return _address(getattr(ctypes.pythonapi, name))


def _address(function: Any) -> int:
    found = ctypes.cast(function, ctypes.c_void_p).value
    assert found
    return found
