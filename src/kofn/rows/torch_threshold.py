"""The threshold as a custom torch operator for torch.compile and vmap, without a derivative.

It has no autograd formula on purpose. With one, func.grad raises and forward mode silently returns
zeros; `rows/implicit.py` passes it detached tensors and attaches the derivatives.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor
from torch.jit import TracerWarning  # type: ignore[attr-defined]

from kofn.arrays.torch_operator import refuse_untranslated
from kofn.arrays.torch_state import batched, constant_result, is_plain
from kofn.links.link import Link, by_id
from kofn.rows import kernel_rows
from kofn.solver.threshold import solve

# These warnings concern comparisons of sizes: only checks depend on them, and the tests run
# traces at other sizes. TracerWarning.ignore_lib_warnings does the same for torch's own code.
warnings.filterwarnings("ignore", category=TracerWarning, module=r"kofn\.")


@torch.library.custom_op("kofn::threshold", mutates_args=())
def threshold(
    x: Tensor, k: Tensor, temperature: Tensor, alpha: Tensor | None, link: str, number: float | None
) -> tuple[Tensor, Tensor]:
    """Solve for θ; the link's α is `alpha` (per row) or `number` (one for all rows)."""
    hi, lo = _solved(x, k, temperature, by_id(link, number if alpha is None else alpha))
    # The outputs of an operator may not share memory.
    return hi.clone(), lo.clone()


def _solved(x: Tensor, k: Tensor, temperature: Tensor, link: Link) -> tuple[Tensor, Tensor]:
    fused = kernel_rows.threshold(x, k, temperature, link)
    if fused is None:
        # For links with parameters of their own. A signal's handler that raises on the way out of
        # no_grad leaves gradients off, so what kernels serve does without it.
        with torch.no_grad():
            return solve(x, k, temperature, link)
    return fused[0], fused[1]


def threshold_of(x: Tensor, k: Tensor, temperature: Tensor, link: Link) -> tuple[Tensor, Tensor]:
    """Return θ as two floats; by the operator only where something traces or transforms `x`.

    The first call of an operator imports PyTorch's compiler, which takes over a second.
    """
    if is_plain(x):
        return _solved(x, k, temperature, link)
    number, alpha = link.static_and_array_alpha()
    hi, lo = threshold(x, k, temperature, alpha, link.id, number)
    return hi, lo


@threshold.register_fake
def _(
    x: Tensor, k: Tensor, temperature: Tensor, alpha: Tensor | None, link: str, number: float | None
) -> tuple[Tensor, Tensor]:
    refuse_untranslated("threshold")
    return x.new_empty(x.shape[:-1]), x.new_empty(x.shape[:-1])


@threshold.register_vmap
def _(info, in_dims, x, k, temperature, alpha, link, number):  # type: ignore[no-untyped-def]
    """Move batch dimensions to the front; repeat arguments that are not batched."""
    rows = batched((x, k, temperature, alpha), in_dims, info.batch_size)
    return threshold(*rows, link, number), (0, 0)


@constant_result
def integral_ends(link: str) -> tuple[float, float, float]:
    with torch.no_grad():
        return by_id(link, None).integral_ends(torch.tensor(2.0**26, dtype=torch.float64))
