"""Rows in a GPU's memory, by Triton."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from kofn.arrays.kinds import Array, dtype_name

SERVED = ("float32", "float16", "bfloat16")


def serves(x: Array, framework: str) -> bool:
    """Return whether the array is a tensor on a device that Triton compiles for, but no float64."""
    return framework == "torch" and dtype_name(x) in SERVED and _is_there(x)


def serves_doubles(x: Array, framework: str) -> bool:
    """Return whether the array is such a tensor of float64, for `doubles`."""
    return framework == "torch" and dtype_name(x) == "float64" and _is_there(x)


def _is_there(x: Any) -> bool:
    return x.device.type == "cuda" and _is_supported(x.device)


@lru_cache
def _is_supported(device: Any) -> bool:
    import torch

    # Triton compiles for these, NVIDIA's from 2020 on.
    if torch.version.cuda is None or torch.cuda.get_device_capability(device) < (8, 0):
        return False
    try:
        import triton
    except ImportError:  # it has no release for this system
        return False
    # PyTorch 2.11 brought 3.6 along; the kernels were not tried with what came before.
    return bool(tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 6))
