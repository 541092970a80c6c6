"""Losses of rows in several processes, such as the logits of a vocabulary that is cut among them.

Each process has the same losses, and the gradient of its own scores.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Never

from kofn import links
from kofn.arrays.kinds import Array
from kofn.arrays.names import unknown_keyword
from kofn.arrays.typing import ArrayT, LinkName, Reduction
from kofn.distributed.loss_over_shards import loss
from kofn.distributed.over_shards import AxisName, Group
from kofn.links import Link

__all__ = ["entmax_loss", "fenchel_young_loss", "softmax_loss", "sparsemax_loss", "topk_loss"]


def softmax_loss(
    scores: ArrayT,
    target: Array,
    *,
    group: Group = None,
    axis_name: AxisName = None,
    temperature: float | Array = 1.0,
    dim: int = -1,
    mask: Array | None = None,
    weight: Array | None = None,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    **others: Never,
) -> ArrayT:
    """Return the cross-entropy of logits that are split over processes: vocabulary-parallel.

    It is `kofn.losses.softmax_loss` of the whole rows, in every process: smoothing and reductions
    are counted once, so do not sum it over the group. It takes 6 all-reduces, and `backward` none.

    Args:
        scores, group, axis_name, temperature, dim, mask: as for `kofn.distributed.softmax`.
        target: integers, the index of the class in the whole row, with the batch shape, the same in
            every process; or weights, this process's part, with the shape of `scores`. For DTensors
            a target is a DTensor or the same in every process, and weights have the whole shape.
        weight: one number per class, this process's part; for DTensors the whole one.
        label_smoothing, ignore_index: as for `kofn.losses.softmax_loss`.
        reduction: "mean", "sum" or "none", over all rows; a DTensor's rows in other
        processes, too, and inside jax.shard_map this device's.

    Returns:
        A scalar, or the batch shape for "none", the same in every process of the group; a DTensor
        for DTensors. Every process computes its own gradient from it.

    Raises:
        TypeError, ValueError, RuntimeError: as for `kofn.distributed.soft_topk` and
            `kofn.losses.softmax_loss`; ValueError if processes were given different targets.

    Example:
        >>> import torch
        >>> from kofn.distributed import softmax_loss
        >>> def loss(shard: torch.Tensor, words: torch.Tensor) -> torch.Tensor:  # in every process
        ...     return softmax_loss(shard, words, label_smoothing=0.1)
    """
    if others:
        raise unknown_keyword(softmax_loss, others)
    options: Any = dict(weight=weight, label_smoothing=label_smoothing, ignore_index=ignore_index)
    given = scores, target, group, axis_name, None, temperature, dim, mask, reduction
    return loss("softmax_loss", *given, **options)


def sparsemax_loss(
    scores: ArrayT,
    target: Array,
    *,
    group: Group = None,
    axis_name: AxisName = None,
    temperature: float | Array = 1.0,
    dim: int = -1,
    mask: Array | None = None,
    weight: Array | None = None,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    **others: Never,
) -> ArrayT:
    """Return `kofn.losses.sparsemax_loss` of rows that are split over processes.

    Args:
        scores, target, group, axis_name, temperature, dim, mask, weight, label_smoothing,
            ignore_index, reduction: as for `kofn.distributed.softmax_loss`.

    Returns:
        As for `kofn.distributed.softmax_loss`.

    Raises:
        TypeError, ValueError, RuntimeError: as for `kofn.distributed.softmax_loss`.

    Source: Martins & Astudillo, "From Softmax to Sparsemax" (2016).

    Example:
        >>> import torch
        >>> from kofn.distributed import sparsemax_loss
        >>> def loss(shard: torch.Tensor, words: torch.Tensor) -> torch.Tensor:  # in every process
        ...     return sparsemax_loss(shard, words)
    """
    if others:
        raise unknown_keyword(sparsemax_loss, others)
    options: Any = dict(weight=weight, label_smoothing=label_smoothing, ignore_index=ignore_index)
    given = scores, target, group, axis_name, links.linear, temperature, dim, mask, reduction
    return loss("sparsemax_loss", *given, **options)


def entmax_loss(
    scores: ArrayT,
    target: Array,
    alpha: float | Array = 1.5,
    *,
    group: Group = None,
    axis_name: AxisName = None,
    temperature: float | Array = 1.0,
    dim: int = -1,
    mask: Array | None = None,
    weight: Array | None = None,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    **others: Never,
) -> ArrayT:
    """Return `kofn.losses.entmax_loss` of rows that are split over processes.

    Args:
        scores, target, group, axis_name, temperature, dim, mask, weight, label_smoothing,
            ignore_index, reduction: as for `kofn.distributed.softmax_loss`.
        alpha: as for `kofn.distributed.entmax`.

    Returns:
        As for `kofn.distributed.softmax_loss`.

    Raises:
        TypeError, ValueError, RuntimeError: as for `kofn.distributed.softmax_loss`; ValueError for
            alpha < 1.

    Source: Peters, Niculae & Martins, "Sparse Sequence-to-Sequence Models" (2019).

    Example:
        >>> import torch
        >>> from kofn.distributed import entmax_loss
        >>> def loss(shard: torch.Tensor, words: torch.Tensor) -> torch.Tensor:  # in every process
        ...     return entmax_loss(shard, words, 1.3)
    """
    if others:
        raise unknown_keyword(entmax_loss, others)
    options: Any = dict(weight=weight, label_smoothing=label_smoothing, ignore_index=ignore_index)
    link = partial(links.entmax, alpha)
    given = scores, target, group, axis_name, link, temperature, dim, mask, reduction
    return loss("entmax_loss", *given, **options)


def topk_loss(
    scores: ArrayT,
    target: Array,
    *,
    group: Group = None,
    axis_name: AxisName = None,
    link: LinkName | Link = "logistic",
    temperature: float | Array = 1.0,
    dim: int = -1,
    mask: Array | None = None,
    weight: Array | None = None,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    **others: Never,
) -> ArrayT:
    """Return `kofn.losses.topk_loss`, for several labels per row, of rows split over processes.

    It takes as many all-reduces as `kofn.distributed.soft_topk` and two or three more; `backward`
    takes none.

    Args:
        scores, target, group, axis_name, temperature, dim, mask, weight, label_smoothing,
            ignore_index, reduction: as for `kofn.distributed.softmax_loss`; a target of weights may
            be k-hot.
        link: as for `soft_topk`.

    Returns:
        As for `kofn.distributed.softmax_loss`.

    Raises:
        TypeError, ValueError, RuntimeError: as for `kofn.distributed.softmax_loss`; ValueError for
            a link without an integral.

    Example:
        >>> import torch
        >>> from kofn.distributed import topk_loss
        >>> def loss(shard: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        ...     return topk_loss(shard, labels)  # labels: this process's part of a k-hot target
    """
    if others:
        raise unknown_keyword(topk_loss, others)
    options: Any = dict(weight=weight, label_smoothing=label_smoothing, ignore_index=ignore_index)
    given = scores, target, group, axis_name, link, temperature, dim, mask, reduction
    return loss("topk_loss", *given, **options)


def fenchel_young_loss(
    scores: ArrayT,
    target: Array,
    *,
    group: Group = None,
    axis_name: AxisName = None,
    link: LinkName | Link = "exponential",
    temperature: float | Array = 1.0,
    dim: int = -1,
    mask: Array | None = None,
    reduction: Reduction = "mean",
    **others: Never,
) -> ArrayT:
    """Return `kofn.fenchel_young_loss`, S_k(x)/T + ΣΩ(t) − ⟨t, x⟩/T, of rows split over processes.

    Args:
        scores, target, group, axis_name, link, temperature, dim, mask, reduction: as for
            `kofn.distributed.topk_loss`.

    Returns:
        As for `kofn.distributed.softmax_loss`.

    Raises:
        TypeError, ValueError, RuntimeError: as for `kofn.distributed.topk_loss`.

    Source: Blondel, Martins & Niculae, "Learning with Fenchel-Young Losses" (2020).

    Example:
        >>> import torch
        >>> from kofn.distributed import fenchel_young_loss
        >>> def loss(shard: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        ...     return fenchel_young_loss(shard, weights, link="entmax")
    """
    if others:
        raise unknown_keyword(fenchel_young_loss, others)
    given = scores, target, group, axis_name, link, temperature, dim, mask, reduction
    return loss("fenchel_young_loss", *given)
