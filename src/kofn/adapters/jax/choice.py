"""Hard choices of rows that may be spread over devices, as JAX primitives without a derivative."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
from jax import lax, numpy

from kofn.adapters.jax.operators import Operator, Settings, bind
from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.jax.axes import keys_of
from kofn.arrays.kinds import dtype_name, promoting
from kofn.arrays.operations import top_indices
from kofn.formulas import choice
from kofn.kernels.contract import SMALLEST
from kofn.operations.choice import FIRST, FIRST_OF_MASKED, LARGEST, RANKED, RANKED_OF_MASKED
from kofn.operations.operation import Operation
from kofn.rows.given import Given
from kofn.rows.shards.jax_axis import AxisRows
from kofn.solver.reductions import DENSE, Reductions

Rule = Callable[..., jax.Array]


def hard(given: Given, k: Any) -> jax.Array:
    """Return the hard top-k of dense rows; `k` is what the caller gave, a number or an array.

    A number tells how many entries there are to find before the program runs.
    """
    x, whole = stop_gradient(given.wide().scores), choice.whole_of(k)
    count = stop_gradient(given.per_row().k)
    if whole == 0:
        chosen = numpy.zeros_like(x)  # type: ignore[arg-type]  # of JAX
    else:
        rule = _by_count if whole is None else choice.by_indices
        settings = Settings("", whole, False, rule)
        chosen = _call(_HARD, settings, choice.known_scores(x), count)[0]
    found: Any = choice.with_nan(x, count, chosen)
    return found


def _by_count(x: jax.Array, k: jax.Array, whole: None) -> Any:
    return choice.by_count(keys_of(x), k, whole, x.dtype)


def largest(x: jax.Array, k: int) -> jax.Array:
    return _chosen(choice.known_scores(x), k, top_indices)


def first(x: jax.Array, k: int, way: int) -> jax.Array:
    if way & SMALLEST:
        return _chosen(x, k, _smallest, ascending=True)
    # XLA orders a NaN by its sign.
    known = numpy.where(x != x, math.nan, x) if "float" in dtype_name(x) else x
    return _chosen(known, k, top_indices)


def _smallest(x: jax.Array, k: int) -> Any:
    return choice.first(x, k, SMALLEST)


def first_of_masked(x: jax.Array, mask: jax.Array, k: int, way: int) -> jax.Array:
    rule = _smallest_of_masked if way & SMALLEST else _largest_of_masked
    return _chosen(x, k, rule, mask)


def _smallest_of_masked(x: jax.Array, k: int, mask: jax.Array) -> Any:
    return choice.first_of_masked(x, mask, k, SMALLEST)


def _largest_of_masked(x: jax.Array, k: int, mask: jax.Array) -> Any:
    return choice.first_of_masked(x, mask, k, 0)


def _chosen(
    x: Any, k: int, rule: Rule, mask: jax.Array | None = None, ascending: bool = False
) -> jax.Array:
    """Return the indices of the k entries that come first: rule(x, k[, mask]) on one device.

    Equal ones come in the order of their indices. By a rule without a mask that is `ascending`, a
    NaN comes last.
    """
    slots = numpy.zeros((*x.shape[:-1], k), "int32")
    if k == 0:
        return slots
    settings = Settings("", k, False, rule, True)
    if mask is not None:
        return _call(_FIRST_OF_MASKED, settings, x, mask, slots)[0]
    return _call(_SMALLEST if ascending else _LARGEST, settings, x, slots)[0]


def ranked(x: jax.Array, ranks: jax.Array) -> jax.Array:
    return _call(_RANKED, Settings("", None, False, choice.ranked, True), x, ranks)[0]


def ranked_of_masked(x: jax.Array, mask: jax.Array, ranks: jax.Array) -> jax.Array:
    settings = Settings("", None, False, _ranked_of_masked, True)
    return _call(_RANKED_OF_MASKED, settings, x, mask, ranks)[0]


def _ranked_of_masked(x: jax.Array, ranks: jax.Array, mask: jax.Array) -> Any:
    return choice.ranked_of_masked(x, mask, ranks)


ANSWERS: dict[Operation, Callable[..., jax.Array]] = {
    LARGEST: largest,
    FIRST: first,
    FIRST_OF_MASKED: first_of_masked,
    RANKED: ranked,
    RANKED_OF_MASKED: ranked_of_masked,
}
"""What answers choices of rows that may be spread over devices."""


@partial(jax.jit, static_argnums=(0, 1))
@promoting
def _call(operator: Operator, settings: Settings, *arrays: jax.Array) -> Any:
    return bind(operator, *arrays, settings=settings)


def _hard(x: Any, k: Any, *, settings: Settings, grouped: bool, over: Reductions = DENSE) -> Any:
    if isinstance(over, AxisRows):
        return [hard_in_shards(x, k, over)]
    return [settings.reference(x, k, settings.number)]


def _first(*given: Any, settings: Settings, grouped: bool, over: Reductions = DENSE) -> Any:
    *arrays, slots = given

    def rule(x: jax.Array, *mask: jax.Array) -> jax.Array:
        k = min(slots.shape[-1], x.shape[-1])
        found: jax.Array = settings.reference(x, k, *mask).astype(slots.dtype)
        return found

    return [first_in_shards(rule, arrays, over) if isinstance(over, AxisRows) else rule(*arrays)]


def _ranked(*given: Any, settings: Settings, grouped: bool, over: Reductions = DENSE) -> Any:
    x, *mask, ranks = given
    if not isinstance(over, AxisRows):
        return [settings.reference(x, ranks, *mask).astype(ranks.dtype)]
    found = ranked_in_shards(x, mask[0] if mask else None, ranks, over)
    places = found.entries + over.positions(x.shape[-1])[0]
    return [over.total(numpy.where(found.mine, places, 0).astype(ranks.dtype))]


_HARD = Operator("kofn_hard", (0,), (0,), _hard, in_shards=True)
_LARGEST = Operator("kofn_largest", (1,), (0, 1), _first, in_shards=True)
_SMALLEST = Operator("kofn_smallest", (1,), (0, 1), _first, in_shards=True, ascending=True)
_FIRST_OF_MASKED = Operator("kofn_first_of_masked", (2,), (0, 1, 2), _first, in_shards=True)
_RANKED = Operator("kofn_ranked", (1,), (0, 1), _ranked, in_shards=True, ascending=True)
_RANKED_OF_MASKED = Operator("kofn_ranked_of_masked", (2,), (0, 1, 2), _ranked, in_shards=True)


def hard_in_shards(x: jax.Array, k: jax.Array, over: AxisRows) -> jax.Array:
    """Return the shares of the k largest entries of rows in shards, ties to the lowest place."""
    keys = _keys(x)
    last = _last_key(keys, k, over)[..., None]
    tie, above = keys == last, keys > last
    shards = lax.axis_size(over.names)
    here = numpy.arange(shards) == lax.axis_index(over.names)
    ties = numpy.where(here, tie.sum(-1, dtype="int32")[..., None], 0)
    counts = over.total(numpy.concatenate([above.sum(-1, dtype="int32")[..., None], ties], -1))
    before = numpy.where(numpy.arange(shards) < lax.axis_index(over.names), counts[..., 1:], 0)
    place = numpy.cumsum(tie, -1, dtype="int32") - 1 + before.sum(-1, dtype="int32")[..., None]
    share = numpy.clip(k[..., None] - (counts[..., :1] + place), 0.0, 1.0)
    return numpy.where(above, 1.0, numpy.where(tie, share, 0.0)).astype(x.dtype)


BITS = 4
"""Bits of a key that are found at a time, by counts of 15 numbers."""


def _last_key(keys: jax.Array, k: jax.Array, over: AxisRows) -> jax.Array:
    """Return the key of the last entry chosen: the largest with ⌈k⌉ entries at or above it."""
    width = 8 * keys.dtype.itemsize
    digits = numpy.arange(1, 1 << BITS, dtype=keys.dtype)
    rank = numpy.maximum(numpy.ceil(numpy.where(numpy.isnan(k), 1.0, k)), 1.0)[..., None]

    def refine(i: Any, prefix: jax.Array) -> jax.Array:
        shift = (width - BITS * (i + 1)).astype(keys.dtype)
        tried = prefix[..., None] + (digits << shift)
        reached = over.total((keys[..., None] >= tried[..., None, :]).sum(-2, dtype="int32"))
        digit = (reached >= rank).sum(-1, dtype="int32").astype(keys.dtype)
        return prefix + (digit << shift)

    return lax.fori_loop(0, width // BITS, refine, numpy.zeros_like(k, dtype=keys.dtype))


def _keys(x: jax.Array, nan: int = -1) -> jax.Array:
    """Return integers ≥ 0 in the order of the numbers, NaN before all (−1) or after all (1)."""
    ordered = keys_of(x, nan)
    least = numpy.iinfo(ordered.dtype).min
    if least == 0:
        return ordered
    return lax.bitcast_convert_type(ordered ^ least, f"uint{8 * x.dtype.itemsize}")


def first_in_shards(
    rule: Callable[..., jax.Array], arrays: Sequence[jax.Array], over: AxisRows
) -> jax.Array:
    """Return the places of the entries that come first: each device sends its own, and no more.

    `rule` returns the indices of those of arrays.
    """
    own = rule(*arrays)
    places = own + over.positions(arrays[0].shape[-1])[0].astype(own.dtype)
    sent = (*(numpy.take_along_axis(each, own, -1) for each in arrays), places)
    *every, places = (lax.all_gather(a, over.names, axis=a.ndim - 1, tiled=True) for a in sent)
    return numpy.take_along_axis(places, rule(*every), -1)


class Ranked(NamedTuple):
    """Where the numbers of some ranks are, (…, m)."""

    entries: jax.Array  # of this device's part
    mine: jax.Array  # whether that is the entry


def ranked_in_shards(
    x: jax.Array, playing: jax.Array | None, ranks: jax.Array, over: AxisRows
) -> Ranked:
    """Return where the numbers of these ranks are, 0 for the smallest; NaN is the largest.

    Equal numbers are ranked by their place. No numbers are sent: counts of them are summed.
    """
    left_out = numpy.zeros(x.shape, bool) if playing is None else ~playing
    keys = _keys(x, 1)
    keys = numpy.where(left_out, ~numpy.zeros_like(keys), keys)
    order = numpy.lexsort((keys, left_out), axis=-1)
    ordered = numpy.take_along_axis(keys, order, -1)
    count = (~left_out).sum(-1, dtype="int32")[..., None]
    ranks = ranks.astype("int32")

    def below(wanted: jax.Array) -> jax.Array:
        return numpy.minimum(_searched(ordered, wanted).astype("int32"), count)

    width = 8 * keys.dtype.itemsize
    digits = numpy.arange(1, 1 << BITS, dtype=keys.dtype)

    def refine(i: Any, prefix: jax.Array) -> jax.Array:
        shift = (width - BITS * (i + 1)).astype(keys.dtype)
        tried = prefix[..., None] + (digits << shift)
        flat = tried.reshape(*tried.shape[:-2], -1)
        counts = over.total(below(flat)).reshape(tried.shape)
        digit = (counts <= ranks[..., None]).sum(-1, dtype="int32").astype(keys.dtype)
        return prefix + (digit << shift)

    # Zeros that vary over the devices as the loop's answers do.
    start = (over.total(0 * count) + 0 * ranks).astype(keys.dtype)
    found = lax.fori_loop(0, width // BITS, refine, start)
    first, through = below(found), _through(ordered, found, count)
    here = numpy.arange(lax.axis_size(over.names)) == lax.axis_index(over.names)
    ties = numpy.where(here, (through - first)[..., None], 0)
    sums = over.total(numpy.concatenate([first[..., None], ties], -1))
    before = numpy.where(numpy.arange(here.shape[0]) < lax.axis_index(over.names), sums[..., 1:], 0)
    place = ranks - sums[..., 0] - before.sum(-1, dtype="int32")
    mine = (place >= 0) & (place < through - first)
    at = numpy.clip(first + place, 0, x.shape[-1] - 1)
    return Ranked(numpy.take_along_axis(order, at, -1), mine)


def _searched(ordered: jax.Array, wanted: jax.Array, side: str = "left") -> jax.Array:
    """Return how many of the ordered numbers of each row are less than those wanted."""
    find: Any = partial(numpy.searchsorted, side=side)
    for _ in ordered.shape[:-1]:
        find = jax.vmap(find)
    found: jax.Array = find(ordered, wanted)
    return found


def _through(ordered: jax.Array, wanted: jax.Array, count: jax.Array) -> jax.Array:
    """Return how many are not greater."""
    found = _searched(ordered, wanted, "right").astype("int32")
    return numpy.minimum(found, count)
