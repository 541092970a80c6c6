"""Rows in groups that fit in a CPU's cache: XLA writes every step of a program to memory.

(Tests: test_solver.py.)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax

IN_CACHE = 1 << 17
"""Entries whose intermediate arrays stay in cache, and which are enough for cores to share."""


def in_groups(function: Callable[..., Any], entries: tuple[int, ...], *arrays: Any) -> Any:
    """Return function(*arrays), of rows in groups; `entries` are the arrays with one per entry.

    Loops and branches of a group wait for no other group.
    """
    x = arrays[entries[0]]
    batch, each = x.shape[:-1], _rows_in_cache(x)
    if each is None:
        return function(*arrays)
    count = math.prod(batch)
    groups = -(-count // each)

    def parted(i: int, array: Any) -> Any:
        tail = array.shape[-1:] if i in entries else ()
        array = array.reshape(count, *tail)
        if rest := groups * each - count:
            array = jax.numpy.pad(array, [(0, rest)] + [(0, 0)] * len(tail))
        return array.reshape(groups, each, *tail)

    parts = [parted(i, array) for i, array in enumerate(arrays)]
    answers = jax.lax.map(lambda part: function(*part), parts)

    def whole(answer: Any) -> Any:
        return answer.reshape(-1, *answer.shape[2:])[:count].reshape(*batch, *answer.shape[2:])

    return jax.tree.map(whole, answers)


def _rows_in_cache(x: jax.Array) -> int | None:
    """Return how many rows to compute at a time; None for all of them at once.

    None is for few rows or an unknown number.
    """
    count, n = math.prod(x.shape[:-1]), x.shape[-1]
    if not isinstance(count * n, int):
        return None
    groups = -(-count * n // IN_CACHE)
    return None if groups < 2 or count < 2 else -(-count // groups)
