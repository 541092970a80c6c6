"""Sums at quadrature nodes, of rows in main memory: dealt out to threads.

As in rows/launch.py, kernels take addresses: one compiled version serves NumPy and torch.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from math import prod
from typing import Any

from kofn.arrays.typing import Array
from kofn.kernels.contract import LATTICES, kind_of, with_formula
from kofn.kernels.cpu.passes.layout import LATTICE
from kofn.kernels.cpu.runtime import native, pool
from kofn.kernels.cpu.runtime.memory import memory_of, per_row
from kofn.kernels.cpu.runtime.native import Code
from kofn.links.link import Link

SERVED = with_formula("noise")


def codes(kinds: Iterable[int], size: int) -> list[Code]:
    """The code that perturbed_argmax needs, for noises by number and numbers of that size."""
    codes = []
    for kind in kinds:
        if kind in SERVED:
            codes.append(code_of("logs", kind, size))
            others = _lattice(kind), code_of("spread", kind, size), code_of("product", kind, size)
            codes += others[:1] if size == 4 and kind in LATTICES else others[1:]
    return codes


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


def largest(x: Array, temperature: Any, link: Link) -> Any:
    """p of rows."""
    return _on_lattice(x, temperature, link)[0]


def cotangents(x: Array, temperature: Any, link: Link, v: Array, *p: Array) -> tuple[Any, Any]:
    """The cotangents of scores and temperatures, from v, those of p; v is not read where p is 0."""
    return _on_lattice(x, temperature, link, v, *p)


def _on_lattice(x: Array, temperature: Any, link: Link, *given: Array) -> tuple[Any, Any]:
    memory = memory_of(x)
    x, *packed = map(memory.packed, (x, *given))
    n, count = x.shape[-1], prod(x.shape[:-1])
    out, in_t = memory.empty_like(x), memory.empty(x, x.shape[:-1])
    if count:
        temperature, at = per_row(temperature, memory, count, x.itemsize)
        v, p = [*map(memory.address, packed), 0, 0][:2]
        job = array("q", (0, 0, count, max(1, GRAIN // n), n, memory.address(x), at, v, p))
        job.extend(map(memory.address, (out, in_t)))
        run = native.function(_lattice(kind_of(link)))
        room, keep = LATTICE + (n + 1) // 2, (x, temperature, packed, out, in_t)
        pool.work_on(x, GRAIN, run, job, room, 0.0, keep, (range(LATTICE),))
    return out, in_t


def _lattice(kind: int | None) -> Code:
    return Code("passes.lattice_loops", "lattice", native.WORK, "", kind, "float32")


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
