"""Integers as scores: float64 has all of them up to 2⁵³ only, and rounds others in silence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kofn.commands.errors import InputError

EXACT = 1 << 53


def as_floats(name: str, values: np.ndarray) -> np.ndarray:
    """Return integers as float64; InputError where that has them not all."""
    floats = values.astype(np.float64)
    if values.dtype.itemsize == 8 and values.size:
        top = np.nextafter(float(np.iinfo(values.dtype).max), 0)  # floats above it have none
        lost = values[floats.clip(None, top).astype(values.dtype) != values]
        if lost.size:
            raise InputError(rounded(name, lost.flat[0]))
    return floats


def of_text(name: str, rows: Sequence[Sequence[str]], exact: bool) -> np.ndarray:
    """Return the numbers that a text has: integers as such, if all are and `exact` says so."""
    floats = np.array([[float(field) for field in fields] for fields in rows])
    if not (np.abs(floats) >= EXACT).any():
        return floats
    whole = [[_integer(field) for field in fields] for fields in rows]
    every = [number for numbers in whole for number in numbers]
    if exact and None not in every:
        for dtype in (np.int64, np.uint64):
            limits = np.iinfo(dtype)
            if all(limits.min <= number <= limits.max for number in every if number is not None):
                return np.array(whole, dtype)
    for number, as_float in zip(every, floats.flat, strict=True):
        if number is not None and number != int(as_float):
            raise InputError(rounded(name, number))
    return floats


def offset(name: str, row: np.ndarray, step: int) -> int:
    """Return what to subtract from the integers of a long row for float64 to have them all."""
    if row.dtype.itemsize < 8:
        return 0
    parts = [row[start : start + step] for start in range(0, len(row), step)]
    least, most = min(int(part.min()) for part in parts), max(int(part.max()) for part in parts)
    if max(abs(least), abs(most)) <= EXACT:
        return 0
    if most - least > EXACT:
        raise InputError(
            f"{name} has integers from {least} to {most} in one row; in so long a row they may be "
            f"at most {EXACT} apart"
        )
    return least


def rounded(name: str, number: object) -> str:
    """Return the error of an integer that float64 does not have."""
    return (
        f"{name} has the integer {number}, which float64 rounds; subtract the same number from all "
        "scores of a row, or use kofn apply --hard, which compares integers exactly"
    )


def _integer(field: str) -> int | None:
    try:
        return int(field)
    except ValueError:
        return None
