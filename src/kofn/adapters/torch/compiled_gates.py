"""The gates of a router as an operator, which compiled functions call without tracing them
(test_nn_router_compiled.py).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from kofn import kernels
from kofn.adapters import kept_kernels
from kofn.arrays.kinds import deleted
from kofn.arrays.torch.operator import REFUSED, call, define, differentiate, refuse
from kofn.arrays.torch.state import constant_result
from kofn.links import exponential
from kofn.links.link import Link, by_id
from kofn.operations.by_kernel import weights_by_kernel
from kofn.operations.choice import GATES
from kofn.rows.given import Given

_OWN = "int k, float t, str link, float? alpha"


def _gates(
    x: Tensor, bias: Tensor | None, k: int, t: float, link: str, alpha: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return gates, indices, and what the way back takes, as `ready.gates` lays it out."""
    x, bias = x.contiguous(), None if bias is None else bias.contiguous()
    run = kept_kernels.run_of(GATES, x, float(k), t, link, alpha)
    if run is not None:
        gates, indices, some = run(x, bias)
        if some is not None:
            return gates, indices, some
    given, shared = _parts(x, k, t, link, alpha)
    backend, chooser = (kernels.found(each, x, "torch") for each in ("rows", "choice"))
    compared = x if bias is None else (x + bias).masked_fill(deleted(x), -math.inf)
    indices = chooser.largest(compared, k)
    chosen = x.gather(-1, indices)
    find: Any = weights_by_kernel
    (p, theta), (shares, own) = find(backend, given), find(backend, shared._replace(scores=chosen))
    moving = p.gather(-1, indices)  # NaN of a row with one
    some = torch.cat([each.reshape(-1) for each in (chosen, shares, theta, own)])
    return shares * (1 + (moving - moving)), indices, some


def _gates_back(
    cotangent: Tensor, x: Tensor, indices: Tensor, some: Tensor, k: int, t: float, link: str,
    alpha: float | None,
) -> Tensor:  # fmt: skip
    x = x.contiguous()
    run = kept_kernels.run_of(GATES.back[0], x, float(k), t, link, alpha)
    if run is not None:
        return run(x, cotangent, indices, some)  # type: ignore[no-any-return]
    given, shared = _parts(x, k, t, link, alpha)
    backend, count = kernels.found("rows", x, "torch"), indices.numel() // k
    chosen, shares, theta, own = torch.split(some, [count * k, count * k, 2 * count, 2 * count])
    theta, own = (each.view(2, *x.shape[:-1]) for each in (theta, own))
    chosen, shares = chosen.view(indices.shape), shares.view(indices.shape)
    spread = torch.zeros_like(x).scatter_(-1, indices, cotangent * shares)
    slopes: Tensor = backend.gradients(x, spread, theta, *given[1:4])[0]
    of_shares = backend.gradients(chosen, cotangent, own, *shared[1:4])[0]
    return slopes.scatter_add_(-1, indices, of_shares)


def _parts(x: Tensor, k: int, t: float, link: str, alpha: float | None) -> tuple[Given, Given]:
    """Return the rows, and those of which the shares are a softmax."""
    inner: Any = by_id(link, alpha)
    return Given(x, float(k), t, inner), Given(x, 1.0, 1.0, exponential.inner)


def _like(x: Tensor, _: object, k: int, *__: object) -> tuple[Tensor, Tensor, Tensor]:
    shape = *x.shape[:-1], k
    kept = 2 * math.prod(shape[:-1]) * (k + 2)
    return x.new_empty(shape), x.new_empty(shape, dtype=torch.int64), x.new_empty(kept)


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    x, _, *ctx.own = inputs
    _, indices, some = output
    ctx.save_for_backward(x, indices, some)
    ctx.set_materialize_grads(False)


def _pullback(ctx: Any, cotangent: Tensor | None, _: object, of_some: Tensor | None) -> Any:
    if of_some is not None:
        raise RuntimeError(REFUSED)
    slopes = None if cotangent is None else _back(cotangent, *ctx.saved_tensors, *ctx.own)
    return slopes, *[None] * 5


_results = "(Tensor, Tensor, Tensor)"
_forward = define("gates", f"Tensor x, Tensor? bias, {_OWN}", _results, _like)(_gates)
_back = define(
    "gates_backward", f"Tensor cotangent, Tensor x, Tensor indices, Tensor some, {_OWN}", "Tensor",
    lambda cotangent, x, *_: x.new_empty(x.shape),
)(_gates_back)  # fmt: skip
differentiate(_forward, _pullback, _keep)
differentiate(_back, refuse)


@constant_result
def _is_served(dtype: torch.dtype, link: str, alpha: float | None) -> bool:
    like, inner = torch.empty(0, dtype=dtype, device="cpu"), by_id(link, alpha)
    served = inner is not None and kernels.serving_of("rows", like, "torch", inner) is not None
    return served and kernels.serving_of("choice", like, "torch", offered="largest") is not None


def gates(x: Tensor, k: int, link: Link, t: float, bias: Tensor | None) -> Any:
    """Return (gates, indices) of traced scores; None if no kernel serves them."""
    number, each = link.static_and_array_alpha()
    if each is not None or not _is_served(x.dtype, link.id, number):
        return None
    return call("gates", x, bias if bias is None else bias.to(x.dtype), k, t, link.id, number)[:2]
