"""The balancing bias of a router in the state of torchtitan, Megatron-LM and DeepSeek-V3, and back.

state = export_expert_bias(router, "torchtitan")  # {"expert_bias_E": …}
load_expert_bias(router, state)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

try:
    import torch
except ImportError as error:
    raise ImportError(
        'kofn.integrations.expert_bias needs PyTorch; install it with: pip install "kofn[torch]"'
    ) from error

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


FORMATS: dict[str, dict[str, Callable[[Tensor], Tensor]]] = {
    "torchtitan": {"expert_bias_E": Tensor.clone},
    "megatron": {"qb_beta": torch.neg},
    "megatron-histogram": {"qb_bias": Tensor.clone, "qb_bin_bounds": _bounds},
    "deepseek": {"e_score_correction_bias": Tensor.clone},
}
"""What each library calls the bias, or what follows from it."""
KNOWN = {name: name == "qb_beta" for form in FORMATS.values() for name in form}
"""Whether the bias is subtracted from the scores there."""
EXTRA = ("qb_bin_bounds",)


def export_expert_bias(router: Any, format: str) -> dict[str, Tensor]:  # as torch.onnx has it
    """Return the balancing bias of a router, {name: float32 tensor}, as another library saves it.

    Args:
        router: a `TopKRouter`, or a router of a patched model, with a balance.
        format: "torchtitan": expert_bias_E, added to the scores. "megatron", its mode
            "micro_batch": qb_beta, subtracted from the logits. "megatron-histogram", its mode
            "global_batch": qb_bias, added to the sigmoids, and qb_bin_bounds, the least bias − 1
            and the greatest + 1. "deepseek": e_score_correction_bias, as in transformers.

    Raises:
        ValueError: another format; the router has no balance.

    Example:
        >>> import torch
        >>> from kofn import nn
        >>> from kofn.integrations.expert_bias import export_expert_bias, load_expert_bias
        >>> router = nn.TopKRouter(16, 3, 2, balance="quantile")
        >>> load_expert_bias(router, {"qb_beta": torch.tensor([-0.5, 0.0, 0.5])})
        >>> export_expert_bias(router, "torchtitan")
        {'expert_bias_E': tensor([ 0.5000, -0.0000, -0.5000])}
    """
    check_choice("format", format, tuple(FORMATS))
    balance = _router(router).balance
    if balance is None:
        raise ValueError("router must have a balance; got one with balance=None")
    bias = balance().detach().float()
    return {name: made(bias) for name, made in FORMATS[format].items()}


@torch.no_grad()
def load_expert_bias(router: Any, state: Mapping[str, Any]) -> None:
    """Set the balancing bias of a router to that of another library's state.

    Args:
        router: a `TopKRouter`, or a router of a patched model, with balance="quantile".
        state: one of expert_bias_E, qb_beta, qb_bias and e_score_correction_bias, as
            `export_expert_bias` explains them, [num_experts]. qb_bin_bounds follow from qb_bias.

    Raises:
        ValueError: another balance; no bias in the state, or several; another shape.
    """
    balance = _router(router).balance
    if not isinstance(balance, QuantileBias):
        raise ValueError("router must have balance='quantile', whose bias is a state of its own")
    named = [name for name in state if name in KNOWN and name not in EXTRA]
    if len(named) != 1:
        allowed = ", ".join(name for name in KNOWN if name not in EXTRA)
        raise ValueError(f"state must have one of {allowed}; got {sorted(state)}")
    bias = torch.as_tensor(state[named[0]])
    if bias.shape != balance.bias.shape:
        raise ValueError(
            f"{named[0]} must have shape {tuple(balance.bias.shape)}; got {tuple(bias.shape)}"
        )
    balance.bias.copy_(-bias if KNOWN[named[0]] else bias)


def _router(router: Any) -> RouterBase:
    found = getattr(router, "routing", router)  # of a patched model
    if not isinstance(found, RouterBase):
        raise TypeError(f"router must be a TopKRouter or a patched router; got {type(router)}")
    return found
