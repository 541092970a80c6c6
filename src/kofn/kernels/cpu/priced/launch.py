"""Rows with costs in main memory: dealt out to threads, each row by worker.py.

As in rows/launch.py, kernels take addresses: one compiled version serves NumPy and torch.
"""

from __future__ import annotations

from array import array
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from kofn.kernels.contract import kind_of
from kofn.kernels.cpu.priced import layout
from kofn.kernels.cpu.rows.launch import ASSIST
from kofn.kernels.cpu.rows.layout import SERVED as SERVED
from kofn.kernels.cpu.runtime import layout as shared_layout
from kofn.kernels.cpu.runtime import native, pool
from kofn.kernels.cpu.runtime.layout import PART, REGISTER
from kofn.kernels.cpu.runtime.memory import address, memory_of, zeros
from kofn.kernels.cpu.runtime.native import Code

FORWARD = Code("priced.worker", "forward", "qqdq")
BACKWARD = Code("priced.worker", "backward", "qqdq")

GRAIN = 16_384  # entries a thread takes at once; work is offered to others from twice as many on


def visits(code: Code, kind: int, size: int, cotangent: bool = True) -> list[Code]:
    """What visits rows in `code`, in the order of their places in memory."""
    forward = code is FORWARD
    names: tuple[str, ...] = layout.FORWARD if forward else layout.BACKWARD
    names = names if forward or cotangent else layout.VALUE
    module = "priced.back_loops" if names is layout.BACKWARD else "priced.loops"
    if size == 8:  # no other precision
        names = tuple("evaluate" if name == "rough" else name for name in names)
    kinds = (kind if name in layout.BY_LINK else 0 for name in names)
    return [
        Code(module, name, native.VISIT, "", of, f"float{8 * size}")
        for name, of in zip(names, kinds, strict=True)
    ]


def codes(kinds: list[int], size: int) -> list[Code]:
    """All that rows with costs need, for links by number and bytes per number."""
    found = [FORWARD, BACKWARD, fill_of(size)]
    for kind in kinds:
        found += visits(FORWARD, kind, size) + visits(BACKWARD, kind, size)
        found += visits(BACKWARD, kind, size, False)
    return found


def fill_of(size: int) -> Code:
    """The work of a thread on hard choices, for numbers of so many bytes."""
    return Code("priced.fill", "fill_single" if size == 4 else "fill_double", "qqdq")


def weights(x: Any, budget: Any, temperature: Any, link: Any, costs: Any) -> tuple[Any, Any, bool]:
    """(weights, θ as two numbers, (2, …), whether rows were given up)."""
    memory = memory_of(x)
    x = memory.packed(x)
    out, theta = memory.empty_like(x), memory.empty(x, (2, *x.shape[:-1]))
    lost = _deal(FORWARD, link, x, costs, budget, temperature, theta, None, out, None, None)
    return out, theta, lost


def threshold(x: Any, budget: Any, temperature: Any, link: Any, costs: Any) -> tuple[Any, bool]:
    """(θ as two numbers, (2, …), whether rows were given up)."""
    memory = memory_of(x)
    x = memory.packed(x)
    theta = memory.empty(x, (2, *x.shape[:-1]))
    lost = _deal(FORWARD, link, x, costs, budget, temperature, theta, None, None, None, None)
    return theta, lost


def gradients(
    x: Any, cotangent: Any, theta: Any, budget: Any, temperature: Any, link: Any, costs: Any,
    of_costs: bool,
) -> tuple[Any, Any, Any, bool]:  # fmt: skip
    """Cotangents of the scores, (…, n), of the costs alike or None, of budget and temperature,
    (2, …), of which the first is NaN in rows that were given up; whether there are any.
    """
    memory = memory_of(x)
    x, cotangent = memory.packed(x), memory.packed(cotangent)
    out, in_rows = memory.empty_like(x), memory.empty(x, (2, *x.shape[:-1]))
    in_costs = memory.empty_like(x) if of_costs else None
    given = link, x, costs, budget, temperature, theta
    lost = _deal(BACKWARD, *given, cotangent, out, in_costs, in_rows)
    return out, in_costs, in_rows, lost


def values(x: Any, theta: Any, budget: Any, temperature: Any, link: Any, costs: Any) -> Any:
    """The values and their slopes in the temperature, (2, …), from θ; of no use where θ is NaN."""
    memory = memory_of(x)
    x = memory.packed(x)
    out = memory.empty(x, (2, *x.shape[:-1]))
    _deal(BACKWARD, link, x, costs, budget, temperature, theta, None, None, None, out)
    return out


def fill(x: Any, costs: Any, budget: Any, temperature: Any) -> tuple[Any, Any]:
    """(what is bought, a number per row that is NaN where the row was given up)."""
    memory = memory_of(x)
    x = memory.packed(x)
    out, lost = memory.empty_like(x), memory.empty(x, x.shape[:-1])
    _deal(fill_of(x.itemsize), None, x, costs, budget, temperature, lost, None, out, None, None)
    return out, lost


@lru_cache(maxsize=512)
def plan_of(
    code: Code, kind: int, size: int, cotangent: bool = True
) -> tuple[Any, np.ndarray, int]:
    """What threads call, and the addresses of what visits a row for them."""
    found = np.array([*map(native.address, visits(code, kind, size, cotangent))], np.int64)
    return native.function(code), found, address(found)


def _deal(
    code: Code, link: Any, x: Any, costs: Any, budget: Any, temperature: Any, theta: Any,
    cotangent: Any, out: Any, in_costs: Any, in_rows: Any,
) -> bool:  # fmt: skip
    """Rows to threads; whether one was given up. No answer depends on who works on it."""
    memory, n, count, size = memory_of(x), x.shape[-1], prod(x.shape[:-1]), x.itemsize
    if count == 0:
        return False
    if link is None:  # hard choices, with a number of their own for each entry
        kind, run, visits_of, visits_at, words = 0, native.function(code), None, 0, n
    else:
        kind, words = kind_of(link) or 0, layout.HEAD + shared_layout.room(n)
        run, visits_of, visits_at = plan_of(code, kind, size, cotangent is not None)
    costs, apart = _rows_of(costs, memory, count, n * size)
    budget, temperature = memory.packed(budget), memory.packed(temperature)
    crew = 1 if n * count < 2 * GRAIN else pool.wanted(x)
    room = -(-words * 8 // REGISTER) * REGISTER
    own, scratch = zeros((crew * room + REGISTER) // 8)
    scratch += -scratch % REGISTER
    team = scratch + 8 * layout.HEAD if link is not None and crew > count and n > PART else 0
    places = (0 if a is None else memory.address(a) for a in (cotangent, out, in_costs))
    high = memory.address(theta)
    pair = memory.address(in_rows) if in_rows is not None else 0
    per_row = high, high + count * size, memory.address(budget), memory.address(temperature)
    chunk = max(1, GRAIN // n)
    head = 0, 0, count, chunk, 0, n, size, kind, team, visits_at
    at = memory.address(x), memory.address(costs), apart
    job = array("q", (*head, *at, *places, *per_row, pair, pair + count * size))
    first, alpha = job.buffer_info()[0], getattr(link, "alpha", None)
    alpha = alpha if isinstance(alpha, float) else 0.0
    if crew > 1:
        answers = theta, out, in_costs, in_rows
        keep = job, own, visits_of, x, costs, budget, temperature, cotangent, answers
        if team:
            pool.offer([(team,)] * (crew - 1), native.function(ASSIST), keep)
        else:
            each = range(1, min(crew, count))
            pool.offer([(first, scratch + room * i, alpha, False) for i in each], run, keep)
    run(first, scratch, alpha, True)
    return job[layout.GIVEN_UP] != 0


def _rows_of(costs: Any, memory: Any, count: int, row: int) -> tuple[Any, int]:
    """(costs in memory, bytes from one row to the next): rows that share them need one copy."""
    steps = costs.stride() if hasattr(costs, "stride") else costs.strides
    if count > 1 and not any(steps[:-1]):
        return memory.packed(costs[(0,) * (costs.ndim - 1)]), 0
    return memory.packed(costs), row
