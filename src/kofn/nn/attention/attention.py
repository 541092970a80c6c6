"""Multi-head attention with sparse weights, as a module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from kofn.arrays.checks import check_flag, check_integer, check_number
from kofn.arrays.typing import LinkName
from kofn.links import Link
from kofn.nn.attention.heads import SparseHeads
from kofn.nn.attention.key_value_cache import KeyValueCache
from kofn.nn.attention.mask import taking_part
from kofn.nn.attention.per_head import Numbers
from kofn.nn.tensors import check_tensors


class SparseAttention(nn.Module):
    """Multi-head attention with entmax, sparsemax, soft top-k or Taylor weights, not softmax.

    The arguments, the inputs and the meaning of masks are as in torch.nn.MultiheadAttention.

    Args:
        embed_dim, num_heads, dropout, bias, kdim, vdim, batch_first, device, dtype: as there.
        num_key_value_heads: a divisor of num_heads, which is the default.
        weights, link, hard: as for `sparse_attention`.
        alpha, k, temperature: as for `sparse_attention`; a number, or one per head.
        learned: which of these are learned per head, from the given values on: names, such as
            ("alpha",). A learned alpha stays in (1, 2), and a learned k above 1.

    Inputs:
        query [L, N, embed_dim], key [S, N, kdim], value [S, N, vdim]; N comes first with
        `batch_first`, and may be left out.
        key_padding_mask [N, S] and attn_mask [L, S] or [N·num_heads, L, S]: boolean, True where a
        position is ignored, or floats that are added to the scores.
        need_weights, average_attn_weights, is_causal: as there; is_causal needs no attn_mask.
        cache: a `KeyValueCache` of this layer alone; keys and values join it, and S counts all.

    Outputs:
        (output, weights) as there, with the weights before dropout. Where all positions are masked,
        the weights are 0.

    Raises:
        TypeError, ValueError: an argument has the wrong type or is out of range.

    Source: Correia, Niculae & Martins, "Adaptively Sparse Transformers" (2019): α = 1 + sigmoid(a).

    Example:
        >>> import torch
        >>> from kofn import nn
        >>> attention = nn.SparseAttention(16, 4, weights="soft_topk", k=2, batch_first=True)
        >>> x = torch.randn(2, 6, 16)
        >>> [each.shape for each in attention(x, x, x)]
        [torch.Size([2, 6, 16]), torch.Size([2, 6, 6])]
    """

    in_proj_bias, _qkv_same_embed_dim = None, False
    """Tell PyTorch's transformers not to replace this module by their own softmax kernel."""

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        *,
        weights: Literal["entmax", "sparsemax", "soft_topk", "taylor"] = "entmax",
        alpha: Numbers = 1.5,
        k: Numbers = 8,
        temperature: Numbers = 1.0,
        learned: Sequence[str] = (),
        link: LinkName | Link = "logistic",
        hard: bool = False,
        num_key_value_heads: int | None = None,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.embed_dim = check_integer("embed_dim", embed_dim, "an integer ≥ 1", 1)
        self.num_heads = check_integer("num_heads", num_heads, "an integer ≥ 1", 1)
        self.num_key_value_heads = num_heads if num_key_value_heads is None else num_key_value_heads
        self.kdim, self.vdim = _width("kdim", kdim, embed_dim), _width("vdim", vdim, embed_dim)
        self.head_dim = _head_dim(embed_dim, num_heads, self.num_key_value_heads)
        self.dropout, self.batch_first = _share(dropout), check_flag("batch_first", batch_first)
        numbers: dict[str, Numbers] = {"alpha": alpha, "k": k, "temperature": temperature}
        self.heads = SparseHeads(num_heads, weights, numbers, learned, link, hard, device)
        options: dict[str, Any] = dict(bias=check_flag("bias", bias), device=device, dtype=dtype)
        shared = self.num_key_value_heads * self.head_dim
        self.q_proj = nn.Linear(embed_dim, embed_dim, **options)
        self.k_proj = nn.Linear(self.kdim, shared, **options)
        self.v_proj = nn.Linear(self.vdim, shared, **options)
        self.out_proj = nn.Linear(embed_dim, embed_dim, **options)
        _draw(self.q_proj, self.k_proj, self.v_proj, self.out_proj)

    def reset_parameters(self) -> None:
        """Draw the projections as torch.nn.MultiheadAttention does; reset learned numbers."""
        self.heads.reset_parameters()
        self.out_proj.reset_parameters()
        _draw(self.q_proj, self.k_proj, self.v_proj, self.out_proj)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        *,
        cache: KeyValueCache | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return (output, weights or None); the docstring of the class describes them."""
        _check_shapes((query, key, value), (self.embed_dim, self.kdim, self.vdim))
        projected = self.q_proj(query), self.k_proj(key), self.v_proj(value)
        q, k, v = (_by_head(each, self.head_dim, self.batch_first) for each in projected)
        if cache is not None:
            k, v = cache.extended(k, v)
        mask = taking_part(key_padding_mask, attn_mask, q, k.shape[-2])
        dropout = self.dropout if self.training else 0.0
        output, weights = self.heads(q, k, v, mask, dropout, is_causal, need_weights)
        output = self.out_proj(output.transpose(1, 2).flatten(2))
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if query.ndim == 2:
            return output[0], None if weights is None else weights[0]
        return output if self.batch_first else output.transpose(0, 1), weights

    def extra_repr(self) -> str:
        heads = f"{self.num_heads}, num_key_value_heads={self.num_key_value_heads}"
        return f"{self.embed_dim}, {heads}, dropout={self.dropout}, batch_first={self.batch_first}"


def _by_head(projected: Tensor, head_dim: int, batch_first: bool) -> Tensor:
    """Return [N, heads, positions, head_dim] for inputs in any of the three layouts."""
    if projected.ndim == 2:
        projected = projected[None]
    elif not batch_first:
        projected = projected.transpose(0, 1)
    heads = projected.shape[-1] // head_dim
    return projected.reshape(*projected.shape[:2], heads, head_dim).transpose(1, 2)


def _draw(*projections: nn.Linear) -> None:
    """Draw the projections as torch.nn.MultiheadAttention does; the last keeps its weight."""
    for each in projections[:-1]:
        nn.init.xavier_uniform_(each.weight)
    for each in projections:
        if each.bias is not None:
            nn.init.zeros_(each.bias)


def _head_dim(embed_dim: int, num_heads: int, shared: int) -> int:
    if embed_dim % num_heads:
        raise ValueError(
            f"num_heads must be a divisor of embed_dim (here {embed_dim}); got {num_heads}"
        )
    allowed = f"a divisor of num_heads (here {num_heads})"
    check_integer("num_key_value_heads", shared, allowed, 1)
    if num_heads % shared:
        raise ValueError(f"num_key_value_heads must be {allowed}; got {shared}")
    return embed_dim // num_heads


def _width(name: str, width: int | None, embed_dim: int) -> int:
    return embed_dim if width is None else check_integer(name, width, "an integer ≥ 1", 1)


def _check_shapes(inputs: tuple[Tensor, ...], sizes: tuple[int, ...]) -> None:
    query, key, value = inputs
    check_tensors(query=query, key=key, value=value)
    dims = query.ndim
    for name, given, size in zip(("query", "key", "value"), inputs, sizes, strict=True):
        if given.ndim not in (2, 3) or given.ndim != dims or given.shape[-1] != size:
            raise ValueError(
                f"{name} must have three dimensions, or two as the query, and {size} features; "
                f"got {tuple(given.shape)}"
            )


def _share(dropout: float) -> float:
    allowed = "a number in [0, 1)"
    return check_number("dropout", dropout, low=0.0, below=1.0, allowed=allowed, arrays=False)
