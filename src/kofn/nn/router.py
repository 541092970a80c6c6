"""A router for mixtures of experts whose every logit gets a gradient."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from kofn.arrays.checks import check_choice, check_integer, check_number
from kofn.arrays.typing import LinkName
from kofn.links import Link, table
from kofn.maps.routing import Gating
from kofn.nn.router_base import RouterBase
from kofn.nn.router_state import RunningThreshold, counts_of, is_recomputing
from kofn.nn.selection import SELECTIONS, Settings

JOINT = ("expert_choice", "budget")
"""The selections that look at all tokens of a call."""


class TopKRouter(RouterBase):
    """Return (logits, weights, indices): each token's experts, with a gradient for every logit.

    logits = hidden_states·weightᵀ. An expert's gate is softmax(logits) times a factor that is
    exactly 1 and has the gradient of its soft top-k weight. So the values are those of a usual
    router, and the experts that were not chosen learn too.

    Args:
        hidden_size, num_experts: integers ≥ 1.
        k: experts per token, in [1, num_experts]. An integer for selection="hard"; otherwise a
            number, the mean of experts per token.
        selection: "hard", each token's k largest logits; "soft", all experts with soft top-k
            weights; "expert_choice", each expert takes its k·tokens/num_experts largest; "budget",
            the k·tokens largest of all logits, so that tokens have different numbers of experts.
            The last two look at all tokens of a call, later ones too: in a causal model, set
            `inference_threshold`. (The choice still leaks in training.)
        gates: "mixture" as above, or "topk": the soft top-k weight itself. "topk" weights differ
            less between experts than the right mixture may need. Only "topk" for "soft".
        normalize: whether the weights of a token sum to 1. By default they do for "soft", and for
            "hard" with k ≥ 2. With k = 1 they do not, which gives a warning, and True is refused.
        link, temperature: as for `soft_topk`. The temperature may be a function of the step, such
            as `schedules.exponential(1.0, 0.1, steps=1000)`; `step()` counts the steps.
        balance: None, or the rate (such as 1e-3) at which `step()` moves a bias that is added to
            the logits for the choice alone, up for experts with less load than the mean and down
            for others. For "hard" and "budget".
        inference_threshold: choose in eval() by a running mean of the threshold, token by token.
            For "expert_choice" and "budget".
        max_experts: the most experts of a token for "expert_choice" and "budget", by default all;
            a token with more loses its smallest gates.
        bias: add a learned bias to the logits.
        device, dtype: of the parameters.

    Inputs:
        hidden_states: [..., hidden_size]; the T tokens are all its vectors.
        mask: boolean of shape hidden_states.shape[:-1], False for padding: such a token gets
            weights of 0, takes no place and does not count as load.

    Outputs:
        logits [T, num_experts]; weights [T, w]; indices [T, w], int64, all valid. w is k for
        "hard", num_experts for "soft", and `max_experts` for the others, where a token with fewer
        experts has weights of 0 at the end. The weights have the dtype of the logits, but float32
        inside torch.autocast.

    Raises:
        TypeError, ValueError: an argument has the wrong type or is out of range.

    Source: Shazeer et al. (2017) for the layer; Zhou et al., "Mixture-of-Experts with Expert Choice
    Routing" (2022); Wang et al. (2024) for the balance.

    Example:
        >>> import torch
        >>> from kofn import nn
        >>> router = nn.TopKRouter(16, 8, 2)
        >>> logits, weights, indices = router(torch.randn(3, 5, 16))
        >>> logits.shape, weights.shape, indices.shape
        (torch.Size([15, 8]), torch.Size([15, 2]), torch.Size([15, 2]))
        >>> router
        TopKRouter(16 to 8 experts, k=2, selection='hard', gates='mixture', normalize=True)
    """

    def __init__(
        self,
        hidden_size: int,
        num_experts: int,
        k: float,
        *,
        selection: Literal["hard", "soft", "expert_choice", "budget"] = "hard",
        gates: Literal["mixture", "topk"] | None = None,
        normalize: bool | None = None,
        link: LinkName | Link = "logistic",
        temperature: float | Callable[[Any], Any] = 1.0,
        balance: float | None = None,
        inference_threshold: bool = False,
        max_experts: int | None = None,
        bias: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_choice("selection", selection, tuple(SELECTIONS))
        balance = _balance(balance, selection)
        super().__init__(hidden_size, num_experts, temperature, balance, bias, device, dtype)
        self.k = _k(k, num_experts, selection)
        self.selection = selection
        self.gates = _gates(gates, selection, self.k, num_experts)
        self.normalize = _normalize(normalize, selection, self.k)
        self.link = link if isinstance(link, Link) else table.resolve(link).name
        self.max_experts = _width(max_experts, selection, self.k, num_experts)
        _refuse("inference_threshold", inference_threshold, selection, JOINT)
        shape = (num_experts,) if selection == "expert_choice" else ()
        self.running = RunningThreshold(shape, device) if inference_threshold else None

    def forward(
        self, hidden_states: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits, weights and indices; the docstring of the class describes them."""
        tokens = hidden_states.reshape(-1, self.hidden_size)
        mask = None if mask is None else _mask(mask, hidden_states)
        logits = functional.linear(tokens, self.weight, self.bias)
        scores = logits.float() if torch.is_autocast_enabled(logits.device.type) else logits
        learns = self.training and not is_recomputing()
        routed = SELECTIONS[self.selection](scores, mask, self._settings(learns))
        if learns:
            self._count(counts_of(routed.indices, routed.taken, self.num_experts))
        return logits, routed.weights, routed.indices

    def _settings(self, learns: bool) -> Settings:
        mixture = self.gates == "mixture"
        gating = Gating(self.link, self.current_temperature(), mixture, self.normalize)
        bias = None if self.balance is None else self.balance()
        alone = not self.training
        return Settings(self.k, gating, self.max_experts, bias, self.running, learns, alone)

    def extra_repr(self) -> str:
        return _description(self)


def _description(router: TopKRouter) -> str:
    told = {name: getattr(router, name) for name in ("k", "selection", "gates", "normalize")}
    usual = _width(None, router.selection, router.k, router.num_experts)
    extra = dict(
        link=router.link != "logistic" and router.link,
        temperature=router.temperature != 1.0 and router.temperature,
        max_experts=router.max_experts != usual and router.max_experts,
        bias=router.bias is not None,
    )
    told |= {name: value for name, value in extra.items() if value is not False}
    named = ", ".join(f"{name}={value!r}" for name, value in told.items())
    return f"{router.hidden_size} to {router.num_experts} experts, {named}"


def _k(k: Any, num_experts: int, selection: str) -> float:
    if selection == "hard":
        allowed = f"an integer in [1, num_experts] (here num_experts = {num_experts})"
        return check_integer("k", k, allowed, 1, num_experts)
    allowed = f"a number in (0, num_experts] (here num_experts = {num_experts})"
    return check_number(
        "k", k, low=0.0, high=num_experts, strict=True, allowed=allowed, arrays=False
    )


def _gates(gates: str | None, selection: str, k: float, num_experts: int) -> str:
    if gates is None:
        return "topk" if selection == "soft" else "mixture"
    check_choice("gates", gates, ("mixture", "topk"))
    if gates == "mixture" and selection == "soft":
        raise ValueError(
            "gates must be 'topk' for selection='soft', whose weights are the soft top-k's; "
            "got 'mixture'"
        )
    if gates == "topk" and k == num_experts:
        raise ValueError(
            f"k must be below num_experts for gates='topk': with k = {k} of {num_experts} every "
            "gate is 1 and the router gets no gradient"
        )
    return gates


def _normalize(normalize: bool | None, selection: str, k: float) -> bool:
    if normalize not in (True, False, None):
        raise TypeError(f"normalize must be True, False or None; got {normalize!r}")
    if normalize and selection in JOINT:
        raise ValueError(
            f"normalize must be False for selection={selection!r}: the only expert of a token "
            "would have a gate of 1 that nothing can change; got True"
        )
    if normalize and selection == "hard" and k == 1:
        raise ValueError(
            "normalize must be False for k = 1: a single gate divided by itself is always 1, and "
            "the router would learn nothing; got True"
        )
    if normalize is None and selection == "hard" and k == 1:
        warnings.warn(
            "a single gate (k = 1) is not normalized, because it would always be 1; "
            "normalize=False says so without this warning",
            stacklevel=3,
        )
    if normalize is None:
        return selection == "soft" or (selection == "hard" and k > 1)
    return normalize


def _balance(balance: float | None, selection: str) -> float | None:
    if balance is None:
        return None
    _refuse("balance", balance, selection, ("hard", "budget"))
    allowed = "None or a finite number > 0"
    return check_number("balance", balance, low=0.0, strict=True, allowed=allowed, arrays=False)


def _width(most: int | None, selection: str, k: float, num_experts: int) -> int:
    if most is None:
        return int(k) if selection == "hard" else num_experts
    _refuse("max_experts", most, selection, JOINT)
    least = math.ceil(k)
    allowed = f"an integer in [{least}, {num_experts}], at least k and at most num_experts"
    return check_integer("max_experts", most, allowed, least, num_experts)


def _refuse(name: str, value: Any, selection: str, allowed: tuple[str, ...]) -> None:
    """Refuse an argument that this selection would ignore."""
    if value and selection not in allowed:
        named = " or ".join(map(repr, allowed))
        raise ValueError(f"{name} is for selection={named}; got {value!r} with {selection!r}")


def _mask(mask: Tensor, hidden_states: Tensor) -> Tensor:
    shape = tuple(hidden_states.shape[:-1])
    if mask.dtype != torch.bool:
        raise TypeError(f"mask must be boolean, False for padding; got {mask.dtype}")
    if tuple(mask.shape) != shape:
        raise ValueError(
            f"mask must have the shape of hidden_states without the last dimension, {shape}; "
            f"got {tuple(mask.shape)}"
        )
    return mask.flatten()
