"""The divergence from a teacher's k tokens, of rows in several processes."""

from __future__ import annotations

import math
from typing import Any, Never

from kofn import links
from kofn.arrays.checks import check_choice, check_flag
from kofn.arrays.kinds import Array, namespace
from kofn.arrays.names import unknown_keyword
from kofn.arrays.operations import take_along_last
from kofn.arrays.typing import ArrayT, Reduction
from kofn.distributed.over_shards import AxisName, Group, layout_of, outside_of_graphs
from kofn.formulas import named as formulas
from kofn.losses.distillation import TAILS, Tail, check_named, check_range
from kofn.losses.reduced import of_counted
from kofn.losses.targets import check_reduction
from kofn.rows.given import ONE
from kofn.rows.kept import PADDING
from kofn.rows.shards.asked import Asked

__all__ = ["topk_kl"]


def topk_kl(
    scores: ArrayT,
    ids: Array,
    log_probs: Array,
    *,
    group: Group = None,
    axis_name: AxisName = None,
    tail: Tail = "bucket",
    reverse: bool = False,
    temperature: float | Array = 1.0,
    dim: int = -1,
    mask: Array | None = None,
    reduction: Reduction = "mean",
    **others: Never,
) -> ArrayT:
    """Return `kofn.losses.topk_kl` of a student whose logits are split over processes.

    Args:
        scores, group, axis_name, temperature, dim, mask: as for `kofn.distributed.softmax`.
        ids, log_probs, tail, reverse: as for `kofn.losses.topk_kl`: ids in whole rows, the same in
            every process. For DTensors the batch may not be cut.
        reduction: as for `kofn.distributed.softmax_loss`.

    Returns:
        As for `kofn.distributed.softmax_loss`.

    Raises:
        TypeError, ValueError, RuntimeError: as for `kofn.distributed.soft_topk` and
            `kofn.losses.topk_kl`; ValueError if processes were given different tokens.

    Example:
        >>> import torch
        >>> from kofn.distributed import topk_kl
        >>> def loss(shard: torch.Tensor, ids: torch.Tensor, log_p: torch.Tensor) -> torch.Tensor:
        ...     return topk_kl(shard, ids, log_p)  # in every process
    """
    if others:
        raise unknown_keyword(topk_kl, others)
    options = tail, reverse, reduction
    return _topk_kl(scores, ids, log_probs, group, axis_name, temperature, dim, mask, options)


@outside_of_graphs
def _topk_kl(
    scores: Any, ids: Any, log_probs: Any, group: Any, axis_name: Any, temperature: Any, dim: int,
    mask: Any, options: Any,
) -> Any:  # fmt: skip
    tail, reverse, reduction = options
    layout = layout_of("kofn.distributed.topk_kl", scores, group, axis_name, dim)
    with layout.with_all_rows(str(reduction)):
        with layout.checking():
            check_reduction(reduction)
            check_choice("tail", tail, TAILS)
            check_flag("reverse", reverse)
            entries, log_p = check_named(ids, log_probs, layout.scores, layout.form())
            link = layout.link(links.exponential)
            temperature = layout.per_row("temperature", temperature)
            mask = layout.per_entry("mask", mask)
        words = f", tail {tail}, reverse {reverse}, reduction {reduction}"
        numbers = entries, log_p
        rows = layout.checked(Asked(ONE, link, temperature, mask), words, numbers)
        x, over, n = rows.scores, layout.over, layout.form().n
        xp, (start, whole) = namespace(x), over.span(n, x)
        check_range(entries, int(whole))
        there, wrong = entries != PADDING, (entries < PADDING) | (entries >= whole)
        at = entries - start
        here = there & ~wrong & (at >= 0) & (at < n)
        own = xp.where(here, take_along_last(x, xp.where(here, at, 0)), 0.0)
        own = xp.where(there & wrong, math.nan, over.sum(own[..., None]))
        of = formulas.named(own, there, log_p, rows.temperature)
        rest = None
        if tail == "bucket":
            at = xp.where(here, at, x.shape[-1])
            rest = formulas.rest(x, rows.temperature, of.base, at, over)
        loss = formulas.divergence(of, rest, reverse=reverse)
        loss, count = of_counted(loss, formulas.counted(there, x, over), None)
    return layout.reduced(loss, count, reduction)
