"""Rows of matrices less the prices of their columns, by a kernel that takes both: for searches that
look at many prices. (Tests: tests/kernels/gpu/interpreted/doubles.py, test_kernels_gpu.py.)
"""

from __future__ import annotations

from typing import Any, NamedTuple

from kofn import kernels
from kofn.arrays import torch as of_torch
from kofn.arrays.kinds import Array, is_torch
from kofn.links.link import Link


class Priced(NamedTuple):
    """Matrices x, (…, m, n), whose rows are to sum to k."""

    backend: Any
    x: Any
    k: Any
    link: Link

    def weights(self, prices: Array, t: Array) -> tuple[Array, Array]:
        """Return weights at prices of columns and a temperature for each matrix, and their F′."""
        p, slopes, _ = self.backend.priced(self.x, self.k, self._each(t), self.link, prices)
        return p, slopes

    def thresholds(self, prices: Array, t: Array) -> Any:
        """Return θ of the rows, 0 where it is infinite."""
        t = self._each(t)
        (high, low), _ = self.backend.threshold(self.x, self.k, t, self.link, prices)
        theta = high + low if self.link.edge == 0 else high + low - t * self.link.edge
        return theta.nan_to_num(0.0, 0.0, 0.0)

    def _each(self, t: Any) -> Any:
        return t[..., None].expand(self.k.shape)


def of_matrices(x: Array, k: Array, link: Link) -> Priced | None:
    """Return what looks at prices of such matrices, of constants; None where no kernel serves."""
    if not (is_torch(x) and of_torch.state.is_plain(x)):
        return None
    backend = kernels.doubles(x, "torch", link.inner)
    return None if backend is None else Priced(backend, x.contiguous(), k, link.inner)
