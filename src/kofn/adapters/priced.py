"""A search for the prices of matrices' columns by kernels, where a device has them.

(Tests: tests/kernels/gpu/interpreted/prices.py, test_kernels_gpu.py.)
"""

from __future__ import annotations

from typing import Any

from kofn import kernels
from kofn.arrays import torch as of_torch
from kofn.arrays.kinds import Array, is_torch
from kofn.kernels.prices import Columns as Columns
from kofn.kernels.prices import Looked as Looked
from kofn.kernels.prices import Numbers as Numbers
from kofn.links.link import Link


def serving(x: Array, link: Link) -> Any:
    """Return the kernels for matrices x of constants, a tensor; None where there are none.

    Their `Search` is that of kernels/gpu/doubles/launch.py.
    """
    if not (is_torch(x) and of_torch.state.is_plain(x)) or 0 in x.shape:
        return None
    return kernels.serving_of("prices", x, "torch", link.inner)
