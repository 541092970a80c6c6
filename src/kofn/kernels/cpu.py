"""Rows in main memory: compiled on first use, kept on disk, dealt out to threads.

A kernel takes addresses, not arrays, so one compiled version serves NumPy and torch, read-only
memory included. The search is compiled once; per link and precision only what visits a row.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numba import cfunc, njit

from kofn import implicit, links
from kofn._rows import Given, rows_of
from kofn.kernels import abreast, entries, native, passes, rows, team, threads
from kofn.links import table
from kofn.solver.plateau import at_end
from kofn.solver.reductions import DENSE
from kofn.solver.threshold import solve

KINDS = {
    links.logistic.id: entries.LOGISTIC,
    links.laplace.id: entries.LAPLACE,
    links.normal.id: entries.NORMAL,
    links.exponential.id: entries.EXPONENTIAL,
    links.linear.inner.id: entries.LINEAR,
}

_WORDS = native.REGISTER // 8

GRAIN = 16_384  # entries a thread takes at once; work is offered to others from twice as many on


def kind_of(link: Any) -> int | None:
    """The kernels' number for an inner link, None where they do not have it."""
    if link.id != table.TABLE["entmax"].inner.id:
        return KINDS.get(link.id)
    alpha = link.alpha
    if not isinstance(alpha, float):
        return None
    at = {1.0: entries.EXPONENTIAL, 1.5: entries.SQUARE, 2.0: entries.LINEAR}
    # Nearer to 1 the power loses digits; beyond 2 the slope is infinite at the support's end.
    return at.get(alpha, entries.POWER if 1.2 <= alpha < 2 else None)


# Numba's cache on disk goes by a function's name, its file and the value of what it closes over.
# What that misses, the other files a kernel is made of, becomes part of the name.
_SOURCES = zlib.crc32(
    b"".join(
        file.read_bytes()
        for file in sorted(Path(__file__).parent.glob("*.py"))
        if not file.name.startswith("gpu")
    )
)


def _named_by_sources(function: Callable[..., Any]) -> Callable[..., Any]:
    function.__qualname__ = f"{function.__qualname__}_{_SOURCES:08x}"
    return function


@cache
def visit(make: Callable[..., Any], kind: int, number: Any) -> Any:
    """What `make` of passes.py makes for a link and a type, compiled or from the disk."""
    return cfunc(native.VISIT, cache=True, **passes.OPTIONS)(_named_by_sources(make(kind, number)))


@cache
def _visits(every: tuple[Callable[..., Any], ...], kind: int, number: Any) -> np.ndarray:
    if kind in entries.BOUNDED:  # nothing to prepare
        spared = {passes.first_look: passes.look, abreast.first_look: abreast.look}
        every = tuple(spared.get(make, make) for make in every)
    by_link = passes.BY_LINK | abreast.BY_LINK
    found = [visit(make, kind if make in by_link else 0, number) for make in every]
    return np.array([one.address for one in found])


@cache
def compiled(function: Callable[..., Any]) -> Callable[..., None]:
    """What a thread calls, by addresses; compiled or from the disk."""
    return njit(error_model="numpy", nogil=True, cache=True)(_named_by_sources(function))


def weights(x: Any, k: Any, temperature: Any, link: Any) -> tuple[Any, Any]:
    """(weights, θ) of NumPy arrays or torch tensors: (…, n) and two floats' worth, (2, …)."""
    x, k, temperature = packed(x), packed(k), packed(temperature)
    out, theta = _empty(x, x.shape), _empty(x, (2, *k.shape))
    high, low = _halves(theta)
    arrays = [address(x), 0, address(out), high, low, address(k), address(temperature), 0, 0]
    if _deal(rows.forward, link, x, arrays, (out, theta, k, temperature)):
        _finish(x, out, theta, k, temperature, link)
    return out, theta


def threshold(x: Any, k: Any, temperature: Any, link: Any) -> Any:
    """θ as two floats' worth, (2, …): what kofn.solver.threshold.solve returns."""
    x, k, temperature = packed(x), packed(k), packed(temperature)
    theta = _empty(x, (2, *k.shape))
    arrays = [address(x), 0, 0, *_halves(theta), address(k), address(temperature), 0, 0]
    if _deal(rows.forward, link, x, arrays, (theta, k, temperature)):
        _finish(x, None, theta, k, temperature, link)
    return theta


def _finish(x: Any, out: Any, theta: Any, k: Any, temperature: Any, link: Any) -> None:
    """Rows on which a kernel gave up, some of those spread over more than 10⁵ temperatures.

    By the reference in float64, where squares of float32 scores neither overflow nor underflow.
    """
    x, theta, k, temperature = (np.asarray(a) for a in (x, theta, k, temperature))
    lost, info = np.isnan(theta[1]), np.finfo(x.dtype)
    scores, count, scale = (np.asarray(a[lost], np.float64) for a in (x, k, temperature))
    with np.errstate(all="ignore"):
        scores = np.where(scores <= info.min / 2, -np.inf, scores)
        rows = rows_of(Given(scores, count, scale, link))
        found = solve(rows.scores, rows.k, rows.temperature, link)
        if link.capped is not False:  # the way back begins at θ, and moves it no more
            found = at_end(rows.scores, rows.k, rows.temperature, link, *found, DENSE)
        if out is not None:
            np.asarray(out)[lost] = implicit.weights(rows, found=found)
        high = np.clip(found[0], info.min, info.max).astype(x.dtype)
        theta[:, lost] = high, (found[0] - high) + found[1]  # finite: closed rows are not lost


def gradients(
    x: Any, cotangent: Any, theta: Any, k: Any, temperature: Any, link: Any
) -> tuple[Any, Any]:
    """Cotangents of the scores, (…, n), and of k and temperature, (2, …)."""
    x, cotangent, k, temperature = (packed(a) for a in (x, cotangent, k, temperature))
    out, in_rows = _empty(x, x.shape), _empty(x, (2, *k.shape))
    numbers = [address(k), address(temperature), *_halves(in_rows)]
    arrays = [address(x), address(cotangent), address(out), *_halves(theta), *numbers]
    _deal(rows.after, link, x, arrays, (cotangent, theta, k, temperature, out, in_rows))
    return out, in_rows


def values(x: Any, theta: Any, k: Any, temperature: Any, link: Any) -> Any:
    """S_k and its slope in the temperature, (2, …), from θ."""
    x, k, temperature = packed(x), packed(k), packed(temperature)
    out = _empty(x, (2, *k.shape))
    numbers = [address(k), address(temperature), *_halves(out)]
    arrays = [address(x), 0, 0, *_halves(theta), *numbers]
    _deal(rows.after, link, x, arrays, (theta, k, temperature, out))
    return out


_ARRAYS = (np.ndarray, np.generic)  # asked for a dozen times in every call


def _plain(x: Any) -> bool:
    """Whether it is NumPy's, not a tensor."""
    return isinstance(x, _ARRAYS)


def packed(x: Any) -> Any:
    """`x` in rows without gaps: itself, or one copy."""
    return np.asarray(x, order="C") if _plain(x) else x.resolve_neg().contiguous()


def _empty(like: Any, shape: tuple[int, ...]) -> Any:
    return np.empty(shape, like.dtype) if _plain(like) else like.new_empty(shape)


def address(x: Any) -> int:
    return x.__array_interface__["data"][0] if _plain(x) else x.data_ptr()


def _halves(pair: Any) -> tuple[int, int]:
    """Where the two rows of numbers of a (2, …) begin."""
    first = address(pair)
    return first, first + prod(pair.shape[1:]) * pair.itemsize


def _deal(
    function: Callable[..., Any], link: Any, x: Any, arrays: list[int], others: tuple[Any, ...]
) -> bool:
    """Rows to threads; whether one was given up.

    A row's answer does not depend on who works on it, or with whom. `arrays` are the addresses of x
    and `others`, which stay with the work for as long as a thread has it (see shares.py).
    """
    n, count = x.shape[-1], prod(x.shape[:-1])
    kind, number = kind_of(link), np.float32 if x.itemsize == 4 else np.float64
    of_rows = abreast if n <= abreast.SHORT else passes
    if function is rows.forward:
        visits = _visits(of_rows.FORWARD, kind, number)
    else:
        visits = _visits(of_rows.BACKWARD if arrays[1] else passes.VALUE, kind, number)
    alpha = link.alpha if isinstance(link.alpha, float) else 0.0
    group = rows.together(n, 3 if arrays[1] else 2)
    chunk = max(group, GRAIN // n // group * group)
    crew = 1 if n * count < 2 * GRAIN else threads.wanted(x)
    room = rows.room(n, group, bool(arrays[2]))
    width = -(-(room + team.room(n)) // _WORDS) * _WORDS
    own = np.zeros(crew * width + _WORDS)
    memory = address(own)
    memory += -memory % native.REGISTER
    shared = memory + 8 * room if crew > count and n > team.PART else 0
    shape = [group, n, x.itemsize, kind, shared, address(visits)]
    job = np.array([0, 0, count, chunk, 0, *shape, *arrays])
    run, first = compiled(function), address(job)
    keep = job, own, x, others
    if shared:
        threads.offer([(shared,)] * (crew - 1), compiled(team.assist), keep)
    elif crew > 1:
        helpers = [(first, memory + 8 * i * width, alpha, False) for i in range(1, crew)]
        threads.offer(helpers, run, keep)
    run(first, memory, alpha, True)
    return bool(job[rows.GIVEN_UP])
