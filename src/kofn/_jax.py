"""Compiled by XLA once per shape and link: a map as a whole, the solver with its loop inside."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax

from kofn._link import by_id
from kofn._rows import Rows
from kofn.threshold import solve


def evaluate(function: Callable[..., jax.Array], rows: Rows, *arrays: jax.Array) -> jax.Array:
    # A link is code, not data: its id is static, its parameter an argument.
    link = rows.link
    return _evaluate(function, link.id, link.alpha, rows._replace(link=None), *arrays)


@partial(jax.jit, static_argnums=(0, 1))
def _evaluate(
    function: Callable[..., jax.Array], link: int, alpha: Any, rows: Any, *arrays: jax.Array
) -> jax.Array:
    return function(rows._replace(link=by_id(link, alpha)), *arrays)


@partial(jax.jit, static_argnums=4)
def threshold(
    x: jax.Array, k: jax.Array, temperature: jax.Array, alpha: jax.Array | None, link: int
) -> tuple[jax.Array, jax.Array]:
    return solve(x, k, temperature, by_id(link, alpha))


def integral_ends(link: int) -> tuple[float, float, float]:
    with jax.ensure_compile_time_eval():
        # float32, JAX's default, holds G(z) − z to 4 digits at this z.
        return by_id(link, None).integral_ends(jax.numpy.asarray(2.0**12))
