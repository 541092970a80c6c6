"""The names by which XLA knows these kernels, and what a compiled program tells them."""

from __future__ import annotations

import ctypes
import traceback
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax.ffi
import jaxlib.version
import numpy as np

from kofn.kernels import missing
from kofn.kernels.contract import KINDS, POWER, kind_of
from kofn.kernels.cpu import jobs
from kofn.kernels.cpu.knapsack import launch as knapsack_launch
from kofn.kernels.cpu.knapsack import layout as knapsack
from kofn.kernels.cpu.rows import launch
from kofn.kernels.cpu.rows import layout as rows
from kofn.kernels.cpu.rows.passes import LOG_WEIGHTS, Answer
from kofn.kernels.cpu.runtime import library, native
from kofn.kernels.cpu.runtime.layout import COUNT, REGISTER
from kofn.kernels.cpu.runtime.memory import address
from kofn.kernels.cpu.runtime.native import Code
from kofn.kernels.cpu.subsets import launch as subsets
from kofn.kernels.cpu.subsets.layout import room_of_sums
from kofn.kernels.cpu.xla import header, layout

ROWS = "kofn_rows"
"""The handler's name in programs."""

_LIBRARY = header.found()
if _LIBRARY is None:  # handler.c is nowhere else
    lacks = missing.LIBRARY if library.found() is None else missing.HANDLER
    raise ImportError("there is no library of compiled kernels with a handler", name=lacks)

_SERVE = _LIBRARY.kofn_xla_serve
_TABLE = (ctypes.c_int64 * layout.TABLE).in_dll(_LIBRARY, layout.SYMBOL)
_KEPT: list[Any] = []  # memory that native code may read as long as the process lives

_MESSAGES = {
    layout.MISSING: b"kofn: the program was compiled elsewhere; trace and compile it here first",
    layout.MEMORY: b"kofn: out of memory",
    layout.FAILED: b"kofn: the reference failed to solve a row; see the error above",
}

Finish = Callable[[int, float, int, tuple[int, int], dict[str, int]], None]
"""(kind, alpha, itemsize, (rows, n), addresses of what a job has, by names of `_PLACES`) -> None"""


@cache
def available(
    weights: Finish, losses: Finish, logarithms: Finish, knapsack: Finish, filled: Finish
) -> bool:
    """Register the handler; whether XLA takes it, which it does if it has that interface.

    The functions solve the rows that a kernel gives up on: their weights, losses, cotangents for
    the ones of logarithms, and weights and hard choices of rows with costs.
    """
    _TABLE[layout.CALLOC] = _in_python("PyMem_RawCalloc")
    _TABLE[layout.FREE] = _in_python("PyMem_RawFree")
    for place, text in _MESSAGES.items():
        message = ctypes.create_string_buffer(text)
        _TABLE[place] = ctypes.addressof(message)
        _KEPT.append(message)
    try:
        jax.ffi.register_ffi_target(ROWS, jax.ffi.pycapsule(_SERVE), platform="cpu")
    except Exception as error:  # XLA has another version of the interface
        warnings.warn(
            "kofn runs its array code in JAX's programs, tens of times slower than its compiled "
            f"code, because jaxlib {jaxlib.version.__version__} refuses it: {error}",
            RuntimeWarning,
            stacklevel=2,
        )
        return False
    _have(layout.FORWARD, weights)
    _have(layout.COMPARE, losses)
    _have(layout.LOGS, logarithms)
    _have(layout.KNAPSACK, knapsack)
    for task in layout.FILLS:
        _have(task, filled)
    return True


def _have(task: int, finish: Finish) -> None:
    @ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
    def called(at: int) -> int:
        try:
            _finish(finish, at)
        except Exception:  # XLA has no use for it; the program ends with an error of its own
            traceback.print_exc()
            return 1
        return 0

    _TABLE[layout.FINISH + task] = _address(called)
    _KEPT.append(called)


_PLACES = {
    "x": rows.X,
    "k": rows.K,
    "t": rows.TEMPERATURE,
    "alpha": rows.ALPHA,
    "hi": rows.HI,
    "lo": rows.LO,
    "g": rows.G,
    "out": rows.OUT,
    "one": rows.ONE,
    "two": rows.TWO,
    "three": rows.THREE,
    "n": rows.N,
    "size": rows.SIZE,
    "kind": rows.KIND,
    "costs": knapsack.COSTS,
}


def _finish(finish: Finish, at: int) -> None:
    """Call `finish` with the job that stands behind α at an address."""
    alpha = ctypes.c_double.from_address(at).value
    job = (ctypes.c_int64 * knapsack.WORDS).from_address(at + 8)
    words = {name: job[place] for name, place in _PLACES.items()}
    shape = job[COUNT], words.pop("n")
    finish(words.pop("kind"), alpha, words.pop("size"), shape, words)


class Call(NamedTuple):
    """A call for rows: what it takes and gives, by name and in the order of the handler.

    An answer is a number per entry, "n", or per row, "r".
    """

    task: int
    code: Code | Answer  # of the task
    takes: str
    gives: str
    sixth: int | None = None  # the kind of the sixth argument
    over: dict[int, int] | None = None  # arguments in whose memory an answer is written


_AFTER = "x, k, t, hi, lo"
_MOVED = f"{_AFTER}, cotangent", "x n, k r, t r"
_COMPARED = f"{_AFTER}, target, p", "residual n, loss r, lever r"
_KNAPSACK = layout.KNAPSACK, knapsack_launch.FORWARD, "x, costs, budget, t"
_PULLED = layout.KNAPSACK_BACK, knapsack_launch.BACKWARD, f"{_KNAPSACK[2]}, hi, lo, cotangent"
CALLS = {
    "threshold": Call(layout.FORWARD, launch.FORWARD, "x, k, t", "hi r, lo r"),
    "weights": Call(layout.FORWARD, launch.FORWARD, "x, k, t", "hi r, lo r, p n"),
    "cotangents": Call(layout.AFTER, launch.AFTER, *_MOVED, layout.ENTRIES),
    "logarithms": Call(
        layout.AT_THETA, LOG_WEIGHTS, f"{_AFTER}, p", "log n", layout.ANSWER, {5: 0}
    ),
    "log_cotangents": Call(layout.LOGS, launch.LOGS, *_MOVED, layout.ENTRIES),
    "losses": Call(layout.COMPARE, launch.COMPARE, *_COMPARED, layout.ENTRIES, {6: 0}),
    "label_losses": Call(layout.COMPARE, launch.COMPARE, *_COMPARED, layout.LABELS, {6: 0}),
    "likelihoods": Call(layout.COMPARE, launch.COMPARE, *_COMPARED, layout.LIKELY, {6: 0}),
    "prices": Call(*_KNAPSACK, "hi r, lo r"),
    "knapsack_weights": Call(*_KNAPSACK, "hi r, lo r, p n"),
    "fill": Call(layout.FILL_SINGLE, knapsack_launch.fill_of(4), _KNAPSACK[2], "left r, p n"),
    "knapsack_cotangents": Call(*_PULLED, "x n, budget r, t r, costs n", layout.ENTRIES),
    "knapsack_cotangents_but_costs": Call(*_PULLED, "x n, budget r, t r", layout.ENTRIES),
}


def plan(
    call: str, link: Any, n: int, dtype: Any, alphas: bool = False, of_alpha: bool = False
) -> dict[str, Any]:
    """Return the attributes of a call for rows of n; write where their passes are.

    With `alphas`, α per row is the last argument; the last answer may be `of_alpha`.
    """
    task, code, _, gives, sixth, _ = CALLS[call]
    kind, size = POWER if alphas else kind_of(link), dtype.itemsize
    assert kind is not None  # `served` has found kernels
    if task in layout.FILLS:
        task = layout.FILL_SINGLE if size == 4 else layout.FILL_DOUBLE
        code = knapsack_launch.fill_of(size)
    _tell(task)
    _tell(layout.ASSIST)
    of_passes = launch.LIKELY if sixth == layout.LIKELY else kind
    plan_of = knapsack_launch.plan_of if task in layout.OF_KNAPSACKS else launch.plan_of
    way = sixth == layout.ENTRIES, " n" in gives
    deal = plan_of(code, of_passes, size, n, *way, of_alpha=of_alpha)
    slot = _slot(call, kind, size, deal.passes, deal.group < 0, of_alpha)
    sizes = [deal.group, deal.chunk, deal.room, deal.width, 2 * jobs.GRAIN]
    return _attributes(link, [task, slot, kind, size, *sizes, sixth or 0, alphas, of_alpha])


def _slot(call: str, kind: int, size: int, passes: Any, short: bool, of_alpha: bool) -> int:
    """Write where the passes of a call are to the table; return the place there."""
    which = 4 * [*CALLS].index(call) + 2 * of_alpha + short
    slot = layout.PASSES + ((which * len(KINDS) + kind) * 2 + (size == 8))
    _TABLE[slot] = address(passes)
    _KEPT.append(passes)
    return slot


def _attributes(link: Any, numbers: list[int]) -> dict[str, Any]:
    alpha = link.alpha if isinstance(link.alpha, float) else 0.0
    return {"alpha": np.float64(alpha), "plan": np.array(numbers, np.int64)}


def plan_of_sums(what: int, n: int, dtype: Any) -> dict[str, Any]:
    """The attributes of a call for `what` of contract.py, sums of k-subsets of n."""
    task = layout.SINGLE if dtype.itemsize == 4 else layout.DOUBLE
    _tell(task)
    chunk = max(1, subsets.GRAIN // max(n, 1))
    width = -(-room_of_sums(n) // (REGISTER // 8)) * (REGISTER // 8)
    numbers = [
        task,
        layout.RUN + task,
        what,
        dtype.itemsize,
        1,
        chunk,
        0,
        width,
        2 * subsets.GRAIN,
        0,
        0,
        0,
    ]
    return {"alpha": np.float64(0), "plan": np.array(numbers, np.int64)}


_RUNS = {
    layout.FORWARD: launch.FORWARD,
    layout.AFTER: launch.AFTER,
    layout.COMPARE: launch.COMPARE,
    layout.LOGS: launch.LOGS,
    layout.AT_THETA: launch.ANSWER,
    layout.KNAPSACK: knapsack_launch.FORWARD,
    layout.KNAPSACK_BACK: knapsack_launch.BACKWARD,
    layout.FILL_SINGLE: knapsack_launch.fill_of(4),
    layout.FILL_DOUBLE: knapsack_launch.fill_of(8),
    layout.ASSIST: launch.ASSIST,
    layout.SINGLE: subsets.code_of("sums", 4),
    layout.DOUBLE: subsets.code_of("sums", 8),
}
"""The function that the threads of each task run."""


def _tell(task: int) -> None:
    """Write where that is to the table."""
    _TABLE[layout.RUN + task] = native.address(_RUNS[task])


def _in_python(name: str) -> int:
    return _address(getattr(ctypes.pythonapi, name))


def _address(function: Any) -> int:
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address
    return address
