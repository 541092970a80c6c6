"""The prices of the columns of a matrix in blocks, and the weights of some rows at them.

`maps.assignment` has the search; here each sum over rows is a pass. S, a square of columns,
is held while its equations are solved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from kofn.arrays.kinds import Array
from kofn.links.link import Link
from kofn.maps.assignment.margins import Open, closed_price
from kofn.maps.assignment.newton import curvature, steps_of, weighted
from kofn.maps.assignment.search import searched
from kofn.maps.assignment.sight import Rows, Seen, rounding, rows_of
from kofn.maps.topk import hard_topk, soft_topk, soft_topk_threshold
from kofn.streaming.assignment.columns import thresholds
from kofn.streaming.assignment.matrices import Assignment, Part


class Prices(Protocol):
    """Prices of columns, by which the rows of a part have their weights."""

    def weights(self, part: Part) -> np.ndarray:
        """Return the weights of some rows."""

    def of_rows(self, part: Part) -> np.ndarray:
        """Return the prices of some rows, for columns at their `of_columns`."""

    def of_columns(self) -> np.ndarray:
        """Return the prices of columns."""


class _Seen(NamedTuple):
    """What the search keeps of a pass."""

    beta: np.ndarray
    t: np.ndarray
    columns: np.ndarray  # D_c
    product: np.ndarray  # WᵀD_r⁻¹W


class _Matrix:
    """A matrix in blocks as the search sees it; see `maps.assignment.sight`."""

    def __init__(self, of: Assignment, link: Link) -> None:
        self.of, self.link = of, link
        self.c, self.number, self.t, self.spread = of.c, of.number, of.t, of.spread
        self.steps = steps_of(np, self)

    def _rows(self, p: Open) -> Rows:
        return rows_of(p.x, p.k, self.spread, self.link)

    def _seen(self, p: Open, beta: Any, t: Any) -> tuple[Rows, Seen]:
        rows = self._rows(p)
        return rows, rows.at(p.x - beta[..., None, :], t)

    def look(self, beta: Any, t: Any) -> tuple[_Seen, Any]:
        weights, columns = np.zeros_like(beta), np.zeros_like(beta)
        product = np.zeros((1, beta.shape[-1], beta.shape[-1]))

        def see(p: Open) -> tuple[Any, ...]:
            rows, seen = self._seen(p, beta, t)
            return seen.weights, *weighted(np, rows.slopes(seen))

        for of_rows, part, slopes in self.of.each("prices", see):
            weights += np.sum(of_rows, axis=-2)
            columns += slopes
            product += part.swapaxes(-1, -2) @ part
        return _Seen(beta, t, columns, product), weights - self.c

    def newton_step(self, seen: _Seen, excess: Any, error: Any, room: Any, damping: Any) -> Array:
        steps, of_s = self.steps, (seen.product, seen.columns)
        return steps.centred(steps.dense(*of_s, excess, room, steps.damped(error, damping)))

    def curvature(self, seen: _Seen, step: Any) -> Any:
        def see(p: Open) -> Any:
            rows, there = self._seen(p, seen.beta, seen.t)
            return curvature(np, rows.slopes(there), step)

        return sum(self.of.each("curvature", see))

    def rounding(self, seen: _Seen, beta: Any, t: Any) -> Any:
        def see(p: Open) -> Any:
            return rounding(p.x, self._seen(p, seen.beta, seen.t)[1].weights, beta, t)

        return np.max(list(self.of.each("rounding", see)), axis=0)

    def alternated(self, beta: Any, t: Any) -> Array:
        def passes(function: Callable[[np.ndarray], Any]) -> Iterator[Any]:
            def see(p: Open) -> Any:
                alpha = self._rows(p).thresholds(p.x - beta[..., None, :], t)
                x: Any = p.x
                return function((x - np.asarray(alpha)[..., :, None])[0])

            return self.of.each("thresholds of columns", see)

        theta = thresholds(passes, self.c[0], t[0], self.link)
        return self.steps.centred(np.where(np.isfinite(theta), theta, 0.0)[None])


class Solved:
    """Both margins are met."""

    def __init__(self, of: Assignment, link: Link) -> None:
        self.of, self.link = of, link
        possible = of.settle()
        if 0 in (of.matrix.m, of.matrix.n):
            self.beta, self.t = np.full_like(of.c, math.nan), of.t
            return
        with np.errstate(all="ignore"):
            beta, t, met = searched(_Matrix(of, link))
        self.beta = np.where((possible & met)[..., None], beta, math.nan)
        of.t = self.t = np.asarray(t)

    def weights(self, part: Part) -> np.ndarray:
        p = self._called(soft_topk, part)
        return np.where(part.full & ~np.isnan(self.beta)[..., None, :], 1.0, p)

    def hard_weights(self, part: Part) -> np.ndarray:
        """Return 0 and 1, and a fraction where k has one."""
        p, price = self.of.open(part), np.where(np.isfinite(self.beta), self.beta, 0.0)
        y = np.where(p.x > -math.inf, p.x - price[..., None, :], -math.inf)
        chosen = np.where(part.full, 1.0, hard_topk(y, p.k))
        return chosen if not np.isnan(self.beta).any() else np.full_like(chosen, math.nan)

    def of_rows(self, part: Part) -> np.ndarray:
        alpha = self._called(soft_topk_threshold, part)
        end = closed_price(self.beta, part.full.sum(-1), (part.x > -math.inf).sum(-1))
        known = part.live.any(-1) | np.isnan(self.beta).any()
        return np.where(known, (alpha + self._mean()) * self.of.unit, end)

    def of_columns(self) -> np.ndarray:
        end = closed_price(self.beta, self.of.full, self.of.of_columns)
        known = (self.of.number > 0) | np.isnan(self.beta).any()
        return np.where(known, (self.beta - self._mean()) * self.of.unit, end)

    def _mean(self) -> float:
        some = (self.of.number > 0) & np.isfinite(self.beta)
        return float(np.sum(self.beta, where=some) / max(some.sum(), 1))

    def _called(self, function: Any, part: Part) -> Any:
        p = self.of.open(part)
        y = p.x - self.beta[..., None, :]
        return function(y, p.k, link=self.link, temperature=self.t[..., None])


class Rounds:
    """Columns, then rows, a few times; see `maps.assignment.rounds`."""

    def __init__(self, of: Assignment, link: Link, rounds: int) -> None:
        self.of, self.link = of, link
        self.how: Any = {"link": link, "temperature": of.t[..., None]}
        self.beta: Any = None
        with np.errstate(all="ignore"):
            for _ in range(rounds):
                self.beta = thresholds(self._passes, of.c[0], of.t[0], link)

    def weights(self, part: Part) -> np.ndarray:
        return soft_topk(self._scores(part), part.k, **self.how)

    def of_rows(self, part: Part) -> np.ndarray:
        theta = soft_topk_threshold(self._scores(part), part.k, **self.how)
        return theta + self._mean()

    def of_columns(self) -> np.ndarray:
        return (self.beta - self._mean())[None]

    def _mean(self) -> float:
        some = np.isfinite(self.beta)
        return float(np.sum(self.beta, where=some) / max(some.sum(), 1))

    def _scores(self, part: Part) -> np.ndarray:
        return np.where(part.live, part.x - self.beta, -math.inf)

    def _passes(self, function: Callable[[np.ndarray], Any]) -> Iterator[Any]:
        before = self.beta is None

        def see(part: Part) -> Any:
            if before:
                return function(part.x[0])
            rows = soft_topk_threshold(self._scores(part), part.k, **self.how)
            # Columns that take all may have settled a row: it is still there for them.
            rows = np.where((part.k > 0) & ~(rows < math.inf), 0.0, rows)
            return function(np.where(part.live, part.x - rows[..., None], -math.inf)[0])

        return self.of.parts("thresholds of columns", see)
