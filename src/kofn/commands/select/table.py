"""The tables of `kofn select`: made here, or read from a CSV file and checked once."""

from __future__ import annotations

import difflib
import io
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kofn.commands.files import InputError, check_columns, read_bytes, shortened
from kofn.feature_selection.targets import find_task

TASKS = ("auto", "classification", "regression")
MISSING = ("refuse", "drop", "median")
HELD_OUT = 0.25
# A quarter is held out: of four rows per class, one is in the test part.
FEWEST_ROWS, FEWEST_PER_CLASS = 20, 4
DIGITS_K, PLANTED_K = 16, 5
PLANTED_ROWS, PLANTED_COLUMNS = 1_000, 100
COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz", ".zip": "zip", ".zst": "zstd"}
LARGEST = 1e30  # its square does not overflow float64 in a variance over many rows
MOST_VALUES = 50  # of a column of words; each becomes a column of 0 and 1


@dataclass(frozen=True)
class Table:
    """A table of numbers from which columns are chosen.

    X is (n_samples, n_features), with NaN where a median is still to be filled in; y class indices
    or numbers; `classes` empty for regression; `image_shape` says how to lay the columns out as a
    picture, if they are pixels; `planted` are the columns that decide y, where they are known;
    `dropped` counts the rows that were left out for their missing values. A column of words has
    several columns of X, one for each word, which are chosen together: `members` (n_features,)
    says which of `columns` each is of, and is None where each is its own. `alike` names columns
    that look like ids.
    """

    name: str
    X: np.ndarray
    y: np.ndarray
    columns: list[str]
    target: str
    task: str
    classes: list[str]
    image_shape: tuple[int, int] | None = None
    planted: tuple[int, ...] = ()
    dropped: int = 0
    members: np.ndarray | None = None
    alike: tuple[str, ...] = ()

    @property
    def groups(self) -> np.ndarray:
        """(n_features,) the place in `columns` of each column of X."""
        return np.arange(len(self.columns)) if self.members is None else self.members


def digits_table() -> Table:
    """Return scikit-learn's digits: 1,797 images of 8 × 8 pixels, ten classes."""
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


def planted_table(seed: int) -> Table:
    """Return a table in which two pairs of columns matter only together, and one column alone."""
    X = np.random.default_rng(seed).normal(size=(PLANTED_ROWS, PLANTED_COLUMNS))
    return Table(
        name="planted interactions",
        X=X,
        y=(X[:, 0] * X[:, 1] + X[:, 2] * X[:, 3] + X[:, 4] > 0).astype(np.int64),
        columns=[f"x{i}" for i in range(PLANTED_COLUMNS)],
        target="sign(x0 x1 + x2 x3 + x4)",
        task="classification",
        classes=["-1", "1"],
        planted=tuple(range(PLANTED_K)),
    )


def filled(X: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Return X with the median over the rows `seen` where a value is missing; 0 if none has one."""
    if not np.isnan(X).any():
        return X
    known = ~np.isnan(seen).all(0)
    medians = np.zeros(X.shape[1])
    medians[known] = np.nanmedian(seen[:, known], axis=0)
    return np.where(np.isnan(X), medians, X)


def read_table(
    path: Path, target: str, task: str, missing: str = "refuse", drop: Sequence[str] = ()
) -> Table:
    """Read the CSV at `path`; the column `target` is to be predicted from the others.

    Args:
        path: the file.
        target: name of the column to predict.
        task: one of TASKS.
        missing: one of MISSING: refuse missing values, drop their rows, or leave NaN for `filled`.
            A row without a target is dropped in both cases.
        drop: names of columns to leave out, whatever is in them.

    Raises:
        InputError: the file cannot be read, or its table cannot be used for training.
    """
    target, *out = (_composed(each) for each in (target, *drop))
    frame = _read(path, target)
    names = [str(name) for name in frame.columns]
    for each in (target, *out):
        _check_name(each, names, path, target=each == target)
    if target in out:
        raise InputError(f"--drop and --target both name {target!r}; give another --target")
    others = frame.drop(columns=[target, *out])
    columns = [str(name) for name in others.columns]
    if len(columns) < 2:
        raise InputError(
            f"{path} has {len(columns)} column(s) besides the target; at least 2 are needed"
        )
    X, members = _numbers(others, columns)
    kept = _complete(others, frame[target], missing)
    dropped = len(frame) - int(kept.sum())
    if kept.sum() < FEWEST_ROWS:
        left = f", {kept.sum()} without missing values" if dropped else ""
        raise InputError(f"{path} has {len(frame)} rows{left}; give at least {FEWEST_ROWS}")
    task, y, classes = _target(frame[target][kept], target, task)
    alike = tuple(name for name in columns if _is_like_an_id(others[name]))
    more: dict[str, Any] = {"dropped": dropped, "members": members, "alike": alike}
    return Table(path.name, X[kept], y, columns, target, task, classes, **more)


def _check_name(name: str, names: list[str], path: Path, *, target: bool) -> None:
    """Raise InputError for a column that the table does not have."""
    if name in names:
        return
    close = difflib.get_close_matches(name, names, n=3)
    hint = f"did you mean {_listed(close)}?" if close else f"its columns are {_listed(names)}"
    if not target and {*(parts := name.split(","))} <= {*names}:
        hint = f"one name an option: {' '.join(f'--drop {part}' for part in parts)}"
    if len(names) == 1 and any(mark in names[0] for mark in ";\t|"):
        hint = f"its only column is {names[0]!r}; separate columns by commas"
    raise InputError(f"no column {name!r} in {path}; {hint}")


def _complete(others: Any, target: Any, missing: str) -> np.ndarray:
    """Return (rows,) booleans: the rows to keep."""
    empty, untold, columns = others.isna().to_numpy(), target.isna().to_numpy(), others.columns
    if missing == "refuse":
        incomplete = [columns[i] for i in np.flatnonzero(empty.any(0))]
        where = _listed(incomplete) if incomplete else f"the target {target.name!r}"
        if incomplete or untold.any():
            raise InputError(
                f"missing values in {where}; add --missing drop (their rows) or --missing median"
            )
    without = [columns[i] for i in np.flatnonzero(empty.all(0))]
    if without:
        raise InputError(f"no values at all in {_listed(without)}; drop these columns")
    return ~(untold | empty.any(1)) if missing == "drop" else ~untold


def check_k(k: int, table: Table) -> None:
    """Raise InputError unless 1 ≤ k < number of columns."""
    n = len(table.columns)
    if not 1 <= k <= n - 1:
        raise InputError(f"k must be in 1..{n - 1} (one less than the {n} columns); got {k}")


def _read(path: Path, target: str) -> Any:
    import pandas as pd
    from pandas.api.types import is_numeric_dtype

    # Read once: a pipe, such as <(…), can be read only once.
    content = read_bytes(path, "a CSV file", "read as CSV")

    def parsed(**options: Any) -> Any:
        kind = COMPRESSIONS.get(path.suffix)
        return pd.read_csv(io.BytesIO(content), compression=kind, low_memory=False, **options)

    plain = {"dtype": str, "keep_default_na": False}  # no word stands for a missing value
    try:
        # The first row, too, as pandas takes an index from rows that are longer than the header.
        header, frame = parsed(header=None, nrows=2, **plain), parsed()
        names = frame.columns = header.iloc[0].map(_composed)
        check_columns([*names], str(path))
        twice = [*names[names.duplicated()].unique()]
        if twice:
            raise InputError(f"repeated column names in {path}: {_listed(twice)}; rename them")
        if target in frame and not is_numeric_dtype(frame[target].dtype):
            # A class may be called NA: only an empty field has no class.
            word = parsed(usecols=[names.to_list().index(target)], **plain).iloc[:, 0]
            frame[target] = frame[target].where(frame[target].notna() | (word == ""), word)
    except (InputError, MemoryError):
        raise
    except pd.errors.EmptyDataError:
        raise InputError(f"{path} is empty; it needs a header and rows") from None
    except Exception as error:  # the parsers of CSV and of archives raise their own exceptions
        reason = " ".join(str(error).split())
        raise InputError(f"{path} cannot be read as CSV: {reason}") from None
    if frame.empty:
        raise InputError(f"{path} has a header but no rows")
    return frame


def _composed(name: str) -> str:
    """Return a name in composed Unicode: é may be one character or two."""
    return unicodedata.normalize("NFC", name)


def _numbers(frame: Any, columns: list[str]) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the columns as numbers, and the given column of each; None if none became several."""
    from pandas.api.types import is_complex_dtype, is_numeric_dtype

    parts, sizes = [], []
    for name, dtype in zip(columns, frame.dtypes, strict=True):
        plain = is_numeric_dtype(dtype) and not is_complex_dtype(dtype)
        part = frame[[name]].to_numpy(dtype=np.float64) if plain else _encoded(frame[name])
        parts.append(part)
        sizes.append(part.shape[1])
    X, members = np.concatenate(parts, 1), np.repeat(np.arange(len(columns)), sizes)
    _check_sizes(X, [columns[i] for i in members])
    return X, None if len(members) == len(columns) else members


def _encoded(words: Any) -> np.ndarray:
    """Return a column of 0 and 1 for each word; NaN in all of them where there is none."""
    import pandas as pd

    codes, kinds = pd.factorize(words.astype(object).where(words.isna(), words.astype(str)))
    most = min(MOST_VALUES, len(words) // 2)
    if len(kinds) > most:
        number = pd.to_numeric(pd.Series(kinds), errors="coerce").notna()
        odd = kinds[int(np.argmin(number))]
        what = f"{odd!r} is not a number" if number.any() else "as an id has"
        raise InputError(
            f"column {words.name!r} has {len(kinds)} different words in {len(words)} rows, {what}; "
            f"at most {most} are encoded: leave it out by --drop, or write numbers"
        )
    return np.where(codes[:, None] < 0, np.nan, codes[:, None] == np.arange(max(len(kinds), 1)))


def _is_like_an_id(values: Any) -> bool:
    """Whether a column has another whole number in every row."""
    from pandas.api.types import is_integer_dtype

    return is_integer_dtype(values.dtype) and values.is_unique


def _check_sizes(X: np.ndarray, columns: list[str]) -> None:
    for bad, what, advice in (
        (np.isinf(X), "infinite values", "every entry must be finite"),
        (np.abs(X) > LARGEST, f"values beyond ±{LARGEST:g}", "rescale them"),
    ):
        names = [columns[i] for i in np.flatnonzero(bad.any(0))]
        if names:
            raise InputError(f"{what} in {_listed(names)}; {advice}")


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
        _check_numbers(y, name)
        return task, y, []
    kinds, labels, counts = np.unique(y, return_inverse=True, return_counts=True)
    classes = [f"{label:g}" if numeric else str(label) for label in kinds]
    if len(classes) < 2:
        raise InputError(
            f"the target {name!r} has one class only ({classes[0]!r}); give at least two classes"
        )
    few = [label for label, count in zip(classes, counts, strict=True) if count < FEWEST_PER_CLASS]
    if few:
        raise InputError(
            f"too few rows of class {_listed(few)} in {name!r}: each class needs at least "
            f"{FEWEST_PER_CLASS} to be split (or use --task regression)"
        )
    return task, labels, classes


def _check_numbers(y: np.ndarray, name: str) -> None:
    """Raise InputError unless the squares of the target and of its deviations are numbers > 0."""
    if (y == y[0]).all():
        raise InputError(
            f"the target {name!r} is {y[0]:g} in every row; there is nothing to predict"
        )
    if np.abs(y).max() > LARGEST:
        raise InputError(f"values beyond ±{LARGEST:g} in the target {name!r}; rescale it")
    if np.ptp(y) < 1 / LARGEST:
        raise InputError(
            f"the target {name!r} varies by {np.ptp(y):g} only; rescale it so that it varies by "
            f"{1 / LARGEST:g} or more"
        )


def _listed(names: Iterable[str], most: int = 8) -> str:
    names = list(names)
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(repr(shortened(name)) for name in names[:most]) + rest
