"""Weights of `taylor_softmax`, from the zeros of its polynomial."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from kofn.adapters import route
from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.kinds import Array, is_torch, namespace
from kofn.arrays.tracing import is_at_hand
from kofn.arrays.typing import Tensor
from kofn.maps.taylor_zeros import Zeros, zeros
from kofn.operations.operation import Operation
from kofn.operations.signatures import TEMPERED
from kofn.rows.compiled import evaluate
from kofn.rows.given import Given
from kofn.rows.settled import Rows, rows_of

USUAL = 100.0
"""The scores, in temperatures, up to which no product of `FACTORS` overflows."""
FACTORS = 4


def weights(given: Given, order: int) -> Array:
    """Return f(z)/Σf of rows, f the Taylor polynomial of that order."""
    shares = None
    if order <= 2 * FACTORS and is_torch(given.scores) and not given.scores.is_cpu:
        shares = route.by_kernel(BY_KERNEL, given, settings=(order,))
    if shares is not None:
        return shares
    if _is_usual(given, order):
        return route.computed(TAYLOR, None, given, (), (order,))
    return _plain(given, order)


def _plain(given: Given, order: int) -> Array:
    return evaluate(_polynomial, rows_of(given), order=order)


def _is_usual(given: Given, order: int) -> bool:
    """Return whether all scores are known, in play and of moderate size: then a few passes do."""
    x, _, temperature, *_ = given
    if order > 2 * FACTORS or not is_at_hand(x) or 0 in x.shape:
        return False
    x = stop_gradient(x)
    if type(temperature) is not float:
        least = float(stop_gradient(temperature).min())
    else:
        least = temperature
    low, high = x.aminmax() if is_torch(x) else (x.min(), x.max())
    return max(-float(low), float(high)) <= USUAL * least  # False for a NaN


def _in_temperatures(given: Given) -> Array:
    x, _, temperature, *_ = given
    if type(temperature) is float:
        return x if temperature == 1 else x / temperature
    return x / temperature[..., None]


def _quickly(given: Given, order: int) -> Array:
    z, raised = stop_gradient(_in_temperatures(given)), None
    for zero in zeros(order):
        each = _factor(z, zero)[1]
        if raised is None:
            raised = each
        else:
            raised *= each
    assert raised is not None
    raised /= namespace(z).sum(raised, axis=-1)[..., None]
    return raised


def _factor(z: Array, zero: tuple[float, float]) -> tuple[Array, Array]:
    """Return z − a, and (z − a)² + b²."""
    apart = z - zero[0]
    square = apart * apart
    square += zero[1] ** 2
    return apart, square


def _slopes(
    _: object, given: Given, cotangent: Tensor, p: Tensor, order: int
) -> tuple[Array, Array | None]:
    """Return the cotangents of the scores and the temperature, with f′/f = Σ 2(z − a)/factor."""
    slope: Any = None
    z = _in_temperatures(given)
    for zero in zeros(order):
        apart, square = _factor(z, zero)
        apart /= square
        slope = apart if slope is None else slope.add_(apart)
    assert slope is not None
    in_z = p * cotangent
    in_z -= p * in_z.sum(-1, keepdim=True)
    in_z *= slope.mul_(2.0)
    temperature = given.temperature
    if type(temperature) is float:
        return in_z if temperature == 1 else in_z.div_(temperature), None
    in_temperature = -(in_z * z).sum(-1) / temperature
    return in_z.div_(temperature[..., None]), in_temperature


def _of(kernel: Callable[..., Any], slopes: Callable[..., Any], **how: Any) -> Operation:
    """Declare the map by the two functions that make it and its way back."""
    back = Operation(
        name="",
        takes="cotangent n, x n, p n, t #, order int",
        gives="x n, t r",
        of=TEMPERED,
        kernel=slopes,
    )
    return Operation(
        name="",
        takes="x n, t #, order int",
        gives="p n",
        of=TEMPERED,
        kernel=kernel,
        plain=_plain,
        back=(back,),
        **how,
    )


TAYLOR = _of(lambda _, given, order: _quickly(given, order), _slopes)

BY_KERNEL = _of(
    lambda chooser, given, order: chooser.taylor(given.scores, given.temperature, zeros(order)),
    lambda chooser, given, cotangent, p, order: chooser.taylor_gradients(
        given.scores, p, cotangent, given.temperature, zeros(order)
    ),
    offered="taylor",
)
"""The same of any rows on a device whose kernels have it."""


def _polynomial(rows: Rows, order: int) -> Array:
    """Return f(z)/Σf, with f as a product over its complex pairs of zeros a ± ib.

    The factors (z − a)² + b² are never negative and lose no accuracy by cancellation.
    """
    xp = namespace(rows.scores)
    live = rows.live & (rows.k > 0)[..., None]
    x, t = xp.where(rows.live, rows.scores, 0.0), rows.temperature[..., None]
    zeros = _zeros(x, order)
    # f(z)·(T/size)^order: the factor cancels, and prevents the overflow of z and its powers.
    size = xp.max(xp.abs(stop_gradient(x)), axis=-1)[..., None]
    least = stop_gradient(t) * max(math.hypot(*zero) for zero in zeros)
    # Divide by the root twice: XLA multiplies by a reciprocal, which is 0 for the largest numbers.
    root = xp.sqrt(xp.where(size > least, size, least))
    x, t = x / root / root, t / root / root
    raised = xp.ones_like(x)
    for i, (real, imaginary) in enumerate(zeros):
        if i and i % 4 == 0:  # four factors do not overflow; a product that underflows counts as 0
            raised = raised / _largest(raised, live)
        raised = raised * ((x - real * t) ** 2 + (imaginary * t) ** 2)
    some = live | xp.isnan(rows.scores)
    raised = xp.where(some, raised, 0.0)
    total = xp.sum(raised, axis=-1)[..., None]
    share = raised / xp.where(total == 0, 1.0, total)
    # The weight 0 is a constant: an infinite cotangent there must not meet the other scores.
    return xp.where(rows.top, rows.top_weight[..., None], xp.where(some, share, 0.0))


def _largest(values: Array, live: Array) -> Array:
    """Return a divisor per row; it cancels, so it has no gradient."""
    xp = namespace(values)
    greatest = xp.max(xp.where(live, stop_gradient(values), 0.0), axis=-1)[..., None]
    return xp.where(greatest > 0, greatest, 1.0)


def _zeros(like: Array, order: int) -> Zeros:
    """Return `zeros` without having torch.compile trace their computation."""
    if not is_torch(like):
        return zeros(order)
    from kofn.maps.torch_taylor_zeros import constant_zeros

    return constant_zeros(order)
