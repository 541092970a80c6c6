"""Quantiles of rows: exact by order statistics, or smooth by thresholds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Never

from kofn import kernels
from kofn.adapters import route
from kofn.arrays import torch as of_torch
from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.checks import check_choice, check_flag, check_number
from kofn.arrays.form import Form, form_of
from kofn.arrays.kinds import (
    Array,
    cast,
    compute_dtype,
    default_float,
    framework,
    full_like,
    is_jax,
    most_precise_dtype,
    move_axis,
    namespace,
    quiet,
)
from kofn.arrays.names import unknown_keyword
from kofn.arrays.operations import as_numbers, comparable, flattened, greatest, take_along_last
from kofn.arrays.typing import ArrayT, Tensor
from kofn.maps.ordered.interpolated import (
    INTERPOLATIONS,
    LONG,
    Interpolation,
    Wanted,
    check_smooth,
    mirrored,
    quantiles,
    wanted,
)
from kofn.maps.topk import soft_topk_threshold
from kofn.operations.choice import RANKED, RANKED_OF_MASKED
from kofn.operations.operation import Operation
from kofn.operations.quantiles import QUANTILE
from kofn.operations.signatures import scores
from kofn.rows.given import last_mask
from kofn.rows.numbers import NUMBERS, TEMPERATURES

__all__ = ["quantile"]


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
    **others: Never,
) -> ArrayT:
    """Return the q-quantile of each row: the number at place (n − 1)·q of its sorted numbers.

    Like numpy.quantile and torch.quantile, of rows of any size. On a CPU, rows of NumPy and
    PyTorch are not sorted: one search finds the two numbers next to that place.

    Args:
        x: torch.Tensor, jax.Array or numpy.ndarray of floats or integers, any shape.
        q: a number in [0, 1], or an array without or with one dimension, which may be learned. An
            entry outside of [0, 1] gives NaN.
        dim: the dimension that rows lie along; None, the default, takes all of `x` as one row.
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
        An array like `x` without `dim`; before its dimensions q's, if q has one. Of integers,
        floats of the framework's default dtype: the places are found exactly, and numbers between
        two of them in float64 (on JAX in its default).
        Differentiable in x, and with "linear" in q: exactly, the gradient goes to the one or two
        numbers that were found. NaN for a row without numbers. In a row with a NaN, the gradient
        is NaN, too.

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
        >>> quantile(np.array([3, 2, 1, 4]), 0.5)
        np.float64(2.5)
    """
    if others:
        raise unknown_keyword(quantile, others)
    ignore_nan, keepdim = check_flag("ignore_nan", ignore_nan), check_flag("keepdim", keepdim)
    if dim is None and getattr(x, "ndim", 1) == 0:  # a row of one number
        x, keepdim = namespace(x).reshape(x, (1,)), False
    form = form_of(x, -1 if dim is None else dim, "x", integers=True)
    floats = "float" in form.dtype_name
    rows, playing = form.last(x), None if mask is None else last_mask(mask, x, form, "x")
    if dim is None:
        rows = flattened(rows)
        playing = None if playing is None else flattened(playing)
    if ignore_nan and floats:
        known = ~form.xp.isnan(rows)
        playing = known if playing is None else playing & known
    answer, numbers = None, type(q) in NUMBERS and type(temperature) in NUMBERS
    if playing is None and floats and numbers and rows.shape[-1]:
        answer = _of_number(rows, q, interpolation, temperature)
    if answer is None:
        of = wanted(q, interpolation, temperature, rows)
        with quiet(x):
            answer = of_dense(rows, playing, of)
    dtype = form.dtype if floats else default_float(x)
    return _shaped(cast(answer, dtype), form, dim, keepdim, getattr(q, "ndim", 0))


def _of_number(rows: Any, q: Any, interpolation: str, temperature: float) -> Any:
    """Return the quantiles of rows, (…, 1), by kernels; None if there are none."""
    check_choice("interpolation", interpolation, INTERPOLATIONS)
    soft = check_smooth(temperature)
    number = check_number("q", q, low=0.0, high=1.0, allowed="a number in [0, 1]")
    if soft == 0 and _is_served(rows, "quantile"):
        settings = _between(number, rows.shape[-1], interpolation)
        answer = route.by_kernel(QUANTILE, rows, settings=settings)
    elif soft > 0 and rows.shape[-1] < LONG and _is_served(rows, "smooth_quantile"):
        least, greatest = TEMPERATURES["float32"]
        soft = min(max(soft, least), greatest)
        x = cast(rows, compute_dtype(rows))  # the least number of a half type is no mask here
        answer = route.by_kernel(SMOOTH, x, settings=(number, interpolation, soft))
    else:
        answer = None
    return None if answer is None else answer[..., None]


def _is_served(rows: Any, offered: str) -> bool:
    """Return whether there are kernels of that name for rows, which nothing traces or maps."""
    kind = framework(rows)
    if kind is None or kind == "jax" or (kind == "torch" and not of_torch.state.is_plain(rows)):
        return False
    return kernels.serving_of("choice", rows, kind, offered=offered) is not None


def _between(q: float, n: int, interpolation: str) -> tuple[int, int, float]:
    """Return the places of two numbers, and the share of the second."""
    at = q * (n - 1)
    ways: dict[str, Callable[[float], int]] = {"nearest": round, "higher": math.ceil}
    below = ways.get(interpolation, math.floor)(at)
    share = {"linear": at - below, "midpoint": 0.5 * (at > below)}.get(interpolation, 0.0)
    return below, below + (share > 0), share


def _counts(x: Tensor, q: float, interpolation: str) -> tuple[tuple[float, float], float]:
    """Return the k whose thresholds stand for two numbers, and the share of the second."""
    *places, share = _between(q, x.shape[-1], interpolation)
    low, high = (x.shape[-1] - place - 0.5 for place in places)
    return (low, high), share


def _smoothly(chooser: Any, x: Tensor, q: float, interpolation: str, temperature: float) -> Any:
    return chooser.smooth_quantile(x, *_counts(x, q, interpolation), temperature)


def _back(
    chooser: Any, x: Tensor, cotangent: Tensor, slopes: Tensor, theta: Tensor, *how: Any
) -> Any:
    q, interpolation, temperature = how
    k = _counts(x, q, interpolation)[0]
    return chooser.smooth_quantile_gradients(x, cotangent, slopes, theta, k, temperature)


def _plain(x: Array, q: float, interpolation: str, temperature: float) -> Any:
    return of_dense(x, None, wanted(q, interpolation, temperature, x))[..., 0]


SMOOTH = Operation(
    name="",
    takes="x n, q float, interpolation str, temperature float",
    gives="answer r, slopes **, theta **",
    of=scores("x", "choice"),
    kernel=_smoothly,
    plain=_plain,
    back=(
        Operation(
            name="",
            takes="cotangent r, x n, slopes **, theta **, q float, interpolation str, "
            "temperature float",
            gives="x n",
            of=scores("x", "choice"),
            kernel=_back,
        ),
    ),
    offered="smooth_quantile",
)
"""A quantile of rows on a device at a temperature, for one number q."""


def of_dense(rows: Array, playing: Array | None, of: Wanted) -> Array:
    """Return the quantiles of rows along the last dimension, (…, number of q)."""
    if not rows.shape[-1]:
        none = namespace(rows).sum(cast(rows, compute_dtype(rows)), axis=-1)[..., None]
        return none + cast(of.q, none.dtype) * 0.0 + math.nan  # in the graph of both
    return quantiles(DenseRows(rows, playing), of)


class DenseRows(NamedTuple):
    """Rows along the last dimension, with at least one entry."""

    x: Array
    playing: Array | None

    @property
    def counts(self) -> Array:
        x, dtype = self.x, most_precise_dtype(self.x)
        if self.playing is None:
            return full_like(cast(x[..., :0], dtype), (1,), x.shape[-1])
        numbers = as_numbers(self.playing, dtype)
        return namespace(numbers).sum(numbers, axis=-1)[..., None]

    def ranked(self, ranks: Array) -> Array:
        x, xp = self.x, namespace(ranks)
        many = (*x.shape[:-1], ranks.shape[-1])
        places = cast(xp.broadcast_to(ranks, many), xp.int32 if is_jax(x) else xp.int64)
        given = comparable(stop_gradient(x))
        if self.playing is None:
            indices = route.answer(RANKED, given, places)
        else:
            indices = route.answer(RANKED_OF_MASKED, given, self.playing, places)
        return cast(take_along_last(x, indices), compute_dtype(x))

    def threshold(self, k: Array, temperature: float) -> Array:
        x = cast(self.x, compute_dtype(self.x))  # the least number of a half type is no mask here
        k = namespace(k).broadcast_to(k, tuple(x.shape[:-1]))
        how: dict[str, Any] = dict(temperature=temperature, mask=self.playing)
        if x.shape[-1] < LONG:
            return soft_topk_threshold(x, cast(k, x.dtype), **how)
        k, sign = mirrored(k, self.counts[..., 0])
        x = x * cast(sign, x.dtype)[..., None]
        return soft_topk_threshold(x, cast(k, x.dtype), **how) * cast(sign, x.dtype)

    def greatest(self) -> Array:
        x = cast(stop_gradient(self.x), compute_dtype(self.x))
        return greatest(
            x if self.playing is None else namespace(x).where(self.playing, x, -math.inf)
        )

    def total(self, rows: Array) -> Array:
        x, some = self.x, rows if self.playing is None else rows & self.playing
        return namespace(x).sum(namespace(x).where(some, x, 0), axis=-1)[..., None]


def _shaped(last: Array, form: Form[ArrayT], dim: int | None, keepdim: bool, lead: int) -> ArrayT:
    """Return quantiles, (…, number of q), with q's dimension first, if it has one."""
    answer: Any = move_axis(last, -1, 0) if lead else last[..., 0][()]
    if keepdim:
        first = tuple(last.shape[-1:]) if lead else ()
        at = len(form.shape) + form.dim
        rows = (1,) * len(form.shape) if dim is None else (*form.batch[:at], 1, *form.batch[at:])
        answer = answer.reshape((*first, *rows))
    return answer  # of the kind of x
