"""Hard choices of rows in a GPU's memory, a launch each; what else `ChoiceKernels` has is for array
code. (Tests: test_kernels_gpu.py.)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kofn.kernels.gpu.choice import programs
from kofn.kernels.gpu.launcher import launch
from kofn.kernels.gpu.rows import launch as rows

FEW = 64
"""Choices that are found one after the other, a pass each; a sort finds more."""


def hard(x: Tensor, k: Any) -> Tensor:
    """Return the hard top-k of rows, for k per row or one float."""
    x = rows.packed(x)
    out = rows.empty(x, x.shape)
    _launch(programs.hard, x, k if isinstance(k, float) else rows.packed(k), (out,))
    return out


def largest(x: Tensor, k: int) -> Tensor:
    """Return the indices of the k largest scores, (…, k); NaN and masked ones come last."""
    x = rows.packed(x)
    if k > FEW:
        known = x.masked_fill(~(x > torch.finfo(x.dtype).min / 2), -torch.inf)
        return known.sort(dim=-1, descending=True, stable=True).indices[..., :k]
    out = rows.empty(x, (*x.shape[:-1], k), torch.int64)
    if k:
        _launch(programs.largest, x, k, (out,))
    return out


def tally(x: Tensor, indices: Tensor, counts: tuple[Tensor, ...]) -> None:
    """Add to counts of int64 how often the indices of rows without a NaN name each entry.

    Whole numbers add up to the same in any order.
    """
    width = (rows.power_of_2(indices.shape[-1]),)
    _launch(
        programs.tally, rows.packed(x), indices.shape[-1], (rows.packed(indices), counts), width
    )


def _launch(kernel: Any, x: Tensor, k: Any, arrays: tuple[Any, ...], more: Any = ()) -> None:
    n = x.shape[-1]
    count = x.numel() // max(n, 1)
    if count:
        shape = rows.shape_of(n)
        given, programs_ = programs.Choices(x, k, count, n), -(-count // shape.rows)
        constants = (*more, *shape[:2])
        launch(kernel, programs_, given, arrays, constants, rows.options_of(shape.warps))
