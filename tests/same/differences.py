"""How two answers differ: in bits, and where that is allowed, in their error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

GAINED, LOST, CHANGED, WITHIN = "gained", "lost", "changed", "within its error"
"""An error became an answer, or needs less; an answer an error; another answer; one as exact."""

# Errors that may be rounding of the exact answer itself, relative to the largest number.
TINY = 1e-30
ROUNDING = {"float64": 1e-10, "float32": 5e-7, "bfloat16": 8e-3, "float16": 1e-3}


class Difference(NamedTuple):
    kind: str
    told: str

    @property
    def fails(self) -> bool:
        return self.kind in (LOST, CHANGED)


def difference(
    name: str, old: Any, new: Any, exact: Callable[[], Any] | None = None
) -> Difference | None:
    """Compare two answers of a case; `exact` returns the one of float64 where errors decide."""
    if isinstance(old, tuple) or isinstance(new, tuple):
        return _of_errors(old, new)
    if len(old) != len(new):
        return Difference(CHANGED, f"{len(old)} answers, now {len(new)}")
    if old and isinstance(old[0], str):
        return _of_texts(old, new)
    found = [_of_arrays(i, a, b) for i, (a, b) in enumerate(zip(old, new, strict=True))]
    told = [each for each in found if each]
    if not told:
        return None
    counts = "/kept/" in name or "/messages/" in name
    if counts and all(np.all(b[1] <= a[1]) for a, b in zip(old, new, strict=True)):
        return Difference(GAINED, f"less: {_numbers(old)}, now {_numbers(new)}")
    if exact and _as_exact(old, new, exact()):
        return Difference(WITHIN, told[0])
    return Difference(CHANGED, "; ".join(told[:3]))


def _numbers(record: Sequence) -> list:
    return [value.tolist() for _, value in record]


def _of_errors(old: Any, new: Any) -> Difference | None:
    if old == new:
        return None
    if not isinstance(new, tuple):
        return Difference(GAINED, f"was {old[0]}: {old[1][:200]}")
    if isinstance(old, tuple):
        return Difference(CHANGED, f"{old[0]}: {old[1][:300]}\n    now {new[0]}: {new[1][:300]}")
    return Difference(LOST, f"now {new[0]}: {new[1][:500]}")


def _of_texts(old: list[str], new: list[str]) -> Difference | None:
    lines = [f"\n    - {line[:300]}" for line in old if line not in set(new)]
    lines += [f"\n    + {line[:300]}" for line in new if line not in set(old)]
    if old == new:
        return None
    return Difference(CHANGED, "".join(lines[:20]) or "in another order")


def _of_arrays(place: int, old: tuple, new: tuple) -> str | None:
    (kind, a), (other, b) = old, new
    if kind != other or a.shape != b.shape:
        return f"answer {place} is {kind}{list(a.shape)}, now {other}{list(b.shape)}"
    if a.tobytes() == b.tobytes():
        return None
    apart = a.view(f"u{a.itemsize}") != b.view(f"u{b.itemsize}")  # bits, so that −0 is not 0
    if a.dtype.kind == "f":
        apart &= ~(np.isnan(a) & np.isnan(b))
    if not apart.any():
        return None
    first = tuple(map(int, np.argwhere(apart)[0]))
    ulps = f", by {_ulps(kind, a, b):.3g} ulp at most" if a.dtype.kind == "f" else ""
    return (
        f"answer {place} at {int(apart.sum())} of {a.size} places{ulps}, "
        f"first {list(first)}: {a[first].item()!r}, now {b[first].item()!r}"
    )


def _ulps(kind: str, a: np.ndarray, b: np.ndarray) -> float:
    """Return the greatest distance in units of the last place; infinite if only one is finite."""
    kept = ~(np.isnan(a) & np.isnan(b)) & ~(a == b)
    a, b = a[kept].astype(np.float64), b[kept].astype(np.float64)
    if not a.size:
        return 0.0  # signs of zeros
    if not (np.isfinite(a) & np.isfinite(b)).all():
        return np.inf
    about = ml_dtypes.finfo(ml_dtypes.bfloat16 if kind == "bfloat16" else kind)
    size = np.maximum(np.maximum(np.abs(a), np.abs(b)), float(about.tiny))
    return float(np.max(np.abs(a - b) / (np.exp2(np.floor(np.log2(size))) * float(about.eps))))


def _as_exact(old: list, new: list, exact: Any) -> bool:
    """Whether the new answers are as near to the exact ones, row by row, as the old."""
    if isinstance(exact, tuple) or len(exact) != len(new):
        return False
    for (kind, a), (other, b), (_, true) in zip(old, new, exact, strict=True):
        if kind != other or a.shape != b.shape or a.shape != true.shape:
            return False
        if a.dtype.kind != "f":
            if not np.array_equal(a, b):
                return False
            continue
        true = true.astype(np.float64)
        sure = np.isfinite(a) & np.isfinite(b) & np.isfinite(true)
        if not np.array_equal(np.where(sure, 0, a), np.where(sure, 0, b), equal_nan=True):
            return False
        a, b, true = (np.where(sure, each, 0.0) for each in (a, b, true))
        before, after, size = np.abs(a - true), np.abs(b - true), np.abs(true)
        along = {"axis": -1} if a.ndim > 1 else {}
        floor = ROUNDING[kind] * (size.max(**along, initial=0.0) + TINY)
        if np.any(after.max(**along, initial=0.0) > 1.5 * before.max(**along, initial=0.0) + floor):
            return False
    return True
