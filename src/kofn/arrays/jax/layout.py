"""The layout of an array of a JAX program, as a mesh whose axes belong to dimensions."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def take_along_last(x: Any, indices: Any) -> Any:
    """Return the entries of x at these indices of the last axis, also of rows on an explicit mesh.

    Of rows that it divides, JAX asks where the answer is to lie: taken entries go to all devices.
    """
    spec = _explicit(x)
    if not spec or spec[-1] is None:
        return jax.numpy.take_along_axis(x, indices, axis=-1)
    batch = (
        jax.lax.broadcasted_iota(indices.dtype, indices.shape, dim) + 0 * indices
        for dim in range(x.ndim - 1)
    )
    out = _named(x, (*spec[:-1], None))
    return x.at[(*batch, indices)].get(out_sharding=out)


def of_places(values: Any, places: Any) -> Any:
    """Return values[places] of a row, divided by an explicit mesh as the places are."""
    spec = _explicit(places)
    if not any(spec):
        return values[places]
    return with_whole_rows(values).at[places].get(out_sharding=_named(places, spec))


def flattened(x: Any) -> Any:
    """Return x with one dimension, which an explicit mesh does not divide."""
    if not is_divided(x):
        return x.reshape(-1)
    return jax.numpy.reshape(x, -1, out_sharding=_named(x, (None,)))


def is_divided(x: Any) -> bool:
    """Return whether an explicit mesh divides an array."""
    return any(_explicit(x))


def with_whole_rows(x: jax.Array) -> Any:
    """Return x with rows that an explicit mesh does not divide: what sorts or sums along needs."""
    spec = _explicit(x)
    return _laid(x, x, (*spec[:-1], None)) if spec and spec[-1] is not None else x


def laid_as(x: jax.Array, like: Any) -> Any:
    """Return x, divided by an explicit mesh as another array with the same first axes."""
    own, spec = _explicit(x), _explicit(like)[: x.ndim]
    if own == spec or not any((*own, *spec)):
        return x
    return _laid(x, like if any(spec) else x, spec or (None,) * x.ndim)


def _laid(x: jax.Array, like: Any, spec: tuple[Any, ...]) -> Any:
    return jax.sharding.reshard(x, _named(like, spec))


def _named(like: jax.Array, spec: tuple[Any, ...]) -> NamedSharding:
    """Return a sharding over the mesh of an array, also where the caller has set no mesh."""
    return NamedSharding(jax.typeof(like).sharding.mesh, PartitionSpec(*spec))


def _explicit(x: jax.Array) -> tuple[Any, ...]:
    """Return by which axes of an explicit mesh each dimension is divided."""
    kind = jax.typeof(x) if hasattr(jax, "typeof") else None  # JAX before 0.6 has no such meshes
    return tuple(getattr(getattr(kind, "sharding", None), "spec", ()))


class Layout(NamedTuple):
    """A mesh over all devices, and for each dimension of an array the axes that divide it."""

    mesh: Mesh
    axes: tuple[tuple[str, ...], ...]

    def sharding(self, *axes: tuple[str, ...]) -> NamedSharding:
        """Return the sharding of an array whose dimensions are divided by these axes."""
        return NamedSharding(self.mesh, PartitionSpec(*(each or None for each in axes)))

    def parts(self, dim: int) -> int:
        """Return how many devices share a dimension."""
        return math.prod(self.mesh.shape[name] for name in self.axes[dim])


def layout_of(sharding: Any, ndim: int) -> Layout:
    """Return the layout of an array by the sharding that XLA has given it.

    XLA knows devices by their numbers and no mesh, so the mesh is found from the numbers.
    """
    total = len(sharding.device_set)
    # Every number of parts divides the number of devices, so this shape has whole parts.
    places = sharding.devices_indices_map((total,) * ndim)
    starts = np.array([[part.start or 0 for part in place] for place in places.values()])
    sizes = [len(np.unique(starts[:, dim])) for dim in range(ndim)]
    spots = starts.reshape(total, ndim) * np.array(sizes, int).reshape(1, ndim) // total
    table = _numbers(spots, sizes, total)
    digits = [_digits(_line(table, dim)) for dim in range(ndim + 1)]
    ranked = sorted((one for each in digits for one in each), key=lambda one: -one[1])
    names = {one: f"axis{i}" for i, one in enumerate(ranked)}
    devices = np.array(list(places), object).reshape([size for size, _ in ranked])
    mesh = Mesh(devices, tuple(names.values()))
    return Layout(mesh, tuple(tuple(names[one] for one in each) for each in digits[:ndim]))


def _numbers(spots: np.ndarray, sizes: list[int], total: int) -> np.ndarray:
    """Return the devices' numbers at each part, and, along a last axis, of its copies."""
    copies = total // math.prod(sizes)
    table = np.zeros((*sizes, copies), int)
    seen = np.zeros(sizes, int)
    for number, spot in enumerate(map(tuple, spots)):
        table[(*spot, seen[spot])] = number
        seen[spot] += 1
    return table


def _line(table: np.ndarray, dim: int) -> np.ndarray:
    """Return the numbers along one axis, from the first."""
    return table[tuple(slice(None) if i == dim else 0 for i in range(table.ndim))]


def _digits(line: np.ndarray) -> list[tuple[int, int]]:
    """Return (size, stride) of the digits that the numbers of a line consist of, largest first."""
    digits: list[tuple[int, int]] = []
    span = 1
    while span < len(line):
        stride = int(line[span] - line[0])
        size = 2
        while span * size < len(line) and line[span * size] - line[0] == stride * size:
            size += 1
        digits.insert(0, (size, stride))
        span *= size
    return digits


def with_devices(context: Any) -> Any:
    """Return the context of a lowering with as many devices as it has; None if XLA cannot ask.

    custom_partitioning needs devices, which JAX names only to its own operators. Any will do: XLA
    counts them.
    """
    module = context.module_context
    axes = module.axis_context
    shardy = getattr(jax.config, "jax_use_shardy_partitioner", False)
    number = getattr(axes, "num_devices", None)
    if not shardy or number is None:
        return None
    devices = tuple(jax.devices(module.platforms[0])[:number])
    if len(devices) < number:  # the program is for another machine
        return None
    axes = dataclasses.replace(axes, device_assignment=devices)
    return context.replace(module_context=module.replace(axis_context=axes))


def is_exported(module: Any) -> bool:
    """Return whether a program is lowered to be saved, which what XLA would ask cannot be."""
    parameters = getattr(module, "lowering_parameters", None)
    return bool(getattr(parameters, "for_export", True))


def is_whole(axes: Any) -> bool:
    """Return whether an array of the program is on one device, or is one device's part of it."""
    devices = getattr(axes, "num_devices", None)
    if devices is not None:
        return bool(devices == 1)
    manual = getattr(axes, "manual_axes", None)
    return manual is not None and set(manual) == set(axes.mesh.axis_names)
