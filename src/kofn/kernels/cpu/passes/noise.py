"""Sums at quadrature nodes, of rows in main memory: dealt out to threads.

As in rows/launch.py, kernels take addresses: one compiled version serves NumPy and torch.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from math import prod
from typing import Any

from kofn.arrays.typing import Array
from kofn.kernels.contract import kind_of, with_formula
from kofn.kernels.cpu.runtime import native, pool
from kofn.kernels.cpu.runtime.memory import memory_of
from kofn.kernels.cpu.runtime.native import Code
from kofn.links.link import Link

SERVED = with_formula("noise")


def codes(kinds: Iterable[int], size: int) -> list[Code]:
    """The code that perturbed_argmax needs, for noises by number and numbers of that size."""
    names = ("logs", "spread", "product")
    return [code_of(name, kind, size) for kind in kinds if kind in SERVED for name in names]


GRAIN = 512  # entries a thread takes at once; there are dozens of nodes


def logs(y: Array, link: Link, at: Array) -> Array:
    """Σ log Φ(m − y) over each row for each m of `at`, (nodes, …, 1)."""
    (totals,) = _deal("logs", y, link, {"AT": at}, ("TOTAL",))
    return totals


def spread(y: Array, link: Link, at: Array, width: Array) -> tuple[Any, Any, Any]:
    """(Σ over nodes of width·e^L φ/Φ like y, L = Σ log Φ and H = Σ φ/Φ of each node)."""
    return _deal("spread", y, link, {"AT": at, "MASS": width}, ("OUT", "V", "TOTAL"))


def product(y: Array, link: Link, at: Array, mass: Array, total: Array, v: Array) -> Array:
    """Σ over nodes of mass·h(v − Σhv/total) like y, h = φ/Φ."""
    given = {"AT": at, "MASS": mass, "TOTAL": total, "V": v}
    (out,) = _deal("product", y, link, given, ("OUT",))
    return out


def code_of(name: str, kind: int, size: int) -> Code:
    """The function that a thread calls, made by `logs`, `spread` or `product` in noise_loops.py."""
    return Code("passes.noise_loops", name, native.WORK, "", kind, f"float{8 * size}")


def _deal(
    name: str, y: Array, link: Link, given: dict[str, Any], wanted: tuple[str, ...]
) -> tuple[Any, ...]:
    """Deal rows to threads; no answer depends on who works on it."""
    memory = memory_of(y)
    y = memory.packed(y)
    n, count = y.shape[-1], prod(y.shape[:-1])
    arrays = {each: memory.packed(values) for each, values in given.items()}
    nodes = arrays["AT"].shape[0]
    shape = (nodes, *y.shape[:-1], 1)
    for each in wanted:
        arrays[each] = memory.empty_like(y) if each == "OUT" else memory.empty(y, shape)
    answers = tuple(arrays[each] for each in wanted)
    if count == 0:
        return answers
    job = array("q", (0, 0, count, max(1, GRAIN // n), n, nodes, memory.address(y)))
    job.extend(
        memory.address(arrays[each]) if each in arrays else 0
        for each in ("AT", "MASS", "TOTAL", "V", "OUT")
    )
    kind = kind_of(link)
    assert kind is not None  # `serving_of` has found kernels
    run = native.function(code_of(name, kind, y.itemsize))
    pool.work_on(y, GRAIN, run, job, 2 * n, 0.0, arrays)
    return answers
