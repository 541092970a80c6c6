"""Masks of torch.nn.MultiheadAttention as masks of scaled_dot_product_attention."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kofn.arrays.kinds import deleted
from kofn.nn.tensors import check_boolean

IGNORED = "True where a position is ignored"


def taking_part(
    key_padding_mask: Tensor | None, attn_mask: Tensor | None, query: Tensor, positions: int
) -> Tensor | None:
    """Return one mask for queries [N, H, L, D]: boolean, True where a position takes part.

    The given masks are True where a position is ignored, or floats to add. If one of them is of
    floats, so is the answer.
    """
    masks = []
    if key_padding_mask is not None:
        masks.append(_padding(key_padding_mask, query.shape[0], positions))
    if attn_mask is not None:
        masks.append(_attention(attn_mask, tuple(query.shape[:3]), positions))
    if not masks:
        return None
    if all(mask.dtype == torch.bool for mask in masks):
        return ~(masks[0] | masks[-1])
    return sum(_added(mask, query.dtype) for mask in masks)  # type: ignore[return-value]


def _padding(mask: Tensor, batch: int, positions: int) -> Tensor:
    check_boolean(mask, IGNORED, "key_padding_mask", or_floats=True)
    mask = mask[None] if mask.ndim == 1 else mask
    if tuple(mask.shape) != (batch, positions):
        raise ValueError(
            f"key_padding_mask must have shape {(batch, positions)}, items by keys; "
            f"got {tuple(mask.shape)}"
        )
    return mask[:, None, None]


def _attention(mask: Tensor, shape: tuple[int, ...], positions: int) -> Tensor:
    check_boolean(mask, IGNORED, "attn_mask", or_floats=True)
    batch, heads, length = shape
    if tuple(mask.shape) == (length, positions):
        return mask
    if tuple(mask.shape) == (batch * heads, length, positions):
        return mask.reshape(batch, heads, length, positions)
    raise ValueError(
        f"attn_mask must have shape {(length, positions)} or "
        f"{(batch * heads, length, positions)}; got {tuple(mask.shape)}"
    )


def _added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype == dtype:
        return mask
    if mask.dtype != torch.bool:
        return widened(mask, dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, -math.inf)


def widened(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return an additive mask in another dtype.

    What deletes is −inf there: the least number of float16 is an ordinary one in float32.
    """
    return mask.masked_fill(deleted(mask), -math.inf).to(dtype)
