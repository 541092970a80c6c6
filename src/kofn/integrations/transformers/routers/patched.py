"""The common part of the routers of all models: the stock router's answer, with kofn's gates."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from kofn.integrations.transformers.routers import table
from kofn.nn.routing.base import not_replayed
from kofn.nn.routing.quantile import QuantileBias
from kofn.nn.routing.routing import Routing
from kofn.nn.routing.state import Tally, is_recomputing


class CorrectionBias(QuantileBias):
    """A balance by quantiles whose bias is the stock router's own, e_score_correction_bias."""

    def __init__(self, router: PatchedRouter, k: int, bins: int | None, ema: float) -> None:
        super().__init__(router.num_experts, k, bins, ema, unit=True)
        self._router = [router]  # in a list, so that it is no part of this module

    def _make_bias(self, num_experts: int, device: Any) -> None:
        """Make none."""

    @property
    def bias(self) -> Tensor:  # type: ignore[override]
        return self._router[0].e_score_correction_bias


class PatchedRouter(torch.nn.Module):
    """A mixin before a router of transformers: its forward returns what the stock router's does.

    Parameters, names and raw logits are the stock router's. A hard choice is the stock
    router's, too, unless a balancing bias has moved it.
    """

    routing: Routing
    top_k: int
    num_experts: int
    num_group: int
    topk_group: int
    routed_scaling_factor: float
    weight: Tensor
    e_score_correction_bias: Tensor

    always_normalizes = False
    """Whether the stock router normalizes its gates without asking its configuration."""
    model_type: str
    """The model's name in `patch_routers`."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        options = table.options_of(self.model_type)
        k, experts = self.top_k, self.num_experts
        options["normalize"] = self._normalize(options["normalize"], options["selection"], k)
        if table.MODELS[self.model_type].groups and options["balance"] is not None:
            groups = dict(n_group=self.num_group, topk_group=self.topk_group)
            options |= dict(score_function="sigmoid", **groups)
        self.routing = Routing(experts, k, **options)
        if self.routing.score_function == "sigmoid":
            bins, ema = options["bins"], options["ema"]
            self.routing.balance = CorrectionBias(self, k, bins, ema)
        # The stock routers that can do both read this; `_shares` does it for the others.
        self.norm_topk_prob = self.routing.normalize

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return raw logits [T, E], and weights and indices [T, w] of experts."""
        logits, shares, indices = super().forward(hidden_states)
        scores = logits.float()
        sigmoid = self.routing.score_function == "sigmoid"
        if self.routing.selection == "hard" and (self.routing.balance is None or sigmoid):
            balance, following, replayed = self.routing.balance, self.routing.following, None
            if following is not None and following.is_replaying():
                indices, replayed = following.replay(scores, indices)
                shares = _shares_at(self, scores, indices).to(shares.dtype)
            else:
                shares = self._shares(scores, shares, indices)
            if isinstance(balance, QuantileBias) and self.training and not is_recomputing():
                own = not_replayed(replayed, None)
                balance.observe(scores.detach().sigmoid(), own, self.routing.groups)
            gates = self.routing._gates_of(scores, shares, indices, replayed)
            if following is not None and following.records:
                indices = following.record(indices, None)
            if self.routing.gates == "topk":
                gates = gates * getattr(self, "routed_scaling_factor", 1.0)
        else:
            gates, indices = self.routing.choose(scores)
        return logits, gates.to(shares.dtype), indices

    def _apply(self, fn: Any, recurse: bool = True) -> PatchedRouter:
        # Three digits are too few to tell experts apart: it stays float32, as other biases do.
        before = getattr(self, "e_score_correction_bias", None)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if isinstance(self.routing.balance, CorrectionBias) and before is not None:
            now = self.e_score_correction_bias
            if now.dtype != before.dtype:
                self.e_score_correction_bias = before.to(now.device)
        return self

    def _save_to_state_dict(self, *arguments: Any) -> None:
        balance = self.routing.balance
        if balance is not None and not isinstance(balance, CorrectionBias):
            table.tell_of_saving()
        super()._save_to_state_dict(*arguments)

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
        # The sums of loads are no buffers.
        self.__dict__["initialized_by_transformers"] = done
        for part in self.routing.modules():
            if done and isinstance(part, Tally):
                part._settle(self.weight.device)
        for buffer in self.routing.buffers():
            if done and not getattr(buffer, "_is_hf_initialized", False):
                buffer.zero_()


def _shares_at(router: PatchedRouter, scores: Tensor, indices: Tensor) -> Tensor:
    """Return what the stock router's gates would be, had it chosen these experts."""
    if not table.MODELS[router.model_type].groups:
        shares = scores.softmax(-1).gather(-1, indices)
        return shares / shares.sum(-1, keepdim=True) if router.routing.normalize else shares
    shares = scores.sigmoid().gather(-1, indices)
    if router.routing.normalize:
        shares = shares / (shares.sum(-1, keepdim=True) + 1e-20)
    return shares * router.routed_scaling_factor
