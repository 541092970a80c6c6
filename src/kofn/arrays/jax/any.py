"""The test whether a branch is due, as a JAX primitive that asks no other device.

With rows spread over devices, each would have to hear from all others whether one of them has a
flag. So where flags are in parts the answer is yes: the branch then runs, as it may at any time.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.experimental.custom_partitioning import custom_partitioning
from jax.extend.core import Primitive
from jax.sharding import PartitionSpec

from kofn.arrays.jax.layout import is_exported, is_whole, layout_of, with_devices
from kofn.arrays.jax.private import batching, mlir
from kofn.arrays.kinds import promoting

_primitive = Primitive("kofn_any")


def any_of(flags: jax.Array) -> jax.Array:
    """Return whether any of the flags is set, in any item that JAX maps over.

    With a condition per item, JAX would run both branches and drop the transpose: it stops the
    gradients of the inputs of the branch not taken.
    """
    return _primitive.bind(flags)


def _abstract(flags: Any) -> Any:
    sharding = getattr(flags, "sharding", None)
    if sharding is None:
        return flags.update(shape=())
    return flags.update(shape=(), sharding=sharding.update(spec=PartitionSpec()))


def _batched(flags: Any, axes: object) -> Any:
    return _primitive.bind(*flags), None  # the answer is one for all items


def _partition(_: object, flags: Any, answer: object) -> Any:
    layout = layout_of(flags[0].sharding, flags[0].ndim)
    asks = any(layout.axes)

    def local(flags: jax.Array) -> jax.Array:
        return jax.numpy.ones((), bool) if asks else jax.numpy.any(flags)

    return layout.mesh, local, layout.sharding(), (layout.sharding(*layout.axes),)


_placed = custom_partitioning(lambda flags: jax.numpy.any(flags))
_placed.def_partition(
    _partition,
    decode_shardings=False,
    sharding_rule=lambda _, values, results: (
        " ".join(f"b{i}" for i in range(len(values[0].shape))) + " -> "
    ),
)


def _lowered(context: Any, flags: Any) -> Any:
    module = context.module_context
    spread = None
    if not is_whole(module.axis_context) and not is_exported(module):
        spread = with_devices(context)
    function = jax.numpy.any if spread is None else _placed
    return mlir.lower_fun(function, multiple_results=False)(spread or context, flags)


_primitive.def_impl(jax.jit(_primitive.bind))
_primitive.def_abstract_eval(_abstract)
batching.primitive_batchers[_primitive] = promoting(_batched)
mlir.register_lowering(_primitive, promoting(_lowered))
