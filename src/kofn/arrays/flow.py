"""Loops and branches in the form that each framework needs."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from kofn.arrays import torch as of_torch
from kofn.arrays.kinds import Array, is_jax, is_jit_tracing, is_numpy, is_torch, namespace
from kofn.arrays.tracing import is_compiling, is_known
from kofn.arrays.typing import ArrayT, Namespace

State = TypeVar("State")

_OURS = __package__.removesuffix("arrays")


def zeros_of(x: ArrayT) -> ArrayT:
    """Return zeros like `x` that depend on `x`, so that jax.vmap batches them too.

    JAX fails under grad(vmap) if a custom rule's derivative is batched and its value is not.
    XLA simplifies the choice between 0 and 0 away.
    """
    zeros = namespace(x).zeros_like(x)
    if is_jax(x):
        from jax import lax

        return lax.select(x == x, zeros, zeros)  # type: ignore[arg-type, return-value]
    return zeros


def alike(x: Array, *per_row: Array) -> tuple[Array, ...]:
    """Return the arrays, each sharded over all mesh axes of any of them, as JAX's loops require.

    XLA removes the addition of 0.
    """
    if not (is_jax(x) and any(_may_be_spread(array) for array in (x, *per_row))):
        return x, *per_row
    xp = namespace(x)
    zero = xp.zeros_like(xp.max(x, axis=-1))
    for array in per_row:
        zero = zero + xp.zeros_like(array)
    return x + zero[..., None], *(array + zero for array in per_row)


def _may_be_spread(x: Any) -> bool:
    return not is_known(x) or x.sharding.num_devices > 1


def only_if(flags: Array, function: Callable[[], State], otherwise: State) -> State:
    """Return function() if any of `flags` is set, else `otherwise`, of the same shape."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(flags, torch.Tensor):  # as `is_at_hand`, with fewer calls
        known = flags.is_cpu and of_torch.state.is_eager(flags)
        return otherwise if known and not flags.any() else function()
    if is_jax(flags):
        from jax import lax

        from kofn.arrays.jax.any import any_of

        return lax.cond(any_of(flags), function, lambda: otherwise)
    return otherwise if is_numpy(flags) and not flags.any() else function()


def only_if_like(x: Array) -> Callable[..., Any]:
    """Return `only_if` for flags of arrays like `x`, which is asked once: a search has many."""
    return _only_if_any if is_torch(x) and x.is_cpu and of_torch.state.is_eager(x) else only_if


def namespace_like(x: ArrayT) -> Namespace[ArrayT]:
    """Return the namespace for arrays like `x`, all of one dtype; of PyTorch, see at_hand.py."""
    if is_torch(x) and x.is_cpu and of_torch.state.is_eager(x):
        from kofn.arrays.torch import at_hand

        return at_hand  # type: ignore[return-value]
    return namespace(x)


def _only_if_any(flags: Array, function: Callable[[], State], otherwise: State) -> State:
    return function() if flags.any() else otherwise


def while_loop(
    x: Array,
    condition: Callable[[State], Any],
    body: Callable[[State], State],
    state: State,
    most: int,
) -> State:
    """Run `while condition(state): state = body(state)`, at most so many times.

    It is a lax loop if `x` is a JAX array. Every search has a bound: rounding may keep a bracket
    from closing that would close in exact arithmetic.
    """
    if is_jax(x):
        from jax import lax

        return lax.while_loop(
            lambda pair: (pair[0] < most) & condition(pair[1]),
            lambda pair: (pair[0] + 1, body(pair[1])),
            (0, state),
        )[1]
    if is_jit_tracing():
        raise RuntimeError(
            "torch.jit.trace cannot record a loop whose length depends on values, as "
            "KSubset.from_marginals needs; call it outside of the traced function"
        )
    if is_torch(x) and of_torch.state.is_captured(x):
        raise RuntimeError(
            f"{_called()} cannot be captured in a CUDA graph with these arguments: a search reads "
            "from the device whether it has found all rows; call it outside of the capture. "
            "docs/platforms.md lists what waits for the device"
        )
    for _ in range(most):
        if not condition(state):
            break
        state = body(state)
    return state


def _called() -> str:
    """Return the name of the public function that was called: the outermost of kofn."""
    public, frame = "this function", sys._getframe(1).f_back
    while frame is not None:
        name = frame.f_code.co_qualname
        own = str(frame.f_globals.get("__name__")).startswith(_OURS)
        if own and not name.startswith("_") and "<" not in name:
            public = name
        frame = frame.f_back
    return public


def barrier(*arrays: Array) -> tuple[Array, ...]:
    """Return the arrays, stored in memory; XLA would recompute shared terms for every sum."""
    if is_jax(arrays[0]):
        from jax import lax

        return lax.optimization_barrier(arrays)  # type: ignore[no-untyped-call]
    return arrays


def repeat(x: Array, count: int, body: Callable[[State], State], state: State) -> State:
    """Repeat `state = body(state)` `count` times, as a lax loop if `x` is a JAX array."""
    if is_jax(x):
        from jax import lax

        return lax.fori_loop(0, count, lambda _, s: body(s), state)
    for _ in range(count):
        state = body(state)
    return state


AT_ONCE = 1 << 15
"""Numbers up to which computing all together costs less than one part after another."""


def stacked(x: Array, function: Callable[..., Any], items: Any) -> Any:
    """Stack the tuples function(item) for each item along the first axis of `items`.

    `items` is a NamedTuple of arrays. Items are processed one at a time, so that no array is larger
    than `x`; or all at once by broadcasting if `x` is small or a compiler fuses the operations.
    `function` must allow both.
    """
    if is_jax(x):
        import jax

        # Without the checkpoint, a derivative would store the intermediate arrays of every item.
        return jax.lax.map(jax.checkpoint(function), items)
    if _at_once(x, items):
        return function(items)
    parts = [function(item) for item in _each(items)]
    return tuple(namespace(x).stack(part) for part in zip(*parts, strict=True))


def accumulated(x: Array, function: Callable[..., Array], items: Any) -> Array:
    """Sum function(item), an array like `x`, over the items; see `stacked`."""
    if is_jax(x):
        import jax

        function = jax.checkpoint(function)
        zero = namespace(x).zeros_like(x)
        return jax.lax.scan(lambda sum_, item: (sum_ + function(item), None), zero, items)[0]
    if _at_once(x, items):
        return namespace(x).sum(function(items), axis=0)
    total: Any = None
    for item in _each(items):
        total = function(item) if total is None else total + function(item)
    return total


def _at_once(x: Array, items: Any) -> bool:
    return is_compiling() or math.prod((*x.shape, items[0].shape[0])) <= AT_ONCE


def _each(items: Any) -> list[Any]:
    return [type(items)(*(part[i] for part in items)) for i in range(items[0].shape[0])]
