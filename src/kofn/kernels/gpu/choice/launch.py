"""Hard choices and sets of largest scores of rows in a GPU's memory, a launch each; what else
`ChoiceKernels` has is for array code. (Tests: test_kernels_gpu.py.)
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import starmap
from math import hypot, inf, log
from typing import Any

import torch
from torch import Tensor

from kofn.arrays.typing import Number
from kofn.kernels.contract import AGAINST, LOGISTIC, link_of
from kofn.kernels.gpu.choice import programs
from kofn.kernels.gpu.choice import ranked as of_ranks
from kofn.kernels.gpu.choice import truncated as of_sets
from kofn.kernels.gpu.launcher import launch
from kofn.kernels.gpu.rows import launch as rows

LOGISTIC_LINK = link_of(LOGISTIC, 0.0)
FEW = 64
"""Choices that are found one after the other, a pass each; a sort finds more."""


def hard(x: Tensor, k: Any) -> Tensor:
    """Return the hard top-k of rows, for k per row or one float."""
    x = rows.packed(x)
    out = rows.empty(x, x.shape)
    _launch(programs.hard, x, k if isinstance(k, float) else rows.packed(k), (out,))
    return out


def largest(x: Tensor, k: int) -> Tensor:
    """Return the indices of the k largest scores, (…, k); NaN and masked ones come last."""
    x = rows.packed(x)
    if k > FEW:
        known = x.masked_fill(~(x > torch.finfo(x.dtype).min / 2), -torch.inf)
        return known.sort(dim=-1, descending=True, stable=True).indices[..., :k]
    out = rows.empty(x, (*x.shape[:-1], k), torch.int64)
    if k:
        _launch(programs.largest, x, k, (out,))
    return out


def tally(x: Tensor, indices: Tensor, counts: tuple[Tensor, ...]) -> None:
    """Add to counts of int64 how often the indices of rows without a NaN name each entry.

    Whole numbers add up to the same in any order.
    """
    width = (rows.power_of_2(indices.shape[-1]),)
    _launch(
        programs.tally, rows.packed(x), indices.shape[-1], (rows.packed(indices), counts), width
    )


def truncated(
    x: Tensor, k: int | None, p: float | None, temperature: Number, labels: Tensor | None,
    wanted: bool, min_p: float | None = None, what: int = AGAINST,
) -> tuple[Tensor | None, Tensor]:  # fmt: skip
    """Return the softmax over sets of the largest scores, or what else is asked for."""
    x, share = rows.packed(x), 1.0 if p is None else float(p)
    out = rows.empty(x, x.shape, torch.float32) if wanted else None
    each, of_labels = rows.empty(x, x.shape[:-1], torch.float32), labels is not None
    # An array that nobody touches stands for one that is not there.
    given = (
        rows.number(temperature),
        x if labels is None else rows.packed(labels),
        x if out is None else out,
    )
    least = log(min_p) if min_p else -inf
    constants = what, bool(k), share < 1, of_labels, wanted
    _sets(of_sets.truncated, x, given, each, (k or 0, share, least), (), constants)
    return out, each


def rated(
    x: Tensor, losses: Tensor, labels: Tensor, ignored: int, by_class: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return losses as `losses` of rows rates them, and labels that are in range."""
    return rows.missed(x, losses, labels, ignored, by_class, known=True)


def truncated_gradients(
    x: Tensor, weights: Tensor, cotangent: Tensor, temperature: Number
) -> tuple[Tensor, Tensor]:
    x, weights = rows.packed(x), rows.packed(weights)
    out, each = rows.empty(x, x.shape), rows.empty(x, x.shape[:-1], torch.float32)
    given, more = (rows.number(temperature), weights, out), (rows.packed(cotangent),)
    _sets(of_sets.truncated_back, x, given, each, (0, 1.0, -inf), more, ())
    return out, each


def taylor(x: Tensor, temperature: Number, zeros: Sequence[tuple[float, float]]) -> Tensor:
    """Return the share of each score in a polynomial with these pairs of zeros a ± ib."""
    x = rows.packed(x)
    p = rows.empty(x, x.shape)
    _polynomial("taylor", x, temperature, zeros, p)
    return p


def taylor_gradients(
    x: Tensor, p: Tensor, cotangent: Tensor, temperature: Any, zeros: Sequence[tuple[float, float]]
) -> tuple[Tensor, Tensor]:
    """Return the cotangents of the scores, and of temperatures per row."""
    x = rows.packed(x)
    out, each = rows.empty(x, x.shape), rows.empty(x, x.shape[:-1], torch.float32)
    more = rows.packed(cotangent), out, each
    _polynomial("taylor_back", x, temperature, zeros, rows.packed(p), *more)
    return out, each


def _polynomial(name: str, x: Tensor, temperature: Any, zeros: Any, p: Tensor, *more: Any) -> None:
    from kofn.kernels.gpu.choice import taylor as of_taylor

    count, n = x.shape[:-1].numel(), x.shape[-1]
    if x.numel():
        flat, farthest = tuple(part for pair in zeros for part in pair), max(starmap(hypot, zeros))
        shape, t = rows.shape_of(n), rows.number(temperature)
        given = of_taylor.Shared(x, t, flat, farthest, p, count, n)
        options = rows.options_of(shape.warps, rows.WIDER)
        programs_, kernel = -(-count // shape.rows), getattr(of_taylor, name)
        launch(kernel, programs_, given, more, shape[:2], options)


def quantile(x: Tensor, low: int, high: int, share: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the number at a share of the way between two ranks' numbers, its slopes in these,
    (2, …), and their places, (2, …).
    """
    x = rows.packed(x)
    out = rows.empty(x, x.shape[:-1], torch.float32)
    slopes = rows.empty(x, (2, *x.shape[:-1]), torch.float32)
    places = rows.empty(x, (2, *x.shape[:-1]), torch.int64)
    _ranked(of_ranks.ranked, x.shape, (x, out, slopes, places), low, high, float(share))
    return out, slopes, places


def quantile_gradients(x: Tensor, cotangent: Tensor, slopes: Tensor, places: Tensor) -> Tensor:
    out = rows.empty(x, x.shape)
    given = rows.packed(cotangent), out, slopes, places
    _ranked(of_ranks.ranked_back, x.shape, given, 0, 0, 0.0)
    return out


def smooth_quantile(
    x: Tensor, k: Sequence[float], share: float, temperature: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the number at a share of the way between the thresholds of two k, its slopes in these,
    (2, …), and them, (2, 2, …).
    """
    x, batch = rows.packed(x), x.shape[:-1]
    out, slopes, theta = (
        rows.empty(x, (*parts, *batch), torch.float32) for parts in ((), (2,), (2, 2))
    )
    for number, into in zip(k, theta, strict=True):
        rows.threshold(x, number, temperature, LOGISTIC_LINK, into)
    if out.numel():
        n, count = x.shape[-1], out.numel()
        given = of_ranks.Thresholds(x, theta[0], theta[1], out, slopes, share, count, n)
        shape = rows.shape_of(n)
        options = rows.options_of(shape.warps)
        launch(of_ranks.mixed, -(-count // shape.rows), given, (), shape[:2], options)
    return out, slopes, theta


def smooth_quantile_gradients(
    x: Tensor, cotangent: Tensor, slopes: Tensor, theta: Tensor, k: Sequence[float],
    temperature: float,
) -> Tensor:  # fmt: skip
    x, each = rows.packed(x), slopes * cotangent
    first, second = (
        rows.threshold_gradients(x, g, at, number, temperature, LOGISTIC_LINK)[0]
        for g, at, number in zip(each, theta, k, strict=True)
    )
    return first.add_(second)


def _ranked(kernel: Any, of: Any, arrays: Sequence[Any], *how: Any) -> None:
    count, n = arrays[2][0].numel(), of[-1]
    if count:
        shape = rows.shape_of(n)
        numbers = (*arrays, *how, count, n)
        given, options = of_ranks.Ranks(*numbers), rows.options_of(shape.warps)
        launch(kernel, -(-count // shape.rows), given, (), shape[:2], options)


def _sets(
    kernel: Any, x: Tensor, arrays: Any, each: Tensor, size: Any, more: Any, how: Any
) -> None:
    n = x.shape[-1]
    if x.numel():
        count, shape = each.numel(), rows.shape_of(n)
        numbers = (x, *arrays, each, *size, count, n)
        given, options = of_sets.Sets(*numbers), rows.options_of(shape.warps, rows.WIDER)
        launch(kernel, -(-count // shape.rows), given, more, (*shape[:2], *how), options)


def _launch(kernel: Any, x: Tensor, k: Number, arrays: tuple[Any, ...], more: Any = ()) -> None:
    n = x.shape[-1]
    count = x.numel() // max(n, 1)
    if count:
        shape = rows.shape_of(n)
        given, programs_ = programs.Choices(x, k, count, n), -(-count // shape.rows)
        constants = (*more, *shape[:2])
        launch(kernel, programs_, given, arrays, constants, rows.options_of(shape.warps))
