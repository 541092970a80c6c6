"""Functions of rows that JAX compiles as a whole, once per shape and link."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax

try:
    from jax import enable_x64
except ImportError:  # JAX before 0.8
    from jax.experimental import enable_x64  # type: ignore[attr-defined, no-redef]

from kofn.arrays.kinds import promoting
from kofn.links.link import by_id
from kofn.rows.given import Given
from kofn.rows.settled import Rows


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
    bare = rows._replace(link=None)  # type: ignore[arg-type]  # known by its id
    answer: jax.Array = _evaluate(function, link_id, number, alpha, bare, over, *arrays)
    return answer


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


def integral_ends(link: str) -> tuple[float, float, float]:
    # In float32, JAX's default, G(z) − z would have only a few accurate digits.
    with jax.ensure_compile_time_eval(), enable_x64(True):
        return by_id(link, None).integral_ends(jax.numpy.asarray(2.0**26))
