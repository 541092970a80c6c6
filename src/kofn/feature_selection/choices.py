"""The choices of a selector: k of its columns or groups, or as many as a budget pays for."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from kofn.arrays.checks import check_integer, check_number
from kofn.maps.knapsack import soft_knapsack
from kofn.maps.topk import soft_topk

__all__ = ["Choice", "choice_of"]

check_real = partial(check_number, low=0.0, arrays=False)


@dataclass(frozen=True)
class Choice:
    """A choice among groups of columns; without groups, every column is a group of its own.

    `members` (columns,) says to which group each column belongs, `costs` (groups,) what a group
    costs, and `limit` is the budget; where `costs` is None the limit is k.
    """

    members: np.ndarray
    costs: np.ndarray | None
    limit: float

    @property
    def groups(self) -> int:
        return int(self.members.max()) + 1

    @property
    def everything(self) -> float:
        """The limit at which every group may be chosen."""
        total = self.groups if self.costs is None else float(self.costs.sum())
        return max(total, self.limit)

    def affordable(self) -> np.ndarray:
        """Return (groups,) booleans: False for a group that alone exceeds the budget."""
        if self.costs is None:
            return np.ones(self.groups, dtype=bool)
        return self.costs <= self.limit

    def most(self) -> int:
        """Return the largest number of groups that can be chosen."""
        if self.costs is None:
            return int(self.limit)
        return int((np.cumsum(np.sort(self.costs)) <= self.limit * (1 + 1e-9)).sum())

    def among(self, kept: np.ndarray) -> Choice:
        """Return the choice among the groups whose indices are `kept`, sorted."""
        columns = np.isin(self.members, kept)
        members = np.searchsorted(kept, self.members[columns])
        return replace(
            self, members=members, costs=None if self.costs is None else self.costs[kept]
        )

    def weights(self, scores: Any, limit: float, link: Any, temperature: float) -> Any:
        """Return the weights (…, groups) of a tensor of scores at a limit."""
        if self.costs is None:
            return soft_topk(scores, limit, link=link, temperature=temperature)
        import torch

        # Costs of mean 1 are in the range of float32, in whatever unit they are counted.
        unit = float(self.costs.mean()) or 1.0  # the affordable ones may all be free
        costs = torch.from_numpy(self.costs / unit).to(scores.dtype)
        return soft_knapsack(scores, costs, limit / unit, link=link, temperature=temperature)

    def ranked(self, scores: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, int]:
        """Return the groups, the chosen first and each part best first, and how many are chosen.

        Groups are compared by weight, to a thousandth: votes of a few networks tie often, and the
        order of a table's columns must not decide then, but the score, or the score per cost.
        """
        value = scores if self.costs is None else scores / np.maximum(self.costs, 1e-12)
        order = np.lexsort((-value, -np.round(weights, 3)))
        if self.costs is None:
            return order, int(self.limit)
        chosen = self._bought(order, weights)
        return np.concatenate([order[chosen], order[~chosen]]), int(chosen.sum())

    def _bought(self, order: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return which groups of `order` are chosen: each that the rest of the budget pays for.

        A group without cost, which no budget excludes, is chosen where its weight is above 1/2,
        and the best one where nothing else is chosen.
        """
        assert self.costs is not None
        left = self.limit * (1 + 1e-9)  # sums of costs are rounded
        chosen = np.zeros(len(order), dtype=bool)
        for place, group in enumerate(order):
            cost = self.costs[group]
            chosen[place] = cost <= left and (cost > 0 or weights[group] > 0.5)
            left -= cost * chosen[place]
        # Whatever has a cost and is affordable was bought: the others are free.
        chosen[0] |= not chosen.any()
        return chosen


def choice_of(k: Any, costs: Any, budget: Any, groups: Any, n: int, names: Any = None) -> Choice:
    """Return the choice that a selector's arguments mean for n columns, with names or without.

    Raises:
        TypeError, ValueError: an argument is out of range, or they contradict each other.
    """
    if isinstance(groups, (str, set, frozenset)):
        groups = _by_name(groups, names)
    members = _members(groups, n)
    if (costs is None) != (budget is None):
        given, missing = ("costs", "budget") if budget is None else ("budget", "costs")
        raise ValueError(f"{given} needs {missing} as well")
    if costs is None:
        what = "n_features" if groups is None else "n_groups"
        return Choice(members, None, _count(k, int(members.max()) + 1, what))
    if k is not None:
        raise ValueError(f"give k or budget, not both; got k={k!r} and budget={budget!r}")
    limit = check_real("budget", budget, allowed="a finite number > 0", strict=True)
    summed = np.bincount(members, weights=_costs(costs, n))
    if summed.min() > limit:
        what = "column" if groups is None else "group"
        raise ValueError(f"budget must pay for one {what}, {summed.min():g}; got {budget!r}")
    return Choice(members, summed, limit)


def _by_name(given: Any, names: Any) -> list[Any]:
    """Return a label per column: the given name, if an encoder made it of one, or its place.

    Encoders call the columns that they make of "plan" plan_basic and plan_pro, and a
    ColumnTransformer puts the name of the step before that, with two underscores.
    """
    if names is None:
        raise ValueError(
            f"groups={given!r} are names, and the columns of X have none; give a DataFrame, or "
            'call set_output(transform="pandas") of the steps before'
        )
    labels: list[Any] = list(range(len(names)))
    wanted = {given} if isinstance(given, str) else given
    for each in sorted(wanted, key=len):  # the longer name last: plan_b_x is of "plan_b"
        members = [i for i, name in enumerate(names) if _is_of(each, name)]
        if not members:
            few = ", ".join(map(repr, names[:8]))
            raise ValueError(
                f"groups must name columns as they were before they were encoded; none of {few}"
                f"{' …' if len(names) > 8 else ''} is {each!r} or begins with {each + '_'!r}"
            )
        for i in members:
            labels[i] = each
    return labels


def _is_of(column: str, name: str) -> bool:
    given = (name, name.partition("__")[2])
    return any(each == column or each.startswith(f"{column}_") for each in given)


def _members(groups: Any, n: int) -> np.ndarray:
    if groups is None:
        return np.arange(n)
    labels = np.asarray(groups)
    if labels.shape != (n,):
        named = all(isinstance(each, str) for each in labels.flat)
        hint = (
            "; names of columns before an encoder are a set, as {'plan', 'city'}" if named else ""
        )
        allowed = f"one label per column, shape ({n},)"
        raise ValueError(f"groups must have {allowed}; got {labels.shape}{hint}")
    # Numbered by first appearance, so that renaming the groups changes nothing.
    seen: dict[Any, int] = {}
    # As objects: an array of 1 and "1" would hold two equal strings.
    keys = map(_key, np.array(groups, dtype=object).tolist())
    return np.array([seen.setdefault(key, len(seen)) for key in keys])


def _key(label: Any) -> tuple[Any, Any]:
    """Return what equal labels share: 1 and 1.0 are equal, and so are two NaN; 1 and "1" differ."""
    if isinstance(label, numbers.Number) and not isinstance(label, bool):
        return numbers.Number, "nan" if label != label else label
    return str if isinstance(label, str) else type(label), str(label)


def _costs(costs: Any, n: int) -> np.ndarray:
    try:
        numbers_ = np.asarray(costs, dtype=np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"costs must be numbers, one per column; got {costs!r}") from None
    if numbers_.shape != (n,):
        raise ValueError(f"costs must have one number per column, shape ({n},); got {costs!r}")
    for cost in numbers_[~(np.isfinite(numbers_) & (numbers_ >= 0))]:
        raise ValueError(f"costs must be finite and ≥ 0; got {cost:g}")
    if not numbers_.any():
        raise ValueError("costs must not be 0 for every column")
    return numbers_


def _count(k: Any, n: int, what: str) -> int:
    """Return the number of groups that k means."""
    if k is None or (isinstance(k, str) and k == "all"):
        return n if k else max(1, n // 2)
    allowed = f'an integer in 1..{what} (here 1..{n}), a share in (0, 1), None or "all"'
    if isinstance(k, numbers.Real) and not isinstance(k, numbers.Integral):
        check_real("k", k, allowed=allowed, strict=True, below=1.0)
        return max(1, math.floor(n * float(k)))
    return check_integer("k", k, allowed, 1, n)
