"""Rows of float64 in a GPU's memory: one launch each, without a wait, and no row is given up; and a
search for the prices of matrices' columns, a few launches for each pass.
"""

from __future__ import annotations

import struct
from typing import Any

import torch
from torch import Tensor

from kofn.kernels.gpu.doubles.prices import (
    BASE,
    BETA,
    EXCESS,
    Entries,
    Matrices,
    advance,
    equations,
    judge,
    rows_seen,
)
from kofn.kernels.gpu.doubles.programs import Given, backward, forward
from kofn.kernels.gpu.doubles.recorded import Rule, rules_of
from kofn.kernels.gpu.launcher import launch
from kofn.kernels.gpu.rows import launch as rows
from kofn.kernels.gpu.rows.formulas import SERVED as SERVED
from kofn.kernels.gpu.rows.own import kind_of_rows
from kofn.kernels.gpu.shapes import REGISTERS as REGISTERS
from kofn.kernels.gpu.shapes import shape_of as shape_of
from kofn.kernels.prices import ASKED, FLAGS, Columns, Looked, Numbers
from kofn.links.link import Link


def threshold(
    x: Tensor, k: Tensor, temperature: Tensor, link: Link, prices: Tensor | None = None
) -> tuple[Tensor, bool]:
    """Return (θ as two numbers, (2, …), False), of matrices less `prices` of their columns."""
    theta = rows.empty(x, (2, *x.shape[:-1]))
    _launch(x, k, temperature, link, theta, prices)
    return theta, False


def priced(
    x: Tensor, k: Tensor, temperature: Tensor, link: Link, prices: Tensor
) -> tuple[Tensor, Tensor]:
    """Return (weights and F′ of each entry, (2, …), θ as two numbers) of such matrices."""
    both, theta = rows.empty(x, (2, *x.shape)), rows.empty(x, (2, *x.shape[:-1]))
    _launch(x, k, temperature, link, theta, prices, both[0], both[1])
    return both, theta


def weights(
    x: Tensor, k: Any, temperature: Any, link: Link, single: bool = False
) -> tuple[Tensor, Tensor, bool]:
    """Return (weights, θ as two numbers, False)."""
    theta, out = rows.empty(x, (2, *x.shape[:-1])), rows.empty(x, x.shape)
    _launch(x, k, temperature, link, theta, None, out, out)
    return out, theta, False


def gradients(
    x: Tensor, cotangent: Tensor, theta: Tensor, k: Any, temperature: Any, link: Link
) -> tuple[Tensor, Tensor]:
    """Return the cotangents of the scores, and of k and temperature, (2, …)."""
    given = _given(x, k, temperature, link, theta, None)
    out, in_rows = rows.empty(x, x.shape), rows.empty(x, theta.shape)
    _started(backward, given, (rows.packed(cotangent), out, in_rows), kind_of_rows(link))
    return out, in_rows


def _launch(
    x: Tensor, k: Any, t: Any, link: Link, theta: Tensor, prices: Tensor | None, *out: Tensor
) -> None:
    given = _given(x, k, t, link, theta, prices)
    # An array that nobody touches stands for one that is not there.
    then = prices is not None, bool(out)
    _started(forward, given, out or (x, x), kind_of_rows(link), then=then)


def _given(x: Tensor, k: Any, t: Any, link: Link, theta: Tensor, prices: Tensor | None) -> Given:
    x, (of_k, _), (of_t, per_t) = rows.packed(x), _each(k, x, False), _each(t, x, True)
    of_price = x if prices is None else rows.packed(prices)
    per_price = 1 if prices is None else x.shape[-2]
    alpha = _bits(1.5 if link.alpha is None else float(link.alpha))
    numbers = theta[0].numel(), x.shape[-1], per_price, per_t, alpha
    return Given(x, of_price, of_k, of_t, rows.packed(theta), *numbers)


def _started(
    kernel: Any, given: Any, arrays: tuple[Tensor, ...], *first: Any,
    then: tuple[bool, ...] = (), times: int = 1,
) -> None:  # fmt: skip
    """Launch kernel(given, *arrays, *first, rows, block, *then), for `times` as many rows."""
    if given.count:
        each, block, warps = shape_of(given.n)
        constants, options = (*first, each, block, *then), rows.options_of(warps, REGISTERS)
        launch(kernel, -(-given.count * times // each), given, arrays, constants, options)


def _each(number: Any, x: Tensor, alike: bool) -> tuple[Tensor, int]:
    """Return numbers of the rows of x, and for how many rows on end one stands, if `alike` may."""
    batch = x.shape[:-1]
    if type(number) is float:
        return x.new_full(batch, number), 1
    number = number.expand(batch)
    if alike and batch and batch[-1] > 1 and number.stride(-1) == 0:
        return rows.packed(number[..., 0]), batch[-1]
    return rows.packed(number), 1


def _bits(number: float) -> int:
    (bits,) = struct.unpack("<q", struct.pack("<d", number))
    return int(bits)


class Search:
    """Matrices x, (count, m, n), in the middle of a search. `c`, `room` and `number` are of their
    columns, `numbers` and `columns` what is kept at first, and `rule` makes of it what follows.
    """

    def __init__(
        self, x: Tensor, k: Tensor, link: Link, of_columns: tuple[Tensor, Tensor, Tensor],
        numbers: Numbers, columns: Columns, rule: Rule, least_curved: float,
    ) -> None:  # fmt: skip
        self.x, self.k, self.link, self.least_curved = rows.packed(x), k, link, least_curved
        self.rules = rules_of(rule, Numbers, Looked, Columns, FLAGS)
        self.fixed = torch.stack(of_columns)
        self.numbers = torch.stack([each.to(x.dtype) for each in numbers])
        self.columns = torch.stack(columns)
        self.others = rows.empty(x, self.numbers.shape)
        self.next = rows.empty(x, (EXCESS.value + 1, *self.columns.shape[1:]))
        self._turned: Tensor | None = None
        self.moving = self.by_columns = False

    def number(self, name: str) -> Tensor:
        """Return one of `Numbers`."""
        return self.numbers[Numbers._fields.index(name)]

    def column(self, name: str) -> Tensor:
        """Return one of `Columns`, or their excess."""
        return self.next[(*Columns._fields, "excess").index(name)]

    def judged(self) -> bool:
        """Look at the prices and decide what follows; return whether any matrix is active, and note
        what else is `ASKED` of any.
        """
        x, (count, m, n) = self.x, self.x.shape
        p_and_w, _ = priced(x, self.k, self._t(m), self.link, self.columns[BETA.value])
        self.part, seen = rows.empty(x, x.shape), rows.empty(x, (2, count, m))
        given = Entries(x, p_and_w[0], p_and_w[1], self.columns, count * m, n, m)
        _started(rows_seen, given, (self.part, seen))
        self.slopes = torch.sum(p_and_w, dim=-2)
        arrays = seen[0].sum(-1), seen[1].amax(-1), self.others, self.next
        _started(judge, self._matrices(self.columns), arrays, self.rules)
        self.numbers, self.others = self.others, self.numbers
        asked = self.numbers[-len(ASKED) :].amax(-1).tolist()
        going, self.moving, self.by_columns = (each > 0 for each in asked)
        return going

    def step(self) -> tuple[Tensor, Tensor]:
        """Return Newton's step for columns in a scale of theirs, and that."""
        matrix = self.part.mT @ self.part
        right, scale = (rows.empty(matrix, matrix.shape[:-1]) for _ in range(2))
        arrays = matrix, right, scale
        given = self._matrices(self.next)
        _started(equations, given, arrays, self.least_curved, times=given.n)
        # `solve` would read whether it could.
        solution, _ = torch.linalg.solve_ex(matrix, right[..., None])
        return rows.packed(solution[..., 0]), scale

    def thresholds(self) -> Tensor:
        """Return the columns' thresholds at those of rows, at the prices `base`."""
        if self._turned is None:
            self._turned = rows.packed(self.x.mT)
        m, n = self.x.shape[1:]
        alpha = self._theta(self.x, self.k, self._t(m), self.next[BASE.value])
        return self._theta(self._turned, self.fixed[0], self._t(n), alpha)

    def advance(self, step: tuple[Tensor, Tensor] | None, prices: Tensor | None) -> None:
        """Go to the prices that are looked at next."""
        none = self.next[0]  # an array that nobody touches stands for one that is not there
        arrays = *(step or (none, none)), none if prices is None else prices, self.columns
        _started(advance, self._matrices(self.next), arrays)

    def _matrices(self, columns: Tensor) -> Matrices:
        count, _, n = self.x.shape
        return Matrices(self.numbers, columns, self.fixed, self.slopes, count, n)

    def _t(self, m: int) -> Tensor:
        return self.number("t")[:, None].expand(-1, m)

    def _theta(self, x: Tensor, k: Tensor, t: Tensor, prices: Tensor) -> Tensor:
        """Return θ as one number, 0 where it is infinite."""
        (high, low), _ = threshold(x, k, t, self.link, prices)
        theta = high + low if self.link.edge == 0 else high + low - t * self.link.edge
        return theta.nan_to_num(0.0, 0.0, 0.0)
