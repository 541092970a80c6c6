"""The solver as a JAX function with a custom derivative, compiled once per shape and link."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax

try:
    from jax import enable_x64
except ImportError:  # JAX before 0.8
    from jax.experimental import enable_x64  # type: ignore[attr-defined, no-redef]

from kofn.links.link import Link, by_id
from kofn.rows.given import Given
from kofn.rows.settled import Rows
from kofn.solver.threshold import solve


def evaluate(
    function: Callable[..., jax.Array], rows: Rows | Given, over: dict[str, Any], *arrays: jax.Array
) -> jax.Array:
    # A link is code, not data, so its id is a static argument.
    link_id = rows.link.id
    number, alpha = rows.link.parted()
    rows = rows._replace(link=None)
    return _evaluate(function, link_id, number, alpha, rows, over, *arrays)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _evaluate(
    function: Callable[..., jax.Array],
    link: str,
    number: float | None,
    alpha: jax.Array | None,
    rows: Any,
    over: dict[str, Any],
    *arrays: jax.Array,
) -> jax.Array:
    link_ = by_id(link, number if alpha is None else alpha)
    return function(rows._replace(link=link_), *arrays, **over)


def threshold(
    x: jax.Array, k: jax.Array, temperature: jax.Array, link: Link
) -> tuple[jax.Array, jax.Array]:
    return _threshold(x, k, temperature, link.id, *link.parted())


@partial(jax.jit, static_argnums=(3, 4))
def _threshold(
    x: jax.Array,
    k: jax.Array,
    temperature: jax.Array,
    link: str,
    number: float | None,
    alpha: jax.Array | None,
) -> tuple[jax.Array, jax.Array]:
    def rows(x: jax.Array, k: jax.Array, temperature: jax.Array, alpha: Any) -> Any:
        return solve(x, k, temperature, by_id(link, number if alpha is None else alpha))

    each = _rows_in_cache(x)
    if each is None:
        return rows(x, k, temperature, alpha)

    def grouped(*arrays: Any) -> Any:
        return _in_groups(rows, each, *arrays)

    return jax.lax.platform_dependent(x, k, temperature, alpha, cpu=grouped, default=rows)


IN_CACHE = 1 << 17
"""Entries whose intermediate arrays stay in cache, and which are enough for cores to share."""


def _rows_in_cache(x: jax.Array) -> int | None:
    """Return how many rows to solve at a time; None for all of them at once.

    None is for few rows, an unknown number, or rows sharded over a mesh, which groups would split.
    """
    count, n = math.prod(x.shape[:-1]), x.shape[-1]
    layout = getattr(getattr(x.aval, "sharding", None), "spec", ())
    if not isinstance(count * n, int) or any(axis is not None for axis in layout):
        return None
    groups = -(-count * n // IN_CACHE)
    return None if groups < 2 or count < 2 else -(-count // groups)


def _in_groups(rows: Callable[..., Any], each: int, x: jax.Array, *per_row: Any) -> Any:
    """Solve `rows` in groups of `each`, which fit in cache: XLA writes every step to memory.

    The loop of a group ends when all thresholds of that group are found.
    """
    batch, n = x.shape[:-1], x.shape[-1]
    count = math.prod(batch)
    groups = -(-count // each)

    def parted(array: Any, *tail: int) -> Any:
        array = array.reshape(count, *tail)
        filled = jax.numpy.pad(array, [(0, groups * each - count)] + [(0, 0)] * len(tail))
        return filled.reshape(groups, each, *tail)

    parts = (parted(x, n), *(part if part is None else parted(part) for part in per_row))
    answers = jax.lax.map(lambda part: rows(*part), parts)
    return jax.tree.map(lambda a: a.reshape(-1)[:count].reshape(batch), answers)


def integral_ends(link: str) -> tuple[float, float, float]:
    # In float32, JAX's default, G(z) − z would have only a few accurate digits.
    with jax.ensure_compile_time_eval(), enable_x64(True):
        return by_id(link, None).integral_ends(jax.numpy.asarray(2.0**26))
