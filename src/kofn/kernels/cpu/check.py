"""A few rows by the library of kernels, before it is used in a process.

A library that gives other answers than NumPy, or none, is not used: it may be for a kind of machine
on which nobody has tried it.
"""

from __future__ import annotations

import os
import threading
import warnings
from functools import cache
from typing import Any

import numpy as np

from kofn.kernels.cpu.runtime import library
from kofn.links import logistic

_SCORES = (2.0, -1.0, 0.5, 0.0, 1.0, -2.0, 0.25, 4.0), (-3.0, 30.0, 0.0, 0.0, -9.0, 2.0, 1.0, 3.0)
_SIZES = 8, 160
"""Entries of rows that are computed abreast, and one by one."""
_lock = threading.RLock()


def holds() -> bool:
    """Return whether kernels may be used, and warn once if they may not."""
    with _lock:
        return _holds()


@cache
def _holds() -> bool:
    if library.found() is None:  # code that is compiled here is not in doubt
        return True
    wrong = _fault()
    if wrong is not None:
        warnings.warn(
            f"kofn's library of kernels ({library.FILE}) {wrong}; the slower array code serves "
            "instead; please report it",
            RuntimeWarning,
            stacklevel=2,
        )
    return wrong is None


def _fault() -> str | None:
    """Return the fault of the library on this machine, None if it has none."""
    try:
        right = all(_right(n, dtype) for n in _SIZES for dtype in (np.float32, np.float64))
    except Exception as error:  # such as a function that it lacks
        return f"does not work on this machine ({error!r})"
    return None if right else "gives wrong answers on this machine"


def _right(n: int, dtype: type[np.floating]) -> bool:
    """Return whether weights, gradients and choices of some rows equal NumPy's."""
    from kofn.kernels.cpu.choice import launch as choice
    from kofn.kernels.cpu.rows import launch as rows

    x = np.tile(np.array(_SCORES, dtype), n // len(_SCORES[0]))
    k, few = n / 4, 3
    near = 64 * float(np.finfo(dtype).eps)
    p, theta, lost = rows.weights(x, k, 1.0, logistic)
    z = x.astype(np.float64) - np.asarray(theta, np.float64).sum(0)[:, None]
    wanted = 1 / (1 + np.exp(-z))
    slopes = wanted * (1 - wanted)
    mean = (slopes * x).sum(-1, keepdims=True) / slopes.sum(-1, keepdims=True)
    back = rows.gradients(x, x, theta, k, 1.0, logistic)[0]
    return (
        not lost
        and _near(p, wanted, near)
        and _near(p.sum(-1), k, near * k)
        and _near(back, slopes * (x - mean), 30 * near)
        and np.array_equal(choice.largest(x, few), np.argsort(-x, kind="stable")[:, :few])
    )


def _near(got: Any, wanted: Any, most: float) -> bool:
    """Return whether numbers are so near; np.allclose would take half of the time of this check."""
    return bool((np.abs(got - wanted) <= most).all())


def _forget() -> None:
    """Have a lock of its own in a forked child: another thread may have held this one."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
