"""Checked arguments of a map over segments: scores on one long axis, numbers per segment."""

from __future__ import annotations

import math
from typing import Any

from kofn.arrays.checks import check_mask, check_number, check_real, check_same_kind, shown
from kofn.arrays.kinds import (
    Array,
    adopt,
    cast,
    cast_like,
    deleted,
    framework,
    full_like,
    most_precise_dtype,
    namespace,
)
from kofn.arrays.typing import ArrayT, Number
from kofn.links.link import Link
from kofn.rows.given import HALF_TYPES, Given, without_deleted
from kofn.rows.numbers import NUMBERS, temperature_of, temperature_or_number
from kofn.rows.segments.form import SegmentForm, form_of_segments


def segment_given(
    scores: ArrayT,
    k: Any,
    link: Link,
    temperature: Any,
    mask: Any,
    segment_ids: Any,
    ptr: Any,
    num_segments: Any,
    ratio: Any = None,
) -> Given[ArrayT]:
    """Check the arguments, and return flat scores and numbers per segment; see `SegmentForm`."""
    if (k is None) == (ratio is None):
        raise ValueError(f"give either k or ratio; got k={shown(k)} and ratio={shown(ratio)}")
    values, form = form_of_segments(scores, segment_ids, ptr, num_segments)
    x = without_deleted(values) if form.dtype_name in HALF_TYPES else values
    if mask is not None:
        x = form.xp.where(mask_of(mask, values, form), x, -math.inf)
    x = form.flat(form.without_unassigned(x, -math.inf))
    inner = link.inner
    if framework(inner.alpha) is not None:
        alpha = _spread("alpha", inner.alpha, x, form)
        inner = inner.with_alpha(form.xp.where((alpha >= 1) & (alpha < math.inf), alpha, math.nan))
    if framework(temperature) is not None:
        temperature = _spread("temperature", temperature, x, form)
    find = temperature_of if form.kind == "jax" else temperature_or_number
    t = find(temperature, (form.rows,), x)
    count = _share(ratio, x, form) if k is None else _k_of(k, x, form)
    return Given(x, count, t, inner, form)  # type: ignore[arg-type]  # of the kind of scores


def mask_of(mask: Any, values: Array, form: SegmentForm, of: str = "scores") -> Array:
    """Return where an entry may be chosen, in the shape of the values."""
    mask = form.plain("mask", mask, of)
    if getattr(mask, "ndim", 0) == 1 < values.ndim:  # one flag per entry, for all columns
        mask = mask[(..., *[None] * (values.ndim - 1))]
    mask = adopt(check_mask(mask, values, of), values)
    return namespace(values).broadcast_to(mask, values.shape)


def _k_of(k: Any, x: Array, form: SegmentForm) -> Number:
    """Return k as a number, or per segment: NaN where an array of k has a negative number."""
    if type(k) in NUMBERS or framework(k) is None:
        number = check_number("k", k, low=0.0, allowed="a number ≥ 0")
        return full_like(x, (form.rows,), number) if form.kind == "jax" else number
    k = _spread("k", k, x, form)
    return namespace(x).where(k >= 0, k, math.nan)


def _share(ratio: Any, x: Array, form: SegmentForm) -> Array:
    """Return ⌈ratio·n⌉ for the available entries of each segment, as graph pooling counts."""
    number = check_number(
        "ratio", ratio, low=0.0, high=1.0, strict=True, allowed="a number in (0, 1]", arrays=False
    )
    xp = namespace(x)
    members = cast(form.over.count(~deleted(x)), most_precise_dtype(x))
    share = number * members
    # 0.1 of 30 is 3, which rounding of 0.1 may make a little more.
    rounding = 4 * float(xp.finfo(share.dtype).eps) * share
    least = cast(members > 0, share.dtype)
    return cast(xp.maximum(xp.ceil(share - rounding), least), x.dtype)


def _spread(name: str, value: Array, x: Array, form: SegmentForm) -> Array:
    """Return an array argument per segment of each column: (rows,)."""
    check_same_kind(name, value, x)
    check_real(name, value)
    wanted, shape = (form.segments, *form.shape[1:]), tuple(value.shape)
    # Not `not shape` nor `in`: torch.compile cannot trace them where it has made symbols of sizes.
    fits = len(shape) == 0 or (
        shape[0] == form.segments
        and len(shape) <= len(wanted)
        and all(
            size == 1 or size == full for size, full in zip(shape[1:], wanted[1:], strict=False)
        )
        and len(shape) in (1, len(wanted))
    )
    if not fits:
        columns = f" or {wanted}" if len(wanted) > 1 else ""
        raise ValueError(
            f"{name} has shape {shape}; it must be one number, or one for each of the "
            f"{form.segments} segments: shape ({form.segments},){columns}"
        )
    value = cast_like(value, x)
    if len(shape) == 1:
        value = value[(..., *[None] * (len(wanted) - 1))]
    return form.flat(namespace(x).broadcast_to(value, wanted))
