"""The keys and values of earlier positions."""

from __future__ import annotations

import torch
from torch import Tensor

from kofn.nn.tensors import check_tensors


class KeyValueCache:
    """The keys and values of earlier positions, for generating one position after the other.

    Each attention layer needs its own. `key` and `value` are tensors [N, heads, positions,
    features], or None in a new cache; a search with beams may reorder them, as in
    cache.key = cache.key[order].

    Example:
        >>> import torch
        >>> from kofn import nn
        >>> attention = nn.SparseAttention(16, 4, batch_first=True)
        >>> cache = nn.KeyValueCache()
        >>> for _ in range(3):
        ...     x = torch.randn(2, 1, 16)
        ...     output, _ = attention(x, x, x, is_causal=True, cache=cache)
        >>> len(cache)
        3
    """

    def __init__(self) -> None:
        self.key: Tensor | None = None
        self.value: Tensor | None = None

    def __len__(self) -> int:
        """Return the number of positions."""
        return 0 if self.key is None else self.key.shape[-2]

    def __repr__(self) -> str:
        return f"KeyValueCache({len(self)} positions)"

    def extended(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values [N, heads, positions, features]; return all of them."""
        check_tensors(key=key, value=value)
        for name, given in (("key", key), ("value", value)):
            if given.ndim < 2:
                raise ValueError(
                    f"{name} must have shape [N, heads, positions, features]; "
                    f"got {tuple(given.shape)}"
                )
        if self.key is not None and self.value is not None:
            key, value = torch.cat([self.key, key], -2), torch.cat([self.value, value], -2)
        self.key, self.value = key, value
        return key, value
