"""The scikit-learn estimator behind `kofn select`: k columns of a table, learned by gradient.

Feature selection is choosing k of n. The choice is relaxed with `kofn.soft_topk`, trained
together with a small network that may use only what was chosen, and cooled until it is hard.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np

try:
    from scipy.sparse import issparse
    from sklearn.base import BaseEstimator
    from sklearn.feature_selection import SelectorMixin
    from sklearn.preprocessing import StandardScaler
    from sklearn.utils.multiclass import check_classification_targets, type_of_target
    from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
    from threadpoolctl import threadpool_limits
except ImportError as error:
    raise ImportError(
        "kofn.feature_selection.selector needs scikit-learn 1.6 or later; "
        'install it with: pip install "kofn[cli]"'
    ) from error

from kofn.arrays.checks import check_integer, check_number

if TYPE_CHECKING:
    from kofn.arrays.typing import LinkName
    from kofn.links import Link

__all__ = ["SoftTopKSelector"]

# A whole-numbered target with more distinct values than this is taken for a quantity.
MOST_CLASSES = 20

_check_real = partial(check_number, low=0.0, arrays=False)

Progress = Callable[[int, float, float, float], Any]


class SoftTopKSelector(SelectorMixin, BaseEstimator):  # type: ignore[misc]
    """Select exactly k columns, with scores trained by soft_topk at a falling temperature.

    Each column is standardised, multiplied by its weight p in [0, 1] (the weights sum to k) and
    blurred by Gaussian noise; a small network predicts the target from that, and its loss trains
    the scores too. The noise makes a small weight cost information (without it the network undoes
    the weight by scaling up), so the weights move to 0 or 1 by themselves; the falling
    temperature makes them hard. A choice that was made hard too early cannot be taken back, so a
    few networks, from different random starts, each make their own and the mean weight decides.

    Args:
        k: how many columns to keep: an integer in 1..n_features, a share of them as a float in
            (0, 1) (rounded down, at least one), None for half, or "all".
        task: "classification", "regression", or "auto": regression if the target is real-valued
            or whole-numbered with more than 20 distinct values, classification otherwise.
        hidden: width of each network's one hidden layer; 0 for linear models.
        ensemble: how many networks vote; more give a steadier selection.
        steps: training steps (Adam).
        temperature: at the first step, in units of the scores.
        final_temperature: at the last step; the schedule between is exponential.
        link: as for `kofn.soft_topk`.
        noise: standard deviation of the noise on every weighted column, in units of the column's
            own standard deviation.
        dropout: share of the hidden units left out at each step, in [0, 1).
        learning_rate: of the networks.
        score_learning_rate: of the scores, in units of the scores per step.
        batch_size: rows per step, drawn without replacement; all of them where there are fewer.
        callback: called as callback(step, loss, score, temperature) after each step, with the
            step counted from 1, the loss (cross-entropy in nats, or squared error in units of
            the target's variance) and the score (accuracy, or R²) on that step's noisy batch.
        random_state: an integer or numpy RandomState for a repeatable selection.

    Attributes:
        scores_: (n_features,) the trained scores, mean over the networks; only their differences
            mean anything.
        weights_: (n_features,) soft_topk of the scores at the final temperature, mean over the
            networks, summing to k: the share of the votes.
        ranking_: (n_features,) ranks: 1 for every chosen column, then 2, 3, … for the others, best
            first, as scikit-learn's RFE has them.
        order_: (n_features,) indices of the columns, best first, so that order_[:n_features_] are
            the chosen: by weight, to a thousandth, and by score where that is equal.
        support_: (n_features,) booleans, exactly n_features_ of them True.
        n_features_: how many columns were chosen.
        task_: the task that was solved.
        loss_: the loss at the last step.
        n_features_in_, feature_names_in_: as in every scikit-learn estimator.

    Raises:
        TypeError, ValueError: from `fit`, for an argument out of range or unusable data.
        ImportError: from `fit`, without PyTorch.

    Source: Struski et al., "LapSum" (2025), for annealed soft top-k selection; Yamada et al.,
    "Feature Selection using Stochastic Gates" (2020), for noise at the gates.

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
    """

    def __init__(
        self,
        k: int | float | str | None = 0.5,
        *,
        task: str = "auto",
        hidden: int = 64,
        ensemble: int = 4,
        steps: int = 300,
        temperature: float = 1.0,
        final_temperature: float = 0.03,
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
        self.task = task
        self.hidden = hidden
        self.ensemble = ensemble
        self.steps = steps
        self.temperature = temperature
        self.final_temperature = final_temperature
        self.link = link
        self.noise = noise
        self.dropout = dropout
        self.learning_rate = learning_rate
        self.score_learning_rate = score_learning_rate
        self.batch_size = batch_size
        self.callback = callback
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn which k columns of X predict y.

        Args:
            X: (n_samples, n_features) numbers, none missing; a sparse table is made dense.
            y: (n_samples,) class labels, or numbers for regression.
            sample_weight: (n_samples,) how much each row counts, ≥ 0: a row of weight 2 is as two
                rows, one of weight 0 as none.

        Returns:
            The selector itself.

        Raises:
            TypeError, ValueError: an argument out of range, or data that cannot be learned from.
            ImportError: PyTorch is missing.
        """
        X, y = validate_data(
            self, X, y, dtype=np.float64, ensure_min_samples=2, accept_sparse="csr"
        )
        self._check_arguments(X.shape[1])
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64)
        if (weights < 0).any():
            raise ValueError(f"sample_weight must be ≥ 0; got {weights.min():g}")
        kept = weights > 0
        if not kept.any():
            raise ValueError("sample_weight must not be zero for every row")
        X, y, weights = (X.toarray() if issparse(X) else X)[kept], y[kept], weights[kept]
        self.task_ = find_task(y) if self.task == "auto" else self.task
        target = _labels(y) if self.task_ == "classification" else _real(y)
        X, target, importance = _merged(X, target, weights)
        if self.task_ == "regression":
            target = _standardised(target, importance)
        columns = StandardScaler().fit_transform(X, sample_weight=importance).astype(np.float32)
        train = _training()
        # Matrices this small are faster on one thread, and repeat whatever the number of cores.
        with threadpool_limits(limits=1):
            trained = train(self, columns, target, importance)
        self.scores_, self.weights_, self.loss_ = trained
        # Votes of a few networks tie often; the order of a table's columns must not decide then.
        self.order_ = np.lexsort((-self.scores_, -np.round(self.weights_, 3)))
        self.ranking_ = np.ones(X.shape[1], dtype=np.int64)
        left = self.order_[self.n_features_ :]
        self.ranking_[left] = np.arange(2, len(left) + 2)
        self.support_ = self.ranking_ == 1
        return self

    def _get_support_mask(self) -> np.ndarray:
        check_is_fitted(self, "support_")
        return self.support_

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.input_tags.sparse = True
        return tags

    def _check_arguments(self, n: int) -> None:
        self.n_features_ = _count(self.k, n)
        tasks = ("auto", "classification", "regression")
        if self.task not in tasks:
            raise ValueError(
                f"task must be one of {', '.join(map(repr, tasks))}; got {self.task!r}"
            )
        check_integer("hidden", self.hidden, "an integer >= 0 (0 for linear models)", 0)
        for name in ("ensemble", "steps", "batch_size"):
            check_integer(name, getattr(self, name), "an integer >= 1", 1)
        for name in ("temperature", "final_temperature", "learning_rate", "score_learning_rate"):
            _check_real(name, getattr(self, name), allowed="a finite number > 0", strict=True)
        _check_real("noise", self.noise, allowed="a finite number >= 0")
        _check_real("dropout", self.dropout, allowed="a number in [0, 1)", below=1.0)
        if self.callback is not None and not callable(self.callback):
            raise TypeError(
                "callback must be None or callable as callback(step, loss, score, temperature); "
                f"got {self.callback!r}"
            )


def find_task(y: np.ndarray) -> str:
    """Return "regression" for a y of real values or many integers, else "classification".

    Args:
        y: (n,) the target.

    Returns:
        "classification" or "regression".

    Example:
        >>> find_task(np.array([0, 1, 1, 2])), find_task(np.array([0.5, 1.25]))
        ('classification', 'regression')
    """
    if type_of_target(y).startswith("continuous"):
        return "regression"
    numeric = np.asarray(y).dtype.kind in "iuf"
    return "regression" if numeric and len(np.unique(y)) > MOST_CLASSES else "classification"


def _labels(y: np.ndarray) -> np.ndarray:
    check_classification_targets(y)
    classes, labels = np.unique(y, return_inverse=True)
    if len(classes) < 2:
        raise ValueError(f"y must have at least 2 classes; got 1 class, {str(classes[0])!r}")
    return labels.astype(np.int64)


def _real(y: np.ndarray) -> np.ndarray:
    try:
        return np.asarray(y, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"y must be numbers for regression; got dtype {y.dtype}") from None


def _standardised(values: np.ndarray, importance: np.ndarray | None) -> np.ndarray:
    mean = np.average(values, weights=importance)
    spread = float(np.sqrt(np.average((values - mean) ** 2, weights=importance)))
    if not spread > 0:
        raise ValueError(f"y must have at least two different values; every value is {values[0]:g}")
    return ((values - mean) / spread).astype(np.float32)


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


def _training() -> Any:
    try:
        import torch  # noqa: F401

        from kofn.feature_selection.training import train
    except ImportError as error:
        raise ImportError(
            'SoftTopKSelector trains with PyTorch; install it with: pip install "kofn[cli]"'
        ) from error
    return train


def _count(k: Any, n: int) -> int:
    """Return the number of columns that k means."""
    if k is None or (isinstance(k, str) and k == "all"):
        return n if k else max(1, n // 2)
    allowed = f'an integer in 1..n_features (here 1..{n}), a share in (0, 1), None or "all"'
    if isinstance(k, numbers.Real) and not isinstance(k, numbers.Integral):
        _check_real("k", k, allowed=allowed, strict=True, below=1.0)
        return max(1, int(n * float(k)))
    return check_integer("k", k, allowed, 1, n)
