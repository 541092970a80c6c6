"""Derivatives of a row that is held as several tensors, and weights multiplied by their choice.

Eagerly, two autograd functions work chunk by chunk: `Threshold` turns the scores of all tensors
into θ, and `Chosen` multiplies one tensor by F((x − θc)/T) without keeping the latter. What a
tensor's gradient owes to θ so passes through a single number. While something is compiled, θ is an
operator, and its derivative one Newton step (see `implicit`) in plain array code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kofn.links import logistic
from kofn.links.link import Link, by_id
from kofn.streaming.equation import Equation
from kofn.streaming.tensors import (
    Chunk,
    Cost,
    Pieces,
    parts,
    standardized,
    times,
    weights_and_slopes,
    wide,
)

if TYPE_CHECKING:
    from kofn.arrays.protocols import Context

    class _Theta(Context, Protocol):
        equation: Equation
        number: float
        tensors: tuple[Tensor, ...]
        versions: list[int]

    class _Kept(Context, Protocol):
        cost: Cost
        number: float
        how: _How
        device: torch.device


class Placed(NamedTuple):
    """A row's threshold: θ with its gradient, and as a number, which a traced one lacks."""

    theta: Tensor  # float64, without dimensions
    number: float | None
    temperature: float | Tensor
    link: Link


class Threshold(torch.autograd.Function):
    """θ of the tensors; it may be passed back through more than once."""

    @staticmethod
    def forward(ctx: _Theta, equation: Equation, theta: float, *tensors: Tensor) -> Tensor:
        # Not saved tensors: a graph that is used twice would have lost them, and activation
        # checkpointing counts them.
        ctx.equation, ctx.number, ctx.tensors = equation, theta, tensors
        ctx.versions = [x._version for x in tensors]
        return torch.tensor(theta, dtype=torch.float64, device=tensors[0].device)

    @staticmethod
    @once_differentiable
    def backward(ctx: _Theta, cotangent: Tensor) -> Any:
        """Return g·c·F′/Σc²F′ for every tensor."""
        equation, pieces = ctx.equation, cast(Pieces, ctx.equation.pieces)
        if ctx.versions != [x._version for x in ctx.tensors]:
            raise RuntimeError(
                "scores were changed in place between the forward and the backward pass; "
                "call the optimizer after backward()"
            )
        slopes, weight = [], 0.0
        for x, cost in zip(ctx.tensors, pieces.costs, strict=True):
            slope, total = _slopes(x, cost, ctx.number, equation)
            slopes.append(slope)
            weight += total
        (weight,) = pieces.over.sum([weight])
        gain = float(cotangent) / weight if weight >= _LEAST else 0.0
        return None, None, *(slope.mul_(gain) for slope in slopes)


def _slopes(x: Tensor, cost: Cost, theta: float, how: Equation) -> tuple[Tensor, float]:
    """Return c·F′ of a tensor's entries, and Σc²F′."""
    if how.link is logistic and not isinstance(cost, Tensor) and x.dtype == wide(x).dtype:
        z = standardized(Chunk(x.detach(), cost), theta, how.temperature)
        slope = times(weights_and_slopes(how.link, z)[1], cost)
        return slope, cost * float(slope.sum(dtype=torch.float64))
    slope, weight, done = torch.empty_like(x, memory_format=torch.contiguous_format), 0.0, 0
    flat = slope.view(-1)
    for part, price in parts(x, cost):
        z = standardized(Chunk(wide(part), price), theta, how.temperature)
        each = times(weights_and_slopes(how.link, z)[1], price)
        flat[done : done + len(part)] = each
        weight += float(times(each, price).sum(dtype=torch.float64))
        done += len(part)
    return slope, weight


_LEAST = float(torch.finfo(torch.float32).smallest_normal / torch.finfo(torch.float32).eps)
"""The least ΣF′ to divide by: below, the choice is hard and θ has no slope that numbers hold."""


class Chosen(torch.autograd.Function):
    """weight·F((x − θc)/T), elementwise, for scores x of the weight's shape."""

    @staticmethod
    def forward(
        ctx: _Kept, weight: Tensor, x: Tensor, theta: Tensor, cost: Cost, number: float, how: _How
    ) -> Tensor:
        ctx.save_for_backward(weight, x)
        ctx.cost, ctx.number, ctx.how, ctx.device = cost, number, how, theta.device
        product = torch.empty_like(weight, memory_format=torch.contiguous_format)
        flat, source, done = product.view(-1), weight.reshape(-1), 0
        for part, price in parts(x, cost):
            end = done + len(part)
            p = how.link.cdf(standardized(Chunk(wide(part), price), number, how.temperature))
            torch.mul(source[done:end], p.to(weight.dtype), out=flat[done:end])
            done = end
        return product

    @staticmethod
    @once_differentiable
    def backward(ctx: _Kept, cotangent: Tensor) -> Any:
        weight, x = ctx.saved_tensors
        link, temperature = ctx.how
        in_weight = torch.empty_like(weight, memory_format=torch.contiguous_format)
        in_x = torch.empty_like(x, memory_format=torch.contiguous_format)
        flats = [tensor.reshape(-1) for tensor in (cotangent, weight)]
        outs, done, in_theta = [in_weight.view(-1), in_x.view(-1)], 0, 0.0
        for part, price in parts(x, ctx.cost):
            here = slice(done, done + len(part))
            g, w = (flat[here] for flat in flats)
            z = standardized(Chunk(wide(part), price), ctx.number, temperature)
            p, each = weights_and_slopes(link, z)
            torch.mul(g, p.to(g.dtype), out=outs[0][here])
            torch.div(each.mul_(g).mul_(w), temperature, out=outs[1][here])
            in_theta -= float(times(each, price).sum()) / temperature
            done = here.stop
        theta = torch.tensor(in_theta, dtype=torch.float64, device=ctx.device)
        return in_weight, in_x, theta, None, None, None


class ChosenLogistic(torch.autograd.Function):
    """`Chosen` for the default link, whose slope F(1 − F) needs no second look at the scores."""

    @staticmethod
    def forward(
        ctx: _Kept, weight: Tensor, x: Tensor, theta: Tensor, cost: float, number: float, how: _How
    ) -> Tensor:
        p = standardized(Chunk(wide(x.detach()), cost), number, how.temperature).sigmoid_()
        ctx.save_for_backward(weight, p)
        ctx.cost, ctx.how, ctx.device = cost, how, theta.device
        return weight * p

    @staticmethod
    @once_differentiable
    def backward(ctx: _Kept, cotangent: Tensor) -> Any:
        weight, p = ctx.saved_tensors
        in_x = cotangent * weight
        torch.ops.aten.sigmoid_backward.grad_input(in_x, p, grad_input=in_x)
        in_x.div_(ctx.how.temperature)
        theta = in_x.sum(dtype=torch.float64).mul_(-ctx.cost).to(ctx.device)
        return cotangent * p, in_x, theta, None, None, None


class _How(NamedTuple):
    link: Link
    temperature: float


def place(equation: Equation, start: float) -> Placed:
    """Return the threshold of a row of tensors, with its gradient, eagerly."""
    theta = equation.solve(start)
    tensors = cast(Pieces, equation.pieces).tensors
    made = Threshold.apply(equation, theta, *tensors)  # type: ignore[no-untyped-call]
    return Placed(made, theta, equation.temperature, equation.link)


def chosen(weight: Tensor, x: Tensor, cost: Cost, at: Placed) -> Tensor:
    """Return weight·F((x − θc)/T)."""
    if at.number is None:
        return weight * weights(x, cost, at).to(weight.dtype)
    how = _How(at.link, float(at.temperature))
    plain = at.link is logistic and not isinstance(cost, Tensor)
    rule = ChosenLogistic if plain and weight.dtype == wide(x).dtype else Chosen
    product: Tensor = rule.apply(weight, x, at.theta, cost, at.number, how)  # type: ignore[no-untyped-call]
    return product


def weights(x: Tensor, cost: Cost, at: Placed) -> Tensor:
    """Return F((x − θc)/T) in plain array code, with gradients in x and θ."""
    return at.link.cdf(_distance(x, cost, at.theta, at.temperature))


def _distance(x: Tensor, cost: Cost, theta: Tensor, temperature: float | Tensor) -> Tensor:
    x = wide(x)
    shift = theta * cost
    high = shift.to(x.dtype)
    low = (shift - high.double()).detach().to(x.dtype)
    low = torch.where(torch.isfinite(shift.detach()), low, 0.0)
    temperature = temperature.to(x.dtype) if isinstance(temperature, Tensor) else temperature
    limit = math.sqrt(torch.finfo(x.dtype).max) / 16
    return (((x - high) - low) / temperature).clamp(-limit, limit)


@torch.library.custom_op("kofn::pieces_threshold", mutates_args=())
def operator(
    tensors: Sequence[Tensor],
    costs: Sequence[Tensor],
    budget: Tensor,
    total: float,
    temperature: Tensor,
    link: str,
    number: float | None,
) -> Tensor:
    """Solve for θ; see `Equation.solve`. Costs without dimensions are numbers."""
    prices = [cost if cost.ndim else cost.item() for cost in costs]
    pieces = Pieces(tensors, prices)
    equation = Equation(pieces, budget.item(), total, temperature.item(), by_id(link, number))
    return torch.tensor(equation.solve(), dtype=torch.float64, device=tensors[0].device)


@operator.register_fake
def _(tensors: Sequence[Tensor], *_: object) -> Tensor:
    return tensors[0].new_empty((), dtype=torch.float64)


def place_traced(
    pieces: Pieces, budget: Tensor, total: float, temperature: Tensor, link: Link
) -> Placed:
    """Return the threshold where a program is compiled or exported."""
    tensors = [wide(x) for x in pieces.tensors]
    costs = [
        cost if isinstance(cost, Tensor) else torch.tensor(cost, dtype=torch.float64, device="cpu")
        for cost in pieces.costs
    ]
    fixed = [x.detach() for x in tensors]
    alpha = link.static_and_array_alpha()[0]
    theta = operator(fixed, costs, budget, total, temperature, link.id, alpha)
    excess, weight = torch.zeros_like(theta), torch.zeros_like(theta)
    for x, cost in zip(tensors, pieces.costs, strict=True):
        z = _distance(x, cost, theta, temperature)
        excess = excess + (link.cdf(z) * cost).sum().double()
        weight = weight + (link.pdf(z.detach()) * cost * cost).sum().double()
    gain = torch.where(weight >= _LEAST, temperature.to(theta) / weight, 0.0)
    theta = theta + torch.where(gain > 0, gain * (excess - excess.detach()), 0.0)
    return Placed(theta, None, temperature, link)
