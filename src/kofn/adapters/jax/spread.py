"""Operators on rows that are spread over devices: each device solves its rows, or its shard of all.

XLA decides where arrays lie after a program is traced, and asks here what one device is to do. Rows
that are whole on a device go to its kernel, without a word to other devices; of a row in shards,
only sums, minima and maxima travel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.experimental.custom_partitioning import custom_partitioning

from kofn.arrays.jax.layout import Layout, layout_of
from kofn.rows.shards.jax_axis import AxisRows


def spread(operator: Any, settings: Any, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return `call`, which is the operator on one device, for arrays that lie on several."""
    own = operator.own_last(settings)

    def partition(_: object, arguments: Any, results: object) -> Any:
        layout = layout_of(arguments[0].sharding, arguments[0].ndim)
        row = layout.axes[-1]
        shardings = _shardings(layout, operator, own, len(arguments))

        def local(*arrays: jax.Array) -> Any:
            if not row:
                return call(*arrays)
            over = AxisRows(row)
            known = _without_padding(arrays, arguments[0].shape[-1], operator, own, over)
            return operator.plain(*known, settings=settings, over=over)

        answers = [shardings[i] for i in operator.like]
        return layout.mesh, local, answers, tuple(shardings)

    placed = custom_partitioning(lambda *arrays: call(*arrays))
    placed.def_partition(
        partition,
        decode_shardings=False,
        sharding_rule=lambda _, values, results: _rule(operator, own, values),
    )
    return placed


def _shardings(layout: Layout, operator: Any, own: tuple[int, ...], count: int) -> list[Any]:
    *batch, row = layout.axes
    per_row = layout.sharding(*batch)
    entries, others = layout.sharding(*batch, row), layout.sharding(*batch, ())
    kinds = (entries if i in operator.entries else per_row for i in range(count))
    return [others if i in own else kind for i, kind in enumerate(kinds)]


def _rule(operator: Any, own: tuple[int, ...], values: Any) -> Any:
    """Return Shardy's rule: arrays share the dimensions of the batch, and entries the last one."""
    batch = [f"b{i}" for i in range(len(values[0].shape) - 1)]
    kinds = [[*batch, "n"] if i in operator.entries else batch for i in range(len(values))]
    names = [[*batch, f"own{i}"] if i in own else kind for i, kind in enumerate(kinds)]
    sides = (names, [names[i] for i in operator.like])
    text = " -> ".join(", ".join(" ".join(kind) for kind in side) for side in sides)
    return text, {"need_replication_factors": tuple(f"own{i}" for i in own)}


def _without_padding(
    arrays: Sequence[Any], n: int, operator: Any, own: tuple[int, ...], over: AxisRows
) -> list[jax.Array]:
    """Return the arrays without what XLA has filled up the last shards with."""
    here = arrays[0].shape[-1]
    if here * jax.lax.axis_size(over.names) == n:
        return list(arrays)
    there = over.positions(here) < n
    entries = set(operator.entries) - set(own)

    def cut(i: int, array: jax.Array) -> jax.Array:
        if i not in entries:
            return array
        beyond = _beyond(array.dtype, operator.ascending) if i == 0 else False
        return jax.numpy.where(there, array, jax.numpy.asarray(beyond, array.dtype))

    return [cut(i, array) for i, array in enumerate(arrays)]


def _beyond(dtype: Any, ascending: bool) -> Any:
    """Return the number of a dtype that no other is before in descending order, or in ascending."""
    if jax.numpy.issubdtype(dtype, jax.numpy.floating):
        return jax.numpy.nan if ascending else -jax.numpy.inf
    info = jax.numpy.iinfo(dtype)
    return info.max if ascending else info.min
