"""From logits to weights and indices of experts: the settings of a router, and what it counts."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

from torch import Tensor

from kofn.arrays.checks import check_choice, check_flag, check_integer, check_number
from kofn.links import Link, table
from kofn.maps import routing
from kofn.maps.routing import Gating
from kofn.nn.routing.base import RouterBase
from kofn.nn.routing.processes import processes_of
from kofn.nn.routing.selection import SELECTIONS, Settings
from kofn.nn.routing.state import RunningThreshold, counts_of, is_recomputing

JOINT = ("expert_choice", "budget")
"""The selections that choose among all tokens of a call."""
EACH_K = ("hard", "assignment")
"""The selections in which each token has k experts."""


class Routing(RouterBase):
    """A `TopKRouter` without its linear layer; its arguments are described there."""

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
        balance: float | None = None,
        inference_threshold: bool = False,
        max_experts: int | None = None,
        process_group: Any = None,
        device: Any = None,
    ) -> None:
        check_choice("selection", selection, tuple(SELECTIONS))
        balance = _balance(balance, selection)
        super().__init__(num_experts, temperature, balance, device)
        self.k = _k(k, num_experts, selection)
        self.selection = selection
        self.gates = _gates(gates, selection, self.k, num_experts)
        self.normalize = _normalize(normalize, selection, self.k)
        self.link = link if isinstance(link, Link) else table.resolve(link).name
        self.max_experts = _width(max_experts, selection, self.k, num_experts)
        _refuse(
            "inference_threshold",
            check_flag("inference_threshold", inference_threshold),
            selection,
            (*JOINT, "assignment"),
        )
        self.processes = processes_of(process_group)
        _refuse("process_group", self.processes is not None, selection, JOINT)
        shape = () if selection == "budget" else (num_experts,)
        self.running = RunningThreshold(shape, device) if inference_threshold else None

    def choose(self, scores: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return weights and indices of experts for scores [T, num_experts]."""
        learns = self.training and not is_recomputing()
        routed = SELECTIONS[self.selection](scores, mask, self._settings(learns))
        if learns:
            self._count(counts_of(routed.indices, routed.taken, self.num_experts))
        return routed.weights, routed.indices

    def gates_of(self, scores: Tensor, shares: Tensor, indices: Tensor) -> Tensor:
        """Return gates for experts that something else has chosen, in the dtype of `shares`.

        Args:
            scores: [T, num_experts]. indices: [T, k].
            shares: [T, k], the values of the gates; those of gates="topk" do not depend on them.
        """
        if self.training and not is_recomputing():
            self._count(counts_of(indices, None, self.num_experts))
        return routing.gates_of_choice(scores, shares, indices, self.k, self._gating())

    def _gating(self) -> Gating:
        mixture = self.gates == "mixture"
        return Gating(self.link, self.current_temperature(), mixture, self.normalize)

    def _settings(self, learns: bool) -> Settings:
        bias = None if self.balance is None else self.balance()
        alone = not self.training
        return Settings(
            self.k,
            self._gating(),
            self.max_experts,
            bias,
            self.running,
            learns,
            alone,
            self.processes,
        )

    def extra_repr(self) -> str:
        return _description(self)


def _description(router: Routing) -> str:
    options = {name: getattr(router, name) for name in ("k", "selection", "gates", "normalize")}
    usual = _width(None, router.selection, router.k, router.num_experts)
    extra = dict(
        link=router.link != "logistic" and router.link,
        temperature=router.temperature != 1.0 and router.temperature,
        max_experts=router.max_experts != usual and router.max_experts,
    )
    options |= {name: value for name, value in extra.items() if value is not False}
    named = ", ".join(f"{name}={value!r}" for name, value in options.items())
    return f"{router.num_experts} experts, {named}"


def _k(k: Any, num_experts: int, selection: str) -> float:
    if selection in EACH_K:
        allowed = f"an integer in [1, num_experts] (here num_experts = {num_experts})"
        return check_integer("k", k, allowed, 1, num_experts)
    allowed = f"a number in (0, num_experts] (here num_experts = {num_experts})"
    return check_number(
        "k", k, low=0.0, high=num_experts, strict=True, allowed=allowed, arrays=False
    )


def _gates(gates: str | None, selection: str, k: float, num_experts: int) -> str:
    if gates is None:
        gates = "topk" if selection == "soft" else "mixture"
    check_choice("gates", gates, ("mixture", "topk"))
    if gates == "mixture" and selection == "soft":
        raise ValueError(
            "gates must be 'topk' for selection='soft', whose weights are the soft top-k's; "
            "got 'mixture'"
        )
    if gates == "topk" and k == num_experts:
        raise ValueError(
            f"k must be below num_experts for gates='topk' and selection='soft': with k = {k:g} of "
            f"{num_experts} every gate is 1 and the router gets no gradient"
        )
    return gates


def _normalize(normalize: bool | None, selection: str, k: float) -> bool:
    if normalize is not None and not isinstance(normalize, bool):
        raise TypeError(f"normalize must be True, False or None; got {normalize!r}")
    if normalize and selection in JOINT:
        raise ValueError(
            f"normalize must be False for selection={selection!r}: the only expert of a token "
            "would have a gate of 1 that nothing can change; got True"
        )
    if normalize and selection in EACH_K and k == 1:
        raise ValueError(
            "normalize must be False for k = 1: a single gate divided by itself is always 1, and "
            "the router would learn nothing; got True"
        )
    if normalize is None and selection in EACH_K and k == 1:
        warnings.warn(
            "a single gate (k = 1) is not normalized, because it would always be 1; "
            "normalize=False says so without this warning",
            stacklevel=4,
        )
    if normalize is None:
        return selection == "soft" or (selection in EACH_K and k > 1)
    return normalize


def _balance(balance: float | None, selection: str) -> float | None:
    if balance is None:
        return None
    _refuse("balance", balance, selection, ("hard", "budget"))
    allowed = "None or a finite number > 0"
    return check_number("balance", balance, low=0.0, strict=True, allowed=allowed, arrays=False)


def _width(most: int | None, selection: str, k: float, num_experts: int) -> int:
    if most is None:
        return int(k) if selection in EACH_K else num_experts
    _refuse("max_experts", most, selection, JOINT)
    least = math.ceil(k)
    allowed = f"an integer in [{least}, {num_experts}], at least k and at most num_experts"
    return check_integer("max_experts", most, allowed, least, num_experts)


def _refuse(name: str, value: Any, selection: str, allowed: tuple[str, ...]) -> None:
    """Refuse an argument that this selection would ignore."""
    if value and selection not in allowed:
        named = " or ".join(map(repr, allowed))
        raise ValueError(f"{name} is for selection={named}; got {value!r} with {selection!r}")
