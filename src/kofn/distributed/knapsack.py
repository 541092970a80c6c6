"""The knapsack maps of rows in several processes: costs that sum to one budget over all of them."""

from __future__ import annotations

from typing import Never

from kofn.arrays.kinds import Array
from kofn.arrays.names import unknown_keyword
from kofn.arrays.typing import ArrayT, LinkName
from kofn.distributed.over_shards import AxisName, Group, Map, over_shards
from kofn.links import Link
from kofn.maps import knapsack
from kofn.operations.knapsack import KNAPSACK, KNAPSACK_VALUE, PRICE

__all__ = ["soft_knapsack", "soft_knapsack_threshold", "soft_knapsack_value"]

_SOFT = Map("soft_knapsack", KNAPSACK, knapsack.soft_knapsack)
_PRICE = Map("soft_knapsack_threshold", PRICE, knapsack.soft_knapsack_threshold)
_VALUE = Map("soft_knapsack_value", KNAPSACK_VALUE, knapsack.soft_knapsack_value, has_integral=True)


def soft_knapsack(
    scores: ArrayT,
    costs: float | Array,
    budget: float | Array,
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
    """Return weights p = F((scores − θ·costs)/temperature), Σ costs·p = budget over all processes.

    It is `kofn.soft_knapsack` of the rows that the shards of all processes make. A call takes 12
    all-reduces and one for each step of the search; `backward` takes 2. The hard choice takes
    about 29, and a gather of one number per row.

    Args:
        scores, group, axis_name, link, temperature, dim, mask: as for
            `kofn.distributed.soft_topk`.
        costs: what an entry costs, ≥ 0 and finite: a number, or a tensor that broadcasts to this
            process's shard. For DTensors, it broadcasts to all of it, and is a DTensor or the same
            in every process.
        budget: what may be spent by all processes together, ≥ 0, in the units of the costs; a
            number or a tensor per row, the same in every process.
        hard: return 0 and 1 exactly, with the soft weights' gradient, as `kofn.soft_knapsack` does:
            by scores/costs, ties from the lowest index of the whole row on, up to the first entry
            that does not fit. Not inside jax.shard_map.

    Returns:
        This process's part of the weights, or a DTensor placed as the scores, differentiable twice
        in scores, costs, budget, temperature and alpha.

    Raises:
        TypeError, ValueError, RuntimeError: as for `kofn.distributed.soft_topk` and
            `kofn.soft_knapsack`.

    Example:
        >>> import torch
        >>> from kofn.distributed import soft_knapsack
        >>> def kept(shard: torch.Tensor, bytes: torch.Tensor) -> torch.Tensor:  # in every process
        ...     return soft_knapsack(shard, bytes, 1e9)
    """
    if others:
        raise unknown_keyword(soft_knapsack, others)
    return over_shards(
        _SOFT, scores, budget, group, axis_name, link, temperature, dim, mask, hard, costs
    )


def soft_knapsack_threshold(
    scores: ArrayT,
    costs: float | Array,
    budget: float | Array,
    *,
    group: Group = None,
    axis_name: AxisName = None,
    link: LinkName | Link = "logistic",
    temperature: float | Array = 1.0,
    dim: int = -1,
    mask: Array | None = None,
    **others: Never,
) -> ArrayT:
    """Return θ of `kofn.distributed.soft_knapsack`, the price of a unit of cost.

    Args:
        scores, costs, budget, group, axis_name, link, temperature, dim, mask: as for
            `kofn.distributed.soft_knapsack`.

    Returns:
        θ with the batch shape, in units of scores per cost, the same in every process; see
        `kofn.soft_knapsack_threshold`. A DTensor for DTensors.

    Raises:
        TypeError, ValueError, RuntimeError: as for `kofn.distributed.soft_knapsack`.

    Example:
        >>> import torch
        >>> from kofn.distributed import soft_knapsack_threshold
        >>> def price(shard: torch.Tensor, bytes: torch.Tensor) -> torch.Tensor:  # in every process
        ...     return soft_knapsack_threshold(shard, bytes, 1e9)
    """
    if others:
        raise unknown_keyword(soft_knapsack_threshold, others)
    given = scores, budget, group, axis_name, link, temperature, dim, mask
    return over_shards(_PRICE, *given, costs=costs)


def soft_knapsack_value(
    scores: ArrayT,
    costs: float | Array,
    budget: float | Array,
    *,
    group: Group = None,
    axis_name: AxisName = None,
    link: LinkName | Link = "logistic",
    temperature: float | Array = 1.0,
    dim: int = -1,
    mask: Array | None = None,
    **others: Never,
) -> ArrayT:
    """Return S = min_θ θ·budget + T Σ G((scores − θ·costs)/T), the best value for the budget.

    Args:
        scores, costs, budget, group, axis_name, link, temperature, dim, mask: as for
            `kofn.distributed.soft_knapsack`.

    Returns:
        S with the batch shape, in the units of the scores, the same in every process; see
        `kofn.soft_knapsack_value`. A DTensor for DTensors.

    Raises:
        TypeError, ValueError, RuntimeError: as for `kofn.distributed.soft_knapsack`; ValueError
            for a link without an integral.

    Example:
        >>> import torch
        >>> from kofn.distributed import soft_knapsack_value
        >>> def best(shard: torch.Tensor, bytes: torch.Tensor) -> torch.Tensor:  # in every process
        ...     return soft_knapsack_value(shard, bytes, 1e9)
    """
    if others:
        raise unknown_keyword(soft_knapsack_value, others)
    given = scores, budget, group, axis_name, link, temperature, dim, mask
    return over_shards(_VALUE, *given, costs=costs)
