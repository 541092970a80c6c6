"""Eager torch: first derivatives of implicit.py in closed form, without its Newton steps.

Where there is more to differentiate, a learned k or alpha, a second derivative, or where something
transforms or traces the operations, the plain code serves. docs/gradients.md has the formulas.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kofn.arrays.flow import only_if
from kofn.arrays.torch_state import is_eager
from kofn.rows import answers, implicit
from kofn.rows.given import Given
from kofn.rows.settled import rows_of


def serves(given: Given) -> bool:
    """Whether eager operations are recorded for a derivative in scores or temperature alone."""
    x, k, temperature, link = given
    others = [k] if link.alpha is None or isinstance(link.alpha, float) else [k, link.alpha]
    return (
        torch.is_grad_enabled()
        and (x.requires_grad or temperature.requires_grad)
        and all(is_eager(a) for a in (x, temperature, *others))
        and not any(a.requires_grad for a in others)
    )


class LogWeights(torch.autograd.Function):
    """`implicit.log_weights`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, temperature: Tensor, k: Tensor, link: Any) -> Tensor:
        given = Given(x, k, temperature, link)
        rows = rows_of(given)
        placed = implicit.place(rows)
        ctx.save_for_backward(x, temperature)
        ctx.k, ctx.link, ctx.rows, ctx.placed = k, link, rows, placed
        return answers.log_weights(rows, placed=placed)

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Any:
        x, temperature = ctx.saved_tensors
        if torch.is_grad_enabled() or not is_eager(v):
            given = Given(x, ctx.k, temperature, ctx.link)
            return *_graph(given, answers.log_weights, v), None, None
        p, rows = ctx.placed, ctx.rows
        moves = rows.live & ~(p.every | p.none)[..., None]
        slope = torch.where(moves, p.link.pdf(p.z), 0.0)
        with torch.enable_grad():
            z = implicit.reached(rows, p).detach().requires_grad_()
            (pulled,) = torch.autograd.grad(answers.log_of(p, z, rows.live), z, v)
        pulled = torch.where(moves, pulled, 0.0)
        total = slope.sum(-1)
        solvable = total >= implicit.least_weight(total)
        hard = ~(solvable | p.every | p.none | p.spoiled)
        share = slope / torch.where(solvable, total, torch.inf)[..., None]

        def shares() -> Tensor:
            return share + implicit.shares(p.link, p.z, rows.live, hard, p.over)

        in_z = pulled - only_if(hard, shares, share) * pulled.sum(-1, keepdim=True)
        in_x, in_t = _in_z(in_z, p, rows, temperature)
        return in_x, in_t, None, None


class Gap(torch.autograd.Function):
    """`implicit.gap`, whose derivative in z is p − t."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, temperature: Tensor, k: Tensor, link: Any, target: Tensor
    ) -> Tensor:
        rows = rows_of(Given(x, k, temperature, link))
        placed = implicit.place(rows)
        ctx.save_for_backward(x, temperature, target)
        ctx.k, ctx.link, ctx.rows, ctx.placed = k, link, rows, placed
        return answers.gap(rows, target, placed=placed)

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Any:
        x, temperature, target = ctx.saved_tensors
        if torch.is_grad_enabled() or not is_eager(v):
            given = Given(x, ctx.k, temperature, ctx.link)
            return *_graph(given, answers.gap, v, target), None, None, None
        p, rows = ctx.placed, ctx.rows
        moves = rows.live & ~(p.every | p.none)[..., None]
        chosen = torch.where(p.upper, 1 - p.link.sf(p.z), p.link.cdf(p.z))
        chosen = torch.where(p.spoiled[..., None], torch.nan, chosen)
        in_z = torch.where(moves, v[..., None] * (chosen - target), 0.0)
        in_x, in_t = _in_z(in_z, p, rows, temperature)
        return in_x, in_t, None, None, None


def _in_z(in_z: Tensor, p: implicit.Placed, rows: Any, temperature: Tensor) -> Any:
    """Cotangents of scores and temperature, from those of z = (x − θ)/T that sum to 0."""
    in_z = in_z / temperature[..., None]
    return in_z, -torch.where(in_z == 0, 0.0, in_z * implicit.distances(rows, p)).sum(-1)


def _graph(given: Given, reference: Callable[..., Tensor], v: Tensor, *more: Tensor) -> Any:
    """The same cotangents as a graph, for a derivative of the derivative."""
    x, _, temperature, _ = given
    with torch.enable_grad():
        wanted = [a for a in (x, temperature) if a.requires_grad]
        answer = reference(rows_of(given), *more)
        found = iter(torch.autograd.grad(answer, wanted, v, create_graph=True))
    return [next(found) if a.requires_grad else None for a in (x, temperature)]
