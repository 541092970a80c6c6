"""Rows with costs in a GPU's memory: one launch each, without a wait, and no row is given up."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from kofn.kernels.gpu.knapsack import programs
from kofn.kernels.gpu.knapsack.fill import fill as fill_rows
from kofn.kernels.gpu.knapsack.given import Given
from kofn.kernels.gpu.launcher import launch
from kofn.kernels.gpu.rows import launch as rows
from kofn.kernels.gpu.rows.formulas import SERVED as SERVED
from kofn.kernels.gpu.rows.own import kind_of_rows
from kofn.kernels.gpu.rows.own import why_not as why_not
from kofn.kernels.gpu.shapes import REGISTERS as REGISTERS
from kofn.kernels.gpu.shapes import shape_of as shape_of
from kofn.links.link import Link


def weights(
    x: Tensor, budget: Tensor, temperature: Tensor, link: Link, costs: Tensor
) -> tuple[Tensor, Tensor, bool]:
    """Return (weights, θ as two floats, (2, …), False)."""
    x = rows.packed(x)
    out, theta = rows.empty(x, x.shape), rows.empty(x, (2, *x.shape[:-1]))
    given = _given(x, costs, budget, temperature, theta, link)
    _launch(programs.forward, given, (out, theta), kind_of_rows(link), True)
    return out, theta, False


def price(
    x: Tensor, budget: Tensor, temperature: Tensor, link: Link, costs: Tensor
) -> tuple[Tensor, Tensor]:
    """Return (θ as it is answered, θ as two floats, (2, …))."""
    x = rows.packed(x)
    theta, answer = rows.empty(x, (2, *x.shape[:-1])), rows.empty(x, x.shape[:-1])
    given = _given(x, costs, budget, temperature, theta, link)
    _launch(programs.forward, given, (x, answer), kind_of_rows(link), False)
    return answer, theta


def threshold(
    x: Tensor, budget: Tensor, temperature: Tensor, link: Link, costs: Tensor
) -> tuple[Tensor, bool]:
    """Return (θ as two floats, (2, …), False)."""
    return price(x, budget, temperature, link, costs)[1], False


def gradients(
    x: Tensor, cotangent: Tensor, theta: Tensor, budget: Tensor, temperature: Tensor, link: Link,
    costs: Tensor, of_costs: bool,
) -> tuple[Tensor, Tensor | None, Tensor, bool]:  # fmt: skip
    """Return the cotangents of scores, of costs if wanted, of budget and temperature, (2, …), and
    False, from cotangents of weights.
    """
    given = _given(rows.packed(x), costs, budget, temperature, theta, link)
    return *_backward(given, cotangent, link, of_costs, False), False


def price_gradients(
    x: Tensor, cotangent: Tensor, theta: Tensor, budget: Tensor, temperature: Tensor, link: Link,
    costs: Tensor, of_costs: bool,
) -> tuple[Tensor, Tensor | None, Tensor]:  # fmt: skip
    """Return the same from the cotangents of θ."""
    given = _given(rows.packed(x), costs, budget, temperature, theta, link)
    return _backward(given, cotangent, link, of_costs, True)


def _backward(
    given: Given, cotangent: Tensor, link: Link, of_costs: bool, of_price: bool
) -> tuple[Tensor, Tensor | None, Tensor]:
    x = given.x_at
    out, in_rows = rows.empty(x, x.shape), rows.empty(x, given.theta_at.shape)
    in_costs = rows.empty(x, x.shape) if of_costs else None
    # An array that nobody touches stands for one that is not there.
    arrays = rows.packed(cotangent), out, x if in_costs is None else in_costs, in_rows
    _launch(programs.backward, given, arrays, kind_of_rows(link), bool(of_costs), of_price)
    return out, in_costs, in_rows


def values(
    x: Tensor, theta: Tensor, budget: Tensor, temperature: Tensor, link: Link, costs: Tensor
) -> Tensor:
    """Return the values and their slopes in the temperature, (2, …), from θ."""
    x = rows.packed(x)
    out = rows.empty(x, (2, *x.shape[:-1]))
    given = _given(x, costs, budget, temperature, theta, link)
    _launch(programs.values, given, (out,), kind_of_rows(link))
    return out


def value_gradients(
    x: Tensor, cotangent: Tensor, weights: Tensor, theta: Tensor, in_t: Tensor,
    budget: Tensor, temperature: Tensor, link: Link, costs: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the cotangents of scores, of costs, and of budget and temperature, (2, …), from those
    of values.
    """
    x = rows.packed(x)
    out, in_costs, in_rows = (rows.empty(x, a.shape) for a in (x, x, theta))
    given = _given(x, costs, budget, temperature, theta, link)
    arrays = *map(rows.packed, (cotangent, weights, in_t)), out, in_costs, in_rows
    _launch(programs.values_back, given, arrays)
    return out, in_costs, in_rows


def fill(x: Tensor, costs: Tensor, budget: Tensor, temperature: Tensor) -> tuple[Tensor, None]:
    """Return the bought shares, and None: no row is given up."""
    x = rows.packed(x)
    out = rows.empty(x, x.shape)
    given = _given(x, costs, budget, temperature, budget, None)
    _launch(fill_rows, given, (out,))
    return out, None


def _given(
    x: Tensor, costs: Tensor, budget: Tensor, temperature: Tensor, theta: Tensor, link: Any
) -> Given:
    alpha = 1.5 if link is None or link.alpha is None else link.alpha
    per_row = rows.packed(budget), rows.packed(temperature), rows.packed(theta)
    count = per_row[0].numel()
    return Given(x, rows.packed(costs), *per_row, count, x.shape[-1], float(alpha))


def _launch(kernel: Any, given: Given, arrays: tuple[Tensor, ...], *how: Any) -> None:
    if not given.count:
        return
    each, block, warps = shape_of(given.n)
    constants = *how[:1], each, block, *how[1:]
    options = rows.options_of(warps, REGISTERS)
    launch(kernel, -(-given.count // each), given, arrays, constants, options)
