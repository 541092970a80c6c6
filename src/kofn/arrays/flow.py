"""Loops, branches and rules of differentiation, as each framework wants them."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

from kofn.arrays.kinds import Array, is_jax, is_jit_tracing, namespace
from kofn.arrays.tracing import is_at_hand, is_compiling, is_known


def zeros_of(x: Array) -> Array:
    """Zeros like `x` that depend on it: where JAX maps over `x`, it maps over them.

    A custom rule whose value is mapped over less than its derivative fails under grad(vmap).
    XLA sees through the choice between 0 and 0.
    """
    zeros = namespace(x).zeros_like(x)
    return sys.modules["jax"].lax.select(x == x, zeros, zeros) if is_jax(x) else zeros


def alike(x: Array, *per_row: Array) -> tuple[Array, ...]:
    """The same, each spread over devices as all of them together: JAX's branches and loops ask.

    Adding 0 is nothing to XLA.
    """
    if not (is_jax(x) and any(_may_be_spread(array) for array in (x, *per_row))):
        return x, *per_row
    xp = namespace(x)
    zero = xp.zeros_like(xp.max(x, axis=-1))
    for array in per_row:
        zero = zero + xp.zeros_like(array)
    return x + zero[..., None], *(array + zero for array in per_row)


def _may_be_spread(x: Array) -> bool:
    return not is_known(x) or x.sharding.num_devices > 1


def only_if(flags: Array, function: Callable, otherwise: Any) -> Any:
    """function() if any of `flags` is set, else `otherwise`, which has its shape."""
    if is_jax(flags):
        return sys.modules["jax"].lax.cond(_any_of_all(flags), function, lambda: otherwise)
    return otherwise if is_at_hand(flags) and not flags.any() else function()


def _any_of_all(flags: Array) -> Array:
    """Whether any of `flags` is set, in any of the items that JAX maps over.

    A branch that each item decides for itself would be both, and without a transpose: JAX stops
    the gradients of what enters the one that is not taken.
    """
    jax = sys.modules["jax"]
    custom = jax.custom_batching.custom_vmap(lambda flags: jax.numpy.any(flags))

    @custom.def_vmap
    def _(size: int, batched: Any, flags: Array) -> Any:
        return _any_of_all(flags), False

    return custom(flags)


def while_loop(x: Array, condition: Callable, body: Callable, state: Any) -> Any:
    """`while condition(state): state = body(state)`, a lax loop where `x` is JAX's."""
    if is_jax(x):
        return sys.modules["jax"].lax.while_loop(condition, body, state)
    if is_jit_tracing():
        raise RuntimeError(
            "torch.jit.trace cannot record a loop that ends when its numbers say so, as "
            "KSubset.from_marginals needs; call it outside of what is traced"
        )
    while condition(state):
        state = body(state)
    return state


def materialised(*arrays: Array) -> tuple[Array, ...]:
    """The same, in memory: XLA would compute what several sums have in common for each anew."""
    return sys.modules["jax"].lax.optimization_barrier(arrays) if is_jax(arrays[0]) else arrays


def repeat(x: Array, count: int, body: Callable, state: Any) -> Any:
    """`count` times `state = body(state)`, a lax loop where `x` is JAX's."""
    if is_jax(x):
        return sys.modules["jax"].lax.fori_loop(0, count, lambda _, s: body(s), state)
    for _ in range(count):
        state = body(state)
    return state


AT_ONCE = 1 << 15
"""Numbers up to which computing all together costs less than one part after another."""


def stacked(x: Array, function: Callable, items: Any) -> Any:
    """function(item), a tuple of arrays, for each item along the first axis of `items`, stacked.

    `items` is a NamedTuple of arrays. One item after another, so that no array is larger than
    `x`; all at once by broadcasting, which `function` must allow, where `x` is small, or where a
    compiler fuses it.
    """
    if is_jax(x):
        jax = sys.modules["jax"]
        # Without its checkpoint a derivative would keep what every item leaves behind.
        return jax.lax.map(jax.checkpoint(function), items)
    if _at_once(x, items):
        return function(items)
    parts = [function(item) for item in _each(items)]
    return tuple(namespace(x).stack(part) for part in zip(*parts, strict=True))


def accumulated(x: Array, function: Callable, items: Any) -> Array:
    """The sum over items of function(item), an array like `x`; as in `stacked`."""
    if is_jax(x):
        jax = sys.modules["jax"]
        function = jax.checkpoint(function)
        zero = namespace(x).zeros_like(x)
        return jax.lax.scan(lambda sum_, item: (sum_ + function(item), None), zero, items)[0]
    if _at_once(x, items):
        return namespace(x).sum(function(items), axis=0)
    total = None
    for item in _each(items):
        total = function(item) if total is None else total + function(item)
    return total


def _at_once(x: Array, items: Any) -> bool:
    return is_compiling() or math.prod((*x.shape, items[0].shape[0])) <= AT_ONCE


def _each(items: Any) -> list:
    return [type(items)(*(part[i] for part in items)) for i in range(items[0].shape[0])]
