"""The check that weights fit torch.sparse.to_sparse_semi_structured, which refuses CPU tensors."""

from __future__ import annotations

from typing import Literal, Never

import torch
from torch import Tensor, nn

from kofn.arrays.checks import check_choice
from kofn.arrays.names import unknown_keyword
from kofn.nn.pruning.layout import as_matrix
from kofn.nn.pruning.targets import refuse_sharded, targets_of

RULES = {
    "cutlass": {
        torch.float16: (32, 64),
        torch.bfloat16: (32, 64),
        torch.int8: (16, 128),
        torch.float32: (32, 32),
    },
    "cusparselt": {
        torch.float16: (16, 16),
        torch.bfloat16: (16, 16),
        torch.int8: (32, 32),
        torch.float8_e4m3fn: (32, 32),
    },
}
"""The factors of the numbers of rows and columns, by PyTorch's backend and dtype."""


def check_semi_structured(
    weights: nn.Module | Tensor,
    *,
    backend: Literal["cutlass", "cusparselt"] = "cutlass",
    dtype: torch.dtype | None = None,
    exclude: tuple[str, ...] = (),
    **others: Never,
) -> None:
    """Raise unless torch.sparse.to_sparse_semi_structured takes the weights, moved to a GPU.

    It wants contiguous matrices whose sizes are multiples of a backend's tiles, with at most 2
    nonzeros in every 4 neighbours of a row (1 in 2 for float32).

    Args:
        weights: a model, whose linear and convolution layers are checked, or one tensor.
        backend: of PyTorch; its tiles differ.
        dtype: that the weights will be converted to; by default, what they have.
        exclude: as for `prune`.

    Raises:
        ValueError, TypeError: the name of a weight that does not fit, its shape or dtype, and what
            is allowed.

    Example:
        >>> import torch
        >>> from kofn import nn
        >>> layer = torch.nn.Linear(64, 32)
        >>> _ = nn.prune(layer, pattern="2:4", schedule=10).finalize()
        >>> nn.check_semi_structured(layer, dtype=torch.float16)
        >>> nn.check_semi_structured(torch.nn.Linear(10, 32), dtype=torch.float16)
        Traceback (most recent call last):
        ...
        ValueError: weight of shape (32, 10) does not fit: for torch.float16 and cutlass, rows \
must be a multiple of 32 and columns of 64
    """
    if others:
        raise unknown_keyword(check_semi_structured, others)
    check_choice("backend", backend, tuple(RULES))
    if isinstance(weights, Tensor):
        _check("weights", weights, backend, dtype or weights.dtype)
        return
    if not isinstance(weights, nn.Module):
        raise TypeError(
            f"weights must be a torch.nn.Module or a torch.Tensor; got {type(weights).__name__}"
        )
    for target in targets_of(weights, exclude):
        refuse_sharded(target.name, target.weight)
        _check(target.name, target.weight, backend, dtype or target.weight.dtype)


def _check(name: str, weight: Tensor, backend: str, dtype: torch.dtype) -> None:
    where, rules = f"{name} of shape {tuple(weight.shape)} does not fit", RULES[backend]
    if dtype not in rules:
        allowed = ", ".join(map(str, rules))
        raise TypeError(f"{name} has dtype {dtype}; {backend} takes {allowed}")
    if weight.ndim != 2:
        rows, columns = as_matrix(weight.shape)
        raise ValueError(
            f"{where}: it must be a matrix, such as weight.flatten(1) of {rows} x {columns}"
        )
    if not weight.is_contiguous():
        raise ValueError(f"{where}: it must be contiguous")
    rows, columns = rules[dtype]
    if not weight.numel() or weight.shape[0] % rows or weight.shape[1] % columns:
        raise ValueError(
            f"{where}: for {dtype} and {backend}, rows must be a multiple of {rows} and columns "
            f"of {columns}"
        )
    most, of = (1, 2) if dtype == torch.float32 else (2, 4)
    number = (weight.detach().reshape(-1, of) != 0).sum(-1)
    if (number > most).any():
        row = int((number > most).nonzero()[0]) * of // weight.shape[1]
        raise ValueError(
            f"{where}: row {row} has more than {most} nonzeros in {of} neighbours; prune it with "
            f'pattern="{most}:{of}"'
        )
