"""Arrays of a known framework that kofn does not take: wrong answers otherwise."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np


def refuse_unfit(kind: str, name: str, value: Any) -> None:
    """Refuse an array of NumPy or PyTorch that is not one dense array of numbers."""
    if kind == "numpy":
        _refuse_array(name, value)
    if kind == "torch":
        _refuse_tensor(name, value)


def _refuse_array(name: str, value: np.ndarray) -> None:
    """Refuse the subclasses of numpy.ndarray whose own rules would make answers wrong in silence.

    A masked array is known by numpy.ma, which exists where one was made: importing it here would
    be a quarter of kofn's import.
    """
    if type(value) is np.ndarray:
        return
    masked = sys.modules.get("numpy.ma")
    if masked and isinstance(value, masked.MaskedArray):
        raise TypeError(
            f"{name} must not be a numpy.ma.MaskedArray, whose mask would be ignored; pass its "
            "data and mask=~array.mask"
        )
    if isinstance(value, np.matrix):
        raise TypeError(
            f"{name} must not be a numpy.matrix, which always has two dimensions; pass "
            "numpy.asarray of it"
        )


def _refuse_tensor(name: str, value: Any) -> None:
    """Refuse tensors that are not one array of numbers."""
    if type(value).__name__ == "MaskedTensor":
        raise TypeError(
            f"{name} must not be a torch.masked.MaskedTensor; pass its get_data(), and its "
            "get_mask() as mask"
        )
    if value.is_nested:
        raise TypeError(
            f"{name} must be a dense tensor; got a nested one of layout {value.layout}. The "
            "functions of segments take nested tensors of layout torch.jagged"
        )
    if value.layout is not sys.modules["torch"].strided:
        raise TypeError(f"{name} must be a dense tensor; got layout {value.layout}")
