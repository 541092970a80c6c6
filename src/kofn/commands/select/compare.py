"""The comparison in `kofn select`: nine selection methods, scored on the same splits.

Medians, scalers, selections and models are fitted on the training part of each split only. The
same models score every method; they see only the chosen columns.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_selection import RFE, SelectKBest, f_classif, f_regression
from sklearn.linear_model import LogisticRegression, Ridge, lasso_path
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import ShuffleSplit, StratifiedShuffleSplit
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, SVR

from kofn.commands.files import InputError
from kofn.commands.select.table import HELD_OUT, Table, filled
from kofn.feature_selection import SoftTopKSelector

OURS, LINEAR = "soft_topk", "linear head"
METRICS = ("accuracy", "balanced")
UNEVEN = 0.8
"""From this share of one class on, accuracy says little of a selection."""
METHODS = 9
# Kernel machines take time quadratic in the rows; splits of longer tables are subsampled.
MOST_ROWS = 5_000
# Recursive elimination refits for every step; for wide tables a step drops several columns.
WIDEST_ONE_BY_ONE = 100
FOREST_STEP = 0.2  # a forest takes longer to fit than a linear model
# This spelling means the same penalty in scikit-learn before and after 1.8.
PENALTY: dict[str, Any] = {"penalty": "elasticnet", "l1_ratio": 1.0}

Chooser = Callable[[np.ndarray, np.ndarray, int, int], np.ndarray]
Tell = Callable[[int, str], None]


@dataclass
class Method:
    """A selection method, (standardised X, y, k, seed) -> columns, and its held-out scores.

    A column of words is chosen as a whole, with all columns of X that are made of it. `found`
    has the number of planted columns among the chosen, for each split.
    """

    name: str
    detail: str
    choose: Chooser
    scores: dict[str, list[float]] = field(default_factory=dict)
    found: list[int] = field(default_factory=list)


@dataclass
class Comparison:
    """Held-out scores of every method by every judge, in the order of the splits."""

    methods: list[Method]
    judges: dict[str, str]
    score_name: str
    training_rows: int
    testing_rows: int
    majority: float | None = None
    """The score of always the most frequent class; None for regression."""

    @property
    def is_uneven(self) -> bool:
        """Whether the most frequent class alone has a high score."""
        return self.majority is not None and self.majority >= UNEVEN

    def mean(self, method: Method, judge: str) -> float:
        return float(np.mean(method.scores[judge]))

    def differences(self, method: Method, judge: str) -> np.ndarray:
        """Return the score of `method` minus the score of soft_topk, one number per split."""
        ours = next(each for each in self.methods if each.name == OURS)
        return np.asarray(method.scores[judge]) - np.asarray(ours.scores[judge])


@dataclass(frozen=True)
class Outcome:
    """All about one table: the selection on all of its rows, and the comparison of the methods."""

    table: Table
    selector: SoftTopKSelector
    comparison: Comparison


def spread(values: Any) -> float:
    """Return the standard deviation over splits (denominator n − 1); 0 for one split."""
    values = np.asarray(values)
    return float(values.std(ddof=1)) if len(values) > 1 else 0.0


def compare(
    table: Table,
    k: int,
    *,
    selector: SoftTopKSelector,
    splits: int,
    seed: int,
    tell: Tell,
    metric: str = "accuracy",
) -> Comparison:
    """Choose k columns by each method on every training part; score on the held-out part.

    Args:
        table: the table to choose columns from.
        k: number of columns to choose.
        selector: an unfitted selector; each split fits a copy with its own seed.
        splits: number of random splits; each holds out a quarter of the rows.
        seed: random seed of the splits and of the random methods.
        tell: called as tell(split, method name) before each fit.
        metric: for classification, "accuracy", or "balanced", the mean over classes of the
            accuracy on their rows.

    Returns:
        The methods with their scores: the metric for classification, R² for regression.
    """
    regression = table.task == "regression"
    scored = _balanced if metric == "balanced" and not regression else _scored
    methods = _methods(table, selector)
    judges = _judges(regression)
    parts = list(_parts(table, splits, seed))
    _check_training_rows(table, parts)
    for number, (train, test) in enumerate(parts):
        seen, unseen = (filled(table.X[part], table.X[train]) for part in (train, test))
        scaler = StandardScaler().fit(seen)
        fitted, held_out = scaler.transform(seen), scaler.transform(unseen)
        wanted, answers = table.y[train], table.y[test]
        # In units of the standard deviation, for the SVM's C and ε; R² does not change.
        if regression:
            centre, scale = wanted.mean(), wanted.std() or 1.0
            wanted, answers = (wanted - centre) / scale, (answers - centre) / scale
        for method in methods:
            tell(number, method.name)
            # These warnings concern constant columns and the unconverged end of a path.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                warnings.filterwarnings("ignore", message="Features .* are constant")
                warnings.filterwarnings("ignore", message="'penalty' was deprecated")
                warnings.filterwarnings("ignore", category=RuntimeWarning, module="sklearn")
                columns = method.choose(fitted, wanted, k, seed + number)
                method.found.append(int(np.isin(table.planted, columns).sum()))
                chosen = np.flatnonzero(np.isin(table.groups, columns))
                for name, (_, judge) in judges.items():
                    model = judge().fit(fitted[:, chosen], wanted)
                    score = float(scored(model, held_out[:, chosen], answers))
                    method.scores.setdefault(name, []).append(score)
    return Comparison(
        methods=methods,
        judges={name: detail for name, (detail, _) in judges.items()},
        score_name="R²" if regression else NAMES[metric],
        training_rows=len(parts[0][0]),
        testing_rows=len(parts[0][1]),
        majority=None if regression else _majority(table.y, metric),
    )


NAMES = {"accuracy": "accuracy", "balanced": "balanced accuracy"}


def _scored(model: Any, X: np.ndarray, y: np.ndarray) -> Any:
    return model.score(X, y)


def _balanced(model: Any, X: np.ndarray, y: np.ndarray) -> Any:
    return balanced_accuracy_score(y, model.predict(X))


def _majority(y: np.ndarray, metric: str) -> float:
    """Return the score of always the most frequent class; splits keep the shares of classes."""
    counts = np.unique(y, return_counts=True)[1]
    return float(counts.max() / counts.sum() if metric == "accuracy" else 1 / len(counts))


def _parts(table: Table, splits: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    rows = len(table.y)
    held_out = max(round(HELD_OUT * rows), len(table.classes))
    sizes = {
        "n_splits": splits,
        "test_size": min(held_out, MOST_ROWS),
        "train_size": min(rows - held_out, MOST_ROWS),
        "random_state": seed,
    }
    stratified = table.task == "classification"
    return (StratifiedShuffleSplit if stratified else ShuffleSplit)(**sizes).split(table.X, table.y)


def _check_training_rows(table: Table, parts: list[tuple[np.ndarray, np.ndarray]]) -> None:
    """Raise InputError if a split leaves nothing to learn: its training rows have one target."""
    for number, (train, _) in enumerate(parts, 1):
        first = table.y[train[0]]
        if (table.y[train] == first).all():
            raise InputError(
                f"the target {table.target!r} is {first:g} in every training row of split {number} "
                f"of {len(parts)}; give more rows with other values, or another --seed"
            )


def _judges(regression: bool) -> dict[str, tuple[str, Callable[[], Any]]]:
    """Return the models that score a selection: an RBF kernel machine and a linear model."""
    if regression:
        return {
            "RBF SVM": ("SVR(kernel='rbf'), defaults, target standardised", SVR),
            "ridge": ("Ridge(), defaults, target standardised", Ridge),
        }
    logistic = partial(LogisticRegression, max_iter=1000)
    return {
        "RBF SVM": ("SVC(kernel='rbf'), defaults", SVC),
        "logistic": ("LogisticRegression(max_iter=1000)", logistic),
    }


def _methods(table: Table, selector: SoftTopKSelector) -> list[Method]:
    regression = table.task == "regression"
    step = 1 if len(table.columns) <= WIDEST_ONE_BY_ONE else 0.05
    dropped = "one column" if step == 1 else "5 % of the columns"
    linear = Ridge() if regression else LogisticRegression(max_iter=300)
    forest = RandomForestRegressor if regression else RandomForestClassifier
    statistic = f_regression if regression else f_classif
    path, members = _lasso if regression else _l1_logistic, table.groups
    first = np.unique(members, return_index=True)[1]

    def ours(**options: Any) -> Chooser:
        def choose(X: np.ndarray, y: np.ndarray, k: int, seed: int) -> np.ndarray:
            fitted = clone(selector).set_params(random_state=seed, **options).fit(X, y)
            return np.unique(members[fitted.support_])

        return choose

    def importances(X: np.ndarray, y: np.ndarray, k: int, seed: int) -> np.ndarray:
        marks = forest(random_state=seed).fit(X, y).feature_importances_
        return _largest(np.bincount(members, marks), k)

    def eliminated(model: Callable[[int], Any], step: float) -> Chooser:
        def choose(X: np.ndarray, y: np.ndarray, k: int, seed: int) -> np.ndarray:
            fitted = RFE(model(seed), n_features_to_select=k, step=step).fit(X, y)
            return _largest(_best(1 / fitted.ranking_, members), k)

        return choose

    def best(X: np.ndarray, y: np.ndarray, k: int, seed: int) -> np.ndarray:
        if table.members is None:
            return SelectKBest(statistic, k=k).fit(X, y).get_support(indices=True)
        return _largest(_best(np.nan_to_num(statistic(X, y)[0]), members), k)

    def penalised(X: np.ndarray, y: np.ndarray, k: int, seed: int) -> np.ndarray:
        return _first_with_k((_best(each, members) for each in path(X, y, seed)), k)

    def drawn(X: np.ndarray, y: np.ndarray, k: int, seed: int) -> np.ndarray:
        return _draw(X[:, first], y, k, seed)

    linear_head = "SoftTopKSelector(hidden=0): linear models instead of networks"
    fallen = f"{forest.__name__}(), {FOREST_STEP:.0%} of the columns a step"
    return [
        Method("all columns", "no selection", lambda X, y, k, seed: members),
        Method(OURS, "kofn.feature_selection.SoftTopKSelector", ours()),
        Method(LINEAR, linear_head, ours(hidden=0)),
        Method(
            "RFE",
            f"recursive elimination, {linear!r}, {dropped} a step",
            eliminated(lambda seed: linear, step),
        ),
        Method("L1", _l1_detail(regression), penalised),
        Method("forest", f"{forest.__name__}(), the most important columns", importances),
        Method(
            "forest RFE", fallen, eliminated(lambda seed: forest(random_state=seed), FOREST_STEP)
        ),
        Method("k best", f"SelectKBest({statistic.__name__})", best),
        Method("random", "k columns drawn anew in each split", drawn),
    ]


def _best(marks: np.ndarray, members: np.ndarray) -> np.ndarray:
    """Return the largest mark of each column's parts, which are ≥ 0."""
    best = np.zeros(members.max() + 1)
    np.maximum.at(best, members, marks)
    return best


def _largest(marks: np.ndarray, k: int) -> np.ndarray:
    return np.argsort(-marks, kind="stable")[:k]


def _draw(X: np.ndarray, y: np.ndarray, k: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).choice(X.shape[1], k, replace=False)


def _l1_detail(regression: bool) -> str:
    if regression:
        return "Lasso, the strongest penalty on its path that keeps k columns; largest weights"
    return "LogisticRegression, l1, C = 0.05 or the next of 0.2, 0.8 … to keep k; largest weights"


def _lasso(X: np.ndarray, y: np.ndarray, seed: int) -> Iterator[np.ndarray]:
    """Yield the sizes of the weights, from the strongest penalty on."""
    yield from np.abs(lasso_path(X, y)[1].T)


def _l1_logistic(X: np.ndarray, y: np.ndarray, seed: int) -> Iterator[np.ndarray]:
    for strength in (0.05, 0.2, 0.8, 3.2):
        model = LogisticRegression(
            C=strength, solver="saga", tol=1e-3, max_iter=200, random_state=seed, **PENALTY
        )
        yield np.linalg.norm(model.fit(X, y).coef_, axis=0)


def _first_with_k(path: Iterator[np.ndarray], k: int) -> np.ndarray:
    """Return the k largest weights at the first penalty of the path that keeps k columns."""
    weights = np.zeros(0)
    for weights in path:
        if np.count_nonzero(weights) >= k:
            break
    return _largest(weights, k)
