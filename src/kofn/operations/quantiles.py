"""A quantile of rows by a kernel, for one number q.

(Tests: test_maps_ordered_quantiles.py; tests/kernels/gpu/interpreted/quantiles.py.)
"""

from __future__ import annotations

from kofn.arrays.typing import Tensor
from kofn.operations.operation import Operation
from kofn.operations.signatures import scores


def _back(x: Tensor, cotangent: Tensor, slopes: Tensor, places: Tensor) -> Tensor:
    each, at = (part.movedim(0, -1) for part in (cotangent * slopes, places))
    hidden = (cotangent[..., None] * 0.0).masked_fill(slopes[0].isnan()[..., None], float("nan"))
    return x.new_zeros(x.shape, dtype=each.dtype).scatter_add(-1, at, each) + hidden


QUANTILE = Operation(
    name="",
    takes="x n, low int, high int, share float",
    gives="answer r, slopes **, places **",
    of=scores("x", "choice"),
    kernel=lambda backend, x, low, high, share: backend.quantile(x, low, high, share),
    back=(
        Operation(
            name="",
            takes="cotangent r, x n, slopes **, places **",
            gives="x n",
            of=scores("x", "choice"),
            kernel=lambda backend, x, *own: backend.quantile_gradients(x, *own),
            plain=_back,
        ),
    ),
    offered="quantile",
)
"""The number at a share of the way between the numbers of two ranks; the second rank is the same
or the next one.
"""
