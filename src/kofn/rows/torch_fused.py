"""The kernels as torch operators with a first derivative, for functions under torch.compile.

The compiler traces no kernel: it calls them. Second derivatives are refused. Code under a functorch
transform, in forward mode or in torch.export uses the plain operations, which these can see.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kofn import kernels
from kofn.arrays.torch_state import constant_result, is_compiled
from kofn.links.link import by_id
from kofn.rows import kernel_weights
from kofn.rows.given import Given

REFUSED = (
    "a compiled function has first derivatives only; for second derivatives, call the function "
    "without torch.compile, or compile torch.func.grad of it"
)


def serves(given: Given) -> bool:
    """Return whether the rows of a compiled function go to the operators."""
    if not is_compiled():
        return False
    number, alpha = given.link.static_and_array_alpha()
    x = given.scores
    return alpha is None and _is_served(x.device.type, x.dtype, given.link.id, number)


@constant_result
def _is_served(device: str, dtype: torch.dtype, link: str, number: float | None) -> bool:
    like = torch.empty(0, dtype=dtype, device=device)
    return kernels.serving(like, by_id(link, number), "torch") is not None


def _backend(x: Tensor) -> kernels.RowKernels:
    """Return the kernels that `serves` has found; a later KOFN_KERNELS does not change the road."""
    backend = kernels.for_rows(x, "torch")
    assert backend is not None
    return backend


def weights_of(given: Given) -> Tensor:
    return weights(*_arguments(given))[0]


def value_of(given: Given) -> Tensor:
    return value(*_arguments(given))[0]


def _arguments(given: Given) -> tuple[Any, ...]:
    x, k, temperature, link, _ = given.per_row()
    return x, k, temperature, link.id, link.static_and_array_alpha()[0]


def _given(x: Tensor, k: Tensor, t: Tensor, link: str, number: float | None) -> Given:
    return Given(x, k, t, by_id(link, number))


@torch.library.custom_op("kofn::weights", mutates_args=())
def weights(
    x: Tensor, k: Tensor, temperature: Tensor, link: str, number: float | None
) -> tuple[Tensor, Tensor]:
    """Return the weights, and θ as two floats, for the backward pass."""
    given = _given(x, k, temperature, link, number)
    return kernel_weights.weights(_backend(x), given)


@weights.register_fake
def _(x, k, temperature, link, number):  # type: ignore[no-untyped-def]
    return x.new_empty(x.shape), x.new_empty((2, *k.shape))


@torch.library.custom_op("kofn::weights_backward", mutates_args=())
def weights_backward(
    cotangent: Tensor,
    x: Tensor,
    theta: Tensor,
    k: Tensor,
    temperature: Tensor,
    link: str,
    number: float | None,
) -> tuple[Tensor, Tensor]:
    """Return the cotangents of the scores, and those of k and the temperature as (2, …)."""
    which = by_id(link, number)
    return _backend(x).gradients(x, cotangent, theta, k, temperature, which)


@weights_backward.register_fake
def _(cotangent, x, theta, k, temperature, link, number):  # type: ignore[no-untyped-def]
    return x.new_empty(x.shape), x.new_empty((2, *k.shape))


@torch.library.custom_op("kofn::value", mutates_args=())
def value(
    x: Tensor, k: Tensor, temperature: Tensor, link: str, number: float | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return S_k and its slopes in the scores, k and the temperature."""
    given = _given(x, k, temperature, link, number)
    answer, in_scores, in_k, in_t = kernel_weights.value(_backend(x), given)
    return answer, in_scores.masked_fill(x == torch.inf, 0.0), in_k, in_t.clone()


@value.register_fake
def _(x, k, temperature, link, number):  # type: ignore[no-untyped-def]
    return x.new_empty(k.shape), x.new_empty(x.shape), x.new_empty(k.shape), x.new_empty(k.shape)


def _keep_rows(ctx: Any, inputs: Any, output: Any) -> None:
    x, k, temperature, ctx.link, ctx.number = inputs
    ctx.save_for_backward(x, output[1], k, temperature)
    ctx.set_materialize_grads(False)


def _weights_pullback(ctx: Any, cotangent: Tensor | None, of_theta: Tensor | None) -> Any:
    if of_theta is not None:
        raise RuntimeError(REFUSED)
    if cotangent is None:
        return (None,) * 5
    in_x, in_rows = weights_backward(cotangent, *ctx.saved_tensors, ctx.link, ctx.number)
    return in_x, in_rows[0], in_rows[1], None, None


def _keep_slopes(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*output[1:])
    ctx.set_materialize_grads(False)


def _value_pullback(ctx: Any, cotangent: Tensor | None, *of_slopes: Tensor | None) -> Any:
    if any(slope is not None for slope in of_slopes):
        raise RuntimeError(REFUSED)
    if cotangent is None:
        return (None,) * 5
    in_x, in_k, in_t = ctx.saved_tensors
    return cotangent[..., None] * in_x, cotangent * in_k, cotangent * in_t, None, None


weights.register_autograd(_weights_pullback, setup_context=_keep_rows)
value.register_autograd(_value_pullback, setup_context=_keep_slopes)
