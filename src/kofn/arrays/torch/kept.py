"""Numbers in the memory of a GPU, each made once.

In `where(flags, x, 0.0)`, PyTorch first launches a kernel that fills a tensor with the number, then
the one that is wanted.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from kofn.arrays.torch.private import is_left_alone

MOST = 1024
"""The number of kept ones. They come from the code, but a few depend on the length of a row."""

_ORDINARY = (Tensor, torch.nn.Parameter)
_KEPT: dict[tuple[float | str, torch.dtype, torch.device], Tensor] = {}


def kept(like: Tensor, value: float) -> Tensor | None:
    """Return a number with the dtype and device of `like`, or None where it has to be made again.

    Every stream may read it at once, and a CUDA graph later, as nothing else is ever there.
    """
    dtype = like.dtype
    if (
        torch.compiler.is_compiling()  # compilers trace no further
        or not (like.is_cuda and type(like) in _ORDINARY and is_left_alone(like))
        or not (dtype.is_floating_point or type(value) is int)
    ):
        return None
    # −0 is equal to 0, and NaN to nothing.
    known: float | str = value or str(value)
    known_tensor = _KEPT.get((math.nan if value != value else known, dtype, like.device))
    return known_tensor if known_tensor is not None else _made(known, value, like)


def _made(known: float | str, value: float, like: Tensor) -> Tensor | None:
    """Keep a number, unless it would be lost with a graph, or waited for where that is an error."""
    cuda = torch.cuda
    begun = cuda.is_initialized()  # type: ignore[no-untyped-call]
    if len(_KEPT) >= MOST or (
        begun and (cuda.is_current_stream_capturing() or cuda.get_sync_debug_mode())
    ):
        return None
    at = math.nan if value != value else known, like.dtype, like.device
    # In a thread of its own no pool of memory, no mode and no other stream is set. The copy is
    # waited for there.
    with ThreadPoolExecutor(1) as other:
        _KEPT[at] = other.submit(_copied, value, like.dtype, like.device).result()
    return _KEPT[at]


def _copied(value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    wide = torch.float64 if dtype.is_floating_point else dtype
    return torch.tensor(value, dtype=wide, device="cpu").to(dtype).to(device)
