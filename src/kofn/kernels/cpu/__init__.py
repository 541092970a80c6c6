"""Rows in main memory, by code that Numba translated when the package was built, or does now."""

from __future__ import annotations

from typing import Any


def serves(x: Any, framework: str) -> bool:
    """Return whether the array is one that these kernels can use: NumPy's, or torch's on a CPU."""
    return framework == "numpy" or (framework == "torch" and x.is_cpu)
