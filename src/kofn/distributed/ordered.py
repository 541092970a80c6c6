"""The k largest numbers of rows in several processes, and their quantiles."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Never

from kofn import links
from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.checks import check_count, check_flag
from kofn.arrays.dtensor import is_dtensor
from kofn.arrays.kinds import (
    Array,
    cast,
    compute_dtype,
    full_like,
    is_torch,
    most_precise_dtype,
    move_axis,
    namespace,
    scalar,
)
from kofn.arrays.names import unknown_keyword
from kofn.arrays.operations import comparable, outermost, take_along_last
from kofn.arrays.typing import ArrayT
from kofn.distributed.layout import Layout, Scores
from kofn.distributed.over_shards import AxisName, Group, layout_of, outside_of_graphs
from kofn.formulas.choice import order_by_states
from kofn.maps.ordered import largest as of_whole_rows
from kofn.maps.ordered.interpolated import Interpolation, quantiles, wanted
from kofn.maps.ordered.largest import TopK
from kofn.maps.ordered.quantiles import of_dense
from kofn.operations.topk import THETA
from kofn.rows.given import last_mask
from kofn.rows.shards.asked import Asked

__all__ = ["quantile", "topk"]


@outside_of_graphs
def topk(
    x: ArrayT,
    k: int,
    *,
    group: Group = None,
    axis_name: AxisName = None,
    dim: int = -1,
    largest: bool = True,
    mask: Array | None = None,
    **others: Never,
) -> TopK[ArrayT]:
    """Return (values, indices) of the k largest entries of all processes, exactly.

    It is `kofn.topk` of the rows that the shards of all processes make, one after another in the
    order of ranks. Each process sends its own k largest entries, and no more.

    Args:
        x: a torch.Tensor of floats or integers, this process's shard, or a DTensor, or a JAX array
            inside jax.shard_map; as the scores of `kofn.distributed.soft_topk`.
        k: an integer in [0, n], n the entries of a whole row.
        group, axis_name, dim: as for `kofn.distributed.soft_topk`.
        largest: False for the k smallest.
        mask: boolean, broadcasts to this process's shard, for DTensors to all of it; False entries
            come after all others, as in `kofn.topk`.

    Returns:
        The named tuple of `kofn.topk`, the same in every process; DTensors for a DTensor. Indices
        are places in the whole row. Every process computes the same loss from the values: x has
        the gradient of one such loss.

    Raises:
        TypeError, ValueError: as for `kofn.topk`, in every process; ValueError if processes were
            given different arguments.
        RuntimeError: the backend's error, if a process has died or did not call.

    Example:
        >>> import torch
        >>> from kofn.distributed import topk
        >>> def best(shard: torch.Tensor) -> torch.Tensor:  # with torchrun, in every process
        ...     return topk(shard, 10).indices
    """
    if others:
        raise unknown_keyword(topk, others)
    parts = _parts("topk", x, group, axis_name, dim, mask, integers=True)
    layout = parts.layout
    with layout.checking():
        descending = check_flag("largest", largest)
    if not layout.is_cut:
        values, indices = of_whole_rows.topk(parts.rows, k, largest=largest, mask=parts.playing)
    else:
        layout.agreed(f"{parts.words}, k {k!r}, largest={descending}")
        with layout.form().quiet():
            values, indices = _largest(parts, k, descending)
    along = layout.form().dim
    return TopK(layout.restored_at(values, along), layout.restored_at(indices, along))


@outside_of_graphs
def quantile(
    x: ArrayT,
    q: float | Array,
    *,
    group: Group = None,
    axis_name: AxisName = None,
    dim: int = -1,
    keepdim: bool = False,
    interpolation: Interpolation = "linear",
    mask: Array | None = None,
    temperature: float = 0.0,
    ignore_nan: bool = False,
    **others: Never,
) -> ArrayT:
    """Return the q-quantile of rows that lie in several processes, exactly.

    It is `kofn.quantile` of the rows that the shards of all processes make. Numbers are found by
    counts of their bits: no numbers are sent. For each row it seeks two numbers per q, and the
    greatest, to know of a NaN. It takes 4 all-reduces, a gather, and an all-reduce of 56 bytes for
    each of these numbers per round, with up to 11 rounds in float32 and 22 in float64. With
    a temperature, it takes the messages of two thresholds per q instead. A row with a NaN, or of
    nothing but −inf with a temperature, may take a message more.

    Args:
        x: as for `kofn.distributed.topk`, of floats.
        q, keepdim, interpolation, temperature, ignore_nan: as for `kofn.quantile`; the same in
            every process.
        group, axis_name, dim, mask: as for `kofn.distributed.topk`; rows lie along the last
            dimension by default.

    Returns:
        As `kofn.quantile`, the same in every process; a DTensor for a DTensor.

    Raises:
        TypeError, ValueError, RuntimeError: as for `kofn.quantile` and `kofn.distributed.topk`.

    Example:
        >>> import torch
        >>> from kofn.distributed import quantile
        >>> def middle(shard: torch.Tensor) -> torch.Tensor:  # in every process
        ...     return quantile(shard, 0.5)
    """
    if others:
        raise unknown_keyword(quantile, others)
    parts = _parts("quantile", x, group, axis_name, dim, mask, integers=False)
    layout, rows, playing = parts.layout, parts.rows, parts.playing
    with layout.checking():
        keepdim, ignore_nan = check_flag("keepdim", keepdim), check_flag("ignore_nan", ignore_nan)
        if is_dtensor(q):
            raise TypeError(
                "q must be a number or a plain tensor, as in each process; got a DTensor"
            )
        of = wanted(q, interpolation, temperature, rows)
    if ignore_nan:
        known = ~namespace(rows).isnan(rows)
        playing = known if playing is None else playing & known
    if not layout.is_cut:
        with layout.form().quiet():
            answer = of_dense(rows, playing, of)
    else:
        learned = is_torch(q) and q.requires_grad
        layout.agreed(
            f"{parts.words}, q {stop_gradient(of.q).tolist() if is_torch(rows) else ''} "
            f"{'with' if learned else 'without'} a gradient, interpolation={interpolation!r}, "
            f"temperature {temperature!r}, ignore_nan={ignore_nan}"
        )
        with layout.form().quiet():
            answer = quantiles(_Rows(layout, cast(rows, compute_dtype(rows)), playing), of)
    answer, along = cast(answer, rows.dtype), layout.form().dim
    if getattr(q, "ndim", 0):
        answer = layout.restored_at(answer, 0)
        return namespace(answer).expand_dims(answer, axis=along) if keepdim else answer
    if keepdim:
        return layout.restored_at(answer, along)
    return layout.restored(answer[..., 0], of_rows=True)


class _Parts(NamedTuple):
    """This process's part of rows."""

    layout: Layout
    rows: Any  # with `dim` last
    playing: Any  # where the mask leaves entries in, or None
    words: str  # what must be the same in all processes


def _parts(
    name: str, x: Any, group: Any, axis_name: AxisName, dim: int, mask: Any, integers: bool
) -> _Parts:
    layout = layout_of(f"kofn.distributed.{name}", x, group, axis_name, dim, Scores("x", integers))
    with layout.checking():
        form = layout.form()
        mask = layout.per_entry("mask", mask)
        playing = None if mask is None else last_mask(mask, layout.scores, form, "x")
        rows = form.last(layout.scores)
    shape = [*map(str, form.batch)]
    shape.insert(len(shape) + 1 + form.dim, "*")
    learned = is_torch(rows) and rows.requires_grad
    words = (
        f"got x of shape ({', '.join(shape)}), {form.dtype_name}, "
        f"{'with' if learned else 'without'} a gradient"
    )
    return _Parts(layout, rows, playing, words)


def _largest(parts: _Parts, k: int, descending: bool) -> tuple[Array, Array]:
    """Return the values and places of the k largest, (…, k): of each part its own k are sent."""
    layout, x, playing = parts.layout, parts.rows, parts.playing
    over, xp, n = layout.over, namespace(x), x.shape[-1]
    start, total = over.span(n, x)
    k = check_count(k, int(total))
    own = of_whole_rows.topk(x, min(k, n), largest=descending, mask=playing)
    if k == 0:
        return own.values, own.indices
    places = own.indices + start
    # A masked entry is sent as −2 less its place, and −1 where there are fewer than k.
    if playing is not None:
        places = xp.where(take_along_last(playing, own.indices), places, -2 - places)
    values, places = _padded(own.values, k, 0), _padded(places, k, -1)
    every, code = over.gathered(stop_gradient(values)), over.gathered(places)
    states = xp.where(code >= 0, 0, xp.where(code == -1, scalar(code, 2), scalar(code, 1)))
    order = order_by_states(comparable(every), states, descending)[..., :k]
    code = take_along_last(code, order)
    mine, taken = order // k == over.place, take_along_last(values, order % k)
    best = layout.owned(take_along_last(every, order), taken, mine)
    best = xp.where(code >= 0, best, outermost(x, greatest=not descending))
    return best, xp.where(code >= 0, code, -2 - code)


def _padded(values: Array, k: int, fill: int) -> Array:
    missing = k - values.shape[-1]
    if not missing:
        return values
    more = full_like(values, (*values.shape[:-1], missing), fill)
    return namespace(values).concat((values, more), axis=-1)


class _Rows(NamedTuple):
    """Rows in parts, which know their order; see `maps.ordered.interpolated.Rows`."""

    layout: Layout
    x: Any
    playing: Any

    @property
    def counts(self) -> Array:
        x, over = self.x, self.layout.over
        flags = (
            namespace(x).ones_like(x, dtype=namespace(x).bool)
            if self.playing is None
            else self.playing
        )
        return cast(over.count(flags), most_precise_dtype(x))[..., None]

    def ranked(self, ranks: Array) -> Array:
        ranks = namespace(ranks).broadcast_to(ranks, (*self.x.shape[:-1], ranks.shape[-1]))
        whole = cast(ranks, namespace(ranks).int64 if is_torch(ranks) else namespace(ranks).int32)
        return self.layout.ranked(self.x, self.playing, whole)

    def threshold(self, k: Array, temperature: float) -> Array:
        dim, batch = self.layout.form().dim, tuple(self.x.shape[:-1])
        # Rows of a half type are computed in float32, where its least number is no mask.
        layout = self.layout.with_scores(move_axis(self.x, -1, dim))
        mask = None if self.playing is None else move_axis(self.playing, -1, dim)
        # In float32, on JAX, half an entry of a long row may be lost: not all are to be chosen.
        most = self.counts[..., 0] * (1 - float(namespace(k).finfo(k.dtype).eps))
        k = namespace(k).broadcast_to(namespace(k).minimum(k, most), batch)
        rows = layout.checked(Asked(layout.over.shared(k), links.logistic, temperature, mask))
        return layout.answer(THETA, rows)

    def greatest(self) -> Array:
        return self.layout.over.max(self._in_play(stop_gradient(self.x), -math.inf))

    def total(self, rows: Array) -> Array:
        x = namespace(self.x).where(rows, self._in_play(self.x, 0.0), 0.0)
        return self.layout.over.sum(x)[..., None]

    def _in_play(self, x: Array, otherwise: float) -> Array:
        return x if self.playing is None else namespace(x).where(self.playing, x, otherwise)
