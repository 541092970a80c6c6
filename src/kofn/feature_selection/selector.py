"""The scikit-learn estimator behind `kofn select`: k columns of a table, learned by gradient.

Feature selection is choosing k of n. The choice is relaxed with `kofn.soft_topk`, trained
together with a small network that may use only what was chosen, and cooled and narrowed until
k columns are left.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np

try:
    from scipy.sparse import issparse
    from sklearn.base import BaseEstimator
    from sklearn.feature_selection import SelectorMixin
    from sklearn.preprocessing import StandardScaler
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
    from threadpoolctl import threadpool_limits
except ImportError as error:
    raise ImportError(
        "kofn.feature_selection.selector needs scikit-learn 1.6 or later; "
        'install it with: pip install "kofn[cli]"'
    ) from error

from kofn.arrays.checks import check_integer
from kofn.feature_selection.choices import Choice, check_real, choice_of
from kofn.feature_selection.screening import screening_order
from kofn.feature_selection.targets import class_indices, numbers_of, standardised, task_of_all

if TYPE_CHECKING:
    from kofn.arrays.typing import LinkName
    from kofn.links import Link

__all__ = ["SoftTopKSelector"]

# A screening finds pairs that fit the rows by chance. From 500 rows and 10,000 columns, networks
# tell them from the others among 64 columns, and often not among 128.
AUTO_SCREEN, AUTO_PER_CHOSEN = 64, 4
# Without a choice before, networks manage twice as many columns.
NARROW = 2

Progress = Callable[[int, float, float, float], Any]


class SoftTopKSelector(SelectorMixin, BaseEstimator):  # type: ignore[misc]
    """Select k columns, or those a budget pays for, with scores trained by soft_topk.

    Each column is standardised, multiplied by its weight p in [0, 1] and blurred by Gaussian
    noise; a small network predicts the target from that, and its loss trains the scores too. The
    weights sum to a number that falls from n_features to k while the temperature falls: at first
    every column is in, so that columns which matter only together are seen together, and the
    least useful fade out one after another. The noise makes a small weight cost information
    (without it the network undoes the weight by scaling up), so the weights move to 0 or 1 by
    themselves. A choice that was made hard too early cannot be taken back, so a few networks,
    from different random starts, each make their own and the mean weight decides.

    A table of more than 128 columns (or 8k) is screened first: the columns that correlate most
    with the target, and those whose product with another column does, are trained on. What
    depends on three columns only jointly is found neither by the screening nor, among 20 columns
    or more, by the training.

    Args:
        k: how many columns to keep: an integer in 1..n_features, a share of them as a float in
            (0, 1) (rounded down, at least one), None, the default, for half, or "all". With
            `groups`, how many groups. Leave it out where a budget is given.
        costs: (n_features,) the cost of each column, finite and ≥ 0, in any unit. The choice is
            then as in `kofn.soft_knapsack`: columns are bought by weight, those that still fit.
            A column that costs nothing is chosen if its weight is above 1/2, or if it is the best
            of those and no other is affordable.
        budget: the most to spend, > 0, in the unit of the costs; never exceeded.
        groups: (n_features,) a label for each column; columns with equal labels, such as in
            a one-hot encoding, are chosen together, and a group costs the sum of its columns. Or
            the name of a column before it was encoded, "plan" for plan_basic and plan_pro, or a
            set of such names, where the columns of X have names; each other column is alone.
        task: "classification", "regression", or "auto": regression if the target is real-valued
            or whole-numbered with more than 20 distinct values, classification otherwise.
        hidden: width of each network's one hidden layer; 0 for linear models, the better choice
            where a linear model will use the columns.
        ensemble: how many networks vote; more give a steadier selection.
        steps: training steps (Adam).
        temperature: at the first step, in units of the scores.
        final_temperature: at the last step; the schedule between is exponential.
        elimination: the share of the steps, in [0, 1], over which the sum of the weights falls,
            exponentially, from n_features to k (or the spent costs, from all to the budget).
            With 0 it is k from the start, which finds no columns that matter only together.
        screen: how many columns (or groups) are trained on in a wider table: an integer ≥ 1, at
            least as many as can be chosen; None for all; "auto" for 64, or 4k if that is more, in
            tables of more than twice as many.
            It takes the time of n_samples · n_features² multiplications per target or class, with
            4,000 rows at most.
        link: as for `kofn.soft_topk`.
        noise: standard deviation of the noise on every weighted column, in units of the column's
            own standard deviation.
        dropout: share of the hidden units left out at each step, in [0, 1).
        learning_rate: of the networks.
        score_learning_rate: of the scores, in units of the scores per step.
        batch_size: rows per step, drawn without replacement; all of them where there are fewer.
        callback: called as callback(step, loss, score, temperature) after each step, with the
            step counted from 1, the loss (cross-entropy in nats, or squared error in units of
            the target's variance) and the score (accuracy, or R²) on that step's noisy batch;
            means over several targets.
        random_state: an integer or numpy RandomState for a repeatable selection.

    Attributes:
        scores_: (n_features,) the trained scores, mean over the networks; only their differences
            mean anything. −inf for a column that was not trained on.
        weights_: (n_features,) soft_topk or soft_knapsack of the scores at the final temperature,
            mean over the networks: the share of the votes. They sum to k, or cost the budget;
            with groups, one column of each group does.
        ranking_: (n_features,) ranks: 1 for every chosen column, then 2, 3, … for the others, best
            first, as scikit-learn's RFE has them.
        order_: (n_features,) indices of the columns, best first, so that order_[:n_features_] are
            the chosen: by weight, to a thousandth, and by score (per cost) where that is equal.
        support_: (n_features,) booleans, exactly n_features_ of them True.
        screened_: (n_features,) booleans: True for the columns that were trained on.
        n_features_: how many columns were chosen.
        task_: the task that was solved.
        loss_: the loss at the last step.
        n_features_in_, feature_names_in_: as in every scikit-learn estimator.

    Raises:
        TypeError, ValueError: from `fit`, for an argument out of range, a sparse table or
            unusable data.
        ImportError: from `fit`, without PyTorch.

    Source: Struski et al., "LapSum" (2025), for annealed soft top-k selection; Yamada et al.,
    "Feature Selection using Stochastic Gates" (2020), for noise at the gates; Guyon et al., "Gene
    Selection for Cancer Classification using Support Vector Machines" (2002), for elimination.

    Example:
        >>> import numpy as np
        >>> from kofn.feature_selection import SoftTopKSelector
        >>> X = np.random.default_rng(0).normal(size=(200, 6))
        >>> y = np.where(X[:, 1] + X[:, 4] > 0, "warm", "cold")
        >>> selector = SoftTopKSelector(k=2, steps=60, random_state=0).fit(X, y)
        >>> selector.get_support(indices=True)
        array([1, 4])
        >>> selector.transform(X).shape
        (200, 2)

        Column 1 costs more than the budget, and column 4 less:

        >>> bought = SoftTopKSelector(costs=[1, 9, 1, 1, 2, 1], budget=2, steps=60, random_state=0)
        >>> bought.fit(X, y).get_support(indices=True)
        array([4])
    """

    def __init__(
        self,
        k: int | float | str | None = None,
        *,
        costs: Any = None,
        budget: float | None = None,
        groups: Any = None,
        task: str = "auto",
        hidden: int = 64,
        ensemble: int = 4,
        steps: int = 300,
        temperature: float = 1.0,
        final_temperature: float = 0.03,
        elimination: float = 0.5,
        screen: int | str | None = "auto",
        link: LinkName | Link = "logistic",
        noise: float = 0.3,
        dropout: float = 0.2,
        learning_rate: float = 0.01,
        score_learning_rate: float = 0.1,
        batch_size: int = 256,
        callback: Progress | None = None,
        random_state: Any = None,
    ) -> None:
        self.k = k
        self.costs = costs
        self.budget = budget
        self.groups = groups
        self.task = task
        self.hidden = hidden
        self.ensemble = ensemble
        self.steps = steps
        self.temperature = temperature
        self.final_temperature = final_temperature
        self.elimination = elimination
        self.screen = screen
        self.link = link
        self.noise = noise
        self.dropout = dropout
        self.learning_rate = learning_rate
        self.score_learning_rate = score_learning_rate
        self.batch_size = batch_size
        self.callback = callback
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn which columns of X predict y.

        Args:
            X: (n_samples, n_features) numbers, none missing; a dense table.
            y: (n_samples,) class labels, or numbers for regression; or (n_samples, targets), to
                predict all of them from the same columns, with equal parts in the loss.
            sample_weight: (n_samples,) how much each row counts, ≥ 0: a row of weight 2 is as two
                rows, one of weight 0 as none.

        Returns:
            The selector itself.

        Raises:
            TypeError, ValueError: an argument out of range, or data that cannot be learned from,
                such as a sparse table.
            ImportError: PyTorch is missing.
        """
        X, y = _checked_table(self, X, y)
        names = getattr(self, "feature_names_in_", None)
        choice = choice_of(self.k, self.costs, self.budget, self.groups, X.shape[1], names)
        self._check_arguments()
        weights = _checked_weights(sample_weight, X)
        kept = weights > 0
        X, y, weights = X[kept], y[kept], weights[kept]
        self.task_ = task_of_all(y) if self.task == "auto" else self.task
        regression = self.task_ == "regression"
        target, classes = (numbers_of(y), []) if regression else class_indices(y)
        X, target, importance = _merged(X, target, weights)
        target = standardised(target, importance) if regression else target
        columns = StandardScaler().fit_transform(X, sample_weight=importance).astype(np.float32)
        self._learn(choice, columns, target, classes, importance)
        return self

    def _learn(
        self,
        choice: Choice,
        columns: np.ndarray,
        target: np.ndarray,
        classes: list[int],
        importance: np.ndarray | None,
    ) -> None:
        """Screen the columns, train on those that are left, and set all that was found."""
        train = _training()
        random = check_random_state(self.random_state)
        seed = int(random.randint(np.iinfo(np.int32).max))
        # Matrices this small are faster on one thread, and repeat whatever the number of cores.
        with threadpool_limits(limits=1):
            signals = partial(_signals, target, classes, importance)
            order = self._screened(choice, columns, signals, importance, random)
            kept = np.sort(order[: self._most(choice)])
            kept = kept[choice.affordable()[kept]]
            among = choice.among(kept)
            part = np.isin(choice.members, kept)
            scores, weights, self.loss_ = train(
                self, among, columns[:, part], target, classes, importance, seed
            )
        ranked, count = among.ranked(scores, weights)
        left = order[~np.isin(order, kept)]
        place = np.empty(choice.groups, dtype=np.int64)
        place[np.concatenate([kept[ranked], left])] = np.arange(choice.groups)
        self.screened_ = part
        self.scores_ = np.full(len(part), -np.inf, dtype=np.float32)
        self.weights_ = np.zeros(len(part), dtype=np.float32)
        self.scores_[part], self.weights_[part] = scores[among.members], weights[among.members]
        self.support_ = place[choice.members] < count
        self.order_ = np.argsort(place[choice.members], kind="stable")
        self.n_features_ = int(self.support_.sum())
        self.ranking_ = np.ones(len(part), dtype=np.int64)
        behind = self.order_[self.n_features_ :]
        self.ranking_[behind] = np.arange(2, len(behind) + 2)

    def _most(self, choice: Choice) -> int:
        """Return how many groups are trained on at most."""
        if self.screen == "auto":
            wanted = max(AUTO_SCREEN, AUTO_PER_CHOSEN * choice.most())
            return choice.groups if choice.affordable().sum() <= NARROW * wanted else wanted
        return choice.groups if self.screen is None else max(int(self.screen), choice.most())

    def _screened(
        self,
        choice: Choice,
        columns: np.ndarray,
        signals: Callable[[], np.ndarray],
        importance: np.ndarray | None,
        random: Any,
    ) -> np.ndarray:
        """Return the groups that can be chosen, most promising first, then the others."""
        able = choice.affordable()
        order = np.arange(choice.groups)
        if able.sum() > self._most(choice):
            order = screening_order(columns, signals(), importance, choice.members, random)
        return np.concatenate([order[able[order]], order[~able[order]]])

    def _get_support_mask(self) -> np.ndarray:
        check_is_fitted(self, "support_")
        return self.support_

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.target_tags.multi_output = True
        return tags

    def _check_arguments(self) -> None:
        tasks = ("auto", "classification", "regression")
        if self.task not in tasks:
            raise ValueError(
                f"task must be one of {', '.join(map(repr, tasks))}; got {self.task!r}"
            )
        check_integer("hidden", self.hidden, "an integer >= 0 (0 for linear models)", 0)
        for name in ("ensemble", "steps", "batch_size"):
            check_integer(name, getattr(self, name), "an integer >= 1", 1)
        if self.screen is not None and self.screen != "auto":
            check_integer("screen", self.screen, 'an integer >= 1, None or "auto"', 1)
        for name in ("temperature", "final_temperature", "learning_rate", "score_learning_rate"):
            check_real(name, getattr(self, name), allowed="a finite number > 0", strict=True)
        share = check_real("elimination", self.elimination, allowed="a number in [0, 1]")
        if share > 1:
            raise ValueError(f"elimination must be a number in [0, 1]; got {self.elimination!r}")
        check_real("noise", self.noise, allowed="a finite number ≥ 0")
        check_real("dropout", self.dropout, allowed="a number in [0, 1)", below=1.0)
        if self.callback is not None and not callable(self.callback):
            raise TypeError(
                "callback must be None or callable as callback(step, loss, score, temperature); "
                f"got {self.callback!r}"
            )


def _checked_table(selector: Any, X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return X as float64, and y as (n_samples, targets)."""
    for name, given in (("X", X), ("y", y)):
        if issparse(given):
            raise TypeError(
                f"{name} must be a dense array; got a sparse {type(given).__name__}; sparse data "
                f"is not supported, as columns are standardised: use {name}.toarray()"
            )
    X, y = validate_data(selector, X, y, dtype=np.float64, ensure_min_samples=2, multi_output=True)
    return X, y.reshape(len(y), -1)


def _checked_weights(sample_weight: Any, X: np.ndarray) -> np.ndarray:
    weights = _check_sample_weight(sample_weight, X, dtype=np.float64)
    if (weights < 0).any():
        raise ValueError(f"sample_weight must be ≥ 0; got {weights.min():g}")
    if not (weights > 0).any():
        raise ValueError("sample_weight must not be zero for every row")
    return weights


def _merged(
    X: np.ndarray, target: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Merge equal rows and add their weights, scaled to mean 1; None if all weights are 1.

    So that a row of weight 2 and a row given twice are the same to every step of the training.
    """
    rows = np.column_stack([X, target])
    if len({row.tobytes() for row in rows}) < len(rows) or np.ptp(weights) > 0:
        _, first, which = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        X, target = X[first], target[first]
        weights = np.bincount(which.reshape(-1), weights)
    if np.ptp(weights) == 0:
        return X, target, None
    return X, target, (weights / weights.mean()).astype(np.float32)


def _signals(target: np.ndarray, classes: list[int], importance: np.ndarray | None) -> np.ndarray:
    """Return what a screening looks for: numbers as they are, classes as indicators."""
    if not classes:
        return target
    # Two classes are one indicator.
    wanted = (range(1 if count == 2 else count) for count in classes)
    indicators = [
        labels == label for labels, each in zip(target.T, wanted, strict=True) for label in each
    ]
    return standardised(np.stack(indicators, 1).astype(np.float64), importance)


def _training() -> Any:
    try:
        import torch  # noqa: F401

        from kofn.feature_selection.training import train
    except ImportError as error:
        raise ImportError(
            'SoftTopKSelector trains with PyTorch; install it with: pip install "kofn[cli,torch]"'
        ) from error
    return train
