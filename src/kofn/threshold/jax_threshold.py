"""The solver as a JAX primitive without a derivative, and functions of rows compiled as a whole.

Both are compiled once per shape and link. `formulas/implicit.py` attaches the derivatives of θ.
"""

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

from kofn.arrays.kinds import promoting
from kofn.inputs.given import Given
from kofn.inputs.settled import Rows
from kofn.links.link import Link, by_id
from kofn.solver.reductions import DENSE, Reductions
from kofn.solver.threshold import solve
from kofn.threshold.jax_operators import Operator, Settings, Site, bind, served


def evaluate(
    function: Callable[..., jax.Array],
    rows: Rows | Given,
    over: dict[str, Any],
    *arrays: jax.Array,
) -> jax.Array:
    """Call function(rows, *arrays, **over), compiled as a whole."""
    # A link is code, not data, so its id is a static argument.
    link_id = rows.link.id
    number, alpha = rows.link.static_and_array_alpha()
    bare: Any = rows._replace(link=None)  # type: ignore[arg-type]  # known by its id
    return _evaluate(function, link_id, number, alpha, bare, over, *arrays)


@partial(jax.jit, static_argnums=(0, 1, 2))
@promoting
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
    number, alpha = link.static_and_array_alpha()
    settings = Settings(link.id, number, served(link))
    return _threshold(settings, x, k, temperature, *([] if alpha is None else [alpha]))


@partial(jax.jit, static_argnums=0)
@promoting
def _threshold(settings: Settings, *arrays: jax.Array) -> tuple[jax.Array, jax.Array]:
    high, low = bind(_OPERATOR, *arrays, settings=settings)
    return high, low


def _solve(*arrays: jax.Array, settings: Settings, grouped: bool, over: Reductions = DENSE) -> Any:
    def solve_rows(
        x: jax.Array, k: jax.Array, temperature: jax.Array, alpha: jax.Array | None = None
    ) -> Any:
        return solve(x, k, temperature, settings.link_of(alpha), over)

    each = _rows_in_cache(arrays[0]) if grouped else None
    return solve_rows(*arrays) if each is None else _in_groups(solve_rows, each, *arrays)


def _kernel(site: Site, *values: Any) -> Any:
    return [*site.rows(("x", "k", "t"), values, ["threshold"]).values()]


_OPERATOR = Operator("kofn_threshold", (1, 1), (0,), _solve, _kernel, in_shards=True)


IN_CACHE = 1 << 17
"""Entries whose intermediate arrays stay in cache, and which are enough for cores to share."""


def _rows_in_cache(x: jax.Array) -> int | None:
    """Return how many rows to solve at a time; None for all of them at once.

    None is for few rows or an unknown number.
    """
    count, n = math.prod(x.shape[:-1]), x.shape[-1]
    if not isinstance(count * n, int):
        return None
    groups = -(-count * n // IN_CACHE)
    return None if groups < 2 or count < 2 else -(-count // groups)


def _in_groups(solve_rows: Callable[..., Any], each: int, x: jax.Array, *per_row: Any) -> Any:
    """Solve rows in groups of `each`, which fit in cache: XLA writes every step to memory.

    The loop of a group ends when all thresholds of that group are found.
    """
    batch, n = x.shape[:-1], x.shape[-1]
    count = math.prod(batch)
    groups = -(-count // each)

    def parted(array: Any, *tail: int) -> Any:
        array = array.reshape(count, *tail)
        filled = jax.numpy.pad(array, [(0, groups * each - count)] + [(0, 0)] * len(tail))
        return filled.reshape(groups, each, *tail)

    parts = (parted(x, n), *map(parted, per_row))
    answers = jax.lax.map(lambda part: solve_rows(*part), parts)
    return jax.tree.map(lambda a: a.reshape(-1)[:count].reshape(batch), answers)


def integral_ends(link: str) -> tuple[float, float, float]:
    # In float32, JAX's default, G(z) − z would have only a few accurate digits.
    with jax.ensure_compile_time_eval(), enable_x64(True):
        return by_id(link, None).integral_ends(jax.numpy.asarray(2.0**26))
