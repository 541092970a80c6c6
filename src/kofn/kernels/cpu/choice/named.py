"""Rows with some named entries in main memory, dealt out to threads: see rest.py.

(Tests: test_losses_distillation.py.)
"""

from __future__ import annotations

from math import prod

from kofn.arrays.typing import Array, Number
from kofn.kernels.cpu.choice.launch import offer
from kofn.kernels.cpu.runtime.memory import memory_of, per_row


def rest(x: Array, entries: Array, base: Array, temperature: Number) -> Array:
    """log Σ e^{(x − base)/T} of rows over the entries, int64 (…, m), that are not named.

    No scores are of half precision; n stands for no entry.
    """
    out = memory_of(x).empty(x, x.shape[:-1])
    _deal_rest("rest", x, entries, base, temperature, out, x.shape[-1])
    return out


def rest_gradients(
    x: Array, entries: Array, base: Array, temperature: Number, known: Array, cotangent: Array
) -> tuple[Array, Array | None]:
    """Cotangents of the scores, and of a temperature per row, from those of `rest`, which is known;
    None for a temperature of all rows.
    """
    memory = memory_of(x)
    out = memory.empty(x, x.shape)
    in_t = None if type(temperature) is float else memory.empty(x, x.shape[:-1])
    _deal_rest("rest_back", x, entries, base, temperature, out, 0, known, cotangent, in_t)
    return out, in_t


def _deal_rest(
    name: str, x: Array, entries: Array, base: Array, temperature: Number, out: Array, room: int,
    known: Array | None = None, cotangent: Array | None = None, in_t: Array | None = None,
) -> None:  # fmt: skip
    memory, m = memory_of(x), entries.shape[-1]
    x, entries, base = (memory.packed(each) for each in (x, entries, base))
    t, t_at = per_row(temperature, memory, prod(x.shape[:-1]), x.itemsize)
    packed = [None if each is None else memory.packed(each) for each in (known, cotangent)]
    places = (0 if each is None else memory.address(each) for each in (out, *packed, in_t))
    job = memory.address(x), memory.address(entries), m, memory.address(base), t_at, *places
    offer(name, x, job, 0.0, room, (entries, base, t, out, packed, in_t), cleared=())
