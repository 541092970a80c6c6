"""Evaluation compiled as a whole where a framework works so."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from kofn.arrays.kinds import Array, is_jax
from kofn.rows.given import Given
from kofn.rows.settled import Rows


def evaluate(
    function: Callable[..., Array], rows: Rows | Given, *arrays: Array, **settings: Hashable
) -> Array:
    """`function(rows, *arrays, **settings)`; compiled as a whole where that is how it is done."""
    if is_jax(rows.scores):
        from kofn.arrays.jax_compile import bound
        from kofn.rows.jax_threshold import evaluate as compiled

        function = bound(function, **settings) if settings else function
        return compiled(function, rows, *arrays)
    return function(rows, *arrays, **settings)


def whole(function: Callable[..., Any], *arguments: Any) -> Any:
    """`function(*arguments)` of arrays, compiled as a whole where that is how a framework works.

    `function` is one of a module, so that it is compiled once.
    """
    first = arguments[0]
    if is_jax(first[0] if isinstance(first, tuple) else first):
        from kofn.arrays.jax_compile import whole as compiled

        return compiled(function, *arguments)
    return function(*arguments)
