"""Numbers per row of a map: k, temperatures, alphas and budgets, checked and spread over rows."""

from __future__ import annotations

import math
import sys
from typing import Any

from kofn import kernels
from kofn.arrays import torch as of_torch
from kofn.arrays.checks import (
    check_broadcasts,
    check_k,
    check_number,
    check_per_row,
    check_real,
    check_same_kind,
    check_temperature,
)
from kofn.arrays.form import Form
from kofn.arrays.kinds import (
    EPSILONS,
    GREATEST,
    SMALLEST_NORMAL,
    Array,
    adopt,
    as_array,
    beside,
    cast_like,
    clip,
    dtype_name,
    framework,
    full_like,
    is_jax,
    is_torch,
    namespace,
    quiet,
)
from kofn.arrays.typing import ArrayT, Number
from kofn.kernels.contract import kind_of
from kofn.links.link import Link

# The least and the greatest usable temperatures; see `temperature_of`. Keyed by dtype name, because
# that is fast and NumPy has no bfloat16.
TEMPERATURES = {
    name: (SMALLEST_NORMAL[name] / eps, GREATEST[name] * eps) for name, eps in EPSILONS.items()
}

NUMBERS = (int, float)  # what most callers give, and cheaper to ask for than for an array


def k_and_temperature(
    k: object,
    temperature: object,
    batch: tuple[int, ...],
    n: int,
    x: Array,
    dim: int,
    wide: bool = False,
) -> tuple[Number, Number]:
    """Return `k_of` and `temperature_or_number`, of tensors on a device by one kernel."""
    plain = type(k) in NUMBERS and type(temperature) in NUMBERS
    limit = None if plain or not is_torch(x) else _kernel_of(x, k, temperature)
    if limit is None:
        number = type(k) in NUMBERS  # sooner than `k_of` says it
        k = check_k(k, n) if number else k_of(k, batch, n, x, dim)
        return k, temperature_or_number(temperature, batch, x, dim, wide)
    k = _expanded("k", k, batch, x, dim) if is_torch(k) else check_k(k, n)
    t: Number
    if is_torch(temperature):
        t = _expanded("temperature", temperature, batch, x, dim)
    else:
        t = temperature_or_number(temperature, batch, x, dim, wide)
    both: tuple[Number, Number] = limit(k, t, n, TEMPERATURES[dtype_name(x)])
    return both


def _kernel_of(x: Any, *numbers: Any) -> Any:
    """Return what limits numbers per row in one launch, where none of them is on a CPU."""
    tensors = (x, *filter(is_torch, numbers))
    if any(each.is_cpu or each.device != x.device for each in tensors):
        return None
    if not all(map(of_torch.state.is_plain, tensors)):
        return None
    if kernels.serving_of("rows", x, "torch", offered="limited") is None:
        return None
    from kofn.rows import torch_numbers

    return torch_numbers.limited


def _expanded(name: str, value: object, batch: tuple[int, ...], x: Array, dim: int | None) -> Array:
    return namespace(x).broadcast_to(per_row_of(name, value, batch, x, dim), batch)


def k_of(k: object, batch: tuple[int, ...], n: int, x: Array, dim: int) -> Number:
    """Return k as a number, or per row: NaN where an array of k is below 0 or above n."""
    if framework(k) is None:
        return check_k(k, n)
    each = spread(per_row_of("k", k, batch, x, dim), batch, x)
    return namespace(x).where((each >= 0) & (each <= n), each, math.nan)


def costs_of(costs: object, scores: Array, x: Array, form: Form) -> Array:
    """Return what each entry of the rows x costs."""
    if framework(costs) is None:
        number = check_number("costs", costs, low=0.0, allowed="a finite number ≥ 0")
        return full_like(x, tuple(x.shape), number)
    costs = check_same_kind("costs", costs, scores)
    check_real("costs", costs)
    shape = tuple(scores.shape)
    check_broadcasts("costs", tuple(costs.shape), shape, "the shape of scores")
    spread = form.turned(form.xp.broadcast_to(cast_like(adopt(costs, scores), x), shape))
    return spread if form.n else form.xp.sum(spread, axis=-1)[..., None]


def budget_of(budget: object, batch: tuple[int, ...], x: Array, dim: int) -> Array:
    """Return what may be spent per row: NaN where an array of budgets is below 0."""
    if framework(budget) is None:
        if not (isinstance(budget, float) and budget == math.inf):
            budget = check_number("budget", budget, low=0.0, allowed="a number ≥ 0")
        return full_like(x, batch, budget)
    one, xp = adopt(per_row_of("budget", budget, batch, x, dim), x), namespace(x)
    return spread(xp.where(one >= 0, one, math.nan), batch, x)


def temperature_of(temperature: object, batch: tuple[int, ...], x: ArrayT) -> ArrayT:
    """Return T per row, limited so that T·eps is a normal number and T·F⁻¹ does not overflow.

    Beyond the limits (1e-31 and 4e31 in float32) the map equals the hard top-k, or k/n, exactly.
    """
    t = temperature_or_number(temperature, batch, x)
    return full_like(x, batch, t) if isinstance(t, float) else t  # type: ignore[return-value]  # of its kind


def temperature_or_number(
    temperature: object,
    batch: tuple[int, ...],
    x: Array,
    dim: int | None = None,
    wide: bool = False,
) -> Number:
    """Return `temperature_of`, or, if T is given as a number, that for all rows.

    With `wide`, x may be of half precision, and numbers are of its compute dtype.
    """
    floor, ceiling = TEMPERATURES["float32" if wide else dtype_name(x)]
    if type(temperature) in NUMBERS or framework(temperature) is None:
        return min(max(check_temperature(temperature), floor), ceiling)
    xp = namespace(x)
    temperature = per_row_of("temperature", temperature, batch, x, dim)
    with quiet(x):
        t = spread(temperature, batch, x)
    # Checked before the cast: a float64 temperature that float32 rounds to 0 is valid.
    good = spread((temperature > 0) & (temperature < math.inf), batch, x, flags=True)
    return xp.where(good, clip(t, floor, ceiling), math.nan)


def link_of(link: Link, batch: tuple[int, ...], x: Array, dim: int) -> Link:
    if framework(link.alpha) is None:
        as_number = not is_jax(x) or link.alpha in (1.0, 1.5, 2.0) or _served(link)
        return link if as_number else link.with_alpha(full_like(x, batch, link.alpha))
    alpha = spread(per_row_of("alpha", link.alpha, batch, x, dim), batch, x)
    good = (alpha >= 1) & (alpha < math.inf)
    return link.with_alpha(namespace(x).where(good, alpha, math.nan))


def _served(link: Link) -> bool:
    """Return whether kernels on a CPU may serve a JAX array, which need α as a number.

    Then a program is compiled for each α, which takes a second. To compile array code takes ten, so
    there α is an array, and one program serves all.
    """
    served = kind_of(link) is not None and kernels.wanted()
    return served and sys.modules["jax"].default_backend() == "cpu"


def per_row_of(
    name: str, value: object, batch: tuple[int, ...], x: Array, dim: int | None
) -> Array:
    """Return an array argument, checked to broadcast to the batch shape."""
    array = check_same_kind(name, value, x)
    check_real(name, array)
    return check_per_row(name, array, batch, dim)


def spread(value: Array, batch: tuple[int, ...], x: Array, flags: bool = False) -> Array:
    """Return an array of the batch shape, on the device of x and in its dtype, unless of flags."""
    # Arithmetic turns NumPy arrays without dimensions into scalars.
    value = as_array(value)
    spread = beside(adopt(value, x), x) if flags else cast_like(value, x)
    return spread if tuple(spread.shape) == batch else namespace(x).broadcast_to(spread, batch)
