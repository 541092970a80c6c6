"""Softmax, sparsemax and entmax of rows in several processes: the maps for k = 1."""

from __future__ import annotations

from functools import partial
from typing import Any, Never

from kofn import links
from kofn.arrays.kinds import Array
from kofn.arrays.names import unknown_keyword
from kofn.arrays.typing import ArrayT
from kofn.distributed.over_shards import AxisName, Group, Map, over_shards
from kofn.maps import softmax as whole
from kofn.maps import topk
from kofn.operations.topk import SOFTMAX, WEIGHTS
from kofn.rows.given import ONE

__all__ = ["entmax", "softmax", "sparsemax"]


def _softmax(scores: Any, k: object, *, link: object, temperature: Any, dim: int, mask: Any) -> Any:
    return whole.softmax(scores, temperature=temperature, dim=dim, mask=mask)


_SOFTMAX = Map("softmax", SOFTMAX, _softmax)
_SPARSEMAX = Map("sparsemax", WEIGHTS, topk.soft_topk)
_ENTMAX = Map("entmax", WEIGHTS, topk.soft_topk)


def softmax(
    scores: ArrayT,
    *,
    group: Group = None,
    axis_name: AxisName = None,
    temperature: float | Array = 1.0,
    dim: int = -1,
    mask: Array | None = None,
    **others: Never,
) -> ArrayT:
    """Return softmax over the shards of all processes, p = e^{scores/T}/Σ e^{scores/T}.

    It takes 4 all-reduces, and `backward` 2.

    Args:
        scores, group, axis_name, temperature, dim, mask: as for `kofn.distributed.soft_topk`.

    Returns:
        This process's part of the weights, which sum to 1 over all processes; a DTensor for
        DTensors. As `kofn.softmax`, it takes scores of ±inf and rows without available entries.

    Raises:
        TypeError, ValueError, RuntimeError: as for `kofn.distributed.soft_topk`.

    Example:
        >>> import torch
        >>> from kofn.distributed import softmax
        >>> def probabilities(shard: torch.Tensor) -> torch.Tensor:  # in every process
        ...     return softmax(shard)  # the logits of this process's part of a vocabulary
    """
    if others:
        raise unknown_keyword(softmax, others)
    link = links.exponential
    return over_shards(_SOFTMAX, scores, ONE, group, axis_name, link, temperature, dim, mask)


def sparsemax(
    scores: ArrayT,
    *,
    group: Group = None,
    axis_name: AxisName = None,
    temperature: float | Array = 1.0,
    dim: int = -1,
    mask: Array | None = None,
    **others: Never,
) -> ArrayT:
    """Return sparsemax over the shards of all processes, argmin_p ‖p − scores/T‖² on the simplex.

    Args:
        scores, group, axis_name, temperature, dim, mask: as for `kofn.distributed.soft_topk`.

    Returns:
        This process's part of the weights, which sum to 1 over all processes; a DTensor for
        DTensors.

    Raises:
        TypeError, ValueError, RuntimeError: as for `kofn.distributed.soft_topk`.

    Source: Martins & Astudillo, "From Softmax to Sparsemax" (2016).

    Example:
        >>> import torch
        >>> from kofn.distributed import sparsemax
        >>> def probabilities(shard: torch.Tensor) -> torch.Tensor:  # in every process
        ...     return sparsemax(shard)
    """
    if others:
        raise unknown_keyword(sparsemax, others)
    link = links.linear
    return over_shards(_SPARSEMAX, scores, ONE, group, axis_name, link, temperature, dim, mask)


def entmax(
    scores: ArrayT,
    alpha: float | Array = 1.5,
    *,
    group: Group = None,
    axis_name: AxisName = None,
    temperature: float | Array = 1.0,
    dim: int = -1,
    mask: Array | None = None,
    **others: Never,
) -> ArrayT:
    """Return α-entmax over the shards of all processes: softmax at α = 1, sparsemax at 2.

    Args:
        scores, group, axis_name, temperature, dim, mask: as for `kofn.distributed.soft_topk`.
        alpha: ≥ 1; a number or a tensor like `temperature`, which may have a gradient; that takes
            more all-reduces.

    Returns:
        This process's part of the weights, which sum to 1 over all processes; a DTensor for
        DTensors.

    Raises:
        TypeError, ValueError, RuntimeError: as for `kofn.distributed.soft_topk`; ValueError for
            alpha < 1.

    Source: Peters, Niculae & Martins, "Sparse Sequence-to-Sequence Models" (2019).

    Example:
        >>> import torch
        >>> from kofn.distributed import entmax
        >>> def probabilities(shard: torch.Tensor) -> torch.Tensor:  # in every process
        ...     return entmax(shard, 1.3)
    """
    if others:
        raise unknown_keyword(entmax, others)
    link = partial(links.entmax, alpha)
    return over_shards(_ENTMAX, scores, ONE, group, axis_name, link, temperature, dim, mask)
