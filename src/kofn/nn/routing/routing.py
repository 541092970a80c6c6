"""From logits to weights and indices of experts: the settings of a router, and what it counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kofn.adapters.kept_kernels import tally_of
from kofn.arrays.checks import check_choice, check_flag
from kofn.links import Link, table
from kofn.maps import routing
from kofn.maps.balance import Groups
from kofn.maps.routing import Gating
from kofn.nn.routing import checks
from kofn.nn.routing.base import RouterBase, not_replayed
from kofn.nn.routing.checks import JOINT as JOINT
from kofn.nn.routing.processes import processes_of
from kofn.nn.routing.quantile import QuantileBias, observed
from kofn.nn.routing.selection import (
    ALONE,
    SELECTIONS,
    Settings,
    at_once,
    bad_tokens,
    known_tokens,
    select,
)
from kofn.nn.routing.sequences import biases_of_sequences
from kofn.nn.routing.state import RunningThreshold, SelectionBias, is_recomputing
from kofn.nn.tensors import check_tensors


class Routing(RouterBase):
    """A `TopKRouter` without its linear layer; its arguments are described there."""

    # What a router that an older kofn has pickled does not have.
    score_function = "softmax"
    groups: Groups | None = None
    per_sequence = False

    def __init__(
        self,
        num_experts: int,
        k: float,
        *,
        selection: str = "hard",
        gates: str | None = None,
        normalize: bool | None = None,
        link: str | Link = "logistic",
        temperature: float | Callable[[Any], Any] = 1.0,
        balance: float | str | None = None,
        inference_threshold: bool = False,
        max_experts: int | None = None,
        process_group: Any = None,
        device: Any = None,
        bins: int | None = None,
        ema: float = 0.0,
        per_sequence: bool = False,
        score_function: str = "softmax",
        n_group: int | None = None,
        topk_group: int | None = None,
    ) -> None:
        check_choice("selection", selection, tuple(SELECTIONS))
        checks.score_function(score_function, selection)
        quantile = checks.quantile(balance, bins, ema, per_sequence, selection)
        rate = None if quantile is not None else checks.rate(balance, selection)

        def balanced(experts: int) -> SelectionBias | QuantileBias:
            if quantile is None:
                return SelectionBias(experts, rate or 0.0, device)
            levels, unit = selection == "budget", score_function == "sigmoid"
            count = checks.k(k, experts, selection)
            return QuantileBias(experts, count, *quantile, unit, not levels, device)

        super().__init__(num_experts, temperature, None if balance is None else balanced, device)
        self.k = checks.k(k, num_experts, selection)
        self.selection = selection
        self.groups = checks.groups(n_group, topk_group, num_experts, self.k, selection)
        self.score_function, self.per_sequence = score_function, per_sequence
        self.gates = checks.gates(gates, selection, self.k, num_experts)
        self.normalize = checks.normalize(normalize, selection, self.k)
        self.link = link if isinstance(link, Link) else table.resolve(link).name
        self.max_experts = checks.width(max_experts, selection, self.k, num_experts)
        looks = check_flag("inference_threshold", inference_threshold)
        checks.refuse("inference_threshold", looks, selection, (*JOINT, "assignment"))
        self.processes = processes_of(process_group)
        checks.refuse("process_group", self.processes is not None, selection, JOINT)
        shape = () if selection == "budget" else (num_experts,)
        self.running = RunningThreshold(shape, device) if inference_threshold else None

    def choose(
        self, scores: Tensor, mask: Tensor | None = None, length: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return weights and indices of experts for scores [T, num_experts].

        The scores have sequences of `length` tokens, one after the other.
        """
        check_tensors(scores=scores)
        learns = self.training and not is_recomputing()
        how, balance = _settings(self, learns), self.balance
        quantile = balance if isinstance(balance, QuantileBias) else None
        by_sequence = quantile is not None and self.per_sequence and self.training
        usual = self.selection == "hard" and mask is None and not by_sequence
        counts = [each.counts for each in self._counters()] if learns else []
        bad, routed, tallied = None, at_once(scores, how, counts) if usual else None, None
        if (routed is None or not routed.counted) and usual and learns and how.replay is None:
            tallied = scores if tally_of(scores) else None
        if routed is None:
            # Where no token meets another, it matters to the load alone whether one is bad.
            if tallied is None and (self.training or self.selection not in ALONE):
                bad = bad_tokens(scores)
            known = known_tokens(bad, mask)
            if by_sequence:
                assert how.bias is not None  # of the quantiles
                of_tokens = int(self.k), length or 1, known, self.groups
                biases = biases_of_sequences(how.compared(scores), how.bias, *of_tokens)
                how = how._replace(bias=biases)
            routed = select(self.selection, scores, mask, bad, known, how)
        if learns:
            if quantile is not None:
                _observe(quantile, scores, not_replayed(routed.replayed, mask), how, self.groups)
            self._count_call()
            if not routed.counted:
                chosen = routed.indices, routed.taken, routed.replayed
                self._count_choice(*chosen, bad is None, tallied)
        if self.following is not None and self.following.records:
            return routed.weights, self.following.record(routed.indices, routed.taken)
        return routed.weights, routed.indices

    def gates_of(self, scores: Tensor, shares: Tensor, indices: Tensor) -> Tensor:
        """Return gates for experts that something else has chosen, in the dtype of `shares`.

        Args:
            scores: [T, num_experts]. indices: [T, k].
            shares: [T, k], the values of the gates; with gates="topk" they do not depend on them.
        """
        check_tensors(scores=scores, shares=shares)
        check_tensors(indices=indices, integers=True)
        return self._gates_of(scores, shares, indices.to(torch.int64))

    def _gates_of(
        self, scores: Tensor, shares: Tensor, indices: Tensor, replayed: Tensor | None = None
    ) -> Tensor:
        if self.training and not is_recomputing():
            known = known_tokens(bad_tokens(scores), None)
            self._count_call()
            self._count_choice(indices, None if known is None else known[:, None], replayed)
        return routing.gates_of_choice(scores, shares, indices, self.k, _gating(self))

    def extra_repr(self) -> str:
        return _description(self)


def _gating(router: Routing) -> Gating:
    mixture, sigmoid = router.gates == "mixture", router.score_function == "sigmoid"
    return Gating(router.link, router.current_temperature(), mixture, router.normalize, sigmoid)


def _observe(
    quantile: QuantileBias, scores: Tensor, own: Tensor | None, how: Settings, groups: Groups | None
) -> None:
    if how.gating.sigmoid or not observed(quantile, scores, own, groups):
        quantile.observe(how.compared(scores), own, groups)


def _settings(router: Routing, learns: bool) -> Settings:
    balance, following = router.balance, router.following
    replays = following is not None and following.is_replaying()
    return Settings(
        k=router.k, gating=_gating(router), width=router.max_experts, learns=learns,
        bias=None if balance is None else balance.forward(),  # hooks are not for it
        running=router.running, alone=not router.training, others=router.processes,
        groups=router.groups,
        levels=router.selection == "budget" and isinstance(balance, QuantileBias),
        replay=following.replay if replays and following is not None else None,
    )  # fmt: skip


def _description(router: Routing) -> str:
    options = {name: getattr(router, name) for name in ("k", "selection", "gates", "normalize")}
    usual = checks.width(None, router.selection, router.k, router.num_experts)
    extra = dict(
        link=router.link != "logistic" and router.link,
        temperature=router.temperature != 1.0 and router.temperature,
        max_experts=router.max_experts != usual and router.max_experts,
        score_function=router.score_function != "softmax" and router.score_function,
        n_group=router.groups is not None and router.groups.number,
        topk_group=router.groups is not None and router.groups.chosen,
        per_sequence=router.per_sequence,
    )
    options |= {name: value for name, value in extra.items() if value is not False}
    named = ", ".join(f"{name}={value!r}" for name, value in options.items())
    return f"{router.num_experts} experts, {named}"
