"""The balancing bias of a router in the state of torchtitan, Megatron-LM and DeepSeek-V3, and back.

state = export_expert_bias(router, "torchtitan")  # {"expert_bias_E": …}
load_expert_bias(router, state)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Never

from kofn.arrays.names import unknown_keyword

try:
    import torch
except ImportError as error:
    raise ImportError(
        'kofn.integrations.expert_bias needs PyTorch; install it with: pip install "kofn[torch]"'
    ) from error

import numpy as np
from torch import Tensor

from kofn.arrays.checks import check_choice
from kofn.nn.routing.base import RouterBase
from kofn.nn.routing.quantile import QuantileBias

__all__ = ["export_expert_bias", "load_expert_bias"]


def __dir__() -> list[str]:
    """List the public names only."""
    return sorted(__all__)


def _bounds(bias: Tensor) -> Tensor:
    return torch.stack([bias.min() - 1, bias.max() + 1])


SIGMOID, LOGITS = "sigmoid", "softmax"
"""The score functions of routers whose bias is added to sigmoids, and to logits."""
FORMATS: dict[str, dict[str, Callable[[Tensor], Tensor]]] = {
    "torchtitan": {"expert_bias_E": Tensor.clone},
    "megatron": {"qb_beta": torch.neg},
    "megatron-histogram": {"qb_bias": Tensor.clone, "qb_bin_bounds": _bounds},
    "deepseek": {"e_score_correction_bias": Tensor.clone},
}
"""Each library's name for the bias, or for a number that follows from it."""
KNOWN = {
    "expert_bias_E": SIGMOID,
    "qb_beta": LOGITS,
    "qb_bias": SIGMOID,
    "e_score_correction_bias": SIGMOID,
}
"""The routers whose bias it is; qb_beta is subtracted."""


def export_expert_bias(
    router: Any,
    format: str,  # as torch.onnx has it
    **others: Never,
) -> dict[str, Tensor]:
    """Return the balancing bias of a router, {name: float32 tensor}, as another library saves it.

    Args:
        router: a `TopKRouter`, or a router of a patched model, with a balance.
        format: "torchtitan": expert_bias_E, added to the sigmoids. "megatron", its mode
            "micro_batch": qb_beta, subtracted from the logits. "megatron-histogram", its mode
            "global_batch": qb_bias, added to the sigmoids, and qb_bin_bounds, the least bias − 1
            and the greatest + 1. "deepseek": e_score_correction_bias, as in transformers, added to
            the sigmoids.

    Raises:
        ValueError: another format; the router has no balance, or selection="budget"; its
            score_function is not "sigmoid", or for "megatron" not "softmax".

    Example:
        >>> import torch
        >>> from kofn import nn
        >>> from kofn.integrations.expert_bias import export_expert_bias, load_expert_bias
        >>> router = nn.TopKRouter(16, 3, 2, balance="quantile", score_function="sigmoid")
        >>> load_expert_bias(router, {"expert_bias_E": torch.tensor([0.5, 0.0, -0.5])})
        >>> export_expert_bias(router, "deepseek")
        {'e_score_correction_bias': tensor([ 0.5000,  0.0000, -0.5000])}
    """
    if others:
        raise unknown_keyword(export_expert_bias, others)
    check_choice("format", format, tuple(FORMATS))
    routing = _router(router)
    balance = routing.balance
    if balance is None:
        raise ValueError("router must have a balance; got one with balance=None")
    _check_fits(routing, next(iter(FORMATS[format])))
    bias = balance().detach().float()
    return {name: made(bias) for name, made in FORMATS[format].items()}


@torch.no_grad()
def load_expert_bias(router: Any, state: Mapping[str, Any], **others: Never) -> None:
    """Set the balancing bias of a router by another library's state.

    Args:
        router: a `TopKRouter`, or a router of a patched model, with balance="quantile".
        state: one of expert_bias_E, qb_beta, qb_bias and e_score_correction_bias, as
            `export_expert_bias` explains them, [num_experts]. qb_bin_bounds follow from qb_bias.

    The router forgets its observations since its last step.

    Raises:
        TypeError: the state is no mapping, or its bias no array of numbers.
        ValueError: another balance, or selection="budget"; a score_function other than the
        bias's ("softmax" for qb_beta, otherwise "sigmoid"); no bias in the state, or several;
            another shape; NaN or an infinite number.
    """
    if others:
        raise unknown_keyword(load_expert_bias, others)
    routing = _router(router)
    balance = routing.balance
    if not isinstance(balance, QuantileBias):
        rule = "None" if balance is None else f"{balance.rate:g}"
        raise ValueError(
            "router must have balance='quantile', whose bias is a state of its own; "
            f"got balance={rule}"
        )
    if not isinstance(state, Mapping):
        raise TypeError(f"state must be a mapping of names to biases; got {type(state).__name__}")
    named = [name for name in KNOWN if name in state]
    if len(named) != 1:
        given = sorted(map(repr, state))
        raise ValueError(f"state must have one of {', '.join(KNOWN)}; got {', '.join(given)}")
    name = named[0]
    _check_fits(routing, name)
    bias = _numbers(name, state[name])
    if bias.shape != balance.bias.shape:
        raise ValueError(
            f"{name} must have shape {tuple(balance.bias.shape)}; got {tuple(bias.shape)}"
        )
    bias = bias.to(balance.bias.dtype)
    if not bias.isfinite().all():
        raise ValueError(f"{name} must have finite numbers; got {bias.tolist()}")
    balance.bias.copy_(-bias if name == "qb_beta" else bias)
    balance._forget()


def _check_fits(router: Any, name: str) -> None:
    """Check that a router adds its bias to the scores to which the other library adds it."""
    wanted, to = KNOWN[name], "logits" if KNOWN[name] == LOGITS else "sigmoids"
    if router.score_function != wanted:
        raise ValueError(
            f"router must have score_function={wanted!r} for {name}, a bias of {to}; "
            f"got {router.score_function!r}"
        )
    if router.selection == "budget":
        raise ValueError(
            f"router must choose k experts per token for {name}, with selection='hard'; "
            "got 'budget', whose biases are levels"
        )


def _numbers(name: str, bias: Any) -> Tensor:
    try:
        # Through NumPy, numbers of Python are float64, whatever PyTorch's default dtype is.
        numbers = bias if isinstance(bias, Tensor) else torch.tensor(np.asarray(bias), device="cpu")
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{name} must be an array of numbers; got {type(bias).__name__}") from error
    if numbers.is_complex() or numbers.dtype == torch.bool:
        raise TypeError(f"{name} must be an array of real numbers; got {numbers.dtype}")
    return numbers


def _router(router: Any) -> RouterBase:
    routing = getattr(router, "routing", router)  # of a patched model
    if not isinstance(routing, RouterBase):
        raise TypeError(f"router must be a TopKRouter or a patched router; got {type(router)}")
    return routing
