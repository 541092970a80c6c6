"""The array-API namespace of PyTorch, from array-api-compat, with a `where` of fewer launches."""

from __future__ import annotations

from typing import Any

import array_api_compat.torch as compat
import torch
from torch import Tensor

from kofn.arrays.torch.kept import kept

# `torch.classes` has every name, which tools that look into a module take at its word.
_OWN = {*globals(), "classes"}
globals().update({name: each for name, each in vars(compat).items() if name not in _OWN})


def where(condition: Tensor, x: Any, y: Any, /) -> Tensor:
    """Return x where set and y elsewhere; a number takes the dtype of the other."""
    if not isinstance(y, Tensor):
        if condition.is_cuda and isinstance(x, Tensor):
            y = _placed(x, y)
    elif not isinstance(x, Tensor):
        if condition.is_cuda:
            x = _placed(y, x)
    elif x.dtype is not y.dtype:
        return compat.where(condition, x, y)
    return torch.where(condition, x, y)


def _placed(like: Tensor, value: float) -> Any:
    tensor = kept(like, value)
    return value if tensor is None else tensor
