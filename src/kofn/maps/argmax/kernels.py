"""The kernels for sums over rows at quadrature nodes, where nothing traces or differentiates."""

from __future__ import annotations

from kofn import kernels
from kofn.arrays import torch as of_torch
from kofn.arrays.kinds import Array, is_jax, is_torch
from kofn.links.link import Link


def _is_followed(x: Array) -> bool:
    """Return whether something of PyTorch traces, transforms or records `x`."""
    return is_torch(x) and (not of_torch.state.is_plain(x) or of_torch.state.is_recorded(x))


def serving(link: Link, *arrays: Array) -> kernels.NoiseKernels | None:
    """Return the kernels for the rows of the first array, or None."""
    if is_jax(arrays[0]):
        return None
    if any(map(_is_followed, arrays)):
        return None
    kind = "torch" if is_torch(arrays[0]) else "numpy"
    return kernels.serving_of("noise", arrays[0], kind, link)
