"""The checked arguments of the maps with two margins: matrices in the last two dimensions."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.checks import (
    check_broadcasts,
    check_mask,
    check_number,
    check_real,
    check_same_kind,
    check_scores,
    check_temperature,
    refuse_divided,
)
from kofn.arrays.dtensor import is_dtensor
from kofn.arrays.kinds import (
    Array,
    adopt,
    cast,
    cast_like,
    clip,
    dtype_name,
    framework,
    full_like,
    most_precise_dtype,
    namespace,
    quiet,
    scalar,
    to_numpy,
)
from kofn.arrays.tracing import is_at_hand, is_known
from kofn.links.link import Link
from kofn.maps.assignment.margins import TOLERANCE
from kofn.rows.given import without_deleted
from kofn.rows.numbers import TEMPERATURES


class Matrices(NamedTuple):
    """Scores as matrices in the dtype of the computation, with numbers per row and column."""

    x: Array  # (…, m, n), −inf where excluded
    k: Array  # (…, m), NaN where out of range
    c: Array  # (…, n)
    t: Array  # (…,)
    alpha: Any  # (…, 1), a number, or None


def matrices(
    scores: Array, k: object, capacity: object, link: Link, temperature: object, mask: object
) -> Matrices:
    """Check the arguments and bring them to a common form."""
    check_scores(scores)
    refuse_divided("scores", scores, "matrices")
    shape = tuple(scores.shape)
    if len(shape) < 2:
        raise ValueError(
            f"scores must have at least two dimensions, (…, rows, columns); got shape {shape}"
        )
    x = cast(without_deleted(scores), most_precise_dtype(scores))
    xp = namespace(x)
    if mask is not None:
        x = xp.where(adopt(check_mask(mask, scores), scores), x, -math.inf)
    if is_dtensor(x):
        from kofn.arrays.torch.dtensors import whole_matrices

        x = whole_matrices(x)  # type: ignore[arg-type]  # of PyTorch
    *batch, m, n = shape
    of_rows = _margin("k", k, (*batch, m), n, x, "one number per row, scores.shape[:-1]")
    if capacity is None:
        of_columns = None
    else:
        what = "one number per column, scores.shape[:-2] and scores.shape[-1]"
        of_columns = _margin("capacity", capacity, (*batch, n), m, x, what)
    if framework(k) is framework(capacity) is None and 0 not in shape:
        number = None if capacity is None else float(capacity)  # type: ignore[arg-type]  # a number
        _refuse_impossible(x, float(k), number, mask is None)  # type: ignore[arg-type]  # a number
    t = _temperature(temperature, tuple(batch), x)
    alpha = link.alpha
    if framework(alpha) is not None:
        alpha = _spread("alpha", alpha, tuple(batch), x, BATCH)[..., None]
    return _with_equal_sums(x, of_rows, of_columns, t, alpha, tolerance_of(k, capacity))


BATCH = "the batch shape (scores.shape[:-2])"


def _margin(name: str, value: object, shape: tuple[int, ...], most: int, x: Array, of: str) -> Any:
    if framework(value) is None:
        return full_like(x, shape, check_margin(name, value, most))
    return _spread(name, value, shape, x, of)


def check_margin(name: str, value: object, most: int) -> float:
    """Return `k` or `capacity` as a float if it is a number that rows or columns may have."""
    entries = "columns" if name == "k" else "rows"
    allowed = f"a number in [0, {most}], for there are {most} {entries}"
    return check_number(name, value, low=0.0, high=most, allowed=allowed)


def _refuse_impossible(x: Array, k: float, capacity: float | None, whole: bool) -> None:
    """Refuse numbers that the entries of a matrix cannot meet, −inf being none.

    Entries are read where they are at hand, and on other devices where an error is at stake. Where
    a compiler hides them, numbers are held to all rows and columns, if no mask excludes any.
    """
    m, n = x.shape[-2:]
    apart = capacity is not None and _are_apart(m * k, n * capacity)
    if is_at_hand(x) or (apart and is_known(x)):
        xp = namespace(x)
        live = (x > -math.inf) | xp.isnan(x)
        of_rows = to_numpy(xp.sum(live, axis=-1)).reshape(-1, m).astype(np.int64)
        of_columns = to_numpy(xp.sum(live, axis=-2)).reshape(-1, n).astype(np.int64)
        # Matrices of a batch may have other numbers of rows and columns: padding.
        each = np.stack([*_number_and_least(of_rows), *_number_and_least(of_columns)], axis=-1)
        for rows, of_row, columns, of_column in np.unique(each[each[:, 0] > 0], axis=0).tolist():
            refuse_unmet(k, capacity, (rows, of_row), (columns, of_column))
    elif apart and whole:
        _refuse_capacity(k, capacity, m, n)  # type: ignore[arg-type]  # a number


def refuse_unmet(
    k: float, capacity: float | None, rows: tuple[int, int], columns: tuple[int, int]
) -> None:
    """Refuse numbers that do not match or are beyond what a matrix has.

    `rows` and `columns` are how many have entries, and the fewest that one of them has.
    """
    if capacity is not None and _are_apart(rows[0] * k, columns[0] * capacity):
        _refuse_capacity(k, capacity, rows[0], columns[0])
    _refuse_more("k", k, rows[1], "row")
    share = rows[0] * k / columns[0] if capacity is None else capacity
    _refuse_more("capacity", share, columns[1], "column")


def _number_and_least(available: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return how many rows (or columns) of each matrix have entries, and the fewest one has."""
    some = available > 0
    least = np.where(some, available, np.iinfo(np.int64).max).min(-1)
    return some.sum(-1), least


def _are_apart(rows: float, columns: float) -> bool:
    return abs(rows - columns) > TOLERANCE * max(rows, columns)


def _refuse_capacity(k: float, capacity: float, rows: int, columns: int) -> None:
    raise ValueError(
        f"capacity must be {rows * k / columns:.6g} (or None), so that {columns} columns take what "
        f"{rows} rows of k = {k:.6g} give, {rows * k:.6g} (without those that a mask or −inf "
        f"excludes); got {capacity!r}"
    )


def _refuse_more(name: str, number: float, least: int, what: str) -> None:
    if number > least + TOLERANCE * (1 + least):
        raise ValueError(
            f"{name} must be at most {least}, for there is a {what} in which the mask and −inf "
            f"leave {least} entries; got {number:.6g}"
        )


def _spread(name: str, value: Any, shape: tuple[int, ...], x: Array, what: str) -> Array:
    """Return an array argument in the dtype and on the device of x, broadcast to a shape."""
    array = check_same_kind(name, value, x)
    check_real(name, array)
    check_broadcasts(name, tuple(array.shape), shape, what)
    array = np.asarray(array) if isinstance(array, np.generic) else array
    return namespace(x).broadcast_to(cast_like(array, x), shape)


def _temperature(temperature: object, batch: tuple[int, ...], x: Array) -> Array:
    """Return T per matrix, limited as for rows; NaN where an array is not above 0."""
    floor, ceiling = TEMPERATURES[dtype_name(x)]
    if framework(temperature) is None:
        return full_like(x, batch, min(max(check_temperature(temperature), floor), ceiling))
    xp, t = namespace(x), _spread("temperature", temperature, batch, x, BATCH)
    with quiet(x):
        return xp.where((t > 0) & (t < math.inf), clip(t, floor, ceiling), math.nan)


def tolerance_of(*margins: object) -> float:
    """Return how far sums may be apart, relative: margins in half precision are rounded more."""
    tolerance = TOLERANCE
    for each in margins:
        if framework(each) is not None:
            tolerance = max(tolerance, ROUNDED.get(dtype_name(each), 0.0))  # type: ignore[arg-type]
    return tolerance


ROUNDED = {"float16": 2**-10, "bfloat16": 2**-7}


def _with_equal_sums(
    x: Array, k: Array, c: Array | None, t: Array, alpha: Any, tolerance: float
) -> Matrices:
    """Return margins with equal sums; rows and columns that are excluded have 0.

    Scores of +inf, and sums that are apart by more than rounding, give NaN. By what columns grow is
    a constant here: `implicit.py` gives it the derivatives that it has.
    """
    xp = namespace(x)
    live = x > -math.inf
    live = live | xp.isnan(x)
    rows, columns = xp.any(live, axis=-1), xp.any(live, axis=-2)
    k = xp.where(rows, k, 0.0)
    total = stop_gradient(xp.sum(k, axis=-1))
    c = summing_to(total, c, columns, tolerance)
    endless = xp.any(xp.any(x == math.inf, axis=-1), axis=-1)  # of a turned DTensor, not of both
    x = xp.where(endless[..., None, None], math.nan, x)
    return Matrices(x, k, c, t, alpha)


def summing_to(total: Array, c: Array | None, columns: Array, tolerance: float) -> Array:
    """Return margins that sum to `total`: NaN where c does not, and 0 of no `columns`."""
    xp = namespace(total)
    if c is None:
        number = cast(xp.sum(columns, axis=-1), total.dtype)
        share = total / xp.where(number > 0, number, 1.0)
        return xp.where(columns, share[..., None], 0.0)
    c = xp.where(columns, c, 0.0)
    other = stop_gradient(xp.sum(c, axis=-1))
    most = xp.maximum(xp.abs(total), xp.abs(other))
    good = xp.abs(total - other) <= tolerance * most
    ratio = total / xp.where(other > 0, other, 1.0)
    ratio = xp.where(good & (other > 0), ratio, xp.where(good, scalar(c, 1.0), math.nan))
    return c * ratio[..., None]
