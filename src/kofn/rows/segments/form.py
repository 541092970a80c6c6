"""Which entry is in which segment, and the way back to the form of the caller's scores."""

from __future__ import annotations

import contextlib
import math
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from kofn.arrays import torch as of_torch
from kofn.arrays.autodiff import has_gradients
from kofn.arrays.checks import check_integer, check_same_kind, check_scores, refuse_divided
from kofn.arrays.dtensor import is_dtensor
from kofn.arrays.kinds import (
    Array,
    adopt,
    cast,
    dtype_name,
    is_jax,
    is_torch,
    move_axis,
    namespace,
    namespace_of,
    quiet_for,
)
from kofn.arrays.operations import arange, as_indices, cumulative_min, same
from kofn.arrays.tracing import greatest, is_at_hand
from kofn.arrays.typing import Namespace, Tensor
from kofn.arrays.without_onnx import SEGMENTS, refuse
from kofn.rows.segments.order import Order, as_index
from kofn.solver.segments import SegmentRows


class KnownSegments(SegmentRows):
    """Reductions over segments whose places are known; the ids are made if they are needed."""

    def __init__(self, order: Order, for_torch: bool) -> None:
        self.order, self.count_of_rows = order, len(order.lengths)
        self._for_torch = for_torch

    @cached_property
    def ids(self) -> Array:  # type: ignore[override]  # an attribute there
        return as_index(self.order.ids(), self._for_torch)

    def expand(self, per_row: Array) -> Array:
        """Return the number of each entry's segment; where they lie in turn, no index is made."""
        order = self.order
        if order.places is not None or has_gradients(per_row):
            return super().expand(per_row)
        counts: Any = order.common_length or as_index(order.lengths, self._for_torch)
        if is_torch(per_row):
            return per_row.repeat_interleave(counts)
        return np.repeat(per_row, counts)


class SegmentForm(NamedTuple):
    """The form of a caller's scores, (n, …): segments lie along the first axis.

    The columns are laid out one after another, each with its own segments.
    """

    kind: str
    dtype: Any
    dtype_name: str
    shape: tuple[int, ...]
    segments: int  # of a column
    over: SegmentRows
    unassigned: Array | None = None  # entries that may be in no segment, (n,)
    offsets: Tensor | None = None  # of a jagged nested tensor

    @property
    def xp(self) -> Namespace[Any]:
        return namespace_of(self.kind)

    @property
    def rows(self) -> int:
        """Return the number of segments of all columns."""
        return self.segments * math.prod(self.shape[1:])

    def flat(self, values: Array) -> Array:
        """Return numbers per entry or per segment, (…, columns), as one axis to compute with."""
        wide = self.xp.float64 if self.dtype_name == "float64" else self.xp.float32
        values = cast(values, wide) if dtype_name(values).startswith(("float", "bfl")) else values
        values = move_axis(values, 0, -1) if values.ndim > 1 else values
        values = values.reshape(-1)
        return np.ascontiguousarray(values) if self.kind == "numpy" else values

    def without_unassigned(self, values: Array, fill: float) -> Array:
        """Return numbers per entry, (n, …), with `fill` for those that are in no segment."""
        if self.unassigned is None:
            return values
        unassigned = self.unassigned[(..., *[None] * (values.ndim - 1))]
        return self.xp.where(unassigned, fill, values)

    def plain(self, name: str, array: Any, of: str = "scores") -> Any:
        """Return an array, or the values of a nested tensor with the parts of the scores."""
        if not getattr(array, "is_nested", False):
            return array
        if self.offsets is None:
            raise TypeError(f"{name} is a nested tensor, and {of} is not; pass its values()")
        values, offsets = of_torch.jagged.parts(name, array)
        alike = tuple(offsets.shape) == tuple(self.offsets.shape)
        if alike and is_at_hand(offsets) and is_at_hand(self.offsets):
            alike = same(offsets, self.offsets)
        if not alike:
            raise ValueError(f"{name} must have parts of the same lengths as {of}")
        return values

    def restored(self, values: Array) -> Array:
        """Return flat numbers per entry in the caller's form and dtype."""
        values = self._columns(cast(values, self.dtype), self.shape[0])
        if self.offsets is None:
            return values
        return of_torch.jagged.jagged(values, self.offsets)  # type: ignore[arg-type]  # of torch

    def per_segment(self, values: Array) -> Array:
        """Return flat numbers per segment as (segments, …)."""
        return self._columns(values, self.segments)

    def _columns(self, values: Array, size: int) -> Array:
        columns = self.shape[1:]
        return move_axis(values.reshape(*columns, size), -1, 0) if columns else values

    def quiet(self) -> contextlib.AbstractContextManager[Any]:
        return quiet_for(self.kind)


def form_of_segments(
    scores: Any,
    segment_ids: Any,
    ptr: Any,
    num_segments: Any,
    of: str = "scores",
    integers: bool = False,
) -> tuple[Array, SegmentForm]:
    """Check scores and what says where the segments are; return them, plain, and their form.

    `of` is the caller's name for the scores; `integers` says whether they may be integers.
    """
    refuse(*SEGMENTS)
    offsets = None
    if is_dtensor(scores):
        raise TypeError(
            f"{of} is a DTensor, whose segments may lie in several processes; call the function "
            "on its full_tensor(), or on to_local() where every process has whole segments"
        )
    refuse_divided(of, scores, "segments")
    if getattr(scores, "is_nested", False):
        if segment_ids is not None or ptr is not None or num_segments is not None:
            raise ValueError(
                "a nested tensor defines its segments; leave out segment_ids, ptr and num_segments"
            )
        scores, offsets = of_torch.jagged.parts(of, scores)
        ptr = offsets
    elif (segment_ids is None) == (ptr is None):
        got = "both" if ptr is not None else "neither"
        raise ValueError(f"give either segment_ids or ptr; got {got}")
    kind, dtype = check_scores(scores, of, integers)
    is_ptr = segment_ids is None
    name = "ptr" if is_ptr else "segment_ids"
    index = _checked_index(name, ptr if is_ptr else segment_ids, scores, of)
    if num_segments is not None:
        num_segments = check_integer("num_segments", num_segments, "an integer ≥ 0", 0)
    size, columns = scores.shape[0], math.prod(scores.shape[1:])
    find = _known if is_at_hand(scores) and is_at_hand(index) else _unknown
    count, over, unassigned = find(index, is_ptr, size, columns, num_segments)
    form = SegmentForm(
        kind, scores.dtype, dtype, tuple(scores.shape), count, over, unassigned, offsets
    )
    return scores, form


def _checked_index(name: str, index: Any, scores: Array, of: str) -> Array:
    check_same_kind(name, index, scores, of)
    if not dtype_name(index).startswith(("int", "uint")):
        raise TypeError(f"{name} must be integers; got dtype {index.dtype}")
    index = adopt(index, scores)
    if name == "segment_ids" and tuple(index.shape) != (scores.shape[0],):
        raise ValueError(
            f"segment_ids has shape {tuple(index.shape)}; it must be {(scores.shape[0],)}, one for "
            f"each entry along the first axis of {of}"
        )
    if name == "ptr" and (index.ndim != 1 or index.shape[0] == 0):
        raise ValueError(
            f"ptr has shape {tuple(index.shape)}; it must have one dimension and num_segments + 1 "
            "entries: segment i goes from ptr[i] to ptr[i + 1]"
        )
    return index.to(scores.device) if is_torch(index) else index


def _known(
    index: Array, is_ptr: bool, size: int, columns: int, count: int | None
) -> tuple[int, SegmentRows, None]:
    """Return the segments by numbers that can be read, all of them checked."""
    for_torch = is_torch(index)
    index = np.asarray(index)
    if index.dtype == np.uint64 and index.size and int(index.max()) >= 1 << 63:
        raise ValueError(
            f"{'ptr' if is_ptr else 'segment_ids'} must be below 2**63; got {int(index.max())}"
        )
    index = index.astype(np.int64, copy=False)
    if is_ptr:
        _check_ptr(index, size, count)
        order = Order.of_ends(index)
    else:
        order = Order.of_ids(index, count)
    count = len(order.lengths)
    if count * columns == 0:  # kernels have no rows to serve then
        none = np.zeros(0, np.int64)
        return count, SegmentRows(as_index(none, for_torch), 0), None
    return count, KnownSegments(order.repeated(columns, size), for_torch), None


def _check_ptr(ptr: np.ndarray, size: int, count: int | None) -> None:
    falls = np.flatnonzero(ptr[1:] < ptr[:-1])
    if falls.size:
        at = int(falls[0])
        raise ValueError(f"ptr must not decrease; got {ptr[at]} before {ptr[at + 1]} at {at}")
    if ptr[0] != 0 or ptr[-1] != size:
        raise ValueError(
            f"ptr must begin with 0 and end with {size}, the number of entries; "
            f"got {ptr[0]} and {ptr[-1]}"
        )
    _check_count_of_ptr(len(ptr) - 1, count)


def _check_count_of_ptr(segments: int, count: int | None) -> None:
    if count is not None and count != segments:
        raise ValueError(f"num_segments is {count}, but ptr has {segments} segments")


def _unknown(
    index: Array, is_ptr: bool, size: int, columns: int, count: int | None
) -> tuple[int, SegmentRows, Array]:
    """Return the segments by numbers that are not read: who is in none has no weight."""
    xp = namespace(index)
    # Narrow types cannot hold the count, nor a difference.
    index = as_indices(index)
    if is_ptr:
        _check_count_of_ptr(index.shape[0] - 1, count)
        ids, count = ids_of_ptr(index, size), index.shape[0] - 1
    else:
        ids, count = index, _count_of_ids(index) if count is None else count
    if count <= 0 and size != 0:
        raise ValueError(
            f"there must be at least 1 segment for {size} entries; got {count} by num_segments or "
            "by the largest of segment_ids"
        )
    unassigned = (ids < 0) | (ids >= count)
    ids = xp.where(unassigned, 0, ids)
    if columns != 1:
        steps = count * arange(index, columns)
        ids = (ids + steps[:, None]).reshape(-1)
    return count, _segment_rows(ids, count * columns), unassigned


def _segment_rows(ids: Array, count: int) -> SegmentRows:
    if is_jax(ids):
        from kofn.arrays.jax.compile import register

        register(SegmentRows, ("ids", "count_of_rows"))
        return SegmentRows(ids, count)
    return SegmentRows(cast(ids, namespace(ids).int64), count)


def ids_of_ptr(ptr: Array, size: int) -> Array:
    """Return the segment of each place; −1 before the first, and the number of segments at the end.

    Where ptr decreases, the numbers before count.
    """
    ends: Any = -cumulative_min(-ptr)
    at: Any = arange(ptr, size)
    if is_torch(ptr):
        import torch

        ids: Any = torch.searchsorted(ends[1:].contiguous(), at, right=True)
    else:
        ids = namespace(ptr).searchsorted(ends[1:], at, side="right")
    return namespace(ptr).where(at < ends[0], -1, ids)


def _count_of_ids(ids: Array) -> int:
    last = greatest(ids)
    if last is None:
        raise ValueError(
            "num_segments must be given where segment_ids are traced, as in jax.jit and "
            "torch.compile: the shape of the result depends on it; got None"
        )
    return last + 1
