"""Rows in main memory: compiled on first use, kept on disk, dealt out to threads.

A kernel takes addresses, not arrays, so one compiled version serves NumPy and torch, read-only
memory included. The search is compiled once; per link and precision only what visits a row.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from kofn.kernels.contract import BOUNDED, kind_of
from kofn.kernels.cpu.rows import layout
from kofn.kernels.cpu.rows.layout import LOGARITHMS as LOGARITHMS
from kofn.kernels.cpu.rows.layout import SERVED as SERVED
from kofn.kernels.cpu.runtime import layout as shared_layout
from kofn.kernels.cpu.runtime import native, pool
from kofn.kernels.cpu.runtime.layout import PART, REGISTER
from kofn.kernels.cpu.runtime.memory import Memory, address, memory_of, per_row, zeros
from kofn.kernels.cpu.runtime.native import Code

_WORDS = REGISTER // 8

FORWARD = Code("rows.worker", "forward", "qqdq")
AFTER = Code("rows.worker", "after", "qqdq")
COMPARE = Code("rows.worker", "compare", "qqdq")
LOGS = Code("rows.worker", "logs", "qqdq")
ASSIST = Code("runtime.split_row", "assist", "q")

LIKELY = -1  # in place of a link's number: nothing is visited

GRAIN = 16_384  # entries a thread takes at once; work is offered to others from twice as many on


def visit(module: str, name: str, kind: int, size: int) -> Code:
    """A visit for a link and numbers of that size, by what makes it in loops.py, interleaved.py."""
    kind = kind if name in layout.BY_LINK else 0
    return Code(f"rows.{module}", name, native.VISIT, "", kind, f"float{8 * size}")


def visits(code: Code, kind: int, size: int, n: int, cotangent: bool) -> list[Code]:
    """What visits rows of n in `code`, in the order of their places in memory."""
    short = n <= layout.SHORT
    names: tuple[str, ...]
    if code is COMPARE:
        of_labels = () if kind == LIKELY else layout.LABELLED
        names = layout.TARGETS if cotangent else of_labels
        return [visit("loss_loops", name, kind, size) for name in names]
    if code is LOGS:
        names = layout.LOG_BACKWARD if cotangent else layout.LOGS
        return [visit("log_loops", name, kind, size) for name in names]
    if code is FORWARD:
        names = layout.FORWARD_ABREAST if short else layout.FORWARD
    elif cotangent:
        names = layout.BACKWARD_ABREAST if short else layout.BACKWARD
    else:
        names, short = layout.VALUE, False
    if kind in BOUNDED:  # nothing to prepare
        names = tuple("evaluate" if name == "first_evaluation" else name for name in names)
    return [visit("interleaved" if short else "loops", name, kind, size) for name in names]


def weights(x: Any, k: Any, temperature: Any, link: Any) -> tuple[Any, Any, bool]:
    """(weights, θ, whether rows were given up) of NumPy arrays or torch tensors."""
    memory = memory_of(x)
    x = memory.packed(x)
    out, theta = memory.empty_like(x), memory.empty(x, (2, *x.shape[:-1]))
    lost = _deal(FORWARD, memory, link, x, k, temperature, theta, out=out)
    return out, theta, lost


def threshold(x: Any, k: Any, temperature: Any, link: Any) -> tuple[Any, bool]:
    """(θ as two floats' worth, (2, …), whether rows were given up)."""
    memory = memory_of(x)
    x = memory.packed(x)
    theta = memory.empty(x, (2, *x.shape[:-1]))
    return theta, _deal(FORWARD, memory, link, x, k, temperature, theta)


def gradients(
    x: Any, cotangent: Any, theta: Any, k: Any, temperature: Any, link: Any
) -> tuple[Any, Any]:
    """Cotangents of the scores, (…, n), and of k and temperature, (2, …), None of two numbers."""
    memory = memory_of(x)
    x, cotangent = memory.packed(x), memory.packed(cotangent)
    out, in_rows = memory.empty_like(x), None
    if type(k) is not float or type(temperature) is not float:
        in_rows = memory.empty(x, (2, *x.shape[:-1]))
    _deal(AFTER, memory, link, x, k, temperature, theta, cotangent, out, in_rows)
    return out, in_rows


def values(x: Any, theta: Any, k: Any, temperature: Any, link: Any) -> Any:
    """S_k and its slope in the temperature, (2, …), from θ."""
    memory = memory_of(x)
    x = memory.packed(x)
    out = memory.empty(x, (2, *x.shape[:-1]))
    _deal(AFTER, memory, link, x, k, temperature, theta, two=out)
    return out


def gaps(
    x: Any, target: Any, weights: Any, theta: Any, k: Any, temperature: Any, link: Any,
    likely: bool = False,
) -> tuple[Any, bool]:  # fmt: skip
    """(Fenchel–Young losses and Σ(p − t)z, (2, …), whether rows were given up: a loss of NaN).

    Or, if `likely`, −log p of a softmax and zeros.

    The target is an array like x, or labels, integers of 64 bits per row. The weights, packed, are
    overwritten with p − t.
    """
    memory = memory_of(x)
    x, target = memory.packed(x), memory.packed(target)
    out = memory.empty(x, (2, *x.shape[:-1]))
    dense = target if target.ndim == x.ndim else None
    labels = None if target.ndim == x.ndim else target
    lost = _deal(
        COMPARE, memory, link, x, k, temperature, theta, dense, weights, out, labels, likely
    )
    return out, lost


def logarithms(x: Any, weights: Any, theta: Any, k: Any, temperature: Any, link: Any) -> Any:
    """The weights, packed, overwritten with their logarithms."""
    memory = memory_of(x)
    x = memory.packed(x)
    _deal(LOGS, memory, link, x, k, temperature, theta, out=weights)
    return weights


def log_gradients(
    x: Any, cotangent: Any, theta: Any, k: Any, temperature: Any, link: Any
) -> tuple[Any, Any, bool]:
    """(cotangents of the scores, (…, n); NaN where a row was given up, and those of T, (2, …);
    whether any row was given up), for cotangents of logarithms.
    """
    memory = memory_of(x)
    x, cotangent = memory.packed(x), memory.packed(cotangent)
    out, in_rows = memory.empty_like(x), memory.empty(x, (2, *x.shape[:-1]))
    lost = _deal(LOGS, memory, link, x, k, temperature, theta, cotangent, out, in_rows)
    return out, in_rows, lost


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
def plan_of(code: Code, kind: int, size: int, n: int, cotangent: bool, answer: bool) -> _Plan:
    found = np.array([*map(native.address, visits(code, kind, size, n, cotangent))], np.int64)
    group = layout.together(n, 3 if cotangent else 2)
    chunk = max(group, GRAIN // n // group * group)
    room = layout.room(n, group, answer)
    width = -(-(room + shared_layout.room(n)) // _WORDS) * _WORDS
    return _Plan(native.function(code), found, address(found), group, chunk, room, width)


def _deal(
    code: Code,
    memory: Memory,
    link: Any,
    x: Any,
    k: Any,
    temperature: Any,
    theta: Any,
    cotangent: Any = None,
    out: Any = None,
    two: Any = None,
    labels: Any = None,
    likely: bool = False,
) -> bool:
    """Rows to threads; whether one was given up.

    A row's answer does not depend on who works on it, or with whom. The arrays stay with the work
    for as long as a thread has it (see shares.py).
    """
    n, size, kind, address = x.shape[-1], x.itemsize, kind_of(link), memory.address
    count = prod(x.shape[:-1])
    assert kind is not None  # it was asked for by `serving`
    of_link = kind if not likely else LIKELY
    answers = out is not None or likely  # else the prepared entries need memory
    plan = plan_of(code, of_link, size, n, cotangent is not None, answers)
    k, k_at = per_row(k, memory, count, size)
    temperature, temperature_at = per_row(temperature, memory, count, size)
    alpha = link.alpha if isinstance(link.alpha, float) else 0.0
    crew = 1 if n * count < 2 * GRAIN else pool.wanted(x)
    own, scratch = zeros(crew * plan.width + _WORDS)
    scratch += -scratch % REGISTER
    shared = scratch + 8 * plan.room if crew > count and n > PART else 0
    high, cotangent_at = address(theta), 0 if cotangent is None else address(cotangent)
    out_at = 0 if out is None else address(out)
    low = high + count * size
    # Two numbers of each row are written after θ, wanted or not: then over k and T of that row.
    one, other = k_at, temperature_at
    if two is not None:
        one = address(two)
        other = one + count * size
    work = 0, 0, count, plan.chunk, 0, plan.group, n, size, kind, shared, plan.visits_at
    labels_at = 0 if labels is None else address(labels)
    rows = high, low, k_at, temperature_at, one, other, labels_at, likely
    places = address(x), cotangent_at, out_at, *rows
    job = array("q", (*work, *places))
    first = job.buffer_info()[0]
    if crew > 1:
        keep = job, own, x, k, temperature, theta, cotangent, out, two, labels
        if shared:
            pool.offer([(shared,)] * (crew - 1), native.function(ASSIST), keep)
        else:
            each = range(1, crew)
            shares = [(first, scratch + 8 * plan.width * i, alpha, False) for i in each]
            pool.offer(shares, plan.run, keep)
    plan.run(first, scratch, alpha, True)
    return job[layout.GIVEN_UP] != 0
