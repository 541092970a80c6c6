"""Rows in main memory, by Numba."""

from __future__ import annotations

from kofn.arrays.kinds import Array, is_numpy, is_torch


def serves(x: Array) -> bool:
    """Whether such arrays are served: NumPy's, and torch's on the CPU."""
    return is_numpy(x) or (is_torch(x) and x.device.type == "cpu")
