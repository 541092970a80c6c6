"""Rows in main memory: kernels compiled on first use, rows dealt out to a small pool of threads.

A kernel takes addresses, not arrays, so one compiled version serves NumPy and torch, read-only
memory included, and the call costs a microsecond. It holds no lock of Python's; the threads are
ours, since Numba's own pools end the process when two threads enter or a child was forked.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numba import carray, njit, types
from numba.extending import intrinsic

from kofn import implicit, links
from kofn._rows import Given, rows_of
from kofn.kernels import elementary, entries, rows, search
from kofn.threshold import solve

KINDS = {
    links.logistic.id: entries.LOGISTIC,
    links.laplace.id: entries.LAPLACE,
    links.normal.id: entries.NORMAL,
    links.exponential.id: entries.EXPONENTIAL,
    links.linear.id: entries.LINEAR,
}

GRAIN = 16_384  # entries below which another thread costs more than it does


def kind_of(link: Any) -> int | None:
    """The kernels' number for a link, None where they do not have it."""
    if link.id == links.TABLE["entmax"].id:
        at = {1.0: entries.EXPONENTIAL, 1.5: entries.SQUARE, 2.0: entries.LINEAR}
        return at.get(link.alpha) if isinstance(link.alpha, float) else None
    return KINDS.get(link.id)


@intrinsic
def _pointer(typingctx, address):
    """An integer as the address it is."""

    def codegen(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(address), codegen


# What varies is a constant of the closure, an integer or a NumPy type, because Numba's cache on
# disk tells closures apart by the value of those; a function there would never be found again.
# That cache looks at this file alone, so what the kernels are made of is such a constant too.
_SOURCES = zlib.crc32(
    b"".join(Path(str(m.__file__)).read_bytes() for m in (elementary, entries, search, rows))
)


def weights(x: Any, k: Any, temperature: Any, link: Any) -> tuple[Any, Any, Any]:
    """(weights, θ as two floats) of NumPy arrays or torch tensors: (…, n) and (…)."""
    x, k, temperature = _packed(x), _packed(k), _packed(temperature)
    out, hi, lo = _empty_like(x), _empty_like(k), _empty_like(k)
    _deal(_weights(kind_of(link), _number(x)), (x, out, hi, lo, k, temperature))
    lost = np.isnan(np.asarray(lo)) & ~np.isnan(np.asarray(hi))
    if lost.any():
        n = x.shape[-1]
        tall = [np.asarray(a).reshape(-1, n) for a in (x, out)]
        _finish(tall + [np.asarray(a).reshape(-1) for a in (hi, lo, k, temperature)], lost, link)
    return out, hi, lo


def _finish(arrays: list[Any], lost: Any, link: Any) -> None:
    """Rows on which a kernel gave up, some of those spread over more than 10⁵ temperatures."""
    x, out, hi, lo, k, temperature = arrays
    lost = lost.reshape(-1)
    with np.errstate(all="ignore"):
        rows = rows_of(Given(x[lost], k[lost], temperature[lost], link))
        hi[lost], lo[lost] = solve(rows.scores, rows.k, rows.temperature, link)
        out[lost] = implicit.weights(rows)


def gradients(
    x: Any, cotangent: Any, hi: Any, lo: Any, k: Any, temperature: Any, link: Any
) -> tuple[Any, Any, Any]:
    """Cotangents of scores, k and temperature."""
    x, cotangent, k, temperature = (_packed(a) for a in (x, cotangent, k, temperature))
    out, in_k, in_t = _empty_like(x), _empty_like(k), _empty_like(k)
    arrays = (x, cotangent, out, hi, lo, k, temperature, in_k, in_t)
    _deal(_gradients(kind_of(link), _number(x)), arrays)
    return out, in_k, in_t


@cache
def _weights(kind: int, number: Any) -> Callable[..., None]:
    sources = _SOURCES

    @njit(nogil=True, cache=True, error_model="numpy")
    def run(x, out, hi, lo, k, t, count, n, first, last):
        assert sources  # so that the cache goes by them
        scores = carray(_pointer(x), (count, n), number)
        chosen = carray(_pointer(out), (count, n), number)
        high = carray(_pointer(hi), (count,), number)
        low = carray(_pointer(lo), (count,), number)
        ks = carray(_pointer(k), (count,), number)
        ts = carray(_pointer(t), (count,), number)
        for i in range(first, last):
            wanted, temperature = np.float64(ks[i]), np.float64(ts[i])
            high[i], low[i] = rows.weights(kind, scores[i], chosen[i], wanted, temperature, 1.5)

    return run


@cache
def _gradients(kind: int, number: Any) -> Callable[..., None]:
    sources = _SOURCES

    @njit(nogil=True, cache=True, error_model="numpy")
    def run(x, g, out, hi, lo, k, t, dk, dt, count, n, first, last):
        assert sources  # so that the cache goes by them
        scores = carray(_pointer(x), (count, n), number)
        cotangent = carray(_pointer(g), (count, n), number)
        slopes = carray(_pointer(out), (count, n), number)
        high = carray(_pointer(hi), (count,), number)
        low = carray(_pointer(lo), (count,), number)
        ks = carray(_pointer(k), (count,), number)
        ts = carray(_pointer(t), (count,), number)
        in_k = carray(_pointer(dk), (count,), number)
        in_t = carray(_pointer(dt), (count,), number)
        for i in range(first, last):
            wanted, temperature = np.float64(ks[i]), np.float64(ts[i])
            in_k[i], in_t[i] = rows.gradients(
                kind, scores[i], cotangent[i], slopes[i], high[i], low[i], wanted, temperature, 1.5
            )

    return run


def _packed(x: Any) -> Any:
    """`x` in rows without gaps: itself, or one copy."""
    return np.ascontiguousarray(x) if isinstance(x, np.ndarray) else x.detach().contiguous()


def _empty_like(x: Any) -> Any:
    return np.empty_like(x) if isinstance(x, np.ndarray) else x.new_empty(x.shape)


def _number(x: Any) -> Any:
    return np.float32 if x.itemsize == 4 else np.float64


def _address(x: Any) -> int:
    return x.__array_interface__["data"][0] if isinstance(x, np.ndarray) else x.data_ptr()


def _threads(x: Any) -> int:
    """torch's own setting for tensors; KOFN_NUM_THREADS, else every processor, for NumPy."""
    if not isinstance(x, np.ndarray):
        return sys.modules["torch"].get_num_threads()
    if chosen := os.environ.get("KOFN_NUM_THREADS"):
        return int(chosen)
    # What this process may use, where the system tells.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_POOL: tuple[int, ThreadPoolExecutor] | None = None
_POOL_LOCK = threading.Lock()


def _forget_pool() -> None:
    """A forked child has the pool's memory and none of its threads."""
    global _POOL, _POOL_LOCK
    _POOL, _POOL_LOCK = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)


def _pool(threads: int) -> ThreadPoolExecutor:
    global _POOL
    with _POOL_LOCK:
        if _POOL is None or _POOL[0] < threads:
            _POOL = (threads, ThreadPoolExecutor(threads, "kofn"))
        return _POOL[1]


def _deal(run: Callable[..., None], arrays: tuple[Any, ...]) -> None:
    """Rows to threads, the last share to the caller. A row's answer does not depend on the deal."""
    n = arrays[0].shape[-1]
    count = math.prod(arrays[0].shape[:-1])
    addresses = tuple(_address(a) for a in arrays)
    shares = max(1, min(_threads(arrays[0]), count, count * n // GRAIN))
    if shares == 1:
        run(*addresses, count, n, 0, count)
        return
    cuts = [count * i // shares for i in range(shares + 1)]
    pool = _pool(shares - 1)
    others = [
        pool.submit(run, *addresses, count, n, cuts[i], cuts[i + 1]) for i in range(shares - 1)
    ]
    run(*addresses, count, n, cuts[-2], cuts[-1])
    for other in others:
        other.result()
