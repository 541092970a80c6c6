"""The targets of a selector: its task, and class indices or standardised numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

try:
    from sklearn.utils.multiclass import check_classification_targets, type_of_target
except ImportError as error:
    raise ImportError(
        "kofn.feature_selection needs scikit-learn 1.6 or later; "
        'install it with: pip install "kofn[cli]"'
    ) from error

__all__ = ["class_indices", "find_task", "numbers_of", "standardised", "task_of_all"]

# A whole-numbered target with more distinct values than this is taken for a quantity.
MOST_CLASSES = 20


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
    with np.errstate(invalid="ignore"):  # scikit-learn converts to integers, which end at 2⁶³
        kind = type_of_target(y)
    if kind.startswith("continuous"):
        return "regression"
    numeric = np.asarray(y).dtype.kind in "iuf"
    return "regression" if numeric and len(np.unique(y)) > MOST_CLASSES else "classification"


def task_of_all(y: np.ndarray) -> str:
    """Return the task of the targets (n, targets).

    Raises:
        ValueError: some are classes and others numbers.
    """
    tasks = [find_task(_plain(column)) for column in y.T]
    if len(set(tasks)) > 1:
        raise ValueError(
            "the targets, the columns of y, must have one task; "
            f"got {', '.join(tasks)}; set task or fit one selector for each"
        )
    return tasks[0]


def class_indices(y: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """Return class indices (n, targets), and the number of classes of each target."""
    classes = [_classes(_plain(column)) for column in y.T]
    return np.stack([indices for indices, _ in classes], 1), [count for _, count in classes]


def numbers_of(y: np.ndarray) -> np.ndarray:
    """Return the targets (n, targets) as float64.

    Raises:
        ValueError: an entry is not a number.
    """
    try:
        return np.asarray(y, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"y must be numbers for regression; got dtype {y.dtype}") from None


def standardised(values: np.ndarray, importance: np.ndarray | None) -> np.ndarray:
    """Return the targets (n, targets), each with mean 0 and variance 1, as float32.

    Raises:
        ValueError: a target has the same value in every row.
    """
    counted = values if importance is None else values[importance > 0]
    for constant in np.flatnonzero((counted == counted[0]).all(0)):
        value = counted[0, constant]
        raise ValueError(f"y must have at least two different values; every value is {value:g}")
    values = values / np.abs(values).max(0)  # so that no square over- or underflows
    mean = np.average(values, axis=0, weights=importance)
    spread = np.sqrt(np.average((values - mean) ** 2, axis=0, weights=importance))
    return ((values - mean) / spread).astype(np.float32)


def _classes(y: np.ndarray) -> tuple[np.ndarray, int]:
    check_classification_targets(y)
    classes, labels = np.unique(y, return_inverse=True)
    if len(classes) < 2:
        raise ValueError(f"y must have at least 2 classes; got 1 class, {str(classes[0])!r}")
    return labels.astype(np.int64), len(classes)


def _plain(column: np.ndarray) -> Any:
    """Return a column of a table of mixed types with the type of its own entries."""
    return np.array(column.tolist()) if column.dtype == object else column
