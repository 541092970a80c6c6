"""The threshold as custom torch operators for torch.compile and vmap, without a derivative.

They have no autograd formula on purpose. With one, func.grad raises and forward mode silently
returns zeros; `formulas/implicit.py` passes detached tensors and attaches the derivatives.
"""

from __future__ import annotations

import re
import warnings
from typing import Any

import torch
from torch import Tensor
from torch.jit import TracerWarning  # type: ignore[attr-defined]

from kofn.arrays.torch.operator import NAMESPACE, map_batches, refuse_untranslated
from kofn.arrays.torch.state import is_plain
from kofn.links.link import Link, by_id
from kofn.operations import by_kernel
from kofn.operations.price import solved
from kofn.solver.price import Price
from kofn.solver.threshold import solve

# These warnings concern comparisons of sizes: only checks depend on them, and the tests run
# traces at other sizes. TracerWarning.ignore_lib_warnings does the same for torch's own code.
_OURS = re.escape(__package__.removesuffix("adapters.torch"))
warnings.filterwarnings("ignore", category=TracerWarning, module=_OURS)


@torch.library.custom_op(f"{NAMESPACE}::threshold", mutates_args=())
def threshold(
    x: Tensor, k: Tensor, temperature: Tensor, alpha: Tensor | None, link: str, number: float | None
) -> tuple[Tensor, Tensor]:
    """Solve for θ; the link's α is `alpha` (per row) or `number` (one for all rows)."""
    hi, lo = _solved(x, k, temperature, by_id(link, number if alpha is None else alpha), None)
    # The outputs of an operator may not share memory.
    return hi.clone(), lo.clone()


@torch.library.custom_op(f"{NAMESPACE}::price", mutates_args=())
def price(
    x: Tensor, costs: Tensor, budget: Tensor, temperature: Tensor, alpha: Tensor | None,
    link: str, number: float | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Solve for the θ of rows with costs."""
    which = by_id(link, number if alpha is None else alpha)
    high, low, distance, scale = _solved(x, budget, temperature, which, costs)
    return high.clone(), low.clone(), distance.clone(), scale.clone()


def _solved(
    x: Tensor, k: Tensor, temperature: Tensor, link: Link, costs: Tensor | None
) -> tuple[Any, ...]:
    if costs is not None:
        with torch.no_grad():
            return solved(x, costs, k, temperature, link)
    theta = by_kernel.threshold(x, k, temperature, link)
    if theta is None:
        # For links with parameters of their own. A signal's handler that raises on the way out of
        # no_grad leaves gradients off, so what kernels serve does without it.
        with torch.no_grad():
            return solve(x, k, temperature, link)
    return theta[0], theta[1]


def threshold_of(
    x: Tensor, k: Tensor, temperature: Tensor, link: Link, costs: Tensor | None = None
) -> tuple[Tensor, ...]:
    """Return θ as two floats, or a Price; by the operator only where something traces or transforms
    `x`.

    The first call of an operator imports PyTorch's compiler, which takes over a second.
    """
    if is_plain(x):
        return _solved(x, k, temperature, link, costs)
    number, alpha = link.static_and_array_alpha()
    if costs is not None:
        solution: tuple[Any, ...] = Price(*price(x, costs, k, temperature, alpha, link.id, number))
        return solution
    hi, lo = threshold(x, k, temperature, alpha, link.id, number)
    return hi, lo


@threshold.register_fake
def _(x: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    refuse_untranslated("threshold")
    return x.new_empty(x.shape[:-1]), x.new_empty(x.shape[:-1])


@price.register_fake
def _(x: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    refuse_untranslated("price")
    high, low, scale = (x.new_empty(x.shape[:-1]) for _ in range(3))
    return high, low, x.new_empty(x.shape), scale


map_batches(threshold)
map_batches(price)
