"""Weights, thresholds and values from the kernels, with the rows that a kernel gave up on."""

from __future__ import annotations

import numpy as np

from kofn import kernels
from kofn.arrays.kinds import (
    Array,
    cast,
    compute_dtype,
    deleted,
    dtype_name,
    namespace,
    of_torch,
)
from kofn.arrays.operations import as_numbers
from kofn.rows import answers, pullbacks
from kofn.rows.given import Given
from kofn.rows.kernel_rows import finish, in_memory, threshold_of
from kofn.rows.segment_blocks import ENTRIES, NUMBERS, in_blocks
from kofn.rows.settled import rows_of

SCALED = 1 << 16
"""Entries that are multiplied before they are rounded to half precision."""


@in_blocks(ENTRIES, NUMBERS)
def weights(backend: kernels.RowKernels, given: Given, single: bool = False) -> tuple[Array, Array]:
    """Return (weights, θ as two floats); weights of half precision are float32 if `single`."""
    found, theta, lost = backend.weights(*given[:4], single)
    if lost and given.is_half:  # so rare that a cast does
        wide, theta = weights(backend, given.wide())
        return cast(wide, found.dtype), theta
    if lost:
        where, rows, placed = finish(given, theta)
        with np.errstate(all="ignore"):
            in_memory(found)[where] = answers.weights(rows, found=placed)
    return found, theta


@in_blocks(ENTRIES, NUMBERS, takes=(ENTRIES, NUMBERS))
def gradients(
    backend: kernels.RowKernels, given: Given, cotangent: Array, theta: Array
) -> tuple[Array, Array]:
    """Return the cotangents of the scores, and of k and the temperature, (2, …), for weights."""
    x, k, temperature, link, _ = given
    return backend.gradients(x, cotangent, theta, k, temperature, link)


@in_blocks(NUMBERS, takes=(NUMBERS,))
def values(backend: kernels.RowKernels, given: Given, theta: Array) -> Array:
    """Return S_k and its slope in the temperature, (2, …)."""
    return backend.values(given.scores, theta, *given[1:4])


@in_blocks(NUMBERS, NUMBERS)
def located(backend: kernels.RowKernels, given: Given) -> tuple[Array, Array]:
    """Return (θ in the units of the scores, NaN without available entries; θ as two floats)."""
    found, xp = threshold_of(backend, given), namespace(given.scores)
    answer = found[0] + found[1] - given.temperature * given.link.edge
    endless = xp.isinf(found[0])
    if xp.any(endless):
        answer = xp.where(endless & xp.all(deleted(given.scores), axis=-1), np.nan, answer)
    return answer, found


@in_blocks(ENTRIES, NUMBERS, NUMBERS, takes=(NUMBERS, NUMBERS))
def location_gradients(
    backend: kernels.RowKernels, given: Given, cotangent: Array, theta: Array
) -> tuple[Array, Array, Array]:
    """Return the cotangents of the scores, k and the temperature, for those of θ; 0 for one number.

    On a CPU some rows at a time, so that their entries stay in its caches, as float32 if they are
    of half precision.
    """
    x, k, temperature, link, _ = given
    n, batch = x.shape[-1], given.batch
    each, x = cotangent.reshape(-1), x.reshape(-1, n)
    high, low = theta.reshape(2, -1)
    in_x, in_rows = x.new_empty(x.shape), each.new_zeros((2, len(each)))
    step = max(1, SCALED // n) if x.is_cpu else max(1, len(each))
    for start in range(0, len(each), step):
        some = slice(start, start + step)
        of_k, t = (a if type(a) is float else a.reshape(-1)[some] for a in (k, temperature))
        rows, found = Given(x[some], of_k, t, link), (high[some], low[some])
        slopes = pullbacks.of_usual_thresholds(each[some], rows, found) if x.is_cpu else None
        slopes = slopes or pullbacks.of_thresholds(each[some], rows_of(rows), found)
        in_x[some], in_rows[0, some] = slopes[:2]
        if type(temperature) is not float:
            in_rows[1, some] = slopes[2]
    return in_x.reshape(*batch, n), in_rows[0].reshape(batch), in_rows[1].reshape(batch)


def value(backend: kernels.RowKernels, given: Given) -> tuple[Array, Array, Array, Array]:
    """Return S_k and its slopes in the scores, k and the temperature."""
    found, theta = weights(backend, given)
    found_values, in_temperature = values(backend, given, theta)
    center = theta.sum(0) - given.temperature * given.link.edge
    # If nothing or everything is chosen, θ is infinite and S_k is constant in k.
    return found_values.clone(), found, center.masked_fill(center.isinf(), 0.0), in_temperature


@in_blocks(ENTRIES, NUMBERS)
def log_weights(backend: kernels.RowKernels, given: Given) -> tuple[Array, Array]:
    """Return (log p, θ as two floats)."""
    if given.is_half:
        found, theta, lost = backend.log_weights(*given[:4])
        if lost:
            wide, theta = log_weights(backend, given.wide())
            found = cast(wide, found.dtype)
        return found, theta
    found, theta = weights(backend, given)
    return backend.logarithms(given.scores, found, theta, *given[1:4]), theta


@in_blocks(ENTRIES, NUMBERS, takes=(ENTRIES, NUMBERS))
def log_gradients(
    backend: kernels.RowKernels, given: Given, cotangent: Array, theta: Array
) -> tuple[Array, Array]:
    """Return the cotangents of the scores and the temperature, for one of log p of tensors."""
    x, k, temperature, link, _ = given
    in_x, in_rows, lost = backend.log_gradients(x, cotangent, theta, k, temperature, link)
    if lost and given.is_half:
        wide = given.wide()
        slopes = log_gradients(backend, wide, cast(cotangent, wide.scores.dtype), theta)
        return cast(slopes[0], in_x.dtype), slopes[1]
    if lost:
        where = in_rows[0].isnan()
        x, k, temperature = (array[where] for array in given.per_row()[:3])
        found = theta[0][where], theta[1][where]
        rows = rows_of(Given(x, k, temperature, link))
        pulled = of_torch("state").recording(
            pullbacks.in_rows, cotangent[where], rows, found, pullbacks.of_logarithms
        )
        in_x[where], in_rows[1][where] = pulled
    return in_x, in_rows[1]


@in_blocks(NUMBERS, ENTRIES, NUMBERS, takes=(ENTRIES,))
def gap(
    backend: kernels.RowKernels,
    given: Given,
    target: Array,
    likely: bool = False,
    wanted: bool = True,
) -> tuple[Array, Array, Array]:
    """Return the losses of rows, p − t, and Σ(p − t)z unless `likely`; see `RowKernels.gaps`.

    k is the sum of a target of weights. Only the losses are right if others are not `wanted`.
    """
    x, k, temperature, link, _ = given
    found, away, lost = backend.gaps(x, target, k, temperature, link, likely, wanted)
    if lost:
        wide = given.wide()
        if target.ndim == x.ndim:
            target = as_numbers(target, wide.scores.dtype)
            wide = wide._replace(k=namespace(x).sum(target, axis=-1))
        found, away = _gap_by_parts(backend, wide, target, likely)
    return found[0], away, found[1]


def _gap_by_parts(
    backend: kernels.RowKernels, given: Given, target: Array, likely: bool
) -> tuple[Array, Array]:
    """Return losses with Σ(p − t)z, (2, …), and p − t, where the kernel gave up on rows."""
    known = weights(backend, given)
    found, away, lost = backend.gaps(given.scores, target, *given[1:4], likely, known=known)
    if lost:
        each = in_memory(found)[0]
        where = np.isnan(each)
        x, k, temperature = (in_memory(array)[where] for array in given.per_row()[:3])
        with np.errstate(all="ignore"):
            rows = rows_of(Given(x, k, temperature, given.link))
            placed = tuple(one[where] for one in in_memory(known[1]))
            each[where] = answers.gap(rows, in_memory(target)[where], found=placed)
    return found, away


def target_of(x: Array, target: Array) -> Array:
    """Return a target of weights in a dtype that `RowKernels.gaps` takes, without rounding it."""
    name = dtype_name(target)
    if name in ("bool", "uint8"):
        return target
    exact = not name.startswith(("float", "bfloat")) or target.dtype == x.dtype
    return cast(target, x.dtype if exact else compute_dtype(x))


def scaled(each: Array, away: Array, x: Array) -> Array:
    """Return p − t times one number of each row of tensors, (…, 1), in the dtype of the scores.

    A float32 product of whole tensors would take twice the memory of the answer.
    """
    if away.dtype == x.dtype:
        return each * away
    n, found = away.shape[-1], away.new_empty(away.shape, dtype=x.dtype)
    whole = (found.view(-1, n), away.view(-1, n), each.reshape(-1, 1))
    for into, some, by in zip(*(one.split(max(1, SCALED // n)) for one in whole), strict=True):
        for part, entries in zip(into.split(SCALED, -1), some.split(SCALED, -1), strict=True):
            part.copy_(entries * by)
    return found


def moved_from_labels(x: Array, labels: Array, away: Array) -> Array:
    """Return Σ(p − t)(x − x_t): Σ(p − t) is 0, so the sum may be taken from any score."""
    x = cast(x, away.dtype)
    apart = (x - x.gather(-1, labels[..., None])).masked_fill(away == 0, 0.0)
    return (away * apart).sum(-1)
