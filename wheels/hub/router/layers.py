"""Layers whose forward pass takes the place of that of a model's router.

The router has `weight` and `top_k`, as those of transformers have. Of models in half precision, the
weights of experts are float32.
"""

import torch
from torch import Tensor, nn

from kofn.maps.routing import Gating, token_choice


class TopKRouter(nn.Module):
    """Return (logits, weights, indices): a softmax over each token's `top_k` largest logits.

    The weights are those of a usual router, times a factor that is exactly 1 and has the gradient
    of the soft top-k weight: the experts that were not chosen learn, too.
    """

    can_torch_compile = True
    weight: Tensor
    top_k: int

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = _logits(hidden_states, self.weight)
        return logits, *token_choice(_wide(logits), self.top_k, Gating())


class SharesTopKRouter(nn.Module):
    """The same with shares of a softmax over all logits, which sum to less than 1."""

    can_torch_compile = True
    weight: Tensor
    top_k: int

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = _logits(hidden_states, self.weight)
        return logits, *token_choice(_wide(logits), self.top_k, Gating(normalize=False))


def _logits(hidden_states: Tensor, weight: Tensor) -> Tensor:
    return nn.functional.linear(hidden_states.reshape(-1, hidden_states.shape[-1]), weight)


def _wide(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
