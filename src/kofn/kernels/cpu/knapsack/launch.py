"""Rows with costs in main memory: dealt out to threads as other rows, each row by worker.py."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any

from kofn.arrays.typing import Array, Number
from kofn.kernels.contract import LINEAR, link_of
from kofn.kernels.cpu.jobs import GRAIN, Plan, planned
from kofn.kernels.cpu.knapsack import layout
from kofn.kernels.cpu.rows.launch import deal
from kofn.kernels.cpu.rows.layout import SERVED as SERVED
from kofn.kernels.cpu.runtime import native
from kofn.kernels.cpu.runtime.memory import memory_of
from kofn.kernels.cpu.runtime.native import Code
from kofn.links.link import Link

FORWARD = Code("knapsack.worker", "forward", native.WORK)
BACKWARD = Code("knapsack.worker", "backward", native.WORK)

_ANY = link_of(LINEAR, 0.0)  # hard choices are the same for all


def passes_of(code: Code, kind: int, size: int, cotangent: bool = True) -> list[Code]:
    """The passes over rows that `code` calls, in the order of their places in memory."""
    forward = code == FORWARD
    names: tuple[str, ...] = layout.FORWARD if forward else layout.BACKWARD
    names = names if forward or cotangent else layout.VALUE
    module = "knapsack.back_loops" if names is layout.BACKWARD else "knapsack.loops"
    if size == 8:  # no other precision
        names = tuple("evaluate" if name == "rough" else name for name in names)
    kinds = (kind if name in layout.BY_LINK else 0 for name in names)
    return [
        Code(module, name, native.PASS, "", of, f"float{8 * size}")
        for name, of in zip(names, kinds, strict=True)
    ]


def codes(kinds: list[int], size: int) -> list[Code]:
    """The code that rows with costs need, for links by number and bytes per number."""
    needed = [FORWARD, BACKWARD, fill_of(size)]
    for kind in kinds:
        needed += passes_of(FORWARD, kind, size) + passes_of(BACKWARD, kind, size)
        needed += passes_of(BACKWARD, kind, size, False)
    return needed


def fill_of(size: int) -> Code:
    """The work of a thread on hard choices, for numbers of so many bytes."""
    return Code("knapsack.fill", "fill", native.WORK, "", 0, f"float{8 * size}")


def weights(
    x: Array, budget: Number, temperature: Number, link: Link, costs: Array
) -> tuple[Array, Array, bool]:
    """(weights, θ as two numbers, (2, …), whether rows were given up)."""
    memory = memory_of(x)
    x = memory.packed(x)
    out, theta = memory.empty_like(x), memory.empty(x, (2, *x.shape[:-1]))
    return out, theta, _deal(FORWARD, link, x, costs, budget, temperature, theta, out=out)


def threshold(
    x: Array, budget: Number, temperature: Number, link: Link, costs: Array
) -> tuple[Array, bool]:
    """(θ as two numbers, (2, …), whether rows were given up)."""
    memory = memory_of(x)
    x = memory.packed(x)
    theta = memory.empty(x, (2, *x.shape[:-1]))
    return theta, _deal(FORWARD, link, x, costs, budget, temperature, theta)


def gradients(
    x: Array, cotangent: Array, theta: Array, budget: Number, temperature: Number, link: Link,
    costs: Array, of_costs: bool,
) -> tuple[Any, Any, Any, bool]:  # fmt: skip
    """Cotangents of the scores, (…, n), of the costs alike or None, of budget and temperature,
    (2, …), the first NaN in rows that were given up; whether there are any.
    """
    memory = memory_of(x)
    x, cotangent = memory.packed(x), memory.packed(cotangent)
    out, in_rows = memory.empty_like(x), memory.empty(x, (2, *x.shape[:-1]))
    in_costs = memory.empty_like(x) if of_costs else None
    given = link, x, costs, budget, temperature, theta
    lost = _deal(BACKWARD, *given, in_costs, cotangent=cotangent, out=out, two=in_rows)
    return out, in_costs, in_rows, lost


def values(
    x: Array, theta: Array, budget: Number, temperature: Number, link: Link, costs: Array
) -> Array:
    """The values and their slopes in the temperature, (2, …), from θ; of no use where θ is NaN."""
    memory = memory_of(x)
    x = memory.packed(x)
    out = memory.empty(x, (2, *x.shape[:-1]))
    _deal(BACKWARD, link, x, costs, budget, temperature, theta, two=out)
    return out


def fill(x: Array, costs: Array, budget: Number, temperature: Number) -> tuple[Array, Array]:
    """(the bought shares, a number per row that is NaN where the row was given up)."""
    memory = memory_of(x)
    x = memory.packed(x)
    out, lost = memory.empty_like(x), memory.empty(x, x.shape[:-1])
    _deal(fill_of(x.itemsize), _ANY, x, costs, budget, temperature, lost, out=out)
    return out, lost


@lru_cache(maxsize=512)
def plan_of(
    code: Code, kind: int, size: int, n: int, cotangent: bool, *_: bool, **__: bool
) -> Plan:
    """As for other rows; hard choices need no passes, but a number of their own for each entry."""
    if code in (FORWARD, BACKWARD):
        each = passes_of(code, kind, size, cotangent)
        return planned(code, each, n, 1, GRAIN, layout.HEAD, layout.HEAD)
    return planned(code, [], n, 1, GRAIN, n, 0)


def _deal(
    code: Code, link: Link, x: Array, costs: Array, budget: Number, temperature: Number,
    theta: Array, in_costs: Array | None = None, **arrays: Any,
) -> bool:  # fmt: skip
    """Rows to threads; whether one was given up. Rows that share their costs need one copy."""
    memory, apart = memory_of(x), x.shape[-1] * x.itemsize
    own: Any = costs
    steps = own.stride() if hasattr(own, "stride") else own.strides
    if prod(costs.shape[:-1]) > 1 and not any(steps[:-1]):
        costs, apart = costs[(0,) * (costs.ndim - 1)], 0
    given = memory, link, x, budget, temperature, theta
    of_costs = memory.packed(costs), apart, in_costs
    return deal(code, *given, costs=of_costs, planning=plan_of, **arrays)
