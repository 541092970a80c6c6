"""The threshold of one row that is never held as one array: Σ c·F((x − θc)/T) = budget.

The search asks the row only for sums over all its entries at some θ, and takes care of nothing else
that depends on how the row is held: as several tensors (`tensors.py`), or as blocks of arrays
and files. θ is a float64 number; there are no gradients here (math: docs/formulas.md).
"""

# Newton and Place hold arrays elsewhere, and the numbers of one row here.
# mypy: disable-error-code="arg-type, assignment"

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import numpy as np

from kofn.links.link import Link
from kofn.solver.neighbours import Place
from kofn.solver.threshold import Newton, Search, newton_search

NEAR = 1e-3
"""A step from a guess, in temperatures, after which float32 weights are right to 2e-7."""

HARD = 1e-12
"""The sum of all tails, F or 1 − F, below which it does not matter where in a gap θ lies."""


_MOST = float(np.finfo(np.float32).max)


def rounded(theta: float) -> float:
    """Return the nearest float32: of a finite number, a finite one."""
    return theta if math.isinf(theta) else float(np.float32(min(max(theta, -_MOST), _MOST)))


GUESSES = 6
"""Newton steps from a guess, after which the search begins again from a bracket."""

BISECTIONS = 4 * 64
"""Looks from a bracket. Each halves it, or else the step before: 2·(64 + 53) are enough for one of
2⁶⁴ temperatures, down to rounding. Of a wider one, θ is as good as the bracket.
"""


class Sums(NamedTuple):
    """Sums over the entries of a row at some θ."""

    bought: float  # Σc where F > ½
    signed: float  # Σc·F where F ≤ ½, less Σc·(1 − F) where F > ½
    tails: float  # their sum instead of their difference
    weight: float  # Σc²F′
    first: float  # Σc·F′


class Row(Protocol):
    """A row as the search sees it, which needs the link and T of the equation `how`."""

    @property
    def is_double(self) -> bool:
        """Return whether the scores are float64."""

    def bracket(self, how: Equation) -> tuple[float, float, float]:
        """Return (start, low, high) for θ; NaN if a score is."""

    def look(self, theta: float, rest: float, how: Equation) -> Sums:
        """Return the sums at θ, which is theta + rest."""

    def glance(self, theta: float, how: Equation) -> tuple[float, float, float] | None:
        """Return Σc·F, Σc²F′ and Σc·F′ if that is less work than `look`."""

    def log_look(
        self, theta: float, rest: float, how: Equation
    ) -> tuple[float, float, float, float]:
        """Return Σc·F and Σc²F′ where F ≤ ½, then Σc·(1 − F) and Σc²F′ where F > ½."""


class Equation(NamedTuple):
    """Σ c·F((x − θc)/T) = budget, for one row."""

    pieces: Row
    budget: float
    total: float  # Σc
    temperature: float
    link: Link

    def solve(self, start: float = math.nan) -> float:
        """Return θ: +inf if nothing may be chosen, −inf if everything is, NaN for a NaN.

        `start` is a θ that may be close, such as the one of the training step before.
        """
        if not self.temperature > 0 or math.isnan(self.budget):
            return math.nan
        if self.budget <= 0:
            return math.inf
        if self.budget >= self.total:
            return -math.inf
        if math.isfinite(start):
            theta = self._from(start)
            if theta is not None:
                return theta
        return self._search()

    def _from(self, theta: float) -> float | None:
        """Return θ by a few Newton steps from a number that is close; None if they diverge."""
        last, near = math.inf, NEAR if self.link.smooth and not self.pieces.is_double else 0.0
        for _ in range(GUESSES):
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
        start, low, high = self.pieces.bracket(self)
        if math.isnan(low + high):
            return math.nan
        at = self.search(start, low, high, BISECTIONS).at
        return float(at.anchor + at.offset)

    def search(self, start: float, low: float, high: float, rounds: int) -> Search:
        """Return the state in which the search from a start and a bracket ends."""
        zero = np.float64(0.0)
        state = Search(
            at=Place(np.float64(start), zero),
            low=Place(np.float64(low), zero),
            high=Place(np.float64(high), zero),
            last=zero + math.inf,
            active=np.asarray(True),
            converged=np.asarray(False),
            flat=np.asarray(False),
        )
        return newton_search(_Scalar(self.temperature), state, self._seen, rounds)

    def _seen(self, _: _Scalar, at: Place) -> Newton:
        return Newton(*map(np.asarray, self.look(float(at.anchor), float(at.offset))))

    def look(self, theta: float, rest: float = 0.0) -> Newton:
        """Return a Newton step on the log-odds of Σ c·F/Σc; see `solver.threshold.balance`."""
        at = Place(theta, rest)
        bought, signed, tails, weight, first = self.pieces.look(*at, self)
        return self._step(at, bought - self.budget, signed, tails, weight, first)

    def _glance(self, theta: float) -> Newton | None:
        """Return `look` from sums of F without its tails; None where these are not accurate.

        They are accurate until the choice is nearly hard.
        """
        seen = self.pieces.glance(theta, self)
        if seen is None:
            return None
        chosen, weight, first = seen
        if not first > 1e-3 * chosen or self.total - chosen < 1e-2 * self.total:
            return None
        return self._step(
            Place(theta, 0.0), math.inf, chosen - self.budget, 2 * first, weight, first
        )

    def _step(
        self, at: Place, missing: float, signed: float, tails: float, weight: float, first: float
    ) -> Newton:
        eps = float(np.finfo(np.float64 if self.pieces.is_double else np.float32).eps)
        excess = signed if missing == math.inf else missing + signed
        short = self.total - self.budget
        infinite = bool(self.link.has_infinite_tails(np.zeros(())))
        if math.isnan(excess):
            return Newton(excess, math.nan, 0.0, 0.0, False)
        plateau = infinite and missing == 0 and tails < 1
        if plateau:
            if tails < HARD:
                return Newton(excess, 0.0, 0.0, 0.0, True)
            return self._log_step(at, excess, eps)
        total, rest = self.budget + excess, short - excess
        if not (0 < weight < math.inf and total > 0 and rest > 0):  # bisect
            return Newton(excess, math.nan, 0.0, 0.0, False)
        log_odds = math.log1p(max(excess / self.budget, -1 + eps))
        log_odds -= math.log1p(max(-excess / short, -1 + eps))
        step = log_odds * (total / self.total) * (rest / weight)
        wanted = min(self.budget / weight, first / weight)
        tolerance = eps * max(wanted, 4 * tails / weight)
        last = math.sqrt(min(tolerance, eps)) / 2 if self.link.smooth else tolerance
        if not infinite and abs(excess) > 4 * last * weight:
            last = 0.0
        return Newton(excess, step, tolerance, max(last, tolerance), False)

    def _log_step(self, at: Place, excess: float, eps: float) -> Newton:
        """Return a step on log Σ_{F≤½} c·F = log Σ_{F>½} c·(1 − F), where ΣF is flat."""
        below, in_below, above, in_above = self.pieces.log_look(*at, self)
        if min(below, above, in_below, in_above) <= 0:
            return Newton(excess, math.nan, 0.0, 0.0, False)
        slope = in_below / below + in_above / above
        step = (math.log(below) - math.log(above)) / slope if slope > 0 else math.nan
        # z is as inaccurate as it is large, which is about the logarithm of F.
        tolerance = 4 * eps * (1 + abs(math.log(below)) + abs(math.log(above)))
        return Newton(step, step, tolerance, max(tolerance, math.sqrt(eps) / 2), False)


class _Scalar:
    """What `newton_search` asks of a problem: one row whose z is the place itself."""

    def __init__(self, temperature: float) -> None:
        self.x, self.temperature = np.zeros(()), np.float64(temperature)

    @staticmethod
    def z(anchor: np.ndarray, offset: np.ndarray) -> Place:
        return Place(anchor, offset)
