"""The knapsack maps of rows in several processes: costs that sum to one budget over all of them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from kofn.arrays.checks import check_flag
from kofn.arrays.kinds import Array
from kofn.arrays.typing import ArrayT, LinkName
from kofn.distributed import on_axes
from kofn.distributed.early import link_of, told
from kofn.distributed.on_axes import AxisName
from kofn.distributed.over_shards import array_alpha, with_alpha
from kofn.links import Link
from kofn.maps import knapsack

if TYPE_CHECKING:
    from kofn.distributed.over_shards import Group

__all__ = ["soft_knapsack", "soft_knapsack_threshold", "soft_knapsack_value"]


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
    whole = knapsack.soft_knapsack
    name = "soft_knapsack"
    full = f"kofn.distributed.{name}"
    told(full, scores, group, dim, lambda: check_flag("hard", hard))
    if on_axes.is_asked(full, scores, group, axis_name) and hard:
        raise ValueError(
            f"{full}: hard must be False inside jax.shard_map; got True: call kofn.soft_knapsack "
            "under jax.jit, which takes arrays on any mesh"
        )
    answer, whole = "hard_weights" if hard else "weights", partial(whole, hard=hard)
    return _called(
        name, whole, answer, axis_name, scores, costs, budget, group, link, temperature, dim, mask
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
    whole = knapsack.soft_knapsack_threshold
    name = "soft_knapsack_threshold"
    return _called(
        name, whole, "theta", axis_name, scores, costs, budget, group, link, temperature, dim, mask
    )


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
    whole = knapsack.soft_knapsack_value
    name = "soft_knapsack_value"
    return _called(
        name, whole, "value", axis_name, scores, costs, budget, group, link, temperature, dim, mask
    )


def _called(
    name: str,
    whole: Any,
    answer: str,
    axis_name: Any,
    scores: Any,
    costs: Any,
    budget: Any,
    group: Any,
    link: Any,
    temperature: Any,
    dim: int,
    mask: Any,
) -> Any:
    from kofn.distributed.placements import on_shards

    full, of_entries = f"kofn.distributed.{name}", answer.endswith("weights")
    link = link_of(full, scores, group, dim, link)
    if on_axes.is_asked(full, scores, group, axis_name):
        arguments = scores, costs, budget, link, temperature, dim, mask
        return on_axes.soft_knapsack(full, axis_name, answer, *arguments)

    def run(
        scores: Any,
        groups: Any,
        *,
        budget: Any,
        temperature: Any,
        alpha: Any,
        costs: Any,
        mask: Any,
    ) -> Any:
        own = with_alpha(link, alpha)
        if not groups:
            return whole(
                scores, costs, budget, link=own, temperature=temperature, dim=dim, mask=mask
            )
        from kofn.rows.group import priced

        flags = answer == "value", answer == "hard_weights"
        checked = priced.priced_shards(
            full, scores, costs, budget, own, temperature, dim, mask, groups, *flags
        )
        found = getattr(priced, answer)(checked)
        return checked.shards.form.restored(found) if of_entries else found

    return on_shards(
        full,
        run,
        scores,
        dim,
        group,
        per_row=dict(budget=budget, temperature=temperature, alpha=array_alpha(link)),
        per_entry=dict(costs=costs, mask=mask),
        of_rows=not of_entries,
    )
