"""Logits of cosines with a margin on the one of each row's label, on a device.

(Tests: tests/kernels/gpu/interpreted/losses.py, test_kernels_gpu.py.)
"""

from __future__ import annotations

from typing import Any

from kofn.arrays.typing import Tensor
from kofn.operations.operation import Operation
from kofn.operations.signatures import scores


def _back(
    backend: Any, x: Tensor, cotangent: Tensor, target: Tensor, slope: Tensor, t: float,
    ignored: int,
) -> Tensor:  # fmt: skip
    slopes: Tensor = backend.margin_gradients(x, cotangent, target, slope, t, ignored)
    return slopes


MARGINED = Operation(
    name="",
    takes="x n, target r, margin float, turned int, t float, ignored int, again any",
    gives="logits N, slope r",
    of=scores("x", "rows"),
    kernel=lambda backend, *own: backend.margins(*own[:-1]),
    plain=lambda x, target, again, **own: again(x, target, **own),
    back=(
        Operation(
            name="",
            takes="cotangent N, target r, slope r, t float, ignored int",
            gives="x n",
            of=scores("x", "rows"),
            kernel=_back,
        ),
    ),
    offered="RATED",
)
"""(x − margin)/T at labels, or if `turned` cos(φ + margin)/T, and x/T elsewhere.

`again` is for derivatives: again(x, target, margin=, turned=, t=, ignored=) is it.
"""
