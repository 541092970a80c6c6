"""Rows in main memory: compiled on first use, kept on disk, dealt out to threads.

A kernel takes addresses, not arrays, so one compiled version serves NumPy and torch, read-only
memory included. The search is compiled once; per link and precision only what visits a row.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from functools import cache, lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numba import cfunc

from kofn.kernels.contract import BOUNDED, kind_of
from kofn.kernels.cpu.rows import interleaved, loops, worker
from kofn.kernels.cpu.rows.formulas import SERVED as SERVED
from kofn.kernels.cpu.runtime import intrinsics, pool, split_row
from kofn.kernels.cpu.runtime.compile import (
    address,
    compiled,
    in_numpy,
    named_by_sources,
    packed,
    zeros,
)

_WORDS = intrinsics.REGISTER // 8

GRAIN = 16_384  # entries a thread takes at once; work is offered to others from twice as many on


@cache
def visit(make: Callable[..., Any], kind: int, number: Any) -> Any:
    """What `make` of loops.py makes for a link and a type, compiled or from the disk."""
    return cfunc(intrinsics.VISIT, cache=True, **loops.OPTIONS)(
        named_by_sources(make(kind, number))
    )


@cache
def _visits(every: tuple[Callable[..., Any], ...], kind: int, number: Any) -> np.ndarray:
    if kind in BOUNDED:  # nothing to prepare
        spared = {loops.first_look: loops.look, interleaved.first_look: interleaved.look}
        every = tuple(spared.get(make, make) for make in every)
    by_link = loops.BY_LINK | interleaved.BY_LINK
    found = [visit(make, kind if make in by_link else 0, number) for make in every]
    return np.array([one.address for one in found])


def weights(x: Any, k: Any, temperature: Any, link: Any) -> tuple[Any, Any, bool]:
    """(weights, θ, whether rows were given up) of NumPy arrays or torch tensors."""
    x, k, temperature = packed(x), packed(k), packed(temperature)
    out, theta = _empty(x, x.shape), _empty(x, (2, *k.shape))
    high, low = _halves(theta)
    arrays = [address(x), 0, address(out), high, low, address(k), address(temperature), 0, 0]
    return out, theta, _deal(worker.forward, link, x, arrays, (out, theta, k, temperature))


def threshold(x: Any, k: Any, temperature: Any, link: Any) -> tuple[Any, bool]:
    """(θ as two floats' worth, (2, …), whether rows were given up)."""
    x, k, temperature = packed(x), packed(k), packed(temperature)
    theta = _empty(x, (2, *k.shape))
    arrays = [address(x), 0, 0, *_halves(theta), address(k), address(temperature), 0, 0]
    return theta, _deal(worker.forward, link, x, arrays, (theta, k, temperature))


def gradients(
    x: Any, cotangent: Any, theta: Any, k: Any, temperature: Any, link: Any
) -> tuple[Any, Any]:
    """Cotangents of the scores, (…, n), and of k and temperature, (2, …)."""
    x, cotangent, k, temperature = packed(x), packed(cotangent), packed(k), packed(temperature)
    out, in_rows = _empty(x, x.shape), _empty(x, (2, *k.shape))
    numbers = [address(k), address(temperature), *_halves(in_rows)]
    arrays = [address(x), address(cotangent), address(out), *_halves(theta), *numbers]
    _deal(worker.after, link, x, arrays, (cotangent, theta, k, temperature, out, in_rows))
    return out, in_rows


def values(x: Any, theta: Any, k: Any, temperature: Any, link: Any) -> Any:
    """S_k and its slope in the temperature, (2, …), from θ."""
    x, k, temperature = packed(x), packed(k), packed(temperature)
    out = _empty(x, (2, *k.shape))
    numbers = [address(k), address(temperature), *_halves(out)]
    arrays = [address(x), 0, 0, *_halves(theta), *numbers]
    _deal(worker.after, link, x, arrays, (theta, k, temperature, out))
    return out


def _empty(like: Any, shape: tuple[int, ...]) -> Any:
    return np.empty(shape, like.dtype) if in_numpy(like) else like.new_empty(shape)


def _halves(pair: Any) -> tuple[int, int]:
    """Where the two rows of numbers of a (2, …) begin."""
    first = address(pair)
    return first, first + prod(pair.shape[1:]) * pair.itemsize


class _Plan(NamedTuple):
    """How rows of one length, link and precision are dealt out: the same at every call."""

    run: Callable[..., Any]
    visits: np.ndarray
    visits_at: int
    group: int  # rows that a thread searches together
    chunk: int  # rows that a thread takes at once
    room: int  # words of its own memory that are not shared with a team
    width: int  # words of its own memory


@lru_cache(maxsize=512)
def plan_of(
    function: Callable[..., Any], kind: int, size: int, n: int, cotangent: bool, answer: bool
) -> _Plan:
    number = np.float32 if size == 4 else np.float64
    of_rows = interleaved if n <= interleaved.SHORT else loops
    if function is worker.forward:
        visits = _visits(of_rows.FORWARD, kind, number)
    else:
        visits = _visits(of_rows.BACKWARD if cotangent else loops.VALUE, kind, number)
    group = worker.together(n, 3 if cotangent else 2)
    chunk = max(group, GRAIN // n // group * group)
    room = worker.room(n, group, answer)
    width = -(-(room + split_row.room(n)) // _WORDS) * _WORDS
    return _Plan(compiled(function), visits, address(visits), group, chunk, room, width)


def _deal(
    function: Callable[..., Any], link: Any, x: Any, arrays: list[int], others: tuple[Any, ...]
) -> bool:
    """Rows to threads; whether one was given up.

    A row's answer does not depend on who works on it, or with whom. `arrays` are the addresses of x
    and `others`, which stay with the work for as long as a thread has it (see shares.py).
    """
    *batch, n = x.shape
    count, kind, size = prod(batch), kind_of(link), x.itemsize
    assert kind is not None  # it was asked for by `serving`
    plan = plan_of(function, kind, size, n, arrays[1] != 0, arrays[2] != 0)
    alpha = link.alpha if isinstance(link.alpha, float) else 0.0
    crew = 1 if n * count < 2 * GRAIN else pool.wanted(x)
    own, memory = zeros(crew * plan.width + _WORDS)
    memory += -memory % intrinsics.REGISTER
    shared = memory + 8 * plan.room if crew > count and n > split_row.PART else 0
    shape = [plan.group, n, size, kind, shared, plan.visits_at]
    job = array("q", [0, 0, count, plan.chunk, 0, *shape, *arrays])
    first = job.buffer_info()[0]
    keep = job, own, x, others
    if shared:
        pool.offer([(shared,)] * (crew - 1), compiled(split_row.assist), keep)
    elif crew > 1:
        width = 8 * plan.width
        helpers = [(first, memory + i * width, alpha, False) for i in range(1, crew)]
        pool.offer(helpers, plan.run, keep)
    plan.run(first, memory, alpha, True)
    return job[worker.GIVEN_UP] != 0
