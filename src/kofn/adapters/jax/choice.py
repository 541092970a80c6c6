"""Hard choices of rows that may be spread over devices, as JAX primitives without a derivative."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
from jax import lax, numpy

from kofn.adapters.jax.operators import Operator, Settings, bind
from kofn.adapters.shards.ranked import ranked as ranked_in_parts
from kofn.adapters.shards.ranked import shares
from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.keys import keys_of, with_one_nan
from kofn.arrays.kinds import promoting
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
    answer: Any = choice.with_nan(x, count, chosen)
    return answer


def _by_count(x: jax.Array, k: jax.Array, whole: None) -> Any:
    return choice.by_count(keys_of(x), k, whole, x.dtype)


def largest(x: jax.Array, k: int) -> jax.Array:
    return _chosen(choice.known_scores(x), k, top_indices)


def first(x: jax.Array, k: int, way: int) -> jax.Array:
    if way & SMALLEST:
        return _chosen(x, k, _smallest, ascending=True)
    # XLA orders a NaN by its sign.
    return _chosen(with_one_nan(x), k, top_indices)


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


def _hard(x: Any, k: Any, *, settings: Settings, over: Reductions = DENSE) -> Any:
    if isinstance(over, AxisRows):
        return [hard_in_shards(x, k, over)]
    return [settings.reference(x, k, settings.number)]


def _first(*given: Any, settings: Settings, over: Reductions = DENSE) -> Any:
    *arrays, slots = given

    def rule(x: jax.Array, *mask: jax.Array) -> jax.Array:
        k = min(slots.shape[-1], x.shape[-1])
        return settings.reference(x, k, *mask).astype(slots.dtype)

    return [first_in_shards(rule, arrays, over) if isinstance(over, AxisRows) else rule(*arrays)]


def _ranked(*given: Any, settings: Settings, over: Reductions = DENSE) -> Any:
    x, *mask, ranks = given
    if not isinstance(over, AxisRows):
        return [settings.reference(x, ranks, *mask).astype(ranks.dtype)]
    ranked = ranked_in_parts(x, mask[0] if mask else None, ranks, over)
    places = ranked.entries + over.positions(x.shape[-1])[0]
    return [over.total(numpy.where(ranked.mine, places, 0).astype(ranks.dtype))]


_HARD = Operator("kofn_hard", (0,), (0,), _hard, in_shards=True)
_LARGEST = Operator("kofn_largest", (1,), (0, 1), _first, in_shards=True)
_SMALLEST = Operator("kofn_smallest", (1,), (0, 1), _first, in_shards=True, ascending=True)
_FIRST_OF_MASKED = Operator("kofn_first_of_masked", (2,), (0, 1, 2), _first, in_shards=True)
_RANKED = Operator("kofn_ranked", (1,), (0, 1), _ranked, in_shards=True, ascending=True)
_RANKED_OF_MASKED = Operator("kofn_ranked_of_masked", (2,), (0, 1, 2), _ranked, in_shards=True)


def hard_in_shards(x: jax.Array, k: jax.Array, over: AxisRows) -> jax.Array:
    """Return the shares of the k largest entries of rows in shards, ties to the lowest place."""
    keys = keys_of(x)
    rank = numpy.maximum(numpy.ceil(numpy.where(numpy.isnan(k), 1.0, k)), 1.0)[..., None]

    def reached(wanted: jax.Array) -> jax.Array:
        return (keys >= wanted).sum(-1, keepdims=True, dtype="int32")

    last = over.last_key(rank, keys, None, reached, lambda counts: counts >= rank)
    return shares(keys > last, keys == last, k, over).astype(x.dtype)


def first_in_shards(
    rule: Callable[..., jax.Array], arrays: Sequence[jax.Array], over: AxisRows
) -> jax.Array:
    """Return the places of the entries that come first: each device sends its own, and no more.

    `rule` returns the indices of chosen entries of arrays.
    """
    own = rule(*arrays)
    places = own + over.positions(arrays[0].shape[-1])[0].astype(own.dtype)
    sent = (*(numpy.take_along_axis(each, own, -1) for each in arrays), places)
    *every, places = (lax.all_gather(a, over.names, axis=a.ndim - 1, tiled=True) for a in sent)
    return numpy.take_along_axis(places, rule(*every), -1)
