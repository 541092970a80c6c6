"""The weights of segments as a torch operator with a first derivative, for compiled functions.

Without it, they trace a hundred operations for each map.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kofn import kernels
from kofn.arrays.torch_operator import REFUSED, define, differentiate, refuse_second
from kofn.arrays.torch_state import constant_result, is_compiled
from kofn.links.link import by_id
from kofn.rows import kernel_weights
from kofn.rows.given import Given
from kofn.rows.torch_segments import known

_ROWS = "Tensor ids, Tensor k, Tensor t, str link, float? alpha"


def _backend(x: Tensor) -> kernels.RowKernels:
    backend = kernels.for_rows(x, "torch")
    assert backend is not None  # found while tracing; a later KOFN_KERNELS does not change the road
    return backend


def _entries_and_pair(x: Tensor, ids: Tensor, k: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty((2, *k.shape))


def _slopes_like(cotangent: Tensor, x: Tensor, theta: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(theta)


@define(f"Tensor x, {_ROWS}", "(Tensor, Tensor)", _entries_and_pair)
def segment_weights(x: Tensor, *rows: Any) -> tuple[Tensor, Tensor]:
    return kernel_weights.weights(_backend(x), known(x, *rows))


@define(f"Tensor cotangent, Tensor x, Tensor theta, {_ROWS}", "(Tensor, Tensor)", _slopes_like)
def segment_weights_backward(
    cotangent: Tensor, x: Tensor, theta: Tensor, *rows: Any
) -> tuple[Tensor, Tensor]:
    """Return the cotangents of the scores, and those of k and the temperature, (2, segments)."""
    return kernel_weights.gradients(_backend(x), known(x, *rows), cotangent, theta)


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    x, ids, k, t, ctx.link, ctx.alpha = inputs
    ctx.save_for_backward(x, output[1], ids, k, t)
    ctx.set_materialize_grads(False)


def _pullback(ctx: Any, cotangent: Tensor | None, of_theta: Tensor | None) -> Any:
    if of_theta is not None:
        raise RuntimeError(REFUSED)
    if cotangent is None:
        return (None,) * 6
    x, theta, *rows = ctx.saved_tensors
    in_x, in_rows = segment_weights_backward(cotangent, x, theta, *rows, ctx.link, ctx.alpha)
    return in_x, None, in_rows[0], in_rows[1], None, None


differentiate(segment_weights, _pullback, _keep)
refuse_second(segment_weights_backward)


def weights_of(given: Given) -> Tensor | None:
    """Return the weights of a compiled function's segments; None if no kernel serves them."""
    number, alpha = given.link.static_and_array_alpha()
    x = given.scores
    if not is_compiled() or alpha is not None or not _is_served(
        x.device.type, x.dtype, given.link.id, number
    ):  # fmt: skip
        return None
    _, k, t, *_ = given.per_row()
    return segment_weights(x, given.form.over.ids, k, t, given.link.id, number)[0]


@constant_result
def _is_served(device: str, dtype: torch.dtype, link: str, number: float | None) -> bool:
    like = torch.empty(0, dtype=dtype, device=device)
    found = kernels.serving(like, by_id(link, number), "torch") if device == "cpu" else None
    return found is not None
