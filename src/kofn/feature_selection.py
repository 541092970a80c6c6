"""The scikit-learn estimator behind `kofn select`: k columns of a table, learned by gradient.

Feature selection is choosing k of n. The choice is relaxed with `kofn.soft_topk`, trained
together with a small network that may use only what was chosen, and cooled until it is hard.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

import numpy as np

try:
    from sklearn.base import BaseEstimator
    from sklearn.feature_selection import SelectorMixin
    from sklearn.preprocessing import StandardScaler
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets, type_of_target
    from sklearn.utils.validation import check_is_fitted, validate_data
    from threadpoolctl import threadpool_limits
except ImportError as error:
    raise ImportError(
        "kofn.feature_selection needs scikit-learn 1.6 or later; "
        'install it with: pip install "kofn[cli]"'
    ) from error

if TYPE_CHECKING:
    import torch

    from kofn.links import Link

__all__ = ["SoftTopKSelector"]

# A whole-numbered target with more distinct values than this is taken for a quantity.
MOST_CLASSES = 20

Progress = Callable[[int, float, float, float], Any]


class SoftTopKSelector(SelectorMixin, BaseEstimator):  # type: ignore[misc]
    """p = soft_topk(scores, k, temperature ↓): exactly k columns, learned with a model using them.

    Each column is standardised, multiplied by its weight p in [0, 1] (the weights sum to k) and
    blurred by Gaussian noise; a small network predicts the target from that, and its loss trains
    the scores too. The noise makes a small weight cost information (without it the network undoes
    the weight by scaling up), so the weights move to 0 or 1 by themselves; the falling
    temperature makes them hard. A choice that was made hard too early cannot be taken back, so a
    few networks, from different random starts, each make their own and the mean weight decides.

    Args:
        k: how many columns to keep, an integer in 1..n_features − 1.
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
        ranking_: (n_features,) indices of the columns, the first k of them chosen: by weight, to
            a thousandth, and by score where that is equal.
        support_: (n_features,) booleans, exactly k of them True.
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
        k: int = 10,
        *,
        task: str = "auto",
        hidden: int = 64,
        ensemble: int = 4,
        steps: int = 300,
        temperature: float = 1.0,
        final_temperature: float = 0.03,
        link: str | Link = "logistic",
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

    def fit(self, X: Any, y: Any) -> Self:
        """Learn which k columns of X predict y.

        Args:
            X: (n_samples, n_features) numbers, none missing.
            y: (n_samples,) class labels, or numbers for regression.

        Returns:
            The selector itself.

        Raises:
            TypeError, ValueError: an argument out of range, or data that cannot be learned from.
            ImportError: PyTorch is missing.
        """
        X, y = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)
        self._check_arguments(X.shape[1])
        self.task_ = find_task(y) if self.task == "auto" else self.task
        target = _labels(y) if self.task_ == "classification" else _standardised(y)
        columns = StandardScaler().fit_transform(X).astype(np.float32)
        # Matrices this small are faster on one thread, and repeat whatever the number of cores.
        with threadpool_limits(limits=1):
            trained = _train(self, columns, target)
        self.scores_, self.weights_, self.loss_ = trained
        # Votes of a few networks tie often; the order of a table's columns must not decide then.
        self.ranking_ = np.lexsort((-self.scores_, -np.round(self.weights_, 3)))
        self.support_ = np.isin(np.arange(X.shape[1]), self.ranking_[: self.k])
        return self

    def _get_support_mask(self) -> np.ndarray:
        check_is_fitted(self, "support_")
        return self.support_

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags

    def _check_arguments(self, n: int) -> None:
        if n < 2:
            raise ValueError(f"X must have at least 2 columns to select from; got n_features = {n}")
        allowed = f"an integer in 1..n_features - 1 (here 1..{n - 1})"
        _check_integer("k", self.k, 1, allowed, n - 1)
        tasks = ("auto", "classification", "regression")
        if self.task not in tasks:
            raise ValueError(
                f"task must be one of {', '.join(map(repr, tasks))}; got {self.task!r}"
            )
        _check_integer("hidden", self.hidden, 0, "an integer >= 0 (0 for linear models)")
        for name in ("ensemble", "steps", "batch_size"):
            _check_integer(name, getattr(self, name), 1, "an integer >= 1")
        for name in ("temperature", "final_temperature", "learning_rate", "score_learning_rate"):
            _check_real(name, getattr(self, name), 0.0, "a finite number > 0", open_low=True)
        _check_real("noise", self.noise, 0.0, "a finite number >= 0")
        _check_real("dropout", self.dropout, 0.0, "a number in [0, 1)", below=1.0)
        if self.callback is not None and not callable(self.callback):
            raise TypeError(
                "callback must be None or callable as callback(step, loss, score, temperature); "
                f"got {self.callback!r}"
            )


def find_task(y: np.ndarray) -> str:
    """The kind of y: "regression" for real values or many whole numbers, or "classification".

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
        raise ValueError(
            f"y must have at least 2 classes to tell apart; got 1 class, {str(classes[0])!r}"
        )
    return labels.astype(np.int64)


def _standardised(y: np.ndarray) -> np.ndarray:
    try:
        values = np.asarray(y, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"y must be numbers for regression; got dtype {y.dtype}") from None
    spread = float(values.std())
    if not spread > 0:
        raise ValueError(f"y must vary to be predicted; every value is {values[0]:g}")
    return ((values - values.mean()) / spread).astype(np.float32)


def _train(
    options: SoftTopKSelector, columns: np.ndarray, target: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """Scores, their weights at the end, and the last loss."""
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            'SoftTopKSelector trains with PyTorch; install it with: pip install "kofn[cli]"'
        ) from error
    from kofn import schedules, soft_topk

    seed = check_random_state(options.random_state).randint(np.iinfo(np.int32).max)
    rng = torch.Generator().manual_seed(int(seed))
    inputs, wanted = torch.from_numpy(columns), torch.from_numpy(target)
    rows, n = inputs.shape
    classes = int(wanted.max()) + 1 if options.task_ == "classification" else 0
    # Equal scores would leave the first gradient alone to break the tie between twin columns.
    scores = (0.01 * torch.randn(options.ensemble, n, generator=rng)).requires_grad_()
    network = _Networks(options, n, max(classes, 1), rng)
    adam = torch.optim.Adam(
        [
            {"params": [scores], "lr": options.score_learning_rate},
            {"params": network.parameters, "lr": options.learning_rate},
        ]
    )
    size = min(rows, options.batch_size)
    order, start = torch.randperm(rows, generator=rng), 0
    # From the first step to the last.
    ends = options.temperature, options.final_temperature
    cool, loss_now = schedules.exponential(*ends, steps=max(options.steps - 1, 1)), math.nan
    for step in range(1, options.steps + 1):
        temperature = cool(step - 1)
        if start + size > rows:
            order, start = torch.randperm(rows, generator=rng), 0
        batch, start = order[start : start + size], start + size
        weights = soft_topk(scores, options.k, link=options.link, temperature=temperature)
        answers = network(inputs[batch], weights)
        loss, score = _loss(answers, wanted[batch], classes)
        adam.zero_grad()
        # The sum, so that each network learns at its own rate whatever their number.
        (loss * options.ensemble).backward()  # type: ignore[no-untyped-call]
        adam.step()
        loss_now = loss.item()
        if options.callback is not None:
            options.callback(step, loss_now, score.item(), temperature)
    with torch.no_grad():
        end = options.final_temperature
        weights = soft_topk(scores, options.k, link=options.link, temperature=end).mean(0)
        mean = scores.mean(0)
    return mean.numpy(), weights.numpy(), loss_now


class _Networks:
    """`ensemble` one-hidden-layer networks side by side, each with its own weights of the columns.

    (rows, n) and (ensemble, n) -> (ensemble, rows, outputs).
    """

    def __init__(
        self, options: SoftTopKSelector, n: int, outputs: int, rng: torch.Generator
    ) -> None:
        import torch

        count, width = options.ensemble, options.hidden
        self.options, self.rng = options, rng

        def normal(*shape: int, scale: float) -> torch.Tensor:
            return (scale * torch.randn(*shape, generator=rng)).requires_grad_()

        self.parameters: list[torch.Tensor] = []
        if width:
            # About k inputs of unit variance are open at a time, whatever n is.
            self.parameters.append(normal(count, n, width, scale=1 / math.sqrt(options.k)))
            self.parameters.append(normal(count, 1, width, scale=0.1))
        # A linear model needs no randomness to start, and its sign would mislead the scores.
        last = 1 / math.sqrt(width) if width else 0.0
        self.parameters.append(normal(count, width or n, outputs, scale=last))
        self.parameters.append(torch.zeros(count, 1, outputs, requires_grad=True))

    def __call__(self, rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        import torch

        options = self.options
        blur = options.noise * torch.randn(rows.shape, generator=self.rng)
        values = rows * weights[:, None, :] + blur
        if options.hidden:
            values = torch.relu(torch.baddbmm(self.parameters[1], values, self.parameters[0]))
            if options.dropout:
                kept = torch.rand(values.shape, generator=self.rng) >= options.dropout
                values = values * kept / (1 - options.dropout)
        return torch.baddbmm(self.parameters[-1], values, self.parameters[-2])


def _loss(
    answers: torch.Tensor, wanted: torch.Tensor, classes: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean loss over networks and rows; accuracy, or R² in units of the target's variance."""
    import torch

    count = answers.shape[0]
    repeated = wanted.expand(count, -1).reshape(-1)
    answers = answers.reshape(repeated.shape[0], -1)
    if classes:
        loss = torch.nn.functional.cross_entropy(answers, repeated)
        score = (answers.detach().argmax(-1) == repeated).to(torch.float32).mean()
    else:
        loss = torch.nn.functional.mse_loss(answers[:, 0], repeated)
        score = 1 - loss.detach()
    return loss, score


def _check_integer(name: str, value: Any, low: int, allowed: str, high: int | None = None) -> None:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be {allowed}; got {value!r}")
    if int(value) < low or (high is not None and int(value) > high):
        raise ValueError(f"{name} must be {allowed}; got {value!r}")


def _check_real(
    name: str,
    value: Any,
    low: float,
    allowed: str,
    *,
    open_low: bool = False,
    below: float = math.inf,
) -> None:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be {allowed}; got {value!r}")
    number = float(value)
    # Written so that NaN fails too.
    if not (low <= number < below) or (open_low and number == low):
        raise ValueError(f"{name} must be {allowed}; got {value!r}")
