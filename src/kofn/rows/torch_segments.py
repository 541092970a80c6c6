"""The threshold of segments as a custom torch operator for torch.compile and vmap.

As for `kofn::threshold` in `rows/torch_threshold.py`, derivatives are attached afterwards.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from kofn import kernels
from kofn.arrays.torch_operator import REFUSED, define, differentiate, refuse_second
from kofn.arrays.torch_state import constant_result, is_compiled, is_plain
from kofn.links.link import Link, by_id
from kofn.rows import kernel_weights
from kofn.rows.given import Given
from kofn.rows.segment_form import KnownSegments
from kofn.rows.segment_order import Order
from kofn.solver.segments import SegmentRows
from kofn.solver.threshold import solve


@torch.library.custom_op("kofn::segment_threshold", mutates_args=())
def segment_threshold(
    x: Tensor, ids: Tensor, k: Tensor, temperature: Tensor, alpha: Tensor | None,
    link: str, number: float | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Solve for θ of each segment; the link's α is `alpha` (per segment) or `number`."""
    which = by_id(link, number if alpha is None else alpha)
    hi, lo = _by_kernel(x, ids, k, temperature, which) or solve(
        x, k, temperature, which, SegmentRows(ids, k.shape[0])
    )
    # The outputs of an operator may not share memory.
    return hi.clone(), lo.clone()


class _Form(NamedTuple):
    over: KnownSegments


def _by_kernel(
    x: Tensor, ids: Tensor, k: Tensor, temperature: Tensor, link: Link
) -> tuple[Tensor, Tensor] | None:
    backend = kernels.serving(x, link, "torch") if x.is_cpu and is_plain(x) else None
    if backend is None:
        return None
    over = KnownSegments(Order.of_ids(ids.detach().numpy(), k.shape[0]), x)
    theta = kernel_weights.threshold(backend, Given(x, k, temperature, link, _Form(over)))
    return theta[0], theta[1]


def threshold_of(
    x: Tensor, k: Tensor, temperature: Tensor, link: Link, over: SegmentRows
) -> tuple[Tensor, Tensor]:
    """Return θ; by the operator only where something traces or transforms `x`."""
    if is_plain(x):
        with torch.no_grad():
            return solve(x, k, temperature, link, over)
    number, alpha = link.static_and_array_alpha()
    hi, lo = segment_threshold(x, over.ids, k, temperature, alpha, link.id, number)
    return hi, lo


@segment_threshold.register_fake
def _(
    x: Tensor, ids: Tensor, k: Tensor, temperature: Tensor, alpha: Tensor | None,
    link: str, number: float | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return torch.empty_like(k), torch.empty_like(k)


@segment_threshold.register_vmap
def _(info, in_dims, x, ids, k, temperature, alpha, link, number):  # type: ignore[no-untyped-def]
    """Lay the items of a batch one after another, each with its own segments."""

    def first(value: Tensor | None, dim: int | None) -> Tensor | None:
        if value is None:
            return None
        if dim is None:
            return value.expand(info.batch_size, *value.shape)
        return value.movedim(dim, 0)

    arguments = (x, ids, k, temperature, alpha)
    x, ids, k, *others = (first(v, d) for v, d in zip(arguments, in_dims, strict=False))
    size, rows = k.shape
    ids = ids + rows * torch.arange(size, device=ids.device)[:, None]
    flat = (None if each is None else each.reshape(-1) for each in (x, ids, k, *others))
    hi, lo = segment_threshold(*flat, link, number)
    return (hi.view(size, rows), lo.view(size, rows)), (0, 0)


# Compiled functions call what follows: without it, they trace a hundred operations a map.

_ROWS = "Tensor ids, Tensor k, Tensor t, str link, float? alpha"


def _known(x: Tensor, ids: Tensor, k: Tensor, t: Tensor, link: str, alpha: float | None) -> Given:
    over = KnownSegments(Order.of_ids(ids.detach().numpy(), k.shape[0]), x)
    return Given(x, k, t, by_id(link, alpha), _Form(over))


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
    return kernel_weights.weights(_backend(x), _known(x, *rows))


@define(f"Tensor cotangent, Tensor x, Tensor theta, {_ROWS}", "(Tensor, Tensor)", _slopes_like)
def segment_weights_backward(
    cotangent: Tensor, x: Tensor, theta: Tensor, *rows: Any
) -> tuple[Tensor, Tensor]:
    """Return the cotangents of the scores, and those of k and the temperature, (2, segments)."""
    return kernel_weights.gradients(_backend(x), _known(x, *rows), cotangent, theta)


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
