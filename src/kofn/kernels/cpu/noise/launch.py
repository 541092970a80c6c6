"""Sums at quadrature nodes, of rows in main memory: dealt out to threads.

As in rows/launch.py, kernels take addresses: one compiled version serves NumPy and torch.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from functools import cache, partial
from math import prod
from typing import Any

import numpy as np
from numba import njit

from kofn.kernels.contract import kind_of
from kofn.kernels.cpu.noise import worker
from kofn.kernels.cpu.noise.formulas import SERVED as SERVED
from kofn.kernels.cpu.rows import loops
from kofn.kernels.cpu.runtime import pool
from kofn.kernels.cpu.runtime.compile import kept
from kofn.kernels.cpu.runtime.memory import memory_of

GRAIN = 512  # entries a thread takes at once; there are dozens of nodes


def logs(y: Any, link: Any, at: Any) -> Any:
    """Σ log Φ(m − y) over each row for each m of `at`, (nodes, …, 1)."""
    (found,) = _deal(worker.logs, y, link, {"AT": at}, ("TOTAL",))
    return found


def spread(y: Any, link: Any, at: Any, width: Any) -> tuple[Any, Any, Any]:
    """(Σ over nodes of width·e^L φ/Φ like y, L = Σ log Φ and H = Σ φ/Φ of each node)."""
    return _deal(worker.spread, y, link, {"AT": at, "MASS": width}, ("OUT", "V", "TOTAL"))


def product(y: Any, link: Any, at: Any, mass: Any, total: Any, v: Any) -> Any:
    """Σ over nodes of mass·h(v − Σhv/total) like y, h = φ/Φ."""
    given = {"AT": at, "MASS": mass, "TOTAL": total, "V": v}
    (found,) = _deal(worker.product, y, link, given, ("OUT",))
    return found


@cache
def _compiled(make: Callable[..., Any], kind: int, number: Any) -> Any:
    return kept(partial(njit, nogil=True, **loops.OPTIONS), make(kind, number))


def _deal(
    make: Callable[..., Any], y: Any, link: Any, given: dict[str, Any], wanted: tuple[str, ...]
) -> tuple[Any, ...]:
    """Rows to threads; no answer depends on who works on it."""
    memory = memory_of(y)
    y = memory.packed(y)
    n, count = y.shape[-1], prod(y.shape[:-1])
    arrays = {name: memory.packed(values) for name, values in given.items()}
    nodes = arrays["AT"].shape[0]
    shape = (nodes, *y.shape[:-1], 1)
    for name in wanted:
        arrays[name] = memory.empty_like(y) if name == "OUT" else memory.empty(y, shape)
    found = tuple(arrays[name] for name in wanted)
    if count == 0:
        return found
    job = array("q", (0, 0, count, max(1, GRAIN // n), n, nodes, memory.address(y)))
    job.extend(
        memory.address(arrays[name]) if name in arrays else 0
        for name in ("AT", "MASS", "TOTAL", "V", "OUT")
    )
    crew = 1 if n * count < 2 * GRAIN else min(pool.wanted(y), count)
    run = _compiled(make, kind_of(link), np.float32 if y.itemsize == 4 else np.float64)
    first = job.buffer_info()[0]
    if crew > 1:
        pool.offer([(first, False)] * (crew - 1), run, (job, y, arrays))
    run(first, True)
    return found
