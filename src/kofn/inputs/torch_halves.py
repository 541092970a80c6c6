"""Whether compiled functions hand half precision to the kernels as it is."""

from __future__ import annotations

import torch
from torch import Tensor

from kofn import kernels
from kofn.arrays.torch.state import constant_result, is_compiled


def are_taken(x: Tensor) -> bool:
    """Return whether operators take half precision as it is."""
    return is_compiled() and _are_taken(x.device.type, x.dtype)


@constant_result
def _are_taken(device: str, dtype: torch.dtype) -> bool:
    like = torch.empty(0, dtype=dtype, device=device)
    return kernels.serving_of("rows", like, "torch") is not None
