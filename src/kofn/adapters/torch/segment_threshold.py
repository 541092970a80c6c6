"""The threshold of segments as a custom torch operator for torch.compile and vmap.

As for `kofn::threshold` in `adapters/torch/threshold.py`, derivatives are attached afterwards.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from kofn import kernels
from kofn.arrays.torch.operator import NAMESPACE
from kofn.arrays.torch.state import batched, is_plain
from kofn.links.link import Link, by_id
from kofn.operations import by_kernel
from kofn.rows.given import Given
from kofn.rows.segments.blocks import by_blocks
from kofn.rows.segments.form import KnownSegments
from kofn.rows.segments.order import Order
from kofn.solver.segments import SegmentRows
from kofn.solver.threshold import solve


@torch.library.custom_op(f"{NAMESPACE}::segment_threshold", mutates_args=())
def segment_threshold(
    x: Tensor, ids: Tensor, k: Tensor, temperature: Tensor, alpha: Tensor | None,
    link: str, number: float | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Solve for θ of each segment; the link's α is `alpha` (per segment) or `number`."""
    which = by_id(link, number if alpha is None else alpha)
    theta: Any = _by_kernel(x, ids, k, temperature, which) or solve(
        x, k, temperature, which, SegmentRows(ids, k.shape[0])
    )
    hi, lo = theta
    # The outputs of an operator may not share memory.
    return hi.clone(), lo.clone()


class _Form(NamedTuple):
    """A `SegmentForm` for kernels: the reductions, which know where entries are."""

    over: KnownSegments


def _by_kernel(
    x: Tensor, ids: Tensor, k: Tensor, temperature: Tensor, link: Link
) -> tuple[Tensor, Tensor] | None:
    backend = kernels.serving_of("rows", x, "torch", link) if x.is_cpu and is_plain(x) else None
    if backend is None:
        return None
    number, _ = link.static_and_array_alpha()

    def threshold(rows: Given, _: object) -> list[Any]:
        return [by_kernel.threshold_of(backend, rows)]

    given = given_of_ids(x, ids, k, temperature, link.id, number)
    (theta,) = by_blocks(threshold, given, [], [], [False])
    return theta[0], theta[1]


def given_of_ids(
    x: Tensor, ids: Tensor, k: Tensor, temperature: Tensor, link: str, alpha: float | None
) -> Given:
    """Return CPU tensors as the checked arguments of a map of segments, whose ids can be read."""
    over = KnownSegments(Order.of_ids(ids.detach().numpy(), k.shape[0]), True)
    return Given(x, k, temperature, by_id(link, alpha), _Form(over))


def threshold_of(
    x: Tensor, k: Tensor, temperature: Tensor, link: Link, over: SegmentRows
) -> tuple[Tensor, Tensor]:
    """Return θ; by the operator only where something traces or transforms `x`."""
    if is_plain(x):
        with torch.no_grad():
            return solve(x, k, temperature, link, over)  # type: ignore[return-value]  # of torch
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
    x, ids, k, *others = batched((x, ids, k, temperature, alpha), in_dims, info.batch_size)
    size, rows = k.shape
    ids = ids + rows * torch.arange(size, device=ids.device)[:, None]
    flat = (None if each is None else each.reshape(-1) for each in (x, ids, k, *others))
    hi, lo = segment_threshold(*flat, link, number)
    return (hi.view(size, rows), lo.view(size, rows)), (0, 0)
