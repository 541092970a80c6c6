"""The threshold of one row that is held as several tensors, which are never put together.

It solves Σ c·F((x − θc)/T) = budget (math: docs/rows.md) over all entries of all tensors. The sums
are taken chunk by chunk, so the memory that a search needs does not grow with the row. θ is a
float64 number; there are no gradients here (see `torch_pieces_gradient.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from kofn.links.link import BuiltIn, Link
from kofn.links.table import logistic
from kofn.solver.beside import Place
from kofn.solver.bracket import bell, widening
from kofn.solver.equation import far
from kofn.solver.threshold import Newton, Search, newton_search

CHUNKS = {"cpu": 2**16}
LARGE = 2**22
"""Entries at a time: on a CPU as many as its caches hold, elsewhere enough to fill the device."""

Cost = float | Tensor
"""What an entry costs: one number for a tensor, or a tensor of the same shape."""


class Chunk(NamedTuple):
    """Entries of one tensor, in float32 or float64."""

    x: Tensor
    cost: Cost


class Pieces(NamedTuple):
    """A row as several tensors, with a cost for each."""

    tensors: Sequence[Tensor]
    costs: Sequence[Cost]

    def chunks(self) -> Iterator[Chunk]:
        for x, cost in zip(self.tensors, self.costs, strict=True):
            for part, price in parts(x, cost):
                yield Chunk(wide(part), price)


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


NEAR = 1e-3
"""A step from a guess, in temperatures, after which float32 weights are right to 2e-7."""

HARD = 1e-12
"""The sum of all tails, F or 1 − F, below which it does not matter where in a gap θ lies."""

EXACT = 1e-8
"""What part of a temperature θ may be off: less than the rounding of z."""


def rounded(theta: float) -> float:
    """Return the nearest float32."""
    return float(np.float32(theta))


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


class Equation(NamedTuple):
    """Σ c·F((x − θc)/T) = budget, for one row."""

    pieces: Pieces
    budget: float
    total: float  # Σc
    temperature: float
    link: Link

    def solve(self, start: float = math.nan) -> float:
        """Return θ: +inf if nothing may be chosen, −inf if everything is, NaN for a NaN.

        `start` is a θ that may be close, such as that of the training step before.
        """
        if not self.temperature > 0 or math.isnan(self.budget):
            return math.nan
        if self.budget <= 0:
            return math.inf
        if self.budget >= self.total:
            return -math.inf
        if math.isfinite(start):
            found = self._from(start)
            if found is not None:
                return found
        return self._search()

    def _from(self, theta: float) -> float | None:
        """Return θ by a few Newton steps from a number that is close; None if they diverge."""
        last, near = math.inf, NEAR if self.link.smooth and not self._is_double() else 0.0
        for _ in range(6):
            theta = rounded(theta)  # one subtraction less; only the last step needs more digits
            seen = self._glance(theta) or self.look(theta)
            if seen.flat or seen.excess == 0:
                return theta
            size = abs(seen.step)
            if not (math.isfinite(size) and size <= last / 2):
                return None
            theta += seen.step * self.temperature
            if size <= max(seen.last, near):
                return theta
            last = size
        return None

    def _search(self) -> float:
        start, low, high = self._bracket()
        if math.isnan(low + high):
            return math.nan
        zero = np.float64(0.0)
        state = Search(
            at=Place(np.float64(start), zero),
            low=Place(np.float64(low), zero),
            high=Place(np.float64(high), zero),
            last=zero + math.inf,
            active=np.asarray(True),
            found=np.asarray(False),
            flat=np.asarray(False),
            rounds=zero,
        )
        at = newton_search(_Scalar(self.temperature), state, self._seen, 4 * 64).at
        return float(at.anchor + at.offset)

    def _bracket(self) -> tuple[float, float, float]:
        """Return (start, low, high), as `solver.priced` does: low ≤ (x − T·F⁻¹(q))/c ≤ high."""
        share = np.asarray(self.budget / self.total)
        own = np.asarray(float(self.link.quantile(share)))
        reach = self.temperature * float(own)
        low, high, first, second, cube, square = math.inf, -math.inf, 0.0, 0.0, 0.0, 0.0
        mixed = 0.0
        for x, c in self.pieces.chunks():
            crossing = (x - reach) / c
            low, high = min(low, crossing.min().item()), max(high, crossing.max().item())
            if isinstance(c, Tensor):
                squares, cubes = (c * c).sum().item(), (c * c * c).sum().item()
            else:
                squares, cubes = c * c * x.numel(), c**3 * x.numel()
            first, second = first + (x * c).sum().item(), second + (x * x * c).sum().item()
            square, cube, mixed = square + squares, cube + cubes, mixed + (x * c * c).sum().item()
        if math.isnan(first):
            return math.nan, math.nan, math.nan
        slack = 1e-5 * (abs(low) + abs(high) + self.temperature)
        low, high = low - slack, high + slack
        middle = first / square
        variance = (second - 2 * middle * mixed + middle * middle * cube) / self.total
        spread = math.sqrt(max(variance, 0.0)) / self.temperature
        wider = float(widening(own, bell(share) * spread))
        start = middle - (float(own) + wider) * self.temperature * (self.total / square)
        return min(max(start, low), high) if math.isfinite(start) else (low + high) / 2, low, high

    def _is_double(self) -> bool:
        return self.pieces.tensors[0].dtype == torch.float64

    def _seen(self, _: _Scalar, theta: np.ndarray) -> Newton:
        return Newton(*map(np.asarray, self.look(float(theta))))

    def look(self, theta: float) -> Newton:
        """Return a Newton step on the log-odds of Σ c·F/Σc; see `solver.priced._balance`."""
        bought = signed = tails = weight = first = 0.0
        for chunk in self.pieces.chunks():
            sums = self._sums(chunk, theta)
            cost = 1.0 if isinstance(chunk.cost, Tensor) else chunk.cost
            bought, signed = bought + cost * sums[0], signed + cost * sums[1]
            tails, first = tails + cost * sums[2], first + cost * sums[3]
            weight += cost * cost * sums[4]
        return self._step(theta, bought - self.budget, signed, tails, weight, first)

    def _glance(self, theta: float) -> Newton | None:
        """Return `look` for the default link in half the passes; None where it is not accurate.

        It takes F without its tails, which is enough until the choice is nearly hard.
        """
        if self.link is not logistic or any(isinstance(c, Tensor) for c in self.pieces.costs):
            return None
        chosen = weight = first = 0.0
        for chunk in self.pieces.chunks():
            p, c = standardized(chunk, theta, self.temperature).sigmoid_(), float(chunk.cost)
            total = float(p.sum(dtype=torch.float64))
            slope = total - float(p.dot(p))
            chosen, first, weight = chosen + c * total, first + c * slope, weight + c * c * slope
        if not first > 1e-3 * chosen or self.total - chosen < 1e-2 * self.total:
            return None
        return self._step(theta, math.inf, chosen - self.budget, 2 * first, weight, first)

    def _sums(self, chunk: Chunk, theta: float) -> list[float]:
        """Return Σc where F > ½, Σ±c·tail, Σc·tail, Σc·F′ and Σc²F′; a number c is left out."""
        z, c = standardized(chunk, theta, self.temperature), chunk.cost
        upper, tail, density = self.link.tails(z)
        if not isinstance(self.link, BuiltIn):
            tail = tail.clamp(min=0.0)  # a cdf of the user's may round to below 0
        signed = torch.where(upper, -tail, tail)
        if not isinstance(c, Tensor):
            total = density.sum()
            found = (torch.count_nonzero(upper), signed.sum(), tail.sum(), total, total)
        else:
            priced = density * c
            found = (
                torch.where(upper, c, 0.0).sum(dtype=torch.float64),
                (signed * c).sum(),
                (tail * c).sum(),
                priced.sum(),
                (priced * c).sum(),
            )
        if upper.device.type == "cpu":
            return [float(number) for number in found]
        return torch.stack([number.double() for number in found]).tolist()

    def _step(
        self, theta: float, missing: float, signed: float, tails: float, weight: float, first: float
    ) -> Newton:
        eps = float(torch.finfo(torch.float64 if self._is_double() else torch.float32).eps)
        excess = signed if missing == math.inf else missing + signed
        short = self.total - self.budget
        infinite = bool(self.link.has_infinite_tails(np.zeros(())))
        if math.isnan(excess):
            return Newton(excess, math.nan, 0.0, 0.0, False)
        plateau = infinite and missing == 0 and tails < 1
        if plateau:
            if tails < HARD:
                return Newton(excess, 0.0, 0.0, 0.0, True)
            return self._log_step(theta, excess, eps)
        if not 0 < weight < math.inf:  # bisect
            return Newton(excess, math.nan, 0.0, 0.0, False)
        log_odds = math.log1p(max(excess / self.budget, -1 + eps))
        log_odds -= math.log1p(max(-excess / short, -1 + eps))
        total, rest = self.budget + excess, short - excess
        step = log_odds * (total / self.total) * (rest / weight)
        wanted = min(self.budget / weight, first / weight)
        tolerance = eps * max(wanted, 4 * tails / weight)
        last = math.sqrt(min(tolerance, eps)) / 2 if self.link.smooth else tolerance
        if not infinite and abs(excess) > 4 * last * weight:
            last = 0.0
        return Newton(excess, step, tolerance, max(last, tolerance), False)

    def _log_step(self, theta: float, excess: float, eps: float) -> Newton:
        """Return a step on log Σ_{F≤½} c·F = log Σ_{F>½} c·(1 − F), where ΣF is flat."""
        sums = torch.zeros(4, dtype=torch.float64)
        for chunk in self.pieces.chunks():
            upper, tail, density = self.link.tails(standardized(chunk, theta, self.temperature))
            c = chunk.cost
            for place, flags in ((0, ~upper), (2, upper)):
                low = torch.where(flags, tail * c, 0.0).sum(dtype=torch.float64)
                slope = torch.where(flags, density * c * c, 0.0).sum(dtype=torch.float64)
                sums[place : place + 2] += torch.stack((low, slope)).cpu()
        below, in_below, above, in_above = sums.tolist()
        if min(below, above, in_below, in_above) <= 0:
            return Newton(excess, math.nan, 0.0, 0.0, False)
        step = (math.log(below) - math.log(above)) / (in_below / below + in_above / above)
        # z is as inaccurate as it is large, which is about the logarithm of F.
        tolerance = 4 * eps * (1 + abs(math.log(below)) + abs(math.log(above)))
        return Newton(step, step, tolerance, max(tolerance, math.sqrt(eps) / 2), False)


class _Scalar:
    """What `newton_search` asks of a problem: one row whose z is θ itself."""

    def __init__(self, temperature: float) -> None:
        self.x, self.temperature = np.zeros(()), np.float64(temperature)

    @staticmethod
    def z(anchor: np.ndarray, offset: np.ndarray) -> np.ndarray:
        return anchor + offset
