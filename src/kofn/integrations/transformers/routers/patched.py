"""What the routers of all models share: the stock router's answer, with kofn's gates."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from kofn.integrations.transformers.routers import table
from kofn.nn.routing.routing import Routing
from kofn.nn.routing.state import Counting, zero_counts


class PatchedRouter(torch.nn.Module):
    """A mixin before a router of transformers: its forward returns what the stock router's does.

    Parameters, names and raw logits are those of the stock router. A hard choice is the stock
    router's, too, unless a balancing bias has moved it.
    """

    routing: Routing
    top_k: int
    num_experts: int
    weight: Tensor

    always_normalizes = False
    """Whether the stock router normalizes its gates without asking its configuration."""
    model_type: str
    """The model's name in `patch_routers`."""

    def __init__(self, config: Any) -> None:
        with table.restored_on_error(self.model_type):
            super().__init__(config)
            options = table.options_of(self.model_type)
            k, experts = self.top_k, self.num_experts
            options["normalize"] = self._normalize(options["normalize"], options["selection"], k)
            self.routing = Routing(experts, k, **options)
        # The stock routers that can do both read this; `_shares` does it for the others.
        self.norm_topk_prob = self.routing.normalize

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return raw logits [T, E], and weights and indices [T, w] of experts."""
        logits, shares, indices = super().forward(hidden_states)
        scores = logits.float()
        if self.routing.selection == "hard" and self.routing.balance is None:
            shares = self._shares(scores, shares, indices)
            gates = self.routing.gates_of(scores, shares, indices)
            if self.routing.gates == "topk":
                gates = gates * getattr(self, "routed_scaling_factor", 1.0)
        else:
            gates, indices = self.routing.choose(scores)
        return logits, gates.to(shares.dtype), indices

    def _shares(self, scores: Tensor, shares: Tensor, indices: Tensor) -> Tensor:
        """Return the stock router's gates, without normalization where it has no such choice."""
        if self.always_normalizes and not self.routing.normalize:
            return scores.softmax(-1).gather(-1, indices).to(shares.dtype)
        return shares

    def _normalize(self, wanted: bool | None, selection: str, k: int) -> bool:
        """Return what normalize=None means for this model."""
        if wanted is not None:
            return wanted
        if selection != "hard":
            return selection == "soft"
        follows = self.always_normalizes or bool(self.norm_topk_prob)
        if follows and k == 1 and table.warns_now(self.model_type):
            warnings.warn(
                "a single gate (num_experts_per_tok = 1) is not normalized, as the model's "
                "configuration asks for, because it would always be 1; patch_routers with "
                "normalize=False says so without this warning",
                stacklevel=2,
            )
        return follows and k > 1

    @property
    def _is_hf_initialized(self) -> bool:
        return bool(self.__dict__.get("initialized_by_transformers"))

    @_is_hf_initialized.setter
    def _is_hf_initialized(self, done: bool) -> None:
        # transformers sets this when a module has its values. Buffers that are in no checkpoint
        # are uninitialized memory until here, and it knows no rule for ours: all start at 0.
        # The counts are no buffers, and move to where the weight is when something is added.
        self.__dict__["initialized_by_transformers"] = done
        for part in self.routing.modules():
            if done and isinstance(part, Counting):
                part.add(zero_counts(self.num_experts, self.weight.device))
        for buffer in self.routing.buffers():
            if done and not getattr(buffer, "_is_hf_initialized", False):
                buffer.zero_()
