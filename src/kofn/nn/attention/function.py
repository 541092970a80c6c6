"""Attention whose weights are exactly 0 at most positions, or a soft choice of k of them."""

from __future__ import annotations

import math
from typing import Any, Literal, Never

import torch
from torch import Tensor
from torch.nn import functional

from kofn.arrays.checks import check_broadcasts, check_choice, check_number, check_temperature
from kofn.arrays.names import unknown_keyword
from kofn.arrays.torch.state import is_autocast
from kofn.arrays.typing import LinkName
from kofn.links import Link
from kofn.maps.attention import fitting_topk
from kofn.maps.softmax import entmax, sparsemax
from kofn.maps.softmax_variants import taylor_softmax
from kofn.nn.attention.mask import widened
from kofn.nn.attention.taylor import is_linear, taylor_attention
from kofn.nn.tensors import check_boolean, check_tensors

WEIGHTS = ("entmax", "sparsemax", "soft_topk")
ALL = (*WEIGHTS, "taylor")


def sparse_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    *,
    weights: Literal["entmax", "sparsemax", "soft_topk", "taylor"] = "entmax",
    alpha: float | Tensor = 1.5,
    k: float | Tensor = 8,
    temperature: float | Tensor = 1.0,
    link: LinkName | Link = "logistic",
    hard: bool = False,
    need_weights: bool = False,
    **others: Never,
) -> Any:
    """Return w·value, where w are sparse weights of the scores query·keyᵀ·scale.

    The arguments are torch's for `scaled_dot_product_attention`, with its meaning of masks,
    and the weights' derivatives.

    Args:
        query: [..., Hq, L, D].
        key: [..., H, S, D]. Hq is a multiple of H: each key and value head serves Hq/H query
            heads. The other dimensions are equal.
        value: [..., H, S, Dv].
        attn_mask: broadcasts to [..., Hq, L, S]. Boolean, True where a position takes part; or
            floats that are added to the scores, −inf (or the least number of the dtype) where it
            does not.
        dropout_p: the share of weights that are set to 0, with the others scaled up. It is always
            applied; pass 0 in evaluation.
        is_causal: the last query sees all keys, the one before it all but the last, and so on. For
            L = S it is what PyTorch does; for L < S it is right for queries that continue a cache,
            where PyTorch aligns the first query with the first key. May be joined with a mask.
        scale: 1/√D by default.
        weights: "entmax" or "sparsemax" of the scores; "soft_topk", the soft top-k weights
            divided by k; or "taylor", `taylor_softmax`, which is never 0. For long sequences it
            takes time in proportion to their length, unless weights are needed, dropped or
            masked query by query.
        alpha: for "entmax": ≥ 1; 1 is softmax, 2 sparsemax.
        k: for "soft_topk": > 0, may be fractional. In a row with fewer than 2k positions to choose
            from it is half of them (rounded down with `hard`), at least 1: with k at their number,
            the weights would be uniform and the scores would get no gradient.
        temperature: divides the scores.
        link, hard: for "soft_topk"; as there.
        need_weights: return (output, w [..., Hq, L, S]) with w before dropout.

    Numbers such as alpha, k and temperature may be tensors that broadcast to [..., Hq, L]: one per
    head has shape [Hq, 1]. They may have gradients.

    Returns:
        [..., Hq, L, Dv]. Each row of w sums to 1; a row whose positions are all masked is zeros,
        and so is its output.

    Raises:
        TypeError, ValueError: an argument has the wrong type or shape, or is out of range.

    Source: Vaswani et al. (2017); Peters, Niculae & Martins (2019) and Correia, Niculae & Martins,
    "Adaptively Sparse Transformers" (2019), for entmax; Arora et al., "Simple linear attention
    language models balance the recall-throughput tradeoff" (2024), for Taylor features.

    Example:
        >>> import torch
        >>> from kofn import nn
        >>> query, key, value = (torch.randn(2, 4, 6, 8) for _ in range(3))
        >>> output, w = nn.sparse_attention(query, key, value, is_causal=True, need_weights=True)
        >>> output.shape, bool((w.sum(-1) - 1).abs().max() < 1e-5), bool((w == 0).any())
        (torch.Size([2, 4, 6, 8]), True, True)
    """
    if others:
        raise unknown_keyword(sparse_attention, others)
    check_choice("weights", weights, ALL)
    groups = groups_of(query, key, value)
    if attn_mask is not None:
        check_boolean(attn_mask, "True where a position takes part", "attn_mask", or_floats=True)
    allowed = "a number in [0, 1)"
    check_number("dropout_p", dropout_p, low=0.0, below=1.0, allowed=allowed, arrays=False)
    check_hard(hard, weights)
    scale = _scale(scale, query.shape[-1])
    if _divides(scale, temperature, query, attn_mask):
        temperature = temperature / scale
    else:
        # Scaling the queries is cheaper than scaling the scores, and overflows less in float16.
        query = query * scale
    if weights == "taylor" and not (need_weights or dropout_p) and is_linear(query, key):
        live = _live(attn_mask, query, key)
        if attn_mask is None or live is not None:
            given = _cooled(query, temperature), key, value, live
            return taylor_attention(*given, is_causal, groups)
    scores = by_group(query, key.mT, groups)
    dtype = scores.dtype
    scores, mask = _masked(scores, attn_mask, is_causal)
    few: Any = 1.0
    if weights == "entmax":
        shares = entmax(scores, alpha, temperature=temperature, mask=mask)
    elif weights == "sparsemax":
        shares = sparsemax(scores, temperature=temperature, mask=mask)
    elif weights == "taylor":
        shares = taylor_softmax(scores, temperature=temperature, mask=mask)
    else:
        added = attn_mask is not None and attn_mask.is_floating_point()
        how: dict[str, Any] = dict(link=link, temperature=temperature, hard=hard)
        shares, few = fitting_topk(scores, k, mask=mask, additive=added, **how)
    if dtype == torch.float16:  # a sum of many weights times values might overflow
        shares, few = _divided(shares, few), 1.0
    shares = shares.to(dtype)
    kept = functional.dropout(shares, dropout_p) if dropout_p else shares
    # Dividing the output is cheaper than dividing the weights.
    output = _divided(by_group(kept, value, groups), few)
    return (output, _divided(shares, few)) if need_weights else output


def _live(attn_mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
    """Return a mask of keys that is the same for all queries, [..., heads, S], or None."""
    if attn_mask is None or attn_mask.dtype != torch.bool:
        return None
    scores = (*query.shape[:-1], key.shape[-2])
    check_broadcasts("attn_mask", tuple(attn_mask.shape), scores, "the scores")
    one_row = attn_mask.ndim < 2 or attn_mask.shape[-2] == 1
    shared = attn_mask.ndim < 3 or attn_mask.shape[-3] == 1 or query.shape[-3] == key.shape[-3]
    if not (one_row and shared):
        return None
    live = attn_mask if attn_mask.ndim < 2 else attn_mask[..., 0, :]
    return live.broadcast_to(*live.shape[:-1], key.shape[-2])


def _cooled(query: Tensor, temperature: Any) -> Tensor:
    if isinstance(temperature, Tensor):
        return query / temperature.to(query.dtype)[..., None]
    return query / check_temperature(temperature)


def _scale(scale: float | None, features: int) -> float:
    if scale is None:
        return 1 / math.sqrt(features)
    if isinstance(scale, Tensor):
        return scale
    allowed = "None or a finite number"
    return check_number("scale", scale, low=-math.inf, strict=True, allowed=allowed, arrays=False)


def _divides(scale: Any, temperature: Any, query: Tensor, attn_mask: Tensor | None) -> bool:
    """Return whether the temperature may be divided by the scale, which costs nothing.

    Scores without a scale may overflow in float16, and masks are added to scores that have theirs.
    """
    numbers = type(scale) is float and type(temperature) in (int, float)
    if not numbers or query.dtype == torch.float16 or is_autocast(query):
        return False
    added = attn_mask is not None and attn_mask.dtype != torch.bool
    return not added and scale > 0 and 0 < temperature / scale < math.inf


def _divided(values: Tensor, by: Tensor | float) -> Tensor:
    if isinstance(by, Tensor):
        return values / by.to(values.dtype)[..., None]
    return values if by == 1.0 else values / by


def check_hard(hard: bool, weights: str) -> None:
    if hard and weights != "soft_topk":
        raise ValueError(f"hard is for weights='soft_topk'; got hard=True with {weights!r}")


def groups_of(query: Tensor, key: Tensor, value: Tensor) -> int:
    """Return how many query heads share a key head, after a check of the shapes."""
    check_tensors(query=query, key=key, value=value)
    shapes = {"query": query.shape, "key": key.shape, "value": value.shape}
    for name, shape in shapes.items():
        if len(shape) < 3:
            raise ValueError(
                f"{name} must have shape [..., heads, positions, features]; got {tuple(shape)}"
            )
    if not query.shape[-1]:
        raise ValueError(f"query must have features; got {tuple(query.shape)}")
    if not query.dtype == key.dtype == value.dtype and not is_autocast(query):
        raise TypeError(
            "query, key and value must have the same dtype; got query "
            f"{query.dtype}, key {key.dtype}, value {value.dtype}"
        )
    heads = key.shape[-3]
    if query.shape[-1] != key.shape[-1] or key.shape[:-1] != value.shape[:-1]:
        raise ValueError(
            "query and key must have the same features, and key and value the same heads and "
            f"positions; got query {tuple(query.shape)}, key {tuple(key.shape)}, "
            f"value {tuple(value.shape)}"
        )
    if heads == 0 or query.shape[-3] % heads or query.shape[:-3] != key.shape[:-3]:
        raise ValueError(
            "query must have the batch shape of key and a multiple of its heads; "
            f"got query {tuple(query.shape)} and key {tuple(key.shape)}"
        )
    return query.shape[-3] // heads


def by_group(left: Tensor, right: Tensor, groups: int) -> Tensor:
    """Return left @ right, where `groups` neighbouring heads of `left` share a head of `right`."""
    if groups == 1:
        return left @ right
    heads, rows = left.shape[-3:-1]
    joined = left.reshape(*left.shape[:-3], heads // groups, groups * rows, left.shape[-1])
    return (joined @ right).reshape(*left.shape[:-3], heads, rows, right.shape[-1])


def _masked(
    scores: Tensor, attn_mask: Tensor | None, is_causal: bool
) -> tuple[Tensor, Tensor | None]:
    """Return the scores with an additive mask, and the boolean mask of what takes part.

    Sums of half types are computed in float32, and so are scores of float16 that might be as low
    as those that count as masked.
    """
    added = attn_mask is not None and attn_mask.is_floating_point()
    if scores.dtype == torch.float16 or (scores.dtype == torch.bfloat16 and added):
        scores = scores.float()
    mask = None
    if is_causal:
        length, positions = scores.shape[-2:]
        mask = torch.ones(length, positions, dtype=torch.bool, device=scores.device)
        mask = mask.tril(positions - length)
    if attn_mask is None:
        return scores, mask
    check_broadcasts("attn_mask", tuple(attn_mask.shape), tuple(scores.shape), "the scores")
    if attn_mask.dtype == torch.bool:
        return scores, attn_mask if mask is None else attn_mask & mask
    if attn_mask.dtype != scores.dtype:
        attn_mask = widened(attn_mask, scores.dtype)
    return scores + attn_mask, mask
