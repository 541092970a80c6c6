"""Softmax over sets of rows in several processes, its entropy, and its loss at one label per row.

The least score of a set is found by sums and counts at a few numbers a message, so every process
has the same set, and none gathers a row.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Never

from kofn import links
from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.checks import check_choice
from kofn.arrays.form import form_of
from kofn.arrays.kinds import Array, adopt, cast, namespace
from kofn.arrays.names import unknown_keyword
from kofn.arrays.operations import as_indices, at_labels, of_places
from kofn.arrays.typing import ArrayT, Reduction
from kofn.distributed.layout import Layout
from kofn.distributed.over_shards import AxisName, Group, layout_of, outside_of_graphs
from kofn.formulas import answers, truncated
from kofn.losses.reduced import of_counted
from kofn.losses.sparse_softmax import OUTSIDE, Outside
from kofn.losses.targets import (
    are_indices,
    check_class_weights,
    check_ignored,
    check_reduction,
    class_weights,
    labelled,
    nan_if_out_of_range,
    weighted,
)
from kofn.maps.sparse_softmax import Support, check_alone, check_support
from kofn.rows.given import ONE
from kofn.rows.kept import Kept, arrays_of, kept_given
from kofn.rows.parts import PartsOfSets
from kofn.rows.settled import Rows, rows_of
from kofn.rows.shards.asked import Asked

__all__ = ["sparse_softmax", "sparse_softmax_entropy", "sparse_softmax_loss"]


def sparse_softmax(
    scores: ArrayT,
    *,
    group: Group = None,
    axis_name: AxisName = None,
    k: int | None = None,
    p: float | None = None,
    min_p: float | None = None,
    kept: Any = None,
    temperature: float | Array = 1.0,
    dim: int = -1,
    mask: Array | None = None,
    **others: Never,
) -> ArrayT:
    """Return `kofn.sparse_softmax` of rows that are split over processes, such as a vocabulary.

    It takes some 12 all-reduces for each of k and p, which carry a few numbers per row.

    Args:
        scores, group, axis_name, temperature, dim, mask: as for `kofn.distributed.soft_topk`.
        k, p, min_p: as for `kofn.sparse_softmax`; k may be more than a row has.
        kept: as for `kofn.sparse_softmax`: ids in whole rows, the same in every process. For
            DTensors the batch may not be cut.

    Returns:
        This process's part of the weights, which sum to 1 over all processes; a DTensor for
        DTensors.

    Raises:
        TypeError, ValueError, RuntimeError: as for `kofn.distributed.soft_topk` and
            `kofn.sparse_softmax`; ValueError if processes were given different sets.

    Source: as for `kofn.sparse_softmax`.

    Example:
        >>> import torch
        >>> from kofn.distributed import sparse_softmax
        >>> def probabilities(shard: torch.Tensor) -> torch.Tensor:  # in every process
        ...     return sparse_softmax(shard, k=50, p=0.95)
    """
    if others:
        raise unknown_keyword(sparse_softmax, others)
    of = k, p, min_p, kept
    return _softmax(scores, group, axis_name, of, temperature, dim, mask)


def sparse_softmax_entropy(
    scores: ArrayT,
    *,
    group: Group = None,
    axis_name: AxisName = None,
    k: int | None = None,
    p: float | None = None,
    min_p: float | None = None,
    kept: Any = None,
    temperature: float | Array = 1.0,
    dim: int = -1,
    mask: Array | None = None,
    **others: Never,
) -> ArrayT:
    """Return `kofn.metrics.sparse_softmax_entropy` of rows that are split over processes.

    Args:
        scores, group, axis_name, k, p, min_p, kept, temperature, dim, mask: as for
            `kofn.distributed.sparse_softmax`.

    Returns:
        The batch shape, the same in every process of the group; a DTensor for DTensors. Every
        process computes its own gradient from it.

    Raises:
        TypeError, ValueError, RuntimeError: as for `kofn.distributed.sparse_softmax`.

    Example:
        >>> import torch
        >>> from kofn.distributed import sparse_softmax_entropy
        >>> def bonus(shard: torch.Tensor) -> torch.Tensor:  # in every process
        ...     return sparse_softmax_entropy(shard, p=0.95).mean()
    """
    if others:
        raise unknown_keyword(sparse_softmax_entropy, others)
    of = k, p, min_p, kept
    return _entropy(scores, group, axis_name, of, temperature, dim, mask)


def sparse_softmax_loss(
    scores: ArrayT,
    target: Array,
    *,
    group: Group = None,
    axis_name: AxisName = None,
    k: int | None = None,
    p: float | None = None,
    min_p: float | None = None,
    kept: Any = None,
    outside: Outside | None = None,
    temperature: float | Array = 1.0,
    dim: int = -1,
    mask: Array | None = None,
    weight: Array | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    **others: Never,
) -> ArrayT:
    """Return `kofn.losses.sparse_softmax_loss` of rows that are split over processes.

    Args:
        scores, group, axis_name, k, p, min_p, kept, temperature, dim, mask: as for
            `kofn.distributed.sparse_softmax`.
        target: integers, the index of the token in the whole row, with the batch shape, the same in
            every process; there are no targets of weights and no label smoothing here.
        outside: as for `kofn.losses.sparse_softmax_loss`.
        weight, ignore_index, reduction: as for `kofn.distributed.softmax_loss`.

    Returns:
        As for `kofn.distributed.softmax_loss`.

    Raises:
        TypeError, ValueError, RuntimeError: as for `kofn.distributed.softmax_loss` and
            `kofn.losses.sparse_softmax_loss`.

    Example:
        >>> import torch
        >>> from kofn.distributed import sparse_softmax_loss
        >>> def log_p(shard: torch.Tensor, tokens: torch.Tensor, sets: tuple) -> torch.Tensor:
        ...     return -sparse_softmax_loss(shard, tokens, kept=sets, reduction="none")
    """
    if others:
        raise unknown_keyword(sparse_softmax_loss, others)
    of = k, p, min_p, kept
    options = target, outside, weight, ignore_index, reduction
    return _loss(scores, group, axis_name, of, temperature, dim, mask, options)


class _Sets(NamedTuple):
    """Rows in parts, with the entries of their sets alone in play."""

    layout: Layout
    rows: Rows  # per entry of this part, or of the sets in it
    over: Any
    last: Array | None  # the least score of a set
    checked: Any
    sets: Kept | None = None
    support: Support | None = None

    def only(self) -> Rows:
        """Return the rows with the entries outside of their sets out of play."""
        return self.rows if self.last is None else truncated.only(self.rows, self.last, self.over)

    def per_row(self, numbers: Array) -> Array:
        return numbers if self.sets is None else numbers.reshape(self.sets.form.batch)


@outside_of_graphs
def _softmax(
    scores: Any, group: Any, axis_name: Any, of: Any, temperature: Any, dim: int, mask: Any
) -> Any:
    layout = layout_of("kofn.distributed.sparse_softmax", scores, group, axis_name, dim)
    each = _sets_of(layout, of, temperature, mask)
    weights = answers.softmax(each.only(), each.over)
    if each.sets is None:
        return layout.restored(weights, False, each.checked.form)
    weights = each.sets.spread(each.sets.given.restored(weights))
    return layout.restored(weights, False)


@outside_of_graphs
def _entropy(
    scores: Any, group: Any, axis_name: Any, of: Any, temperature: Any, dim: int, mask: Any
) -> Any:
    layout = layout_of("kofn.distributed.sparse_softmax_entropy", scores, group, axis_name, dim)
    each = _sets_of(layout, of, temperature, mask)
    entropy = truncated.entropy_of(each.only(), each.over)
    return layout.restored(each.per_row(entropy), True)


@outside_of_graphs
def _loss(
    scores: Any, group: Any, axis_name: Any, of: Any, temperature: Any, dim: int, mask: Any,
    options: Any,
) -> Any:  # fmt: skip
    target, outside, weight, ignored, reduction = options
    layout = layout_of("kofn.distributed.sparse_softmax_loss", scores, group, axis_name, dim)
    with layout.with_all_rows(str(reduction)):
        with layout.checking():
            check_reduction(reduction)
            ignored = check_ignored(ignored)
            if outside is not None:
                check_choice("outside", outside, tuple(OUTSIDE))
            form = form_of(scores, dim)
            if not are_indices(target, scores, form):
                raise ValueError(
                    "target must have one index per row; got weights of shape "
                    f"{tuple(target.shape)}"
                )
            if weight is not None:
                check_class_weights(weight, scores, form.n, layout.of_classes)
                weight = layout.per_class(weight)
            target = layout.per_row("target", stop_gradient(adopt(target, scores)))
        words = f", outside {outside}, ignore_index {ignored}, reduction {reduction}, "
        words += f"{'without' if weight is None else 'with'} weight"
        each = _sets_of(layout, of, temperature, mask, words, (target,))
        loss, count = _losses(each, target, outside, weight, ignored)
    return layout.reduced(loss, count, reduction)


def _sets_of(
    layout: Layout, of: Any, temperature: Any, mask: Any, words: str = "",
    numbers: tuple[Any, ...] = (),
) -> _Sets:  # fmt: skip
    """Check the arguments, and that others have the same; return the sets of rows."""
    k, p, min_p, kept = of
    with layout.checking():
        if kept is None:
            support = check_support(k, p, min_p, None)
        else:
            check_alone(k, p, min_p)
            kept = arrays_of(kept, layout.scores, layout.form())
            numbers += kept
        link = layout.link(links.exponential)
        temperature = layout.per_row("temperature", temperature)
        mask = layout.per_entry("mask", mask)
    words += f", k {k}, p {p}, min_p {min_p}, {'without' if kept is None else 'with'} kept"
    checked = layout.checked(Asked(ONE, link, temperature, mask), words, numbers)
    over = layout.over
    if kept is None:
        rows = layout.settled(checked)
        last = truncated.least(rows, over, **support._asdict())
        return _Sets(layout, rows, over, last, checked, support=support)
    start, whole = over.span(layout.form().n, layout.scores)
    part = start, int(whole)
    sets = kept_given(layout.scores, kept, 1.0, layout.dim, mask, part=part)
    both, x = PartsOfSets(sets.given.over, over), sets.given.scores
    each = cast(checked.k.reshape(-1), x.dtype), checked.temperature.reshape(-1)
    given = sets.given._replace(k=each[0], temperature=each[1])
    return _Sets(layout, rows_of(given, both), both, None, checked, sets)


def _losses(
    each: _Sets, target: Any, outside: Any, weight: Any, ignored: int
) -> tuple[Array, Array]:
    """Return the weighted losses of rows, and what each counts in the mean."""
    over, x, n = each.layout.over, each.checked.scores, each.layout.form().n
    xp, (start, whole) = namespace(x), over.span(n, x)
    labels = labelled(target, x, stop_gradient(x), ignored, int(whole))
    own_labels: Any = labels.labels
    at: Any = as_indices(own_labels) - start  # an unsigned number has no negative ones
    here = (at >= 0) & (at < n)
    at = xp.where(here, at, 0)
    own = over.sum(xp.where(here, at_labels(x, at), 0.0)[..., None])
    if weight is not None:
        weights = of_places(class_weights(weight, n, labels.like()), at)
        weights = over.sum(xp.where(here, weights, 0.0)[..., None])
        labels = labels._replace(row_weight=weights)
    rows, sets = each.rows, each.sets
    if sets is None:
        assert each.last is not None
        assert each.support is not None
        share = truncated.shares(rows, each.last, over, **each.support._asdict())
        is_in = ~(stop_gradient(own) < each.last)
    else:
        share, own = xp.ones_like(rows.scores), own.reshape(-1)
        is_in = sets.has(xp.where(here, at, -1).reshape(-1), each.over)
    way = OUTSIDE[outside or ("against" if sets is None else "kept")]
    loss = each.per_row(truncated.loss(rows, share, own, is_in, each.over, outside=way))
    counted = each.per_row(each.over.count(rows.live | rows.top) > 0)
    counted = counted if labels.used is None else counted & labels.used
    loss = weighted(nan_if_out_of_range(loss, labels), labels)
    return of_counted(loss, counted, labels.row_weight)
