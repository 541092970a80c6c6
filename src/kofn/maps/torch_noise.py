"""The quadrature of noisy scores as a torch operator with a first derivative, for compiled code."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kofn import kernels
from kofn.arrays.torch_operator import REFUSED, call, define, differentiate, refuse_second
from kofn.arrays.torch_state import constant_result, is_compiled
from kofn.links.link import by_id
from kofn.maps import argmax_quadrature
from kofn.maps.argmax_nodes import Noise, most_nodes

_NOISE = "str link, float? alpha, float[] kinks, float[] shares"

KEPT = 512
"""Nodes are kept for the backward pass where there are no more; else they are found again."""


def serves(y: Tensor, noise: Noise) -> bool:
    """Return whether the rows of a compiled function go to the operators."""
    return is_compiled() and _is_served(y.device.type, y.dtype, noise.link.id, noise.link.alpha)


@constant_result
def _is_served(device: str, dtype: torch.dtype, link: str, alpha: float | None) -> bool:
    like = torch.empty(0, dtype=dtype, device=device)
    return kernels.serving_noise(like, by_id(link, alpha), "torch") is not None


def probabilities_of(y: Tensor, noise: Noise) -> Tensor:
    kinks, shares = [at for at, _ in noise.kinks], [share for _, share in noise.kinks]
    return call("noisy_argmax", y, noise.link.id, noise.link.alpha, kinks, shares)[0]


def _noise(link: str, alpha: float | None, kinks: list[float], shares: list[float]) -> Noise:
    return Noise(by_id(link, alpha), tuple(zip(kinks, shares, strict=True)))


def _entries_and_nodes(y: Tensor, *noise: Any) -> tuple[Tensor, Tensor]:
    return y.new_empty(y.shape), y.new_empty((3, _room(y, _noise(*noise)), *y.shape[:-1], 1))


def _room(y: Tensor, noise: Noise) -> int:
    most = most_nodes(y, noise)
    return most if most <= KEPT else 0


@define(f"Tensor y, {_NOISE}", "(Tensor, Tensor)", _entries_and_nodes)
def noisy_argmax(y: Tensor, *noise: Any) -> tuple[Tensor, Tensor]:
    """Return the probabilities, and the Measure at their nodes; unused nodes have a mass of −1."""
    whole = _noise(*noise)
    p, measure = argmax_quadrature.evaluate(y, whole)
    kept = y.new_empty((3, _room(y, whole), *y.shape[:-1], 1))
    count = measure.at.shape[0] if measure and kept.shape[1] else 0
    if measure and count:
        kept[:, :count] = torch.stack(tuple(measure))
    kept[:, count:] = -1
    return p, kept


def _entries(cotangent: Tensor, y: Tensor, *_: Any) -> Tensor:
    return y.new_empty(y.shape)


@define(f"Tensor cotangent, Tensor y, Tensor kept, {_NOISE}", "Tensor", _entries)
def noisy_argmax_backward(cotangent: Tensor, y: Tensor, kept: Tensor, *noise: Any) -> Tensor:
    whole = _noise(*noise)
    count = int((kept[1].flatten(1)[:, 0] != -1).sum()) if kept.numel() else 0
    found: Any = argmax_quadrature.Measure(*kept[:, :count])
    if not count:
        found = argmax_quadrature.evaluate(y, whole)[1] or None
    return argmax_quadrature.jacobian_product(y, whole, cotangent, found)


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    y, *ctx.noise = inputs
    ctx.save_for_backward(y, output[1])
    ctx.set_materialize_grads(False)


def _pullback(ctx: Any, cotangent: Tensor | None, of_nodes: Tensor | None) -> Any:
    if of_nodes is not None:
        raise RuntimeError(REFUSED)
    if cotangent is None:
        return (None,) * 5
    y, kept = ctx.saved_tensors
    return noisy_argmax_backward(cotangent, y, kept, *ctx.noise), *(None,) * 4


differentiate(noisy_argmax, _pullback, _keep)
refuse_second(noisy_argmax_backward)
