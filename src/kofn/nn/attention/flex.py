"""Sparse attention by PyTorch's flex_attention, which keeps no weights in memory."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Literal, Never

import torch
from torch import Tensor

from kofn import links
from kofn.arrays.checks import check_choice, check_temperature
from kofn.arrays.names import unknown_keyword
from kofn.arrays.typing import LinkName
from kofn.links import Link, table
from kofn.maps.attention import shared_threshold
from kofn.nn.attention.function import WEIGHTS, by_group, groups_of

LEAST = -1e6
"""In place of −∞, where a row of nothing else must not become NaN, or have gradients of NaN.

On a GPU flex_attention takes 2^(s/ln 2 − m) by one rounding less than m = max s/ln 2: for s = −1e30
that is a power of 8e22, and the row NaN; for −1e6 a tenth of an octave.
"""
SCORES = 2**26
"""The number of scores that the first pass holds at a time."""


def sparse_flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    block_mask: Any = None,
    scale: float | None = None,
    *,
    weights: Literal["entmax", "sparsemax", "soft_topk"] = "entmax",
    alpha: float = 1.5,
    k: float | Tensor = 8,
    temperature: float | Tensor = 1.0,
    link: LinkName | Link = "logistic",
    **others: Never,
) -> Tensor:
    """Return `sparse_attention`, computed by PyTorch's flex_attention.

    It is for long sequences on a GPU: no matrix of weights is kept for the backward pass, and
    blocks that a mask excludes are skipped. A first pass finds the threshold θ of each row, from
    pieces of the scores; then flex_attention takes a softmax of log F((s − θ)/T), which are the
    weights. It has no weights to return and no dropout.

    Args:
        query: [N, Hq, L, D]. key: [N, H, S, D]. value: [N, H, S, Dv]. Hq is a multiple of H.
        block_mask: a BlockMask of torch.nn.attention.flex_attention, such as
            create_block_mask(lambda b, h, i, j: i >= j, None, None, L, S).
        scale: 1/√D by default.
        weights, alpha, k, temperature, link: as for `sparse_attention`; temperature may have a
            gradient, alpha is a number, and k is a number or a tensor without a gradient.

    Returns:
        [N, Hq, L, Dv]; a row whose positions are all masked is zeros.

    Raises:
        TypeError, ValueError: an argument has the wrong type or shape, or is out of range.
        RuntimeError: a gradient is wanted on a CPU, for which flex_attention has none.

    On a GPU flex_attention is compiled in the first call.

    Source: Dong et al., "Flex Attention: A Programming Model for Generating Optimized Attention
    Kernels" (2024).

    Example:
        >>> import torch
        >>> from kofn import nn
        >>> query, key, value = (torch.randn(1, 2, 8, 4) for _ in range(3))
        >>> with torch.no_grad():  # doctest: +SKIP
        ...     out = nn.sparse_flex_attention(query, key, value, weights="sparsemax")
        >>> wanted = nn.sparse_attention(query, key, value, weights="sparsemax")  # doctest: +SKIP
        >>> torch.allclose(out, wanted, atol=1e-5)  # doctest: +SKIP
        True
    """
    if others:
        raise unknown_keyword(sparse_flex_attention, others)
    check_choice("weights", weights, WEIGHTS)
    groups_of(query, key, value)
    if query.ndim != 4:
        raise ValueError(f"query must have shape [N, Hq, L, D]; got {tuple(query.shape)}")
    if isinstance(alpha, Tensor) or (isinstance(k, Tensor) and k.requires_grad):
        raise ValueError(
            "sparse_flex_attention has no gradient for alpha and k: alpha must be a number, and k "
            "a number or a tensor without a gradient; nn.sparse_attention has both"
        )
    used, few = _link_and_k(weights, alpha, k, link)
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    # With the temperature in the queries, its gradient comes by itself, and a new one compiles
    # nothing.
    query = query * (scale / _temperature(temperature, query))
    theta = _threshold(query, key, block_mask, used, few)
    if _wants_gradients(query, key):
        theta = theta + _follow_theta(query, key, block_mask, used, theta)

    def log_weight(score: Tensor, n: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return used.log_cdf(score - theta[n, h, i])

    return flex(query, key, value, log_weight, block_mask)


def _link_and_k(weights: str, alpha: float, k: Any, link: LinkName | Link) -> tuple[Link, Any]:
    if weights == "entmax":
        return links.entmax(alpha), 1
    return (links.linear, 1) if weights == "sparsemax" else (table.resolve(link), k)


def _temperature(temperature: float | Tensor, query: Tensor) -> float | Tensor:
    if isinstance(temperature, Tensor):
        return temperature.to(query.dtype)[..., None]
    return check_temperature(temperature)


def _wants_gradients(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(each.requires_grad for each in tensors)


@torch.no_grad()
def _threshold(query: Tensor, key: Tensor, block_mask: Any, link: Link, k: Any) -> Tensor:
    """Return θ [N, Hq, L] of the scores query·keyᵀ, a piece of the rows after another."""
    batch, heads, rows, _ = query.shape
    groups = groups_of(query, key, key)
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    columns = key.to(wide).mT  # θ in bfloat16 would not belong to the scores of flex_attention
    few = k.broadcast_to(batch, heads, rows) if isinstance(k, Tensor) else k
    step = max(1, SCORES // max(1, batch * heads * key.shape[-2]))
    parts = []
    for start in range(0, rows, step):
        part = slice(start, min(start + step, rows))
        scores = by_group(query[:, :, part].to(wide), columns, groups)
        mask = _dense(block_mask, scores, start)
        several = few[..., part] if isinstance(few, Tensor) else few
        theta = shared_threshold(scores, several, link=link, mask=mask)
        parts.append(torch.where(theta.isfinite(), theta, _alone(scores, mask)))
    return torch.cat(parts, -1) if parts else query.new_zeros(batch, heads, 0, dtype=wide)


def _alone(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Return a finite θ for rows in which one position is live, or none: it does not matter there.

    Their θ is −∞, or NaN, at which the derivatives of some links are NaN.
    """
    if mask is None:
        return scores.amax(-1)
    return scores.masked_fill(~mask, -torch.inf).amax(-1).nan_to_num(neginf=0.0)


def _dense(block_mask: Any, scores: Tensor, start: int) -> Tensor | None:
    """Return the mask of some rows as booleans, from the function that made the block mask."""
    if block_mask is None:
        return None
    from torch.nn.attention.flex_attention import create_mask

    def shifted(n: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return block_mask.mask_mod(n, h, i + start, j)

    batch, heads = block_mask.shape[:2]
    rows, columns = scores.shape[2:]
    device = scores.device
    return create_mask(shifted, batch, heads, rows, columns, device=device)


def _follow_theta(query: Tensor, key: Tensor, block_mask: Any, link: Link, theta: Tensor) -> Tensor:
    """Return 0 with the gradient of θ: ∂θ = Σ f·∂s/Σ f, with f = F′(s − θ).

    That is one more attention, with weights f/Σ f, which have no gradient, and the keys for values:
    Σ f·∂(query·key)/Σ f = query·∂center + ∂query·center, with center = Σ f·key/Σ f.
    """

    def log_slope(score: Tensor, n: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        # The slope of the linear link is 1: TorchInductor fails where a score has no gradient.
        nothing = 0.0 * score.clamp(-1.0, 1.0)
        return link.log_pdf(score - theta[n, h, i]).clamp(min=LEAST) + nothing

    center = flex(query.detach(), key.detach(), key, log_slope, block_mask)
    theta_of_leaves = (query.to(theta.dtype) * center.to(theta.dtype)).sum(-1)
    return theta_of_leaves - theta_of_leaves.detach()


def flex(
    query: Tensor, key: Tensor, value: Tensor, score_mod: Callable[..., Any], block_mask: Any
) -> Tensor:
    """Return flex_attention of scores that need no scale; grouped heads are no matter."""
    from torch.nn.attention.flex_attention import flex_attention

    if query.device.type == "cpu" and _wants_gradients(query, key, value):
        raise RuntimeError(
            "sparse_flex_attention has no gradients on a CPU, where PyTorch's flex_attention has "
            "none; use nn.sparse_attention there, or torch.no_grad()"
        )
    eager = query.device.type == "cpu" or torch.compiler.is_compiling()
    function = flex_attention if eager else _compiled()
    grouped = query.shape[1] != key.shape[1]
    return function(query, key, value, score_mod, block_mask, scale=1.0, enable_gqa=grouped)


@functools.cache
def _compiled() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)
