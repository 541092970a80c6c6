"""Compiled by XLA once per shape and link: a map as a whole, the solver with its loop inside."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax

try:
    from jax import enable_x64
except ImportError:  # JAX before 0.8
    from jax.experimental import enable_x64  # type: ignore[attr-defined, no-redef]

from kofn._link import Link, by_id
from kofn._rows import Given, Rows
from kofn.threshold import solve


def evaluate(
    function: Callable[..., jax.Array], rows: Rows | Given, *arrays: jax.Array
) -> jax.Array:
    # A link is code, not data: its id is static.
    link_id = rows.link.id
    number, alpha = rows.link.parted()
    rows = rows._replace(link=None)
    return _evaluate(function, link_id, number, alpha, rows, *arrays)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _evaluate(
    function: Callable[..., jax.Array],
    link: int,
    number: float | None,
    alpha: jax.Array | None,
    rows: Any,
    *arrays: jax.Array,
) -> jax.Array:
    link_ = by_id(link, number if alpha is None else alpha)
    return function(rows._replace(link=link_), *arrays)


@partial(jax.jit, static_argnums=0)
def whole(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


@cache
def register(kind: type, names: tuple[str, ...]) -> None:
    """Make a class with these attributes a pytree: arrays are its leaves, integers are static."""

    def flatten(one: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        values = [(name, getattr(one, name)) for name in names]
        fixed = tuple((name, value) for name, value in values if isinstance(value, int))
        return tuple(v for _, v in values if not isinstance(v, int)), fixed

    def unflatten(fixed: tuple[Any, ...], arrays: tuple[Any, ...]) -> Any:
        # Unchecked: JAX puts other things than arrays there too.
        one: Any = object.__new__(kind)
        one.__dict__.update(fixed)
        one.__dict__.update(zip([n for n in names if n not in dict(fixed)], arrays, strict=True))
        return one

    jax.tree_util.register_pytree_node(kind, flatten, unflatten)


def threshold(
    x: jax.Array, k: jax.Array, temperature: jax.Array, link: Link
) -> tuple[jax.Array, jax.Array]:
    return _threshold(x, k, temperature, link.id, *link.parted())


@partial(jax.jit, static_argnums=(3, 4))
def _threshold(
    x: jax.Array,
    k: jax.Array,
    temperature: jax.Array,
    link: int,
    number: float | None,
    alpha: jax.Array | None,
) -> tuple[jax.Array, jax.Array]:
    return solve(x, k, temperature, by_id(link, number if alpha is None else alpha))


def integral_ends(link: int) -> tuple[float, float, float]:
    # float32, JAX's default, would know G(z) − z to a few digits only.
    with jax.ensure_compile_time_eval(), enable_x64(True):
        return by_id(link, None).integral_ends(jax.numpy.asarray(2.0**26))
