"""Losses that even the load of experts and keep the logits of a router small."""

from __future__ import annotations

from typing import Any, Never

import torch
from torch import Tensor

from kofn.arrays.autodiff import moving
from kofn.arrays.names import unknown_keyword
from kofn.nn.routing.processes import processes_of
from kofn.nn.routing.state import counts_of
from kofn.nn.tensors import check_boolean, check_tensors


def load_balancing_loss(
    logits: Tensor,
    indices: Tensor,
    mask: Tensor | None = None,
    *,
    process_group: Any = None,
    **others: Never,
) -> Tensor:
    """Return E·Σ_e f_e·P_e: 1 if the load is even, more if an expert that is favoured gets more.

    f_e is the share of the choices that name expert e, without a gradient, and P_e the mean of
    softmax(logits) for it.

    Args:
        logits: [T, E], as the router returns them.
        indices: [T, k], the chosen experts.
        mask: boolean [T], or of a shape that flattens to it; False for padding.
        process_group: take the loss of the tokens of all processes of this torch.distributed
            group, which all have to call it, in one message of 2·E + 1 numbers. So each expert
            may be one for some kind of text that another process has. Every process gets the same
            value, and R times the gradient of its own tokens, for R processes: the gradients' mean,
            which DistributedDataParallel and fully_shard take, is the gradient of that value.
            Where gradients are added up instead, divide the loss by R.

    Returns:
        A number, float32 for logits in half precision; E if every token goes to one expert. Add it
        to the loss with a weight such as 0.01. (The loss of transformers has k times this value.)

    Raises:
        TypeError, ValueError: the indices are no integers; the shapes do not fit; no such group.

    Source: Fedus, Zoph & Shazeer, "Switch Transformers" (2022); Qiu et al., "Demons in the Detail:
    On Implementing Load Balancing Loss for Training Specialized Mixture-of-Expert Models" (2025)
    for all processes.

    Example:
        >>> import torch
        >>> from kofn import nn
        >>> even = torch.tensor([[2.0, 0.0], [0.0, 2.0]])
        >>> nn.load_balancing_loss(even, torch.tensor([[0], [1]]))
        tensor(1.)
        >>> nn.load_balancing_loss(torch.tensor([[9.0, 0.0], [9.0, 0.0]]), torch.zeros(2, 1).long())
        tensor(1.9998)
    """
    if others:
        raise unknown_keyword(load_balancing_loss, others)
    _check(logits, indices)
    live = _live(logits, mask)
    num_experts = logits.shape[-1]
    counts = counts_of(indices, None if live is None else live[:, None], num_experts)
    probabilities, processes = _wide(logits).softmax(-1), processes_of(process_group)
    if processes is None:
        shares = _mean(probabilities, live)
    else:
        total, tokens = _sum(probabilities, live)
        number = total.new_tensor(tokens) if isinstance(tokens, int) else tokens.to(total.dtype)
        parts = [counts.to(total.dtype), total.detach(), number[None]]
        whole = processes.sum(torch.cat(parts))
        counts, every, number = whole[:num_experts], whole[num_experts:-1], whole[-1:]
        number = number.clamp(min=1)
        shares = every / number + moving(total * (processes.size / number))
    load = counts.to(shares.dtype) / counts.sum().clamp(min=1)
    return num_experts * (load * shares).sum()


def router_z_loss(logits: Tensor, mask: Tensor | None = None, **others: Never) -> Tensor:
    """Return the mean over tokens of logsumexp(logits)², which keeps logits from growing.

    Args:
        logits, mask: as for `load_balancing_loss`.

    Returns:
        A number, float32 for logits in half precision. Add it to the loss with a weight such as
        0.001.

    Raises:
        ValueError: the shapes do not fit.

    Source: Zoph et al., "ST-MoE: Designing Stable and Transferable Sparse Expert Models" (2022).

    Example:
        >>> import torch
        >>> from kofn import nn
        >>> nn.router_z_loss(torch.zeros(3, 8))  # (log 8)²
        tensor(4.3241)
    """
    if others:
        raise unknown_keyword(router_z_loss, others)
    _check(logits)
    return _mean(_wide(logits).logsumexp(-1).square(), _live(logits, mask))


def _wide(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()


def _mean(values: Tensor, live: Tensor | None) -> Tensor:
    """Return the mean over the live tokens; 0 if there is none."""
    total, tokens = _sum(values, live)
    return total / (max(1, tokens) if isinstance(tokens, int) else tokens.clamp(min=1))


def _sum(values: Tensor, live: Tensor | None) -> tuple[Tensor, int | Tensor]:
    """Return the sum over the live tokens, and their number."""
    if live is None:
        return values.sum(0), values.shape[0]
    live = live if values.ndim == 1 else live[:, None]
    return values.masked_fill(~live, 0.0).sum(0), live.sum()


def _live(logits: Tensor, mask: Tensor | None) -> Tensor | None:
    if mask is None:
        return None
    check_boolean(mask, "False for padding")
    if mask.numel() != logits.shape[0]:
        raise ValueError(
            f"mask must be boolean with one entry per token (here {logits.shape[0]}); "
            f"got the shape {tuple(mask.shape)}"
        )
    return mask.flatten()


def _check(logits: Tensor, indices: Tensor | None = None) -> None:
    check_tensors(logits=logits)
    if logits.ndim != 2:
        raise ValueError(f"logits must have shape [T, num_experts]; got {tuple(logits.shape)}")
    if indices is not None:
        check_tensors(indices=indices, integers=True)
    if indices is not None and (indices.ndim != 2 or len(indices) != len(logits)):
        raise ValueError(
            f"indices must have shape [T, k] with T = {len(logits)}, as the logits have; "
            f"got {tuple(indices.shape)}"
        )
    if indices is not None and (indices.is_floating_point() or indices.dtype == torch.bool):
        raise TypeError(
            f"indices must be integers, as the router returns them; got {indices.dtype}"
        )
