"""Checks of what modules are given: dense tensors of floats or integers, and masks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kofn.arrays.checks import check_scores
from kofn.arrays.unfit import refuse_unfit

_USUAL = {torch.float32, torch.float64, torch.bfloat16, torch.float16}
_COUNTS = {torch.int64}


def check_tensors(*, integers: bool = False, **given: Any) -> None:
    """Check that each argument is a dense tensor of floats, or of integers, of any shape."""
    usual = _COUNTS if integers else _USUAL
    for name, value in given.items():
        # Most are such, and are asked no more: for a router of few tokens, each call counts.
        dense = type(value) is Tensor and value.layout is torch.strided and not value.is_nested
        if dense and value.dtype in usual:
            continue
        if not isinstance(value, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor; got a {type(value).__qualname__}")
        check_scores(value, name, integers, scalars=True)


def check_boolean(mask: Any, meaning: str, name: str = "mask", *, or_floats: bool = False) -> None:
    """Check that a mask is a dense tensor of booleans, or of floats to add."""
    allowed = f"boolean, {meaning}" + ", or floats to add" * or_floats
    if not isinstance(mask, Tensor):
        raise TypeError(f"{name} must be {allowed}; got a {type(mask).__qualname__}")
    refuse_unfit("torch", name, mask)
    if mask.dtype != torch.bool and not (or_floats and mask.is_floating_point()):
        raise TypeError(f"{name} must be {allowed}; got {mask.dtype}")
    if mask.dtype != torch.bool:
        check_scores(mask, name, scalars=True)
