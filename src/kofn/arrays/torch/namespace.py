"""The array-API namespace of PyTorch: its own functions, and what it names or calls otherwise.

Only what kofn calls is here, and only so as kofn calls it (test_arrays_torch_namespace.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kofn.arrays.torch.kept import kept

Axis = int | tuple[int, ...] | None

# `torch.classes` has every name, which tools that look into a module take at its word, and
# `torch.range`, which is deprecated, would stand before Python's.
_OWN = {*globals(), "classes", "range"}
globals().update({
    name: each for name, each in vars(torch).items() if name[0] != "_" and name not in _OWN
})  # fmt: skip


def asarray(x: Any, /, *, dtype: torch.dtype | None = None) -> Tensor:
    """Return a tensor, on its device if it is one; torch.asarray would move it to the default."""
    return torch.asarray(x, dtype=dtype, device=x.device if isinstance(x, Tensor) else None)


def sum(x: Tensor, /, *, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Tensor:
    if axis is None:
        return torch.sum(x, dtype=dtype)
    return torch.sum(x, axis, dtype=dtype, keepdim=keepdims)


def mean(x: Tensor, /, *, axis: Axis = None) -> Tensor:
    return torch.mean(x) if axis is None else torch.mean(x, axis)


def max(x: Tensor, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    return torch.amax(x, () if axis is None else axis, keepdim=keepdims)


def min(x: Tensor, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    return torch.amin(x, () if axis is None else axis, keepdim=keepdims)


def any(x: Tensor, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    if isinstance(axis, tuple):
        return torch.any(_together(x, axis), -1)
    return torch.any(x) if axis is None else torch.any(x, axis, keepdim=keepdims)


def all(x: Tensor, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    if isinstance(axis, tuple):
        return torch.all(_together(x, axis), -1)
    return torch.all(x) if axis is None else torch.all(x, axis, keepdim=keepdims)


def _together(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Return x with several dimensions as one, the last."""
    return x.movedim(axes, tuple(range(-len(axes), 0))).flatten(-len(axes))


def cumulative_sum(x: Tensor, /, *, axis: int) -> Tensor:
    return torch.cumsum(x, axis)


def sort(x: Tensor, /, *, axis: int = -1) -> Tensor:
    return torch.sort(x, dim=axis, stable=True).values


def argsort(
    x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True
) -> Tensor:
    return torch.argsort(x, dim=axis, descending=descending, stable=stable)


def concat(arrays: Sequence[Tensor], /, *, axis: int = 0) -> Tensor:
    return torch.concat(tuple(arrays), axis)


def flip(x: Tensor, /, *, axis: int) -> Tensor:
    return x.flip(axis)


def expand_dims(x: Tensor, /, *, axis: int) -> Tensor:
    return torch.unsqueeze(x, axis)


def take_along_axis(x: Tensor, indices: Tensor, /, *, axis: int = -1) -> Tensor:
    """Return entries of x by their indices, which count from the end where they are negative."""
    own = torch.where(indices < 0, indices + x.shape[axis], indices)
    return torch.take_along_dim(x, own, dim=axis)


def clip(x: Tensor, low: Any = None, high: Any = None, /) -> Tensor:
    """Return x, limited to a range; NaN for an end that is NaN, which torch.clamp may pass over."""
    if not isinstance(low, Tensor) and not isinstance(high, Tensor):
        if low != low or high != high:
            return torch.full_like(x, torch.nan)
        return torch.clamp(x, low, high)
    ends = (
        end
        if end is None or isinstance(end, Tensor)
        else torch.as_tensor(end, dtype=x.dtype, device=x.device)
        for end in (low, high)
    )
    return torch.clamp(x, *ends)


def sign(x: Tensor, /) -> Tensor:
    """Return −1, 0 or 1, and NaN of NaN; torch.sign makes 0 of it."""
    return torch.where(x.isnan(), x, torch.sign(x))


def maximum(x: Any, y: Any, /) -> Tensor:
    return torch.maximum(*_alike(x, y))


def minimum(x: Any, y: Any, /) -> Tensor:
    return torch.minimum(*_alike(x, y))


def logaddexp(x: Any, y: Any, /) -> Tensor:
    return torch.logaddexp(*_alike(x, y))


def where(condition: Tensor, x: Any, y: Any, /) -> Tensor:
    """Return x where set and y elsewhere; a number takes the dtype of the other."""
    if not isinstance(y, Tensor):
        if condition.is_cuda and isinstance(x, Tensor):
            y = _placed(x, y)
    elif not isinstance(x, Tensor):
        if condition.is_cuda:
            x = _placed(y, x)
    elif x.dtype is not y.dtype:
        x, y = _alike(x, y)
    return torch.where(condition, x, y)


def _placed(like: Tensor, value: float) -> Any:
    tensor = kept(like, value)
    return value if tensor is None else tensor


def _alike(x: Any, y: Any) -> tuple[Tensor, Tensor]:
    """Return two tensors of one dtype, if one is a number or a tensor without dimensions.

    PyTorch lets such a tensor have no say in the dtype of the answer; the array API does.
    """
    if not isinstance(x, Tensor):
        return torch.asarray(x, dtype=torch.result_type(x, y), device=y.device), y
    if not isinstance(y, Tensor):
        return x, torch.asarray(y, dtype=torch.result_type(x, y), device=x.device)
    if x.dtype is y.dtype or (x.ndim and y.ndim) or {x.dtype, y.dtype} & _HALF:
        return x, y
    if x.is_floating_point() == y.is_floating_point():
        dtype = torch.promote_types(x.dtype, y.dtype)
    else:
        dtype = torch.result_type(x, y)
    return x.to(dtype), y.to(dtype)


_HALF = {torch.float16, torch.bfloat16}
