"""Weights, prices and values of rows with costs; the array code does the rows that kernels gave up
on.
"""

from __future__ import annotations

import math
import sys
from functools import partial
from typing import Any

import numpy as np

from kofn import kernels
from kofn.arrays import torch as of_torch
from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.kinds import Array, deleted, namespace
from kofn.arrays.operations import power_of_two
from kofn.arrays.typing import Tensor
from kofn.formulas import answers, implicit, knapsack_choice
from kofn.operations.by_kernel import finish, in_memory, part, put
from kofn.operations.makers import with_back
from kofn.operations.operation import Operation
from kofn.operations.price import price_of
from kofn.operations.signatures import COSTED
from kofn.rows.compiled import evaluate
from kofn.rows.given import Given, costed, with_costs
from kofn.rows.settled import rows_of

FLAT = 1e-30  # a Σc²F′ that has underflowed, or nearly
LARGEST = 2.0**28  # θc in units of T; float64 leaves an error of 2⁻²⁵ of it

Backend = kernels.KnapsackKernels


def _weights(backend: Backend, given: Given) -> tuple[Array, Array]:
    p, theta, lost = backend.weights(*given[:4], given.costs)
    if lost:
        _finished(p, given, theta, answers.weights)
    return p, theta


def _finished(answer: Array, given: Given, theta: Array, function: Any) -> None:
    """Answer rows without θ, which may need more digits of it, by the array code."""
    where, rows, solution = finish(given, in_memory(theta).copy())
    with np.errstate(all="ignore"):
        put(answer, where, function(rows, theta=solution))


def _mend(answer: Array, where: np.ndarray, given: Given, function: Any) -> None:
    """Answer some rows by the array code."""
    if where.any():
        with np.errstate(all="ignore"):
            put(answer, where, function(part(given, where)))


def _fill(backend: Backend, given: Given) -> Array:
    shares: Array
    shares, lost = backend.fill(*costed(given))
    if lost is not None:
        _mend(shares, np.isnan(in_memory(lost)), given, knapsack_choice.fill)
    return shares


def _in_units(given: Given) -> Given:
    """Return costs and budgets in units of a power of two per row.

    θ is then near the scores, and a number, whatever the unit of costs.
    """
    xp = namespace(given.costs)
    usual = (given.scores > -math.inf) & (given.costs < math.inf)
    scale = power_of_two(xp.max(stop_gradient(xp.where(usual, given.costs, 0.0)), axis=-1))
    return given._replace(costs=given.costs / scale[..., None], k=given.k / scale)


def _gradients(
    backend: Backend, given: Given[Tensor], cotangent: Tensor, theta: Tensor, of_costs: int
) -> tuple[Tensor, Tensor | None, Tensor]:
    own = *given[1:4], given.costs, bool(of_costs)
    in_x, in_costs, in_rows, lost = backend.gradients(given.scores, cotangent, theta, *own)
    if lost:  # they have the dtype of the scores, so they are mended where they are
        slopes = in_x, in_costs, *in_rows
        _mended(answers.weights, given, cotangent, in_rows[0].isnan(), slopes)
    return in_x, in_costs, in_rows


def _pulled(function: Any, given: Given[Tensor], where: Tensor, cotangent: Tensor) -> list[Tensor]:
    """Return the cotangents of some rows in the dtype of the scores, from float64."""
    whole: tuple[Tensor, ...] = given.scores, given.costs, given.k, given.temperature
    rows = [array[where] for array in whole]

    def pull() -> Any:
        x = rows[0].masked_fill(deleted(rows[0]), -math.inf)
        leaves = [row.detach().double().requires_grad_() for row in (x, *rows[1:])]
        some = rows_of(with_costs(leaves, given.link))
        answer = function(some, theta=price_of(some))
        options = {"allow_unused": True, "materialize_grads": True}
        grad = sys.modules["torch"].autograd.grad
        return grad(answer, leaves, cotangent[where].double(), **options)

    slopes = of_torch.state.recording(pull)
    return [slope.to(rows[0].dtype) for slope in slopes]


KNAPSACK = with_back(
    name="knapsack_weights",
    gives="p n, theta 2",
    of=COSTED,
    kernel=_weights,
    reference=answers.weights,
    prepared=_in_units,
    back=_gradients,
    into="x n, costs n if of_costs, budget+t 2",
    of_back={
        "name": "knapsack_backward",
        "xla": lambda of_costs: [f"knapsack_cotangents{'' if of_costs else '_but_costs'}"],
        "lost": "budget",
    },
    xla=lambda: ["knapsack_weights"],
    functions="soft_knapsack",
    lacks={"segments": "no function for segments"},
)
FILL = Operation(
    name="knapsack_fill",
    takes="x n, costs n, budget r, t r, link",
    gives="p n",
    of=COSTED,
    kernel=_fill,
    plain=partial(evaluate, knapsack_choice.fill),
    xla=lambda: ["fill"],
    lacks={"segments": "no function for segments"},
)


HARD_KNAPSACK = Operation(
    name="knapsack_hard",
    takes="x n, costs n, budget r, t r, link",
    gives="p n, theta 2",
    of=COSTED,
    kernel=lambda backend, given: (_fill(backend, given), _price(backend, given)),
    reference=answers.weights,
    fixed=knapsack_choice.fill,
    back=KNAPSACK.back,
    xla=lambda: ["fill"],
    moves_as=KNAPSACK,
    functions="soft_knapsack(hard=True)",
    lacks={"segments": "no function for segments"},
)


def _price(backend: Backend, given: Given) -> Array:
    """Return θ as two floats; NaN where the kernel gave up."""
    return backend.threshold(*given[:4], given.costs)[0]


def _theta(backend: Backend, given: Given) -> tuple[Array, Array]:
    """Return (θ, θ as two floats); where these are not finite, θ is the array code's."""
    if hasattr(backend, "price"):
        return backend.price(*given[:4], given.costs)
    pair: Any = _price(backend, given)
    price = pair[0, ...] if isinstance(pair, np.ndarray) else pair[0].clone()
    endless = ~np.isfinite(in_memory(pair)).all(0)
    _mend(price, endless, given, _theta_again)
    return price[()], pair


def _theta_again(some: Given) -> Array:
    rows = rows_of(some)
    return implicit.theta(rows, theta=price_of(rows))


def _price_back(
    backend: Backend, given: Given[Tensor], cotangent: Tensor, pair: Tensor, of_costs: int
) -> tuple[Tensor | None, ...]:
    """Return the cotangents of scores, costs, budget and T: w = F′ and p = F at z = (x − θc)/T
    give, by Σ c·p = B, dθ/dx = cw/Σc²w, dθ/dc = (Tp − θcw)/Σc²w, dθ/dB = −T/Σc²w and
    dθ/dT = −Σcwz/Σc²w.
    """
    if hasattr(backend, "price_gradients"):
        own = pair, *given[1:4], given.costs, bool(of_costs)
        in_scores, in_costs, in_rows = backend.price_gradients(given.scores, cotangent, *own)
        return in_scores, in_costs, *(each.clone() for each in in_rows)
    tensors: tuple[Tensor, ...] = given.scores, given.costs, given.temperature
    x, costs, t = (tensor.double() for tensor in tensors)
    price, t = pair.double().sum(0)[..., None], t[..., None]
    at = (x - price * costs) / t
    z = at - given.link.edge
    spent = costs * given.link.pdf(z)
    steep = (costs * spent).sum(-1, keepdim=True)
    of_cost = cotangent[..., None] / steep
    in_costs = (t * given.link.cdf(z) - price * spent) * of_cost if of_costs else None
    in_x = spent * of_cost
    in_t = -(in_x * at.where(in_x != 0, 0.0)).sum(-1)
    slopes = in_x, in_costs, (-t * of_cost)[..., 0], in_t
    large = ((price / t)[..., 0] * costs.amax(-1)).abs() > LARGEST
    lost = ~pair.isfinite().all(0) | ~(steep[..., 0] > FLAT) | large
    return _mended(implicit.theta, given, cotangent, lost, slopes)


def _mended(
    function: Any, given: Given[Tensor], cotangent: Tensor, lost: Tensor, slopes: Any
) -> tuple[Tensor | None, ...]:
    """Return cotangents in the dtype of the scores, where `lost` by the array code."""
    slopes = [each if each is None else each.to(given.scores.dtype) for each in slopes]
    if lost.any():
        pulled = _pulled(function, given, lost, cotangent)
        for each, right in zip(slopes, pulled, strict=True):
            if each is not None:
                each[lost] = right
    return tuple(slopes)


PRICE = with_back(
    name="knapsack_threshold",
    gives="answer r, theta 2",
    of=COSTED,
    kernel=_theta,
    reference=implicit.theta,
    back=_price_back,
    into="x n, costs n if of_costs, budget r, t r",
    functions="soft_knapsack_threshold",
    lacks={"JAX": "array code, around a price by a kernel", "segments": "no function for segments"},
)


def _value(backend: Backend, given: Given, slopes: int) -> tuple[Array | None, ...]:
    """Return the value and, if `slopes`, the weights, θ as two floats and the slope in T."""
    weights, theta = _weights(backend, given) if slopes else (None, _price(backend, given))
    values = backend.values(given.scores, theta, *given[1:4], given.costs)
    if not hasattr(backend, "price") and np.isnan(in_memory(theta)[1]).any():
        _finished(values[0], given, theta, answers.value)
    if not slopes:
        return (values[0].clone() if hasattr(values, "clone") else values[0]), None, None, None
    return values[0].clone(), weights, theta, values[1].clone()


def _value_back(
    backend: Backend,
    given: Given[Tensor],
    cotangent: Tensor,
    weights: Tensor,
    theta: Tensor,
    in_t: Tensor,
) -> tuple[Tensor | None, ...]:
    """Return the cotangents of scores, costs, budget and T: p, −θp, θ and −ΣΩ(p)."""
    if hasattr(backend, "value_gradients"):
        own = weights, theta, in_t, *given[1:4], given.costs
        in_scores, in_costs, in_rows = backend.value_gradients(given.scores, cotangent, *own)
        return in_scores, in_costs, *(each.clone() for each in in_rows)
    in_x = cotangent[..., None] * weights
    slopes = in_x, -theta[0][..., None] * in_x, cotangent * theta[0], cotangent * in_t
    return _mended(answers.value, given, cotangent, ~theta.isfinite().all(0), slopes)


KNAPSACK_VALUE = with_back(
    name="knapsack_value",
    gives="answer r, weights n if slopes, theta 2 if slopes, in_t r if slopes",
    of=COSTED,
    kernel=_value,
    reference=answers.value,
    back=_value_back,
    into="x n, costs n, budget r, t r",
    functions="soft_knapsack_value",
    lacks={"JAX": "array code, around a price by a kernel", "segments": "no function for segments"},
)
