"""Whether an ordinary torch tensor is in hand, and how to keep a compiler away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad


def beside(x: Tensor, values: Tensor) -> Tensor:
    """`values`, which every process has made alike, as the DTensor they must be beside one."""
    if type(x) in (Tensor, torch.nn.Parameter) or not hasattr(x, "device_mesh"):
        return values
    from torch.distributed.tensor import DTensor, Replicate

    whole = [Replicate()] * x.device_mesh.ndim
    return DTensor.from_local(values, x.device_mesh, whole, run_check=False)


def is_plain(x: Tensor) -> bool:
    """Whether `x` is ordinary memory, of a CPU or GPU, that nothing traces or transforms."""
    return is_eager(x) and x.device.type in ("cpu", "cuda")


def is_eager(x: Tensor) -> bool:
    """Whether `x` is an ordinary tensor, on any device, that nothing traces or transforms."""
    return (
        not torch.compiler.is_compiling()
        and not torch._C._is_tracing()
        and type(x) in (Tensor, torch.nn.Parameter)
        and x.layout is torch.strided
        and not x._is_zerotensor()
        and not torch._C._are_functorch_transforms_active()
        and not torch._C._functorch.is_legacy_batchedtensor(x)
        and not torch._C._len_torch_dispatch_stack()
        and forward_ad._current_level < 0
    )


@torch.compiler.disable(  # type: ignore[no-untyped-call]
    reason="torch.compile cannot trace a torch.Generator; draw outside of it"
)
def untraced(function: Callable[..., Any], *arguments: Any) -> Any:
    """function(*arguments); torch.compile breaks the graph here, or says why it cannot."""
    return function(*arguments)


def is_recorded(x: Tensor) -> bool:
    """Whether operations on `x` are recorded for backward."""
    return torch.is_grad_enabled() and x.requires_grad


def values_and_slopes(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    if not is_eager(x):
        # What traces or transforms the caller knows vjp, and not autograd.grad.
        values, pull = torch.func.vjp(function, x.detach())[:2]
        (slopes,) = pull(torch.ones_like(values))
        return values, slopes.detach()
    leaf = x.detach().requires_grad_()
    with torch.enable_grad():
        values = function(leaf)
        if not values.requires_grad:
            return values, torch.zeros_like(leaf)
        (slopes,) = torch.autograd.grad(
            values.sum(), leaf, retain_graph=True, allow_unused=True, materialize_grads=True
        )
    return values, slopes
