"""Jagged nested tensors of PyTorch: values on one axis, and where the parts begin."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def parts(name: str, nested: Any) -> tuple[Tensor, Tensor]:
    """Return the values, (n, …), and the offsets of a nested tensor of shape (parts, ragged, …)."""
    if torch.compiler.is_compiling():
        raise TypeError(
            f"{name} is a nested tensor, which compiled code does not take; pass its values() and "
            "ptr=offsets()"
        )
    if nested.layout is not torch.jagged:
        raise TypeError(
            f"a nested tensor of {name} must have layout=torch.jagged; got "
            f"{nested.layout}; make it by torch.nested.nested_tensor(…, layout=torch.jagged)"
        )
    sizes = nested.shape
    ragged = [at for at, size in enumerate(sizes) if not isinstance(size, int)]
    if ragged != [1]:
        raise ValueError(
            f"a nested tensor of {name} must be ragged along dimension 1; got {tuple(sizes)}"
        )
    values, offsets, lengths = nested.values(), nested.offsets(), nested.lengths()
    if lengths is not None or (offsets.is_cpu and int(offsets[-1]) != values.shape[0]):
        raise ValueError(
            f"a nested tensor of {name} must have no gaps between its parts; pass its contiguous()"
        )
    return values, offsets


def jagged(values: Tensor, offsets: Tensor) -> Tensor:
    """Return values as a nested tensor again."""
    return torch.nested.nested_tensor_from_jagged(values, offsets)
