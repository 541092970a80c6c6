"""Read scores from a file or standard input and write weights: CSV or .npy, by content."""

from __future__ import annotations

import csv
import io
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kofn.commands import files
from kofn.commands.compare import integers
from kofn.commands.files import STDIN, InputError, shortened

SEPARATORS = (",", "\t", ";")


@dataclass(frozen=True)
class Scores:
    """Rows of scores along the last axis, as float16, float32 or float64, or as integers."""

    name: str
    values: np.ndarray
    columns: list[str]  # the header of a CSV, empty if there is none
    binary: bool  # read from .npy
    one_column: bool = False  # a CSV with one score per line, read as one row


def read(source: str, exact: bool = False) -> Scores:
    """Read scores from the file `source`, or from standard input for "-".

    Args:
        source: name of the file, or "-".
        exact: leave integers as they are, not as float64, which has not all of them.

    Raises:
        InputError: the input cannot be read as scores.
    """
    name = "standard input" if source == STDIN else shortened(source)
    content = (
        _standard_input()
        if source == STDIN
        else files.read_bytes(Path(source), "a CSV or .npy file", "read")
    )
    form = _array if content.startswith(b"\x93NUMPY") else _csv
    scores = form(name, content, exact)
    bad = np.argwhere(np.isnan(scores.values))
    if len(bad):
        raise InputError(nan_in(name, bad[0]))
    return scores


def nan_in(name: str, place: Any) -> str:
    """Return the error of a NaN at a place, by the indices of each axis."""
    where = ", ".join(f"{axis} {i + 1}" for axis, i in _axes(place))
    return f"{name} has a NaN in {where}; scores may be infinite but not NaN"


def _standard_input() -> bytes:
    if sys.stdin is None:
        raise InputError("no scores: standard input is closed; give a file")
    if sys.stdin.isatty():
        raise InputError(
            "no scores: give a file, or send numbers to standard input, "
            'as in: echo "2 1 0.5 -1" | kofn compare -k 2'
        )
    try:
        return sys.stdin.buffer.read()
    except OSError as error:  # a directory, or a closed descriptor
        raise InputError(f"standard input cannot be read: {error.strerror or error}") from None


def write_csv(weights: np.ndarray, scores: Scores) -> bytes:
    """Write weights as CSV in the form of the scores, with a header if there was one."""
    rows = weights.reshape(-1, weights.shape[-1])
    rows = rows.T if scores.one_column else rows
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if scores.columns:
        writer.writerow(scores.columns)
    # str of a NumPy float is the shortest text that reads back as the same number.
    writer.writerows([str(weight) for weight in row] for row in rows)
    return text.getvalue().encode()


def write_npy(weights: np.ndarray) -> bytes:
    """Return the weights as the bytes of an .npy file."""
    content = io.BytesIO()
    np.save(content, weights, allow_pickle=False)
    return content.getvalue()


def loaded(name: str, source: Any, **how: Any) -> np.ndarray:
    """Return the array of an .npy file; InputError unless it has scores in it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPy warns about files of Python 2, but reads them
            values: np.ndarray = np.load(source, allow_pickle=False, **how)
    except MemoryError:
        raise InputError(
            f"{name} cannot be read as .npy: its array does not fit in memory"
        ) from None
    except Exception as error:  # NumPy raises many types of error for a bad header
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        objects = "pickle" in reason or "Python objects" in reason
        reason = "its entries are Python objects" if objects else reason
        raise InputError(f"{name} cannot be read as .npy: {reason}") from None
    if values.dtype.kind not in "iuf" or values.dtype.itemsize > 8:
        raise InputError(f"{name} has dtype {values.dtype}; scores must be real numbers")
    if values.ndim == 0 or values.size == 0:
        raise InputError(f"{name} has shape {values.shape}; give at least one score")
    return values


def _array(name: str, content: bytes, exact: bool) -> Scores:
    values = loaded(name, io.BytesIO(content))
    if values.dtype.kind in "iu" and not exact:
        values = integers.as_floats(name, values)
    return Scores(name, values.astype(values.dtype.newbyteorder("=")), [], binary=True)


def _csv(name: str, content: bytes, exact: bool) -> Scores:
    if content.startswith(b"PK\x03\x04"):
        raise InputError(f"{name} is an archive (.npz?); save one array with numpy.save")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{name} cannot be read: it is neither .npy nor UTF-8 text") from None
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        raise InputError(f"{name} is empty; give rows of scores")
    rows = [(number, _fields(line, number, name)) for number, line in lines]
    columns: list[str] = []
    if not any(_is_number(field) for field in rows[0][1]):
        # A single name, even if it has several words.
        columns = [lines[0][1].strip()] if not _separated(lines[0][1]) else rows[0][1]
        files.check_columns(columns, name)
        rows = rows[1:]
        if not rows:
            raise InputError(f"{name} has a header but no scores")
    wanted = len(columns or rows[0][1])
    first = "the header" if columns else f"line {rows[0][0]}"
    for number, fields in rows:
        if len(fields) != wanted:
            raise InputError(
                f"{name} has rows of different lengths: {len(fields)} in line {number}, "
                f"{wanted} in {first}; "
                "every row needs as many scores"
            )
        for place, field in enumerate(fields, 1):
            if not _is_number(field):
                what = f"{shortened(field)!r} is not a number" if field else "a score is missing"
                raise InputError(f"line {number} of {name}, column {place}: {what}")
    values = integers.of_text(name, [fields for _, fields in rows], exact)
    one_column = wanted == 1 and len(rows) > 1
    return Scores(name, values.T if one_column else values, columns, False, one_column)


def _separated(line: str) -> str | None:
    return next((mark for mark in SEPARATORS if mark in line), None)


def _fields(line: str, number: int, name: str) -> list[str]:
    mark = _separated(line)
    if mark is None:
        return line.split()
    try:
        return [field.strip() for field in next(csv.reader([line], delimiter=mark))]
    except csv.Error as error:  # for example, a field of more than 131,072 characters
        raise InputError(f"line {number} of {name} cannot be read as CSV: {error}") from None


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return "_" not in field


def _axes(place: Any) -> list[tuple[str, int]]:
    names = {1: ["entry"], 2: ["row", "column"]}.get(len(place))
    names = names or [f"axis {i}, entry" for i in range(len(place))]
    return list(zip(names, place, strict=True))
