"""Reductions for rows that lie along axes of a mesh of devices: a shard of each row on each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
from jax import lax

from kofn.arrays.jax.at_once import maxima, sums
from kofn.arrays.jax.axes import as_integers, variations, varying
from kofn.arrays.keys import numbers_of
from kofn.arrays.kinds import dtype_name, is_jax
from kofn.rows.given import Given, given
from kofn.rows.shards.asked import Asked

Counts = Callable[[jax.Array], jax.Array]

BITS = 4
"""Bits of a key that are found at a time, by counts of 15 numbers."""


@jax.tree_util.register_static
@dataclass(frozen=True)
class AxisRows:
    """Reductions of rows along the last axis and the named axes, which must be in scope.

    They are in scope inside jax.shard_map, and in what XLA runs on each device. A number per row is
    the same on every device of these axes. For JAX it is one of each device's own, so cotangents of
    it are parts; what counts is their sum over devices.
    """

    counted: ClassVar[str] = "int32"  # what entries are counted in
    names: tuple[str, ...]
    tracked: bool = False  # whether JAX tracks here which arrays differ along these axes

    def min(self, values: jax.Array) -> jax.Array:
        return -self.max(-values)  # as a maximum, so that XLA sends it with the others

    def max(self, values: jax.Array) -> jax.Array:
        return self.maxima(values)[0]

    def maxima(self, *values: jax.Array) -> tuple[jax.Array, ...]:
        """Return the maximum of each of the arrays, by one message."""
        here = maxima(*(as_integers(self.own(each)) for each in values))
        sent = lax.pmax(here, self.names)
        pairs = zip(sent, values, strict=True)
        return tuple(numbers_of(self.own(each), dtype_name(like)) for each, like in pairs)

    def sum(self, values: jax.Array) -> jax.Array:
        return self.total(self.own(values).sum(-1))

    def sums(self, *values: jax.Array) -> tuple[jax.Array, ...]:
        """Return the sum of each of the arrays, of flags their count, by one message."""
        sent = lax.psum(sums(*map(self.own, values)), self.names)
        return tuple(map(self.own, sent))

    def count(self, flags: jax.Array) -> jax.Array:
        here = self.own(flags).sum(-1, dtype="int32")
        return self.total(here.astype(float))  # a float, so that XLA sends it with the sums

    def any(self, flags: jax.Array) -> jax.Array:
        return self.total(self.own(flags).any(-1).astype("int32")) > 0

    def expand(self, per_row: jax.Array) -> jax.Array:
        return per_row[..., None]

    def total(self, per_row: jax.Array) -> jax.Array:
        """Sum what each device has of a number per row."""
        return self.own(lax.psum(self.own(per_row), self.names))

    def positions(self, count: int) -> jax.Array:
        """Return the places in the whole row of the `count` entries that are here."""
        return self.span(count)[0] + jax.numpy.arange(count)

    def span(self, count: int, like: object = None) -> tuple[jax.Array, int]:
        """Return where the `count` entries that are here start in whole rows, and their length."""
        return lax.axis_index(self.names) * count, count * self.copies

    def before(
        self, counts: jax.Array, ties: jax.Array, due: object = None
    ) -> tuple[jax.Array, jax.Array]:
        """Return the sum of counts, and how many ties there are on the devices before this one."""
        devices = jax.numpy.arange(lax.axis_size(self.names))
        own = jax.numpy.where(devices == self.place, ties[..., None], 0)
        sums = self.total(jax.numpy.concatenate([counts[..., None], own], -1))
        earlier = jax.numpy.where(devices < self.place, sums[..., 1:], 0)
        return sums[..., 0], earlier.sum(-1, dtype=self.counted)

    def last_key(
        self, like: jax.Array, keys: jax.Array, count: object, counts_of: Counts, holds: Counts
    ) -> jax.Array:
        """Return as many keys as in `like`: the last at which the sums of `counts_of` hold.

        Four bits of them are found at a time, by 15 counts.
        """
        info = jax.numpy.iinfo(keys.dtype)
        digits = jax.numpy.arange(1, 1 << BITS, dtype=keys.dtype)
        digits = digits.reshape(-1, *(1 for _ in like.shape))

        def refine(i: Any, prefix: jax.Array) -> jax.Array:
            shift = (info.bits - BITS * (i + 1)).astype(keys.dtype)
            counts = self.total(jax.vmap(counts_of)(prefix + (digits << shift)))
            digit = holds(counts).sum(0, dtype=self.counted).astype(keys.dtype)
            return prefix + (digit << shift)

        # It varies over the devices as the loop's answers do.
        start = info.min + 0 * (self.own(like).astype(keys.dtype) + keys.sum(-1, keepdims=True))
        return lax.fori_loop(0, info.bits // BITS, refine, start)

    @property
    def place(self) -> jax.Array:
        """Return this device's place among the parts of a row."""
        return lax.axis_index(self.names)

    def gathered(self, values: jax.Array) -> jax.Array:
        """Return values (…, m) of all devices, (…, devices·m), in the order of the parts."""
        return lax.all_gather(self.own(values), self.names, axis=values.ndim - 1, tiled=True)

    def on_first(self, per_row: jax.Array) -> jax.Array:
        """Return a number per row on the first device of the row, and 0 on the others."""
        return jax.numpy.where(lax.axis_index(self.names) == 0, per_row, 0)

    def shared(self, per_row: jax.Array) -> jax.Array:
        """Return a number per row as one number of all devices, if JAX tracks that."""
        if not self.tracked:
            return per_row
        return lax.psum(self.on_first(per_row), self.names)

    @property
    def copies(self) -> int:
        """Return how many devices there are, each with its own numbers per row for JAX."""
        return lax.psum(1, self.names)

    def own(self, values: Any) -> Any:
        """Return values as arrays that may differ between devices, if JAX tracks that."""
        return varying(values, self.names) if self.tracked else values


def axis_rows(name: str, axis_name: Any) -> AxisRows:
    """Return the reductions of rows along the axes that a caller of `name` has named."""
    names = (axis_name,) if isinstance(axis_name, str) else tuple(axis_name)
    try:
        place = lax.axis_index(names)
    except NameError:
        raise ValueError(
            f"{name}: axis_name is {axis_name!r}, which is not an axis in scope; call it inside "
            "jax.shard_map, over a mesh with that axis"
        ) from None
    return AxisRows(names, tracked=set(names) <= set(variations(place)))


def given_on_axes(over: AxisRows, scores: Any, dim: int, asked: Asked) -> Given:
    """Check the arguments of a map for this device's shard of the rows; see `given.given`."""
    k, link, temperature, mask, costs = asked
    number = {"k" if costs is None else "budget": k}
    _check_shared(over, **number, temperature=temperature, alpha=link.inner.alpha)
    scores = varying(scores, over.names) if over.tracked and is_jax(scores) else scores
    own = dict(costs=costs, shards=over.copies)
    return given(scores, k, link, temperature, dim, mask, **own)


def _check_shared(over: AxisRows, **numbers: Any) -> None:
    """Raise an error for numbers per row that may differ between the shards of a row."""
    for each, value in numbers.items():
        own = set(over.names) & set(variations(value)) if is_jax(value) else ()
        if own:
            raise ValueError(
                f"{each} may differ along the axes {sorted(own)}; it must be the same on all "
                "shards of a row: pass jax.lax.pmean of it, or replicate it over these axes"
            )
