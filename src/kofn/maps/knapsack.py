"""The knapsack maps: soft weights whose costs sum to a budget, the price, and the value."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Never

from kofn.adapters import route
from kofn.arrays.checks import check_flag
from kofn.arrays.kinds import Array
from kofn.arrays.names import unknown_keyword
from kofn.arrays.typing import ArrayT, LinkName
from kofn.links import Link, table
from kofn.operations.knapsack import FILL, HARD_KNAPSACK, KNAPSACK, KNAPSACK_VALUE, PRICE
from kofn.rows.given import Given, given_for_kernels
from kofn.rows.integral import require_integral

__all__ = ["soft_knapsack", "soft_knapsack_threshold", "soft_knapsack_value"]


def soft_knapsack(
    scores: ArrayT,
    costs: float | Array,
    budget: float | Array,
    *,
    link: LinkName | Link = "logistic",
    temperature: float | Array = 1.0,
    dim: int = -1,
    mask: Array | None = None,
    hard: bool = False,
    **others: Never,
) -> ArrayT:
    """Return weights p = F((scores − θ·costs)/temperature), with θ such that Σ costs·p = budget.

    They maximise Σ scores·p minus temperature·ΣΩ(p) under Σ costs·p = budget; −Ω is the binary
    entropy for "logistic". θ is the price of a unit of cost. As the temperature goes to 0, p fills
    the budget in the order of scores/costs, and the last entry is fractional.

    Args:
        scores: torch.Tensor, jax.Array or numpy.ndarray of floats, any shape; −inf is never
            chosen, +inf is chosen first, as for `soft_topk`.
        costs: what an entry costs, ≥ 0 and finite: a number, or an array that broadcasts to
            `scores`. An entry of cost 0 has the weight F(scores/temperature), at any price.
        budget: what may be spent, ≥ 0, in the units of the costs; a number, or an array that
            broadcasts to the batch shape (`scores.shape` without `dim`). All of it is spent, even
            on entries whose scores are below 0; where leaving some unspent would pay, θ < 0. If it
            is at least the sum of the costs, every entry of positive cost has weight 1.
        link: F, as for `soft_topk`; shifted to mean zero, which fixes the weights of entries that
            cost nothing.
        temperature: > 0, in the units of the scores; a number or an array like `budget`.
        dim: the dimension to choose along.
        mask: boolean, broadcasts to `scores`; False entries are never chosen, and cost nothing.
        hard: return 0 and 1 exactly, with the soft weights' gradient (straight-through): entries
            are bought in the order of scores/costs, ties from the lowest index on, up to the first
            one that does not fit. Entries of cost 0 are taken where their score is above 0.

    Returns:
        Weights with the shape, dtype and device of `scores`, differentiable twice in scores,
        costs, budget, temperature and the link's alpha. Scores of +inf have weight 1 if the budget
        suffices for all of them, and else share it, with equal weights. A row without available
        entries is zeros. A NaN affects its row only.

    Raises:
        TypeError, ValueError: an argument has the wrong type, dtype or shape, or a number is out
            of range. Entries of arrays are not checked; an invalid one, such as a cost that is
            negative or infinite, gives NaN in its row.

    Source: the continuous knapsack problem, Dantzig (1957), with the regularisers of Blondel,
    Martins & Niculae (2020).

    Example:
        >>> import numpy as np
        >>> from kofn import soft_knapsack
        >>> scores, costs = np.array([3.0, 2.0, 1.0, 0.5]), np.array([4.0, 1.0, 1.0, 2.0])
        >>> soft_knapsack(scores, costs, 4).round(3)
        array([0.524, 0.781, 0.568, 0.278])
        >>> soft_knapsack(scores, costs, 4, temperature=0.01).round(3)
        array([0.5, 1. , 1. , 0. ])
        >>> soft_knapsack(scores, costs, 4, hard=True)
        array([0., 1., 1., 0.])
    """
    if others:
        raise unknown_keyword(soft_knapsack, others)
    is_hard = check_flag("hard", hard)
    function = _hard_weights if is_hard else partial(route.answer, KNAPSACK)
    return _of(function, scores, costs, budget, table.resolve(link), temperature, dim, mask, True)


def _hard_weights(given: Given) -> Array:
    """Return the hard choice with the gradient of the weights, which needs θ alone."""
    if not route.may_learn(HARD_KNAPSACK, given):
        return route.answer(FILL, given)
    return route.answer(HARD_KNAPSACK, given)


def soft_knapsack_threshold(
    scores: ArrayT,
    costs: float | Array,
    budget: float | Array,
    *,
    link: LinkName | Link = "logistic",
    temperature: float | Array = 1.0,
    dim: int = -1,
    mask: Array | None = None,
    **others: Never,
) -> ArrayT:
    """Return θ of soft_knapsack, the price of a unit of cost: scores above θ·costs have p > F(0).

    θ is in units of scores per cost, for links shifted to mean zero. It is the slope of
    `soft_knapsack_value` in the budget.

    Args:
        scores, costs, budget, link, temperature, dim, mask: as for `soft_knapsack`.

    Returns:
        θ with the batch shape, differentiable; float32 for half-precision scores. +inf where
        scores of +inf take all of the budget, or where it is 0; −inf where it is at least the sum
        of the costs; NaN for a row without available entries.

    Raises:
        TypeError, ValueError: as for `soft_knapsack`.

    Source: as for `soft_knapsack`.

    Example:
        >>> import numpy as np
        >>> from kofn import soft_knapsack_threshold
        >>> scores, costs = np.array([3.0, 2.0, 1.0, 0.5]), np.array([4.0, 1.0, 1.0, 2.0])
        >>> soft_knapsack_threshold(scores, costs, 4).round(3)
        np.float64(0.726)
    """
    if others:
        raise unknown_keyword(soft_knapsack_threshold, others)
    link = table.resolve(link)
    of = partial(route.answer, PRICE)
    return _of(of, scores, costs, budget, link, temperature, dim, mask)


def soft_knapsack_value(
    scores: ArrayT,
    costs: float | Array,
    budget: float | Array,
    *,
    link: LinkName | Link = "logistic",
    temperature: float | Array = 1.0,
    dim: int = -1,
    mask: Array | None = None,
    **others: Never,
) -> ArrayT:
    """Return S = min_θ θ·budget + T Σ G((scores − θ·costs)/T), the best value for the budget.

    T is the temperature, and G = ∫F. S is the maximum of Σ scores·p − T ΣΩ(p) that `soft_knapsack`
    attains; it is convex in the scores, with gradient p in the scores, −θp in the costs and θ in
    the budget. As T → 0 it tends to the value of the fractional knapsack.

    Args:
        scores, costs, budget, link, temperature, dim, mask: as for `soft_knapsack`.

    Returns:
        S with the batch shape; float32 for half-precision scores. A budget above the sum of the
        costs counts as that sum.

    Raises:
        TypeError, ValueError: as for `soft_knapsack`; ValueError for a link without an integral.

    Source: as for `soft_knapsack`.

    Example:
        >>> import numpy as np
        >>> from kofn import soft_knapsack_value
        >>> scores, costs = np.array([3.0, 2.0, 1.0, 0.5]), np.array([4.0, 1.0, 1.0, 2.0])
        >>> soft_knapsack_value(scores, costs, 4, temperature=0.01).round(3)
        np.float64(4.507)
    """
    if others:
        raise unknown_keyword(soft_knapsack_value, others)
    link = table.resolve(link)
    require_integral(link, scores)
    of = partial(route.answer, KNAPSACK_VALUE)
    return _of(of, scores, costs, budget, link, temperature, dim, mask)


def _of(
    function: Callable[..., Array],
    scores: Array,
    costs: Any,
    budget: Any,
    link: Link,
    temperature: Any,
    dim: int,
    mask: Any,
    entries: bool = False,
) -> Any:
    """Return `function` of the checked rows, in the form of the scores where it has `entries`."""
    checked = given_for_kernels(scores, budget, link, temperature, dim, mask, costs=costs)
    with checked.form.quiet():
        answer = function(checked)
    return checked.restored(answer) if entries else answer
