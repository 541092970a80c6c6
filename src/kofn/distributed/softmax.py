"""Softmax, sparsemax and entmax of rows in several processes: the maps for k = 1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kofn import links
from kofn.arrays.kinds import Array
from kofn.arrays.typing import ArrayT
from kofn.distributed import on_axes
from kofn.distributed.early import told
from kofn.distributed.on_axes import AxisName
from kofn.distributed.topk import array_alpha, with_alpha
from kofn.links import Link
from kofn.maps import softmax as whole
from kofn.maps import topk
from kofn.rows.given import ONE

if TYPE_CHECKING:
    from kofn.distributed.topk import Group

__all__ = ["entmax", "softmax", "sparsemax"]


def softmax(
    scores: ArrayT,
    *,
    group: Group = None,
    axis_name: AxisName = None,
    temperature: float | Array = 1.0,
    dim: int = -1,
    mask: Array | None = None,
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
    link = links.exponential
    if on_axes.is_asked("kofn.distributed.softmax", scores, group, axis_name):
        return on_axes.softmax(
            "kofn.distributed.softmax", axis_name, scores, ONE, link, temperature, dim, mask
        )

    def run(scores: Any, groups: Any, *, temperature: Any, alpha: Any, mask: Any) -> Any:
        if not groups:
            return whole.softmax(scores, temperature=temperature, dim=dim, mask=mask)
        from kofn.rows.group import given
        from kofn.rows.group.operations import SOFTMAX, evaluate

        name = "kofn.distributed.softmax"
        shards = given.shards(name, scores, ONE, link, temperature, dim, mask, groups)
        return shards.form.restored(evaluate(SOFTMAX, shards))

    return _called("softmax", run, scores, group, link, temperature, dim, mask)


def sparsemax(
    scores: ArrayT,
    *,
    group: Group = None,
    axis_name: AxisName = None,
    temperature: float | Array = 1.0,
    dim: int = -1,
    mask: Array | None = None,
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
    link = links.linear
    return _of_one("sparsemax", scores, group, axis_name, link, temperature, dim, mask)


def entmax(
    scores: ArrayT,
    alpha: float | Array = 1.5,
    *,
    group: Group = None,
    axis_name: AxisName = None,
    temperature: float | Array = 1.0,
    dim: int = -1,
    mask: Array | None = None,
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
    name = "kofn.distributed.entmax"
    link = told(name, scores, group, dim, lambda: links.entmax(alpha))
    return _of_one("entmax", scores, group, axis_name, link, temperature, dim, mask)


def _of_one(
    name: str,
    scores: Any,
    group: Any,
    axis_name: Any,
    link: Link,
    temperature: Any,
    dim: int,
    mask: Any,
) -> Any:
    full = f"kofn.distributed.{name}"
    if on_axes.is_asked(full, scores, group, axis_name):
        return on_axes.soft_topk(full, axis_name, False, scores, ONE, link, temperature, dim, mask)

    def run(scores: Any, groups: Any, *, temperature: Any, alpha: Any, mask: Any) -> Any:
        own = with_alpha(link, alpha)
        if not groups:
            return topk.soft_topk(
                scores, ONE, link=own, temperature=temperature, dim=dim, mask=mask
            )
        from kofn.rows.group import given
        from kofn.rows.group.operations import WEIGHTS, evaluate

        shards = given.shards(full, scores, ONE, own, temperature, dim, mask, groups)
        return shards.form.restored(evaluate(WEIGHTS, shards))

    return _called(name, run, scores, group, link, temperature, dim, mask)


def _called(
    name: str, run: Any, scores: Any, group: Any, link: Link, temperature: Any, dim: int, mask: Any
) -> Any:
    from kofn.distributed.placements import on_shards

    return on_shards(
        f"kofn.distributed.{name}",
        run,
        scores,
        dim,
        group,
        per_row=dict(temperature=temperature, alpha=array_alpha(link)),
        per_entry=dict(mask=mask),
    )
