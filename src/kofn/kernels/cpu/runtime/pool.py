"""Threads that work together: PyTorch's on tensors, where OpenMP makes them (openmp.py); or a few
that wait for work, while the caller's own does its share and is done when the work is.

No promise hangs on them. A thread that wakes late finds nothing left to do, one that a fork has
lost is not missed. Numba's own pools end the process when two threads enter or a child was forked.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from array import array
from collections.abc import Callable, Sequence
from math import prod
from queue import SimpleQueue
from typing import Any

import numpy as np

from kofn.kernels.cpu.runtime import openmp
from kofn.kernels.cpu.runtime.layout import COUNT, REGISTER
from kofn.kernels.cpu.runtime.memory import rooms

_WORDS = REGISTER // 8

_Work = tuple[Callable[..., None], tuple[Any, ...]]

_queue: SimpleQueue[tuple[_Work, Any] | None] = SimpleQueue()
_threads: list[threading.Thread] = []
_lock = threading.Lock()


def wanted(x: Any) -> int:
    """torch's own setting for tensors; KOFN_NUM_THREADS, else every processor, for NumPy."""
    if not isinstance(x, np.ndarray):
        return sys.modules["torch"].get_num_threads()
    if chosen := os.environ.get("KOFN_NUM_THREADS"):
        if not chosen.isdecimal() or int(chosen) < 1:
            raise ValueError(f"KOFN_NUM_THREADS must be a whole number from 1, got {chosen!r}")
        return int(chosen)
    # What this process may use, where the system tells.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def work_on(
    rows: Any, grain: int, run: Callable[..., None], job: array[int], room: int, number: float,
    keep: Any, cleared: Sequence[range] | None = None,
) -> None:  # fmt: skip
    """Do a job on rows by `run`, a function that takes `native.WORK`; many entries by many threads.

    Each has `room` words of its own, all 0 at first, or those that are to be `cleared`. No answer
    may depend on who works on what.
    """
    crew = 1 if prod(rows.shape) < 2 * grain else min(wanted(rows), job[COUNT])
    room = -(-room // _WORDS) * _WORDS
    own, scratch = rooms(crew, room, cleared=cleared)
    first, _ = job.buffer_info()
    works = [(run, (first, scratch + 8 * room * i, number, i == 0)) for i in range(crew)]
    together(rows, works, (rows, job, own, keep))


def together(rows: Any, works: Sequence[_Work], keep: Any) -> None:
    """Do works, each a function with its arguments, by as many threads; the first of them leads.

    Others are called by another thread some time, or find nothing left to do. Functions are
    `native.function`'s, and release Python's lock; `keep` is the memory they go by.
    """
    (run, arguments), *others = works
    region = openmp.parallel() if others and not isinstance(rows, np.ndarray) else None
    if region is not None:
        openmp.work(region, works)
        return
    if others:
        offer(others, keep)
    run(*arguments)


def offer(works: Sequence[_Work], keep: Any) -> None:
    """Let another thread do each of these works, some time."""
    with _lock:
        while len(_threads) < len(works):
            name = f"kofn_{len(_threads)}"
            thread = threading.Thread(target=_serve, args=(_queue,), name=name, daemon=True)
            thread.start()
            _threads.append(thread)
    for work in works:
        _queue.put((work, keep))


def _serve(queue: SimpleQueue[tuple[_Work, Any] | None]) -> None:
    while (offered := queue.get()) is not None:
        (function, arguments), keep = offered
        function(*arguments)
        del function, arguments, keep, offered


@atexit.register
def _dismiss() -> None:
    """End the threads: Python would end one that comes back from native code, and the process."""
    for _ in _threads:
        _queue.put(None)
    for thread in _threads:
        thread.join(1.0)


def _forget() -> None:
    """A forked child has the queue's memory and none of its threads."""
    global _queue, _lock
    _queue, _lock = SimpleQueue(), threading.Lock()
    _threads.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
