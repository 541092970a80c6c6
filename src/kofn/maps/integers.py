"""The hard top-k of integers, which are compared as they are: no float has all of their digits."""

from __future__ import annotations

import math
from typing import Any

from kofn import links
from kofn.adapters import route
from kofn.arrays.form import form_of
from kofn.arrays.kinds import Array, cast, default_float, dtype_name, framework
from kofn.arrays.operations import arange, comparable, put_along_last
from kofn.arrays.typing import ArrayT
from kofn.operations.choice import FIRST, FIRST_OF_MASKED, way_of
from kofn.rows.given import given, last_mask


def has_integers(scores: Any) -> bool:
    """Return whether `scores` is an array of integers."""
    return framework(scores) is not None and dtype_name(scores).startswith(("int", "uint"))


def hard_of_integers(scores: ArrayT, k: float | Array, dim: int, mask: Array | None) -> ArrayT:
    """Return `hard_topk` of an array of integers, as floats."""
    form = form_of(scores, dim, integers=True)
    xp, dtype = form.xp, default_float(scores)
    # The scores themselves do not matter for the check of k and of the mask.
    checked = given(cast(xp.zeros_like(scores), xp.float32), k, links.logistic, 1.0, dim, mask)
    per_row, number = checked.per_row().k[..., None], framework(k) is None
    rows = comparable(form.entries(scores))
    count = math.ceil(k) if number else rows.shape[-1]
    way = way_of(smallest=False, in_order=True)
    if mask is None:
        order = route.answer(FIRST, rows, settings=(count, way))
    else:
        playing = last_mask(mask, scores, form)
        playing = playing if form.n else xp.zeros_like(rows, dtype=xp.bool)
        order = route.answer(FIRST_OF_MASKED, rows, playing, settings=(count, way))
    share = xp.clip(per_row - arange(per_row, count), 0.0, 1.0)
    chosen = put_along_last(cast(xp.zeros_like(rows), share.dtype), order, share)
    chosen = chosen if mask is None else xp.where(playing, chosen, 0.0)
    return form._replace(dtype=dtype).restored(chosen)
