"""Scores and other arguments of a case: usual rows, and those that tests rarely draw."""

from __future__ import annotations

import zlib
from typing import Any

import ml_dtypes
import numpy as np
from cases import Case

LARGEST = {"float16": 6.0e4, "bfloat16": 3.3e38, "float32": 3.4028235e38, "float64": 1.7e308}
TINY = {"float16": 6e-8, "bfloat16": 1e-40, "float32": 1e-44, "float64": 1e-322}

PER_ENTRY = ("x", "c", "mask", "soft", "hot", "v")
PER_ROW = (*PER_ENTRY, "k", "t", "b", "alpha", "labels")
"""Arguments of which each row has its own; `w` has a number per class."""


def seed_of(text: str) -> int:
    return zlib.crc32(text.encode())


def arguments(case: Case) -> dict[str, Any]:
    """Return every argument that operations take, in float64, rounded to the type of the case.

    Orders and frameworks share them, so that answers may be compared by eye.
    """
    generator = np.random.default_rng(seed_of(f"{case.link}/{case.dtype}/{case.n}"))
    x, k, t = _rows(generator, case.n, case.dtype)
    count = len(x)
    soft = np.exp(generator.standard_normal(x.shape))
    found = dict(
        x=x,
        k=k,
        t=t,
        c=np.where(generator.random(x.shape) < 0.1, 0.0, np.exp(generator.normal(0, 0.7, x.shape))),
        b=k * generator.uniform(0.3, 1.2, count),
        alpha=generator.choice([1.05, 1.2, 1.3, 1.5, 1.9, 2.0], count),
        mask=generator.random(x.shape) < 0.85,
        labels=generator.integers(0, case.n, count),
        soft=soft / soft.sum(-1, keepdims=True),
        hot=(generator.random(x.shape) < 0.2).astype(float),
        w=np.exp(generator.normal(0, 0.3, case.n)),
        v=generator.standard_normal(x.shape),
    )
    if case.rows == "numbers":
        found |= dict(k=float(max(1, case.n // 5)), t=0.7, b=0.3 * case.n, alpha=1.3)
    if case.rows != "mask":
        found["mask"] = None
    return {name: rounded(value, case.dtype) for name, value in found.items()}


def rounded(value: Any, dtype: str) -> Any:
    """Numbers and integers stay as they are."""
    if not isinstance(value, np.ndarray) or value.dtype != float:
        return value
    with np.errstate(over="ignore"):
        return value.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype).astype(float)


def noise(seed: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return cotangents and tangents; every type has these numbers without rounding."""
    drawn = np.random.default_rng(seed_of(seed)).standard_normal(shape)
    return np.clip(np.round(drawn * 16), -63, 63) / 16


def _rows(generator: np.random.Generator, n: int, dtype: str) -> tuple[np.ndarray, ...]:
    inf, nan = np.inf, np.nan
    x = generator.standard_normal((22, n))
    k = generator.uniform(0.2, 0.8, 22) * min(n, 20)
    t = np.exp(generator.normal(0, 0.5, 22))
    some = generator.random(x.shape) < 0.3
    first = np.arange(n) == generator.integers(n)
    x[1] *= 5
    x[2] = np.round(x[2])  # ties
    x[3] = 0.25
    x[4, first] = nan
    x[5, some[5]] = -inf
    x[6, first] = inf
    x[7, some[7]], x[7, first] = -inf, nan
    x[8, some[8]] = -LARGEST[dtype]
    x[9, some[9]] = -1e4 if dtype == "float16" else -1e9
    x[10] *= TINY[dtype]
    x[11] += 1e3
    x[12, some[12]] = 0.0
    x[13] = -inf
    x[14, first] = 1e4
    k[14:18] = 0.0, n, n - 1, 1.0
    k[18:20] = n * 0.999, 1e-3 * n
    t[15:19] = 1e-3, 1e3, 1e-2, 30.0
    t[2] = 0.05
    x[20, some[20]], x[20, ~some[20]] = 2.0, -2.0
    k[20], t[20] = max(1, int(some[20].sum())), 1e-2  # a plateau
    k = np.where(np.arange(22) % 3 == 0, np.round(k), k)
    return x, np.clip(k, 0, n), t
