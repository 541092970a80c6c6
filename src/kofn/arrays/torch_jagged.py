"""Jagged nested tensors of PyTorch: values on one axis, and where the parts begin."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def parts(scores: Any) -> tuple[Tensor, Tensor]:
    """Return the values, (n, …), and the offsets of a nested tensor of shape (parts, ragged, …)."""
    if scores.layout is not torch.jagged:
        raise TypeError(
            "a nested tensor of scores must have layout=torch.jagged; got "
            f"{scores.layout}; make it by torch.nested.nested_tensor(…, layout=torch.jagged)"
        )
    sizes = scores.shape
    ragged = [at for at, size in enumerate(sizes) if not isinstance(size, int)]
    if ragged != [1]:
        raise ValueError(
            f"a nested tensor of scores must be ragged along dimension 1; got {tuple(sizes)}"
        )
    if scores.lengths() is not None:
        raise ValueError(
            "a nested tensor of scores must have no gaps between its parts; pass its contiguous()"
        )
    return scores.values(), scores.offsets()


def jagged(values: Tensor, offsets: Tensor) -> Tensor:
    """Return values as a nested tensor again."""
    return torch.nested.nested_tensor_from_jagged(values, offsets)
