"""Sampling of subsets as a custom torch operator, for torch.compile and vmap.

Traced, its loops over windows would be thousands of nodes. It has no gradient to give.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kofn.arrays.torch.state import is_plain
from kofn.subsets import operations


def draw(z: Tensor, k: Tensor, uniforms: Tensor) -> Tensor:
    """Draw as `kofn.subsets.operations.heads`."""
    own = is_plain(z) and is_plain(uniforms)
    drawn: Any = (operations.heads if own else heads)(z, k, uniforms)
    return drawn


@torch.library.custom_op("kofn::subset_heads", mutates_args=())
def heads(z: Tensor, k: Tensor, uniforms: Tensor) -> Tensor:
    drawn: Any = operations.heads(z, k, uniforms)
    return drawn.clone()


@heads.register_fake
def _(z: Tensor, k: Tensor, uniforms: Tensor) -> Tensor:
    return z.new_empty((*uniforms.shape[:-1], z.shape[-1]), dtype=torch.bool)


@heads.register_vmap
def _(info, in_dims, z, k, uniforms):  # type: ignore[no-untyped-def]
    """Move the mapped dimension to the front of the batch, after the sample dimensions."""

    def at(value: Tensor, dim: int | None, place: int) -> Tensor:
        if dim is None:
            value = value.unsqueeze(place)
            return value.expand(*(info.batch_size if i == place else -1 for i in range(value.ndim)))
        return value.movedim(dim, place)

    mapped = [dim is not None for dim in in_dims]
    samples = uniforms.ndim - mapped[2] - (z.ndim - mapped[0])
    rows = at(z, in_dims[0], 0), at(k, in_dims[1], 0), at(uniforms, in_dims[2], samples)
    return heads(*(part.contiguous() for part in rows)), samples
