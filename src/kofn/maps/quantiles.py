"""Quantiles of rows: exact by order statistics, or smooth by thresholds."""

from __future__ import annotations

import math
from typing import Any, Literal

from kofn.adapters import route
from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.checks import (
    check_choice,
    check_flag,
    check_number,
    check_real,
    check_same_kind,
)
from kofn.arrays.form import Form, form_of
from kofn.arrays.kinds import (
    Array,
    adopt,
    cast,
    clip,
    compute_dtype,
    dtype_name,
    framework,
    full_like,
    is_jax,
    most_precise_dtype,
    move_axis,
    namespace,
    quiet,
)
from kofn.arrays.operations import as_numbers, comparable, take_along_last
from kofn.arrays.typing import ArrayT
from kofn.inputs.given import last_mask
from kofn.maps.topk import soft_topk_threshold
from kofn.operations.choice import RANKED, RANKED_OF_MASKED

__all__ = ["quantile"]

Interpolation = Literal["linear", "lower", "higher", "midpoint", "nearest"]
INTERPOLATIONS = ("linear", "lower", "higher", "midpoint", "nearest")


def quantile(
    x: ArrayT,
    q: float | Array,
    *,
    dim: int | None = None,
    keepdim: bool = False,
    interpolation: Interpolation = "linear",
    mask: Array | None = None,
    temperature: float = 0.0,
    ignore_nan: bool = False,
) -> ArrayT:
    """Return the q-quantile of each row: the number at place (n − 1)·q of its sorted numbers.

    Like numpy.quantile and torch.quantile, of rows of any size. A row is not sorted: one search
    finds its two numbers next to that place.

    Args:
        x: torch.Tensor, jax.Array or numpy.ndarray of floats, any shape.
        q: a number in [0, 1], or an array without or with one dimension, which may be learned. An
            entry outside of [0, 1] gives NaN.
        dim: the dimension that rows lie along; None takes all of `x` as one row.
        keepdim: keep `dim` with size 1 (with dim=None, every dimension).
        interpolation: between the numbers at the places next to (n − 1)·q: "linear"; "lower",
            "higher" and "nearest" (of two as near the one at the even place) take one of them;
            "midpoint" is their mean.
        mask: boolean, broadcasts to `x`; False entries are left out.
        temperature: ≥ 0, in the units of `x`. Above 0, the number at place j is replaced by the
            threshold of `soft_topk` with k = n − j − ½ (link "logistic"), which depends on all
            numbers. As it goes to 0, that tends to the number, and so the quantile to the exact one
            of the same interpolation.
        ignore_nan: leave NaN out, as numpy.nanquantile does; otherwise a row with a NaN has the
            quantile NaN.

    Returns:
        An array like `x` without `dim`; before its dimensions that of q, if q has one.
        Differentiable in x, and with "linear" in q: exactly, the gradient goes to the one or two
        numbers that were found. NaN for a row without numbers.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: a number q is not in [0, 1]; an unknown interpolation; a shape that does not
            fit; temperature below 0.

    Source: Hyndman & Fan, "Sample Quantiles in Statistical Packages" (1996), definition 7.

    Example:
        >>> import numpy as np
        >>> from kofn import quantile
        >>> quantile(np.array([1.0, 3.0, 2.0, 10.0]), 0.5)
        np.float64(2.5)
        >>> x = np.array([[1.0, 3.0, 2.0, 10.0], [0.0, 0.0, 4.0, np.nan]])
        >>> quantile(x, np.array([0.25, 1.0]), dim=-1, ignore_nan=True)
        array([[ 1.75,  0.  ],
               [10.  ,  4.  ]])
        >>> quantile(x[0], 0.5, temperature=0.5).round(3)
        np.float64(2.597)
    """
    check_choice("interpolation", interpolation, INTERPOLATIONS)
    ignore_nan, keepdim = check_flag("ignore_nan", ignore_nan), check_flag("keepdim", keepdim)
    form = form_of(x, -1 if dim is None else dim, "x")
    rows, playing = form.last(x), None if mask is None else last_mask(mask, x, form, "x")
    if dim is None:
        rows = rows.reshape(-1)
        playing = None if playing is None else playing.reshape(-1)
    if ignore_nan:
        known = ~form.xp.isnan(rows)
        playing = known if playing is None else playing & known
    share, allowed = _shares(q, rows), "a finite number ≥ 0, in the units of x"
    soft = check_number("temperature", temperature, low=0.0, allowed=allowed, arrays=False)
    with quiet(x):
        found = _found(rows, playing, share, interpolation, soft, _rounding(q))
    return _shaped(cast(found, form.dtype), form, dim, keepdim, getattr(q, "ndim", 0))


def _shares(q: float | Array, x: Array) -> Array:
    """Return q with one dimension, in the most precise type; NaN where it is out of range."""
    dtype = most_precise_dtype(x)
    if framework(q) is None:
        number = check_number("q", q, low=0.0, high=1.0, allowed="a number in [0, 1]")
        return full_like(cast(x[..., :0], dtype), (1,), number)
    array = check_same_kind("q", q, x, "x")
    check_real("q", array)
    if array.ndim > 1:
        raise ValueError(f"q must have at most one dimension; got shape {tuple(array.shape)}")
    wide = cast(adopt(array, x), dtype).reshape(-1)
    return namespace(wide).where((wide >= 0) & (wide <= 1), wide, math.nan)


def _rounding(q: float | Array) -> float:
    """Return the relative error of q: 0.13 in float32 is not the 0.13 that was meant."""
    exact = framework(q) is None or dtype_name(q) == "float64"  # type: ignore[arg-type]  # an array
    return 0.0 if exact else 2.0**-23


def _found(
    x: Array, playing: Array | None, q: Array, interpolation: str, soft: float, rounding: float
) -> Array:
    """Return the quantiles of rows, (…, those of q)."""
    xp, n = namespace(x), x.shape[-1]
    batch, many = tuple(x.shape[:-1]), q.shape[0]
    if n == 0:
        return full_like(x, (*batch, many), math.nan)
    if playing is None:
        count = full_like(q, (1,), n)
    else:
        count = cast(xp.sum(as_numbers(playing, q.dtype), axis=-1), q.dtype)[..., None]
    at = xp.where(xp.isnan(q), 0.0, q) * xp.where(count > 0, count - 1, 0.0)
    if rounding:
        near = xp.round(stop_gradient(at))
        close = abs(stop_gradient(at) - near) <= clip(near * rounding, 0.0, 2.0**-10)
        at = xp.where(close, near + (at - stop_gradient(at)), at)
    low, high, share = _places(at, xp.where(count > 0, count - 1, 0.0), interpolation)
    if soft > 0:
        first, second = (_thresholds(x, playing, count - each - 0.5, soft) for each in (low, high))
        bad = count <= 0
    else:
        wanted = xp.broadcast_to(xp.concat((low, high, count - 1), axis=-1), (*batch, 2 * many + 1))
        values = cast(take_along_last(x, _ranked(x, playing, wanted)), compute_dtype(x))
        first, second, top = values[..., :many], values[..., many:-1], values[..., -1:]
        bad = (count <= 0) | xp.isnan(top)
    apart = second - first
    # Two infinities have no difference, and the second number may not count.
    moved = xp.where(xp.isfinite(apart) | ((share > 0) & (first != second)), apart, 0.0)
    return xp.where(bad | xp.isnan(q), math.nan, first + cast(share, first.dtype) * moved)


def _places(at: Array, last: Array, interpolation: str) -> tuple[Array, Array, Array]:
    """Return the two places next to one, and the share of the second."""
    xp, fixed = namespace(at), stop_gradient(at)
    below = xp.floor(fixed)
    above = xp.minimum(below + 1, last)
    if interpolation == "linear":
        return below, above, at - below
    share = fixed - below
    if interpolation == "midpoint":
        return below, above, xp.where(share > 0, 0.5, 0.0)
    if interpolation == "nearest":
        below = xp.round(fixed)
    elif interpolation == "higher":
        below = xp.ceil(fixed)
    return below, below, xp.zeros_like(share)


def _ranked(x: Array, playing: Array | None, ranks: Array) -> Array:
    """Return the indices of numbers by their ranks."""
    given, xp = comparable(stop_gradient(x)), namespace(ranks)
    places = cast(ranks, xp.int32 if is_jax(x) else xp.int64)
    if playing is None:
        return route.answer(RANKED, given, places)
    return route.answer(RANKED_OF_MASKED, given, playing, places)


def _thresholds(x: Array, playing: Array | None, k: Array, temperature: float) -> Array:
    """Return the threshold of each row for each k, (…, those of k)."""
    xp, batch = namespace(x), tuple(x.shape[:-1])
    found = [
        soft_topk_threshold(
            x,
            xp.broadcast_to(cast(k[..., i], compute_dtype(x)), batch),
            temperature=temperature,
            mask=playing,
        )
        for i in range(k.shape[-1])
    ]
    return xp.stack(found, axis=-1)


def _shaped(found: Array, form: Form[ArrayT], dim: int | None, keepdim: bool, lead: int) -> ArrayT:
    """Return quantiles, (…, those of q), with those of q first, if it has a dimension."""
    answer: Any = move_axis(found, -1, 0) if lead else found[..., 0][()]
    if keepdim:
        first = tuple(found.shape[-1:]) if lead else ()
        at = len(form.shape) + form.dim
        rows = (1,) * len(form.shape) if dim is None else (*form.batch[:at], 1, *form.batch[at:])
        answer = answer.reshape((*first, *rows))
    return answer  # of the kind of x
