"""One row that is held as several tensors, which are never put together.

`equation.py` solves Σ c·F((x − θc)/T) = budget over all entries of all tensors. The sums are taken
here, chunk by chunk, so the memory that a search needs does not grow with the row. There are no
gradients here (see `tensor_gradient.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from kofn.links import logistic
from kofn.links.link import BuiltIn, Link
from kofn.solver.bracket import bell, widening
from kofn.solver.equation import far
from kofn.streaming.equation import Equation, Sums, rounded

CHUNKS = {"cpu": 2**16}
LARGE = 2**22
"""Entries at a time: on a CPU as many as its caches hold, elsewhere enough to fill the device."""

FARTHEST = 1e300
"""θ is not looked for beyond, where ends of a bracket have overflowed."""

Cost = float | Tensor
"""The costs of entries: one number for a tensor, or a tensor of the same shape."""


class Over(Protocol):
    """Numbers over all processes that have a part of the row; the same in each of them."""

    rank: int
    size: int

    def sum(self, numbers: Sequence[float]) -> list[float]:
        """Return the sum of each number."""

    def most(self, numbers: Sequence[float]) -> list[float]:
        """Return the maximum of each number."""


class OneProcess:
    """`Over` for a row that this process has alone."""

    rank, size = 0, 1

    def sum(self, numbers: Sequence[float]) -> list[float]:
        return list(numbers)

    def most(self, numbers: Sequence[float]) -> list[float]:
        return list(numbers)


ALONE = OneProcess()


class Chunk(NamedTuple):
    """Entries of one tensor, in float32 or float64."""

    x: Tensor
    cost: Cost


class Pieces(NamedTuple):
    """A row as several tensors, with a cost for each."""

    tensors: Sequence[Tensor]
    costs: Sequence[Cost]
    over: Over = ALONE

    def chunks(self) -> Iterator[Chunk]:
        for x, cost in zip(self.tensors, self.costs, strict=True):
            for part, price in parts(x, cost):
                yield Chunk(wide(part), price)

    @property
    def is_double(self) -> bool:
        return self.tensors[0].dtype == torch.float64

    def bracket(self, how: Equation) -> tuple[float, float, float]:
        """Return (start, low, high), as `solver.price` does: low ≤ (x − T·F⁻¹(q))/c ≤ high."""
        share = np.asarray(how.budget / how.total)
        own = np.asarray(float(how.link.quantile(share)))
        reach = how.temperature * float(own)
        low, high, first, second, cube, square = math.inf, -math.inf, 0.0, 0.0, 0.0, 0.0
        mixed = bad = 0.0
        for x, c in self.chunks():
            crossing = (x - reach) / c
            least, most = crossing.min().item(), crossing.max().item()
            low, high, bad = min(low, least), max(high, most), bad + math.isnan(least)
            if isinstance(c, Tensor):
                squares, cubes = (c * c).sum().item(), (c * c * c).sum().item()
            else:
                squares, cubes = c * c * x.numel(), c * c * c * x.numel()
            first, second = first + (x * c).sum().item(), second + (x * x * c).sum().item()
            square, cube, mixed = square + squares, cube + cubes, mixed + (x * c * c).sum().item()
        *moments, bad = self.over.sum((first, second, square, cube, mixed, bad))
        high, low = self.over.most((high, -low))
        low = -low
        if bad:
            return math.nan, math.nan, math.nan
        slack = 1e-5 * (abs(low) + abs(high) + how.temperature)
        low, high = max(low - slack, -FARTHEST), min(high + slack, FARTHEST)
        start = _start(np.array(moments), own, share, how)
        return min(max(start, low), high) if math.isfinite(start) else (low + high) / 2, low, high

    def look(self, theta: float, rest: float, how: Equation) -> Sums:
        """Return the sums of the search at θ."""
        bought = signed = tails = weight = first = 0.0
        for chunk in self.chunks():
            sums = _sums(chunk, theta + rest, how)
            cost = 1.0 if isinstance(chunk.cost, Tensor) else chunk.cost
            bought, signed = bought + cost * sums[0], signed + cost * sums[1]
            tails, first = tails + cost * sums[2], first + cost * sums[3]
            weight += cost * cost * sums[4]
        return Sums(*self.over.sum((bought, signed, tails, weight, first)))

    def glance(self, theta: float, how: Equation) -> tuple[float, float, float] | None:
        """Return Σc·F, Σc²F′ and Σc·F′ for the default link, in half the passes of `look`."""
        if how.link is not logistic or any(isinstance(c, Tensor) for c in self.costs):
            return None
        chosen = weight = first = 0.0
        for chunk in self.chunks():
            p, c = standardized(chunk, theta, how.temperature).sigmoid_(), float(chunk.cost)
            total = float(p.sum(dtype=torch.float64))
            slope = total - float(p.dot(p))
            chosen, first, weight = chosen + c * total, first + c * slope, weight + c * c * slope
        chosen, weight, first = self.over.sum((chosen, weight, first))
        return chosen, weight, first

    def log_look(
        self, theta: float, rest: float, how: Equation
    ) -> tuple[float, float, float, float]:
        """Return the sums of both tails apart, with their slopes."""
        theta += rest
        sums = torch.zeros(4, dtype=torch.float64, device="cpu")
        for chunk in self.chunks():
            upper: Any
            upper, tail, density = how.link.tails(standardized(chunk, theta, how.temperature))
            c = chunk.cost
            for place, flags in ((0, ~upper), (2, upper)):
                low = torch.where(flags, tail * c, 0.0).sum(dtype=torch.float64)
                slope = torch.where(flags, density * c * c, 0.0).sum(dtype=torch.float64)
                sums[place : place + 2] += torch.stack((low, slope)).cpu()
        below, in_below, above, in_above = self.over.sum(sums.tolist())
        return below, in_below, above, in_above


def _start(moments: np.ndarray, own: np.ndarray, share: np.ndarray, how: Equation) -> float:
    """Return the θ of a normal sample of residuals, as `solver.price` does; it may be NaN or ±∞.

    The moments are Σxc, Σx²c, Σc², Σc³ and Σxc². NumPy's numbers, for squares may underflow.
    """
    first, second, square, cube, mixed = moments
    with np.errstate(all="ignore"):
        middle = first / square
        variance = (second - 2 * middle * mixed + middle * middle * cube) / how.total
        spread = np.sqrt(np.maximum(variance, 0.0)) / how.temperature
        wider = widening(own, bell(share) * spread)
        return float(middle - (own + wider) * how.temperature * (how.total / square))


def parts(x: Tensor, cost: Cost) -> Iterator[tuple[Tensor, Cost]]:
    """Yield the entries of a tensor in order, flat, a chunk at a time."""
    flat, size = x.detach().reshape(-1), CHUNKS.get(x.device.type, LARGE)
    prices = cost.reshape(-1) if isinstance(cost, Tensor) else None
    for start in range(0, flat.numel(), size):
        end = start + size
        yield flat[start:end], cost if prices is None else prices[start:end]


def wide(x: Tensor) -> Tensor:
    """Return half types as float32."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def standardized(chunk: Chunk, theta: float, temperature: float) -> Tensor:
    """Return z = (x − θc)/T; θc is not rounded to the dtype of x."""
    x, cost = chunk
    if isinstance(cost, Tensor):
        z = x.double() - (theta * cost.double() if math.isfinite(theta) else theta)
        return _capped(z.div_(temperature), theta, temperature).to(x.dtype)
    shift = theta * cost
    high = rounded(shift) if x.dtype == torch.float32 else shift
    z = x - high
    if math.isfinite(shift) and abs(shift - high) > EXACT * temperature:
        z.sub_(shift - high)
    return _capped(z.div_(temperature), shift, temperature)


EXACT = 1e-8
"""The part of a temperature by which θ may be off: less than the rounding of z."""


def _capped(z: Tensor, shift: float, temperature: float) -> Tensor:
    """Return z within the reach of every link; it is, but for an infinite θ or a tiny T."""
    if abs(shift) < 1e6 and temperature > 1e-6:
        return z
    limit = far(torch.finfo(z.dtype))
    return z.clamp_(-limit, limit)


def times(values: Tensor, cost: Cost) -> Tensor:
    """Return values·c, without a pass for the usual c = 1."""
    return values if isinstance(cost, float) and cost == 1 else values * cost


def weights_and_slopes(link: Link, z: Tensor) -> tuple[Tensor, Tensor]:
    """Return F and F′; z may be overwritten."""
    if link is logistic:
        p = torch.sigmoid(z)
        return p, z.neg_().sigmoid_().mul_(p)
    return link.cdf(z), link.pdf(z)


def _sums(chunk: Chunk, theta: float, how: Equation) -> list[float]:
    """Return Σc where F > ½, Σ±c·tail, Σc·tail, Σc·F′ and Σc²F′; a number c is left out."""
    z, c = standardized(chunk, theta, how.temperature), chunk.cost
    upper: Any
    upper, tail, density = how.link.tails(z)
    if not isinstance(how.link, BuiltIn):
        tail = tail.clamp(min=0.0)  # a cdf of the user's may round to below 0
    signed = torch.where(upper, -tail, tail)
    if not isinstance(c, Tensor):
        total = density.sum()
        sums = (torch.count_nonzero(upper), signed.sum(), tail.sum(), total, total)
    else:
        spent = density * c
        sums = (
            torch.where(upper, c, 0.0).sum(dtype=torch.float64),
            (signed * c).sum(),
            (tail * c).sum(),
            spent.sum(),
            (spent * c).sum(),
        )
    if upper.device.type == "cpu":
        return [float(number) for number in sums]
    return torch.stack([number.double() for number in sums]).tolist()
