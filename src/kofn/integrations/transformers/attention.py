"""Sparse attention in models of Hugging Face transformers, through its registry of functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Never

import torch
from torch import Tensor, nn
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.modeling_utils import AttentionInterface

from kofn.arrays.names import unknown_keyword
from kofn.arrays.typing import LinkName
from kofn.links import Link
from kofn.nn.attention.function import sparse_attention

UNMET = {
    "softcap": "soft capping of the scores (as in Gemma 2)",
    "s_aux": "attention sinks (as in gpt_oss)",
    "sinks": "attention sinks (as in Inkling 2)",
    "indices": "positions that an indexer has chosen (as in DeepSeek-V3.2)",
    "block_indices": "blocks that an indexer has chosen (as in MiniMax-M3)",
    "cache": "a paged cache (continuous batching)",
}
"""Options of attention modules that `sparse_attention` lacks: leaving them out would be wrong."""

_registered: dict[str, Callable[..., Any]] = {}


def register_attention(
    name: str,
    *,
    weights: Literal["entmax", "sparsemax", "soft_topk", "taylor"] = "entmax",
    alpha: float | Tensor = 1.5,
    k: float | Tensor = 8,
    temperature: float | Tensor = 1.0,
    link: LinkName | Link = "logistic",
    hard: bool = False,
    **others: Never,
) -> None:
    """Let models of transformers compute their attention with sparse weights, under a name.

    The name is then an `attn_implementation` of `from_pretrained`, `from_config` and
    `set_attn_implementation`. The function and the function that makes its masks are registered
    together: without the latter, transformers makes no mask, and each token sees later ones and
    padding.

    Args:
        name: a new name, or one that was registered here; the latest options count from then on,
            also in models that use it.
        weights, alpha, k, temperature, link, hard: as for `kofn.nn.sparse_attention`. Tensors have
            shape [heads, 1], are the same for all layers, and may have gradients.

    Raises:
        TypeError, ValueError: an argument has the wrong type or is out of range, or the name is
            taken by transformers or another library.

    The weights are in the outputs with `output_attentions=True`. A model that needs soft-capped
    scores, attention sinks, an indexer's choice or a paged cache is refused with a ValueError when
    it is called.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> from kofn.integrations.transformers import register_attention
        >>> register_attention("entmax", weights="entmax", alpha=1.5)
        >>> config = LlamaConfig(
        ...     vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        ...     num_attention_heads=4, num_key_value_heads=2, attn_implementation="entmax",
        ... )
        >>> LlamaForCausalLM(config).config._attn_implementation
        'entmax'
    """
    if others:
        raise unknown_keyword(register_attention, others)
    _check_name(name)
    options: dict[str, Any] = dict(
        weights=weights, alpha=alpha, k=k, temperature=temperature, link=link, hard=hard
    )
    _try(options)

    def attend(module: nn.Module, *tensors: Any, **given: Any) -> tuple[Tensor, Tensor]:
        return _attention(options, module, *tensors, **given)

    _registered[name] = attend
    AttentionInterface.register(name, attend)
    AttentionMaskInterface.register(name, _mask)


def unregister_attention(name: str, **others: Never) -> None:
    """Remove a name of `register_attention`; models that still use it fail when they are called.

    Raises:
        ValueError: the name was not registered here.
    """
    if others:
        raise unknown_keyword(unregister_attention, others)
    if name not in _registered:
        raise ValueError(f"name must be one of {sorted(_registered)}; got {name!r}")
    del _registered[name]
    for interface in (AttentionInterface, AttentionMaskInterface):
        interface._global_mapping.pop(name, None)  # transformers has no function for it


def _check_name(name: str) -> None:
    allowed = "a word, without / and |, which have a meaning in transformers"
    if not isinstance(name, str):
        raise TypeError(f"name must be {allowed}; got {name!r}")
    if not name or set(name) & set("/|"):
        raise ValueError(f"name must be {allowed}; got {name!r}")
    taken = {"eager", *AttentionInterface._global_mapping, *AttentionMaskInterface._global_mapping}
    if name in taken - set(_registered):
        raise ValueError(f"name must not be one that transformers already knows; got {name!r}")


def _try(options: dict[str, Any]) -> None:
    """Raise the errors of the options here, and not in the first call of a model."""
    heads = [value for value in options.values() if isinstance(value, Tensor)]
    like = heads[0] if heads else torch.zeros((), dtype=torch.float32, device="cpu")
    count = max([value.shape[0] for value in heads if value.ndim == 2], default=1)
    with torch.no_grad():
        zeros = like.new_zeros((1, count, 2, 1), dtype=torch.float32)
        sparse_attention(zeros, zeros, zeros, **options)


def _mask(*sizes: Any, **options: Any) -> Tensor | None:
    """Return a boolean mask, True where a position takes part; None only where all do.

    PyTorch's attention does without a mask where its is_causal has the same meaning, which differs
    from `sparse_attention`'s for fewer queries than keys.
    """
    return sdpa_mask(*sizes, **{**options, "allow_is_causal_skip": False})


def _attention(
    options: dict[str, Any],
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, Tensor]:
    """Return the output [N, L, H, D] and the weights [N, H, L, S], as transformers expects."""
    for name, what in UNMET.items():
        if others.get(name) is not None:
            raise ValueError(f"kofn's attention has no {what}; got {name}")
    if is_causal is None:
        is_causal = getattr(module, "is_causal", False)
    # A mask, where there is one, is causal already.
    is_causal = bool(is_causal) and attention_mask is None and query.shape[2] > 1
    mask = _joined(attention_mask, position_bias)
    output, weights = sparse_attention(
        query, key, value, mask, dropout, is_causal, scaling, need_weights=True, **options
    )
    return output.transpose(1, 2).contiguous(), weights


def _joined(mask: Tensor | None, bias: Tensor | None) -> Tensor | None:
    if mask is None or bias is None:
        return bias if mask is None else mask
    return bias.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else bias + mask
