"""Rows in main memory, by Numba."""

from __future__ import annotations

from kofn.arrays.kinds import Array


def serves(x: Array, framework: str) -> bool:
    """Whether such arrays are served: NumPy's, and torch's on the CPU."""
    return framework == "numpy" or (framework == "torch" and x.is_cpu)
