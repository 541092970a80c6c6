"""The top-k maps of rows in several processes: weights, threshold, value and the hard top-k."""

from __future__ import annotations

from typing import Any, Never

from kofn.arrays.kinds import Array
from kofn.arrays.names import unknown_keyword
from kofn.arrays.typing import ArrayT, LinkName
from kofn.distributed.over_shards import AxisName, Group, Map, over_shards
from kofn.links import Link
from kofn.maps import topk
from kofn.operations.choice import HARD
from kofn.operations.topk import THETA, VALUE, WEIGHTS

__all__ = ["hard_topk", "soft_topk", "soft_topk_sum", "soft_topk_threshold"]


def _hard(scores: Any, k: Any, *, link: object, temperature: object, dim: int, mask: Any) -> Any:
    return topk.hard_topk(scores, k, dim=dim, mask=mask)


_SOFT = Map("soft_topk", WEIGHTS, topk.soft_topk)
_THRESHOLD = Map("soft_topk_threshold", THETA, topk.soft_topk_threshold)
_SUM = Map("soft_topk_sum", VALUE, topk.soft_topk_sum, has_integral=True)
_HARD = Map("hard_topk", HARD, _hard)


def soft_topk(
    scores: ArrayT,
    k: float | Array,
    *,
    group: Group = None,
    axis_name: AxisName = None,
    link: LinkName | Link = "logistic",
    temperature: float | Array = 1.0,
    dim: int = -1,
    mask: Array | None = None,
    hard: bool = False,
    **others: Never,
) -> ArrayT:
    """Return weights p = F((scores − θ)/temperature), with θ such that Σp = k over all processes.

    It is `kofn.soft_topk` of the rows that the shards of all processes make, one after another in
    the order of ranks; no process gathers them. Every process of the group has to call it, and
    `backward` of its answer. A call takes 3 all-reduces and one for each of the 3 to 8 steps
    of the search; each is of at most 64 bytes per row. `backward` takes 2.

    Args:
        scores: a torch.Tensor of floats, this process's shard. Shards are of one dtype and of one
            shape but for `dim`, where sizes may differ and be 0. Or a DTensor, sharded along any
            dimensions.
        k: how many entries to choose of all the shards together; a number, or a tensor per row as
            for `kofn.soft_topk`, the same in every process.
        group: the processes that hold the other shards: a torch.distributed.ProcessGroup, a
            DeviceMesh of one dimension, or None for all processes. For DTensors, None.
        axis_name: for JAX arrays, in the place of group: the axes of jax.shard_map along which the
            rows lie, a name or a tuple of names; docs/distributed.md.
        link: as for `kofn.soft_topk`.
        temperature: > 0, in the units of the scores; a number or a tensor like `k`.
        dim: the dimension to choose along, along which the scores are sharded.
        mask: boolean, broadcasts to this process's shard; False entries are never chosen. For
            DTensors, it broadcasts to all of it, and is a DTensor or the same in every process.
        hard: return the hard top-k exactly, with the soft weights' gradient (straight-through).

    Returns:
        This process's part of the weights, or a DTensor placed as the scores, differentiable twice.
        The gradient in k, temperature and alpha is the whole one, the same in every process.

    Raises:
        TypeError, ValueError: as for `kofn.soft_topk`, in every process; ValueError if processes
            were given different arguments, and which; TypeError in torch.func and forward mode.
        RuntimeError: the backend's error, if a process has died or did not call.

    Example:
        >>> import torch
        >>> from kofn.distributed import soft_topk
        >>> def weights(shard: torch.Tensor) -> torch.Tensor:  # with torchrun, in every process
        ...     return soft_topk(shard, 100, temperature=0.5)
    """
    if others:
        raise unknown_keyword(soft_topk, others)
    return over_shards(_SOFT, scores, k, group, axis_name, link, temperature, dim, mask, hard)


def soft_topk_threshold(
    scores: ArrayT,
    k: float | Array,
    *,
    group: Group = None,
    axis_name: AxisName = None,
    link: LinkName | Link = "logistic",
    temperature: float | Array = 1.0,
    dim: int = -1,
    mask: Array | None = None,
    **others: Never,
) -> ArrayT:
    """Return θ of `kofn.distributed.soft_topk`, in the units of the scores, the same on every rank.

    Args:
        scores, k, group, axis_name, link, temperature, dim, mask: as for
            `kofn.distributed.soft_topk`.

    Returns:
        θ with the batch shape, as `kofn.soft_topk_threshold`; a DTensor for DTensors. Every process
        computes the same loss from it: the scores have the gradient of one such loss.

    Raises:
        TypeError, ValueError, RuntimeError: as for `kofn.distributed.soft_topk`.

    Example:
        >>> import torch
        >>> from kofn.distributed import soft_topk_threshold
        >>> def least_chosen(shard: torch.Tensor) -> torch.Tensor:  # in every process
        ...     return soft_topk_threshold(shard, 1000, temperature=0.01)
    """
    if others:
        raise unknown_keyword(soft_topk_threshold, others)
    return over_shards(_THRESHOLD, scores, k, group, axis_name, link, temperature, dim, mask)


def soft_topk_sum(
    scores: ArrayT,
    k: float | Array,
    *,
    group: Group = None,
    axis_name: AxisName = None,
    link: LinkName | Link = "logistic",
    temperature: float | Array = 1.0,
    dim: int = -1,
    mask: Array | None = None,
    **others: Never,
) -> ArrayT:
    """Return the smoothed sum of the k largest scores of all processes, S_k = min_θ kθ + T ΣG.

    G is ∫F at (scores − θ)/T; see `kofn.soft_topk_sum`. `backward` needs no all-reduce.

    Args:
        scores, k, group, axis_name, link, temperature, dim, mask: as for
            `kofn.distributed.soft_topk`.

    Returns:
        S_k with the batch shape, the same in every process; its gradient is
        `kofn.distributed.soft_topk`. A DTensor for DTensors.

    Raises:
        TypeError, ValueError, RuntimeError: as for `kofn.distributed.soft_topk`; ValueError for a
            link without an integral.

    Example:
        >>> import torch
        >>> from kofn.distributed import soft_topk_sum
        >>> def largest_ten(shard: torch.Tensor) -> torch.Tensor:  # in every process
        ...     return soft_topk_sum(shard, 10, temperature=0.1)
    """
    if others:
        raise unknown_keyword(soft_topk_sum, others)
    return over_shards(_SUM, scores, k, group, axis_name, link, temperature, dim, mask)


def hard_topk(
    scores: ArrayT,
    k: float | Array,
    *,
    group: Group = None,
    axis_name: AxisName = None,
    dim: int = -1,
    mask: Array | None = None,
    **others: Never,
) -> ArrayT:
    """Return ones at the k largest scores of all processes and zeros elsewhere, no gradient.

    The k-th largest score is found by counts of its bits: no scores are sent. It takes 5
    all-reduces and one a round, of 56 bytes a row, with up to 11 rounds in float32 and 22 in
    float64. Only where equal scores are not all chosen, their numbers are gathered.

    Args:
        scores, k, group, axis_name, dim, mask: as for `kofn.distributed.soft_topk`; the fractional
            part of k is the weight of the next largest score.

    Returns:
        This process's part of the weights: exactly k in all, of equal scores the first
        in the whole row. A DTensor for DTensors.

    Raises:
        TypeError, ValueError, RuntimeError: as for `kofn.distributed.soft_topk`.

    Example:
        >>> import torch
        >>> from kofn.distributed import hard_topk
        >>> def kept(shard: torch.Tensor) -> torch.Tensor:  # in every process
        ...     return hard_topk(shard, 1000).bool()
    """
    if others:
        raise unknown_keyword(hard_topk, others)
    return over_shards(_HARD, scores, k, group, axis_name, "logistic", 1.0, dim, mask)
