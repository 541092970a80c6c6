"""What compiled functions of PyTorch know while they are traced: constants of the program."""

from __future__ import annotations

import torch
from torch import Tensor

from kofn import kernels
from kofn.arrays.torch.state import constant_result, is_compiled
from kofn.links.link import by_id


def are_halves_taken(x: Tensor) -> bool:
    """Return whether operators take half precision as it is."""
    return is_compiled() and _are_halves_taken(x.device.type, x.dtype)


@constant_result
def _are_halves_taken(device: str, dtype: torch.dtype) -> bool:
    like = torch.empty(0, dtype=dtype, device=device)
    return kernels.serving_of("rows", like, "torch") is not None


@constant_result
def integral_ends(link: str) -> tuple[float, float, float]:
    with torch.no_grad():
        far = torch.tensor(2.0**26, dtype=torch.float64, device="cpu")
        return by_id(link, None).integral_ends(far)
