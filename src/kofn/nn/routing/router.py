"""A router for mixtures of experts whose every logit gets a gradient."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from kofn.arrays.checks import check_flag, check_integer
from kofn.arrays.typing import LinkName
from kofn.links import Link
from kofn.nn.routing.routing import Routing
from kofn.nn.tensors import check_boolean, check_tensors


class LinearRouting(Routing):
    """Routing by the logits of a linear layer: its parameters, and the way to its outputs."""

    hidden_size: int
    weight: nn.Parameter
    bias: nn.Parameter | None

    def _make_parameters(self, hidden_size: int, bias: bool, device: Any, dtype: Any) -> None:
        self.hidden_size = check_integer("hidden_size", hidden_size, "an integer ≥ 1", 1)
        empty = partial(torch.empty, device=device, dtype=dtype)
        self.weight = nn.Parameter(empty(self.num_experts, self.hidden_size))
        self.bias = nn.Parameter(empty(self.num_experts)) if check_flag("bias", bias) else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights as torch.nn.Linear does; reset loads, steps and thresholds."""
        super().reset_parameters()
        bound = 1 / math.sqrt(self.hidden_size)
        for each in self.parameters(recurse=False):
            nn.init.uniform_(each, -bound, bound)

    def forward(
        self, hidden_states: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits, weights and indices; `TopKRouter` describes them."""
        tokens = _tokens(hidden_states, self.hidden_size)
        mask = None if mask is None else _mask(mask, hidden_states)
        logits = functional.linear(tokens, self.weight, self.bias)
        kind = logits.device.type  # "meta" has no autocast, and raises an error
        scores = logits.float() if kind != "meta" and torch.is_autocast_enabled(kind) else logits
        length = hidden_states.shape[-2] if hidden_states.ndim > 1 else 1
        return logits, *self.choose(scores, mask, length)

    def extra_repr(self) -> str:
        biased = "" if self.bias is None else ", bias=True"
        return f"{self.hidden_size} to {super().extra_repr()}{biased}"


class TopKRouter(LinearRouting):
    """Return (logits, weights, indices): each token's experts, with a gradient for every logit.

    logits = hidden_states·weightᵀ. An expert's gate is softmax(logits) times a factor that is
    exactly 1 and has the gradient of its soft top-k weight. So a usual router has the same
    values, and the experts that were not chosen learn too.

    Args:
        hidden_size, num_experts: integers ≥ 1.
        k: experts per token, in [1, num_experts]. An integer for selection="hard" and
            "assignment"; otherwise a number, the mean of experts per token.
        selection: "hard", each token's k largest logits; "soft", all experts with soft top-k
            weights; "expert_choice", each expert takes its k·tokens/num_experts largest; "budget",
            the k·tokens largest of all logits, so that tokens have different numbers of experts;
            "assignment", each token's k largest logits less prices at which all experts get equal
            loads, roughly: see `soft_assignment`, whose gradient it has. These three look at later
            tokens too: in a causal model, set `inference_threshold`. (The choice still leaks in
            training.)
        gates: "mixture" as above, or "topk": the soft top-k weight itself. "topk" weights differ
            less between experts than the right mixture may need. Only "topk" for "soft".
        normalize: whether the weights of a token sum to 1. By default they do for "soft", and with
            k ≥ 2 for "hard" and "assignment"; k = 1 gives a warning there, and True is refused.
        link, temperature: as for `soft_topk`. The temperature may be a function of the step, such
            as `schedules.exponential(1.0, 0.1, steps=1000)`; `step()` counts the steps.
        balance: None, "quantile" or a number. With either, `step()` moves a bias that is added to
            the logits for the choice alone. "quantile" sets it to that with which each expert would
            have had k/num_experts of the tokens since the last step; a number, such as 1e-3, moves
            it up where the load is below the mean, and down elsewhere. For "hard" and "budget".
        inference_threshold: choose in eval() by a running mean of the threshold, token by token.
            For "expert_choice" and "budget"; "assignment" keeps a running mean of the prices.
        max_experts: of a token in "expert_choice" or "budget", else all; its smallest gates go.
        process_group: choose from the tokens of all processes of this torch.distributed group, all
            of which have to call the router. For "expert_choice" and "budget".
        bias: add a learned bias to the logits. device, dtype: of the parameters.
        bins: for "quantile": None takes the mean of the exact quantiles of a step's calls, by their
            tokens. A number ≥ 2, such as 1000, counts int64 histograms, which add up exactly over
            calls and processes; their range follows from the scores. Fewer than 10 tell little.
        ema: for "quantile": the weight of the old bias in the new one, in [0, 1).
        per_sequence: for "quantile" and "hard": in training, later tokens of a sequence (the last
            dimension but one) have a bias by what its earlier ones require, from
            16·num_experts/k tokens on. In eval() all have given the bias.
        score_function: "softmax", or "sigmoid": the gates of a mixture are sigmoids (if normalized,
            divided by their sum), and a balance adds its bias to these. For "hard" and "budget".
        n_group, topk_group: for "hard": a token chooses from `topk_group` of `n_group` groups of
            experts, those with the largest sums of their two largest scores (with the bias).

    Inputs:
        hidden_states: [..., hidden_size]; the T tokens are all its vectors.
        mask: boolean of shape hidden_states.shape[:-1], False for padding: such a token gets
            weights of 0, takes no place and is no load. One with a NaN logit gets NaN, likewise.

    Outputs:
        logits [T, num_experts]; weights [T, w]; indices [T, w], int64, all valid. w is k for
        "hard" and "assignment", num_experts for "soft", and `max_experts` for the others, where a
        token with fewer experts has weights of 0 at the end. The weights have the dtype of the
        logits, but float32 inside torch.autocast.

    Raises:
        TypeError, ValueError: an argument has the wrong type or is out of range.

    Source: Shazeer et al. (2017); Zhou et al., "Mixture-of-Experts with Expert Choice Routing"
    (2022); for the balance, Wang et al. (2024), and Su, "MoE journey" 6 and 7 (2026,
    kexue.fm/archives/11619 and 11626); for groups, DeepSeek-AI, "DeepSeek-V3" (2024).

    Example:
        >>> import torch
        >>> from kofn import nn
        >>> router = nn.TopKRouter(16, 8, 2)
        >>> logits, weights, indices = router(torch.randn(3, 5, 16))
        >>> logits.shape, weights.shape, indices.shape
        (torch.Size([15, 8]), torch.Size([15, 2]), torch.Size([15, 2]))
    """

    def __init__(
        self,
        hidden_size: int,
        num_experts: int,
        k: float,
        *,
        selection: Literal["hard", "soft", "expert_choice", "budget", "assignment"] = "hard",
        gates: Literal["mixture", "topk"] | None = None,
        normalize: bool | None = None,
        link: LinkName | Link = "logistic",
        temperature: float | Callable[[Any], Any] = 1.0,
        balance: float | Literal["quantile"] | None = None,
        inference_threshold: bool = False,
        max_experts: int | None = None,
        process_group: Any = None,
        bias: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
        bins: int | None = None,
        ema: float = 0.0,
        per_sequence: bool = False,
        score_function: Literal["softmax", "sigmoid"] = "softmax",
        n_group: int | None = None,
        topk_group: int | None = None,
    ) -> None:
        super().__init__(
            num_experts,
            k,
            selection=selection,
            gates=gates,
            normalize=normalize,
            link=link,
            temperature=temperature,
            balance=balance,
            inference_threshold=inference_threshold,
            max_experts=max_experts,
            process_group=process_group,
            device=device,
            bins=bins,
            ema=ema,
            per_sequence=per_sequence,
            score_function=score_function,
            n_group=n_group,
            topk_group=topk_group,
        )
        self._make_parameters(hidden_size, bias, device, dtype)


def _tokens(hidden_states: Tensor, size: int) -> Tensor:
    check_tensors(hidden_states=hidden_states)
    if tuple(hidden_states.shape[-1:]) != (size,):
        raise ValueError(
            f"hidden_states must have shape [..., hidden_size] (here {size}); "
            f"got {tuple(hidden_states.shape)}"
        )
    return hidden_states if hidden_states.ndim == 2 else hidden_states.reshape(-1, size)


def _mask(mask: Tensor, hidden_states: Tensor) -> Tensor:
    shape = tuple(hidden_states.shape[:-1])
    check_boolean(mask, "False for padding")
    if tuple(mask.shape) != shape:
        raise ValueError(
            f"mask must have the shape of hidden_states without the last dimension, {shape}; "
            f"got {tuple(mask.shape)}"
        )
    return mask.flatten()
