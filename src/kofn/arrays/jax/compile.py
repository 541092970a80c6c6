"""Functions that JAX compiles once, and classes registered as pytrees."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from functools import cache, partial
from typing import Any

import jax

from kofn.arrays.kinds import promoting


@cache
def bound(function: Callable[..., jax.Array], **settings: Hashable) -> Callable[..., jax.Array]:
    """Bind settings to `function`; equal settings give the same object, so JAX compiles it once."""
    return partial(function, **settings)


@partial(jax.jit, static_argnums=0)
@promoting
def whole(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


_registered: set[type] = set()
_lock = threading.Lock()


def register(kind: type, names: tuple[str, ...]) -> None:
    """Register a class as a pytree: arrays are leaves, integers are static."""
    with _lock:  # JAX refuses to register a class twice
        if kind not in _registered:
            _register(kind, names)
            _registered.add(kind)


def _register(kind: type, names: tuple[str, ...]) -> None:

    def flatten(one: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        values = [(name, getattr(one, name)) for name in names]
        fixed = tuple((name, value) for name, value in values if isinstance(value, int))
        return tuple(v for _, v in values if not isinstance(v, int)), fixed

    def unflatten(fixed: tuple[Any, ...], arrays: tuple[Any, ...]) -> Any:
        # No checks: JAX also puts placeholders there that are not arrays.
        one: Any = object.__new__(kind)
        one.__dict__.update(fixed)
        one.__dict__.update(zip([n for n in names if n not in dict(fixed)], arrays, strict=True))
        return one

    jax.tree_util.register_pytree_node(kind, flatten, unflatten)
