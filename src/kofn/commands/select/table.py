"""What `kofn select` chooses from: a table checked once, so that nothing stumbles on it later."""

from __future__ import annotations

import difflib
import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kofn.commands.files import InputError, read_bytes, shortened
from kofn.feature_selection.selector import find_task

TASKS = ("auto", "classification", "regression")
HELD_OUT = 0.25
# A quarter is held out, so that four rows leave each class one on the testing side.
FEWEST_ROWS, FEWEST_PER_CLASS = 20, 4
DIGITS_K = 16
COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz", ".zip": "zip", ".zst": "zstd"}
LARGEST = 1e30  # whose square, in a variance over many rows, is still a float64


@dataclass(frozen=True)
class Table:
    """Numbers to choose columns of.

    X is (n_samples, n_features); y class indices or numbers; `classes` empty for regression;
    `image_shape` says how to lay the columns out as a picture, if they are pixels.
    """

    name: str
    X: np.ndarray
    y: np.ndarray
    columns: list[str]
    target: str
    task: str
    classes: list[str]
    image_shape: tuple[int, int] | None = None


def digits_table() -> Table:
    """scikit-learn's digits: 1,797 pictures of 8 × 8 pixels, ten classes."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    return Table(
        name="digits",
        X=digits.data,
        y=digits.target,
        columns=[f"row {row} column {column}" for row in range(8) for column in range(8)],
        target="digit",
        task="classification",
        classes=[str(digit) for digit in digits.target_names],
        image_shape=(8, 8),
    )


def read_table(path: Path, target: str, task: str) -> Table:
    """The CSV at `path`, its column `target` to be predicted from all the others.

    Raises:
        InputError: the file cannot be read, or the table cannot be learned from.
    """
    frame = _read(path)
    names = [str(name) for name in frame.columns]
    if target not in names:
        close = difflib.get_close_matches(target, names, n=3)
        hint = f"did you mean {_listed(close)}?" if close else f"there are {_listed(names)}"
        if len(names) == 1 and any(mark in names[0] for mark in ";\t|"):
            hint = f"its one column is {names[0]!r}: separate columns by commas"
        raise InputError(f"no column {target!r} in {path}; {hint}")
    others = frame.drop(columns=target)
    columns = [str(name) for name in others.columns]
    if len(columns) < 2:
        raise InputError(
            f"{path} has {len(columns)} column(s) besides the target; at least 2 are needed"
        )
    X = _numbers(others, columns)
    if frame[target].isna().any():
        raise InputError(f"missing values in the target {target!r}; fill them or drop the rows")
    if len(frame) < FEWEST_ROWS:
        raise InputError(f"{path} has {len(frame)} rows; at least {FEWEST_ROWS} are needed")
    task, y, classes = _target(frame[target], target, task)
    return Table(path.name, X, y, columns, target, task, classes)


def check_k(k: int, table: Table) -> None:
    """Raise InputError unless k leaves something to choose."""
    n = len(table.columns)
    if not 1 <= k <= n - 1:
        raise InputError(f"k must be in 1..{n - 1} (one less than the {n} columns); got {k}")


def check_task(task: str) -> None:
    """Raise InputError unless `task` is one of TASKS."""
    if task not in TASKS:
        raise InputError(f"--task must be one of {', '.join(TASKS)}; got {task!r}")


def _read(path: Path) -> Any:
    import pandas as pd

    # Read once: a pipe, as of <(…), gives its lines once only.
    content = read_bytes(path, "a CSV file", "read as CSV")
    compression: Any = COMPRESSIONS.get(path.suffix)
    try:
        header, frame = (
            pd.read_csv(io.BytesIO(content), compression=compression, low_memory=False, **options)
            for options in ({"header": None, "nrows": 1, "dtype": str}, {})
        )
    except pd.errors.EmptyDataError:
        raise InputError(f"{path} is empty; a header and rows are needed") from None
    except MemoryError:
        raise
    except Exception as error:  # the parsers of CSV and of archives have exceptions of their own
        reason = " ".join(str(error).split())
        raise InputError(f"{path} cannot be read as CSV: {reason}") from None
    names = header.iloc[0]
    if names.isna().any():
        number = int(np.argmax(names.isna())) + 1
        raise InputError(f"column {number} of {path} has no name (a saved index?); name or drop it")
    twice = list(names[names.duplicated()].unique())
    if twice:
        raise InputError(f"column names in {path} that occur twice: {_listed(twice)}")
    if frame.empty:
        raise InputError(f"{path} has a header but no rows")
    return frame


def _numbers(frame: Any, columns: list[str]) -> np.ndarray:
    from pandas.api.types import is_complex_dtype, is_numeric_dtype

    words = [
        name
        for name, dtype in zip(columns, frame.dtypes, strict=True)
        if not is_numeric_dtype(dtype) or is_complex_dtype(dtype)
    ]
    if words:
        raise InputError(f"not numeric: {_listed(words)}; encode them as numbers or drop them")
    X = frame.to_numpy(dtype=np.float64)
    for bad, what, advice in (
        (np.isnan(X), "missing values", "fill them or drop the rows"),
        (np.isinf(X), "infinite values", "every entry must be finite"),
        (np.abs(X) > LARGEST, f"values beyond ±{LARGEST:g}", "rescale them"),
    ):
        found = [columns[i] for i in np.flatnonzero(bad.any(0))]
        if found:
            raise InputError(f"{what} in {_listed(found)}; {advice}")
    return X


def _target(values: Any, name: str, task: str) -> tuple[str, np.ndarray, list[str]]:
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    numeric = is_numeric_dtype(values.dtype) and not is_bool_dtype(values.dtype)
    y = values.to_numpy(dtype=np.float64) if numeric else values.to_numpy(dtype=str)
    if numeric and not np.isfinite(y).all():
        raise InputError(f"infinite values in the target {name!r}; every entry must be finite")
    if task == "auto":
        task = find_task(y)
    if task == "regression":
        if not numeric:
            raise InputError(f"the target {name!r} is not numeric; --task regression needs numbers")
        if np.ptp(y) == 0:
            raise InputError(f"the target {name!r} is {y[0]:g} in every row; nothing to predict")
        return task, y, []
    found, labels, counts = np.unique(y, return_inverse=True, return_counts=True)
    classes = [f"{label:g}" if numeric else str(label) for label in found]
    if len(classes) < 2:
        raise InputError(
            f"the target {name!r} has one class only ({classes[0]!r}); nothing to tell apart"
        )
    few = [label for label, count in zip(classes, counts, strict=True) if count < FEWEST_PER_CLASS]
    if few:
        raise InputError(
            f"too few rows of class {_listed(few)} in {name!r}: each class needs at least "
            f"{FEWEST_PER_CLASS} to be split (or say --task regression)"
        )
    return task, labels, classes


def _listed(names: Iterable[str], most: int = 8) -> str:
    names = list(names)
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(repr(shortened(name)) for name in names[:most]) + rest
