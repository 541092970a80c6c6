"""The k largest numbers of segments, and their quantiles."""

from __future__ import annotations

import math
from typing import NamedTuple, Never

from kofn import links
from kofn.adapters import route
from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.checks import check_flag, check_integer
from kofn.arrays.kinds import (
    Array,
    cast,
    compute_dtype,
    full_like,
    most_precise_dtype,
    move_axis,
    namespace,
    quiet,
)
from kofn.arrays.names import unknown_keyword
from kofn.arrays.operations import arange, comparable, outermost
from kofn.arrays.typing import ArrayT
from kofn.maps.ordered.interpolated import LONG, Interpolation, mirrored, quantiles, wanted
from kofn.maps.ordered.largest import TopK
from kofn.operations.topk import THETA
from kofn.rows.given import Given, without_deleted
from kofn.rows.numbers import temperature_of
from kofn.rows.segments.form import SegmentForm, form_of_segments
from kofn.rows.segments.given import mask_of
from kofn.rows.segments.ordered import Ordered, in_column, ordered, states_of

__all__ = ["segment_topk", "segment_quantile"]


def segment_topk(
    x: ArrayT,
    k: int,
    *,
    segment_ids: Array | None = None,
    ptr: Array | None = None,
    num_segments: int | None = None,
    largest: bool = True,
    mask: Array | None = None,
    **others: Never,
) -> TopK[ArrayT]:
    """Return (values, indices) of the k largest entries of each segment, exactly.

    It is `topk` of ragged rows. Where a segment has fewer than k entries, values as of masked ones
    and the index −1 follow.

    Args:
        x: torch.Tensor, jax.Array or numpy.ndarray of floats or integers, (n, …): segments lie
            along the first axis, and every column has its own rows. Or a jagged nested tensor.
        k: a Python integer ≥ 0; in jax.jit a static argument (`static_argnames="k"`).
        segment_ids, ptr, num_segments: as for `segment_soft_topk`.
        largest: False for the k smallest.
        mask: boolean, broadcasts to `x`, or (n,); False entries come after all others, as −inf
            (+inf for the smallest; of integers, the least and the greatest of the dtype).

    Returns:
        A named tuple of two arrays (segments, k, …), the largest first; indices are along the first
        axis of `x`, or of the values of a nested tensor. Ties go to the lowest index, and NaN
        counts as the largest number, as for `topk`. Values have the gradient of the entries they
        are.

    Raises:
        TypeError: x has another kind or dtype; k is no integer.
        ValueError: k < 0; ids out of range, as for `segment_soft_topk`.

    Example:
        >>> import numpy as np
        >>> from kofn import segment_topk
        >>> largest = segment_topk(np.array([4.0, 2.0, 7.0, 9.0]), 2, ptr=np.array([0, 3, 4]))
        >>> largest.values
        array([[  7.,   4.],
               [  9., -inf]])
        >>> largest.indices
        array([[ 2,  0],
               [ 3, -1]])
    """
    if others:
        raise unknown_keyword(segment_topk, others)
    values, form = form_of_segments(x, segment_ids, ptr, num_segments, "x", integers=True)
    k = check_integer("k", k, "an integer ≥ 0", 0)
    descending = check_flag("largest", largest)
    playing = None if mask is None else mask_of(mask, values, form, "x")
    with quiet(values):
        rows = _Rows.of(values, playing, form, descending)
        xp, members = form.xp, rows.members(1)
        places = xp.broadcast_to(arange(members, k), (form.rows, k))
        entries = rows.entries(places, members - 1)
        there, kept = (places < each[..., None] for each in (members, rows.members(0)))
        values = xp.where(kept, rows.numbers(entries), outermost(rows.x, greatest=not descending))
        indices = xp.where(there, in_column(entries, form), full_like(entries, (), -1))
    return TopK(_tall(values, form), _tall(indices, form))  # type: ignore[arg-type]  # of its kind


def segment_quantile(
    x: ArrayT,
    q: float | Array,
    *,
    segment_ids: Array | None = None,
    ptr: Array | None = None,
    num_segments: int | None = None,
    interpolation: Interpolation = "linear",
    mask: Array | None = None,
    temperature: float = 0.0,
    ignore_nan: bool = False,
    **others: Never,
) -> ArrayT:
    """Return the q-quantile of each segment: the number at place (n − 1)·q of its sorted numbers.

    Args:
        x: torch.Tensor, jax.Array or numpy.ndarray of floats, (n, …): segments lie along the first
            axis, and every column has its own rows. Or a jagged nested tensor.
        segment_ids, ptr, num_segments: as for `segment_soft_topk`.
        mask: boolean, broadcasts to `x`, or (n,); False entries are left out.
        q, interpolation, temperature, ignore_nan: as for `quantile`.

    Returns:
        (segments, …); before these dimensions q's, if q has one. Differentiable as
        `quantile`; NaN for a segment without numbers.

    Raises:
        TypeError, ValueError: as for `quantile` and `segment_soft_topk`.

    Source: as for `quantile`.

    Example:
        >>> import numpy as np
        >>> from kofn import segment_quantile
        >>> x = np.array([4.0, 2.0, 7.0, 9.0, 1.0])
        >>> segment_quantile(x, 0.5, ptr=np.array([0, 3, 5, 5]))
        array([ 4.,  5., nan])
    """
    if others:
        raise unknown_keyword(segment_quantile, others)
    values, form = form_of_segments(x, segment_ids, ptr, num_segments, "x")
    playing = None if mask is None else mask_of(mask, values, form, "x")
    if check_flag("ignore_nan", ignore_nan):
        known = ~form.xp.isnan(values)
        playing = known if playing is None else playing & known
    of = wanted(q, interpolation, temperature, values.reshape(-1))
    with quiet(values):
        rows = _Rows.of(values, playing, form, descending=False)
        answer = quantiles(rows, of)
    answer = _tall(cast(answer, form.dtype), form)
    if getattr(q, "ndim", 0):
        return move_axis(answer, 1, 0)  # type: ignore[return-value]  # of the kind of x
    return answer[:, 0]  # type: ignore[return-value]  # of the kind of x


class _Rows(NamedTuple):
    """The numbers of segments on one axis, and their order; see `SegmentForm`."""

    x: Array
    form: SegmentForm
    states: Array | None  # 0 for entries in play; see `states_of`
    order: Ordered

    @classmethod
    def of(cls, values: Array, mask: Array | None, form: SegmentForm, descending: bool) -> _Rows:
        x = _flat(values)
        states = states_of(form, None if mask is None else _flat(mask))
        order = ordered(comparable(stop_gradient(x)), form.over, descending, states)
        return cls(x, form, states, order)

    def members(self, least_state: int) -> Array:
        """Return how many entries of each segment have at most that state."""
        if self.states is None:
            return self.order.members
        return self.form.over.count(self.states <= least_state)

    def entries(self, places: Array, last: Array) -> Array:
        """Return the entries at places (segments, m) of the order of each segment."""
        if not self.x.shape[0]:
            return full_like(places, tuple(places.shape), 0)
        return self.order.at(places, last)

    def numbers(self, entries: Array) -> Array:
        """Return the numbers of entries."""
        if not self.x.shape[0]:
            none = cast(namespace(self.x).sum(self.x), self.x.dtype)  # 0, in the graph of x
            return full_like(self.x, tuple(entries.shape), 0) + none
        return self.x[entries]

    @property
    def counts(self) -> Array:
        return cast(self.members(0), most_precise_dtype(self.x))[..., None]

    def ranked(self, ranks: Array) -> Array:
        xp = namespace(ranks)
        places = xp.broadcast_to(ranks, (self.form.rows, ranks.shape[-1]))
        places = cast(places, self.order.members.dtype)
        numbers = self.numbers(self.entries(places, self.members(0) - 1))
        return cast(numbers, compute_dtype(self.x))

    def threshold(self, k: Array, temperature: float) -> Array:
        xp, rows, over = namespace(k), (self.form.rows,), self.form.over
        x, sign = cast(self.x, compute_dtype(self.x)), None
        k = xp.broadcast_to(k, rows)
        if self.x.shape[0] >= LONG:
            k, sign = mirrored(k, self.counts[..., 0])
            sign = cast(sign, x.dtype)
            x = x * over.expand(sign)
        x = without_deleted(x if self.states is None else xp.where(self.states == 0, x, -math.inf))
        t = temperature_of(temperature, rows, x)
        given = Given(x, cast(k, x.dtype), t, links.logistic.inner, self.form)
        theta = route.answer(THETA, given)
        return theta if sign is None else sign * theta

    def greatest(self) -> Array:
        return self.form.over.max(self._in_play(stop_gradient(self.x), -math.inf))

    def total(self, rows: Array) -> Array:
        over, xp = self.form.over, namespace(self.x)
        return over.sum(xp.where(over.expand(rows[..., 0]), self._in_play(self.x, 0.0), 0.0))[
            ..., None
        ]

    def _in_play(self, x: Array, otherwise: float) -> Array:
        return x if self.states is None else namespace(x).where(self.states == 0, x, otherwise)


def _flat(values: Array) -> Array:
    """Return numbers per entry or per segment, (…, columns), as one axis, in their own dtype."""
    values = move_axis(values, 0, -1) if values.ndim > 1 else values
    return values.reshape(-1)


def _tall(values: Array, form: SegmentForm) -> Array:
    """Return numbers (segments of all columns, m) as (segments, m, columns…)."""
    columns = form.shape[1:]
    values = values.reshape(*columns, form.segments, values.shape[-1])
    for _ in columns:
        values = move_axis(values, 0, -1)
    return values
