"""Sets of entries that a caller names: their indices on one long axis, a part for each row."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from kofn.arrays.checks import check_mask, check_same_kind, refuse_divided, shown
from kofn.arrays.dtensor import is_dtensor
from kofn.arrays.form import Form, form_of
from kofn.arrays.kinds import Array, adopt, beside, cast, dtype_name, is_torch, move_axis, namespace
from kofn.arrays.operations import arange, as_indices
from kofn.arrays.tracing import at_hand
from kofn.links import exponential
from kofn.rows.given import Given, without_deleted
from kofn.rows.numbers import NUMBERS, temperature_or_number
from kofn.rows.segments.form import ids_of_ptr
from kofn.rows.segments.given import segment_given

WHAT = (
    "a pair (token_ids, offsets) of integers: the set of row i is token_ids[offsets[i]:"
    "offsets[i + 1]], or an object with these two attributes"
)
PADDING = -1
"""The id of no entry."""


class Kept(NamedTuple):
    """The entries of the sets, as segments, and where they are."""

    given: Given  # of the entries that are kept: each row's set is a segment
    form: Form  # of the caller's scores
    scores: Array  # the caller's, with `dim` last
    at: tuple[Array, ...]  # what indexes them by these entries; padding stands for entry 0
    own: Array | None = None  # scores of labels, (rows,), gathered with the sets' scores

    def has(self, labels: Array, over: Any) -> Array:
        """Return whether an entry of each row, (rows,), is in its set."""
        playing = ~(self.given.scores == -math.inf)
        flags: Array = over.count((self.at[-1] == over.expand(labels)) & playing) > 0
        return flags

    def spread(self, values: Array) -> Array:
        """Return numbers per kept entry as an array like the caller's scores, 0 elsewhere."""
        x, at = self.scores, self.at
        nothing: Any = namespace(x).zeros_like(x)
        whole: Array
        if is_torch(x):
            whole = nothing.index_put(at, values, accumulate=True)
        elif self.form.kind == "jax":
            # With a tangent: of one that is missing, JAX makes zeros on a mesh without devices.
            xp: Any = namespace(x)
            numbers: Any = xp.where(xp.ones_like(x, dtype=bool), nothing, x)
            whole = numbers.at[at].add(values)
        else:
            np.add.at(nothing, at, values)
            whole = nothing
        return whole if self.form.dim == -1 else move_axis(whole, -1, self.form.dim)


def index_of(batch: Sequence[int], rows: Array, entries: Array) -> tuple[Array, ...]:
    """Return what indexes an array (*batch, n) by numbers of its rows, and entries of these."""
    places, stride = [], math.prod(batch)
    for size in batch:
        stride = stride // size if size else 0
        places.append(rows // max(stride, 1) % max(size, 1))
    return (*places, entries)


def form_of_sets(scores: Any, dim: int) -> Form:
    """Check scores whose sets are named, and return their form."""
    if is_dtensor(scores):
        raise TypeError(
            "kept takes plain tensors, and scores is a DTensor: pass its to_local() and the sets "
            "of these rows, to kofn.distributed where other processes have the rest of them"
        )
    form = form_of(scores, dim)
    refuse_divided("scores", scores, "rows")
    return form


def kept_given(
    scores: Any, kept: Any, temperature: Any, dim: int, mask: Any, *, labels: Any = None,
    part: Any = None,
) -> Kept:  # fmt: skip
    """Check the arguments of a map over sets of entries; see `Kept`.

    Args:
        labels: one entry of each row, whose scores are wanted, too.
        part: of rows in parts, where the scores begin in whole rows, and how long these are.
    """
    form = form_of_sets(scores, dim)
    start, whole = (0, form.n) if part is None else part
    ids, offsets = _checked(kept, scores, form, whole)
    xp, wide = form.xp, "float64" if form.dtype_name == "float64" else "float32"
    turned = scores if form.dim == -1 else move_axis(scores, form.dim, -1)
    numbers = ids_of_ptr(offsets, ids.shape[0])
    none = (ids == PADDING) | (numbers < 0) | (numbers >= math.prod(form.batch))
    wrong = ~none & ((ids < 0) | (ids >= whole))
    if part is not None:
        ids = ids - start
        none = none | (~wrong & ((ids < 0) | (ids >= form.n)))
    at = index_of(form.batch, xp.where(none, 0, numbers), xp.where(none | wrong, 0, ids))
    both, count, own = at, ids.shape[0], None
    if labels is not None and form.n:
        labels = as_indices(labels)
        rows = arange(labels, labels.shape[0])
        of_labels = index_of(form.batch, rows, labels)
        both = tuple(xp.concat(pair, axis=0) for pair in zip(at, of_labels, strict=True))
    x = without_deleted(turned[both])
    if mask is not None:
        spread = xp.broadcast_to(adopt(check_mask(mask, scores), scores), form.shape)
        x = xp.where(move_axis(spread, form.dim, -1)[both], x, -math.inf)
    if labels is not None:  # of rows without entries, 0
        x, own = (x[:count], x[count:]) if form.n else (x, xp.sum(turned, axis=-1).reshape(-1))
        own = cast(own, getattr(xp, wide))
    x = xp.where(none, -math.inf, xp.where(wrong, math.nan, x))
    if type(temperature) not in NUMBERS:
        like = cast(x[:0], getattr(xp, wide))
        temperature = temperature_or_number(temperature, form.batch, like, form.dim)
        temperature = temperature if type(temperature) is float else temperature.reshape(-1)
    of: dict[str, Any] = dict(segment_ids=None, ptr=offsets, num_segments=None)
    given = segment_given(x, 1.0, exponential, temperature, None, **of)
    return Kept(given, form, turned, at, own)


def arrays_of(kept: Any, scores: Any, form: Form) -> tuple[Any, Any]:
    """Return the ids and offsets as arrays of the kind of the scores, their numbers unchecked."""
    (ids, _), (offsets, _) = _arrays_of(kept, scores, form)
    return ids, offsets


def _arrays_of(kept: Any, scores: Any, form: Form) -> list[tuple[Any, np.ndarray | None]]:
    pair = kept
    if hasattr(kept, "token_ids") and hasattr(kept, "offsets"):
        pair = kept.token_ids, kept.offsets
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise TypeError(f"kept must be {WHAT}; got {shown(kept)}")
    names = "token_ids", "offsets"
    return [_integers(*each, scores, form) for each in zip(names, pair, strict=True)]


def _checked(kept: Any, scores: Any, form: Form, n: int) -> tuple[Any, Any]:
    """Return the ids and offsets of rows of n entries."""
    (ids, known_ids), (offsets, known) = _arrays_of(kept, scores, form)
    rows = math.prod(form.batch)
    if offsets.shape[0] != rows + 1:
        raise ValueError(
            f"offsets of kept has {offsets.shape[0]} entries; it must have {rows + 1}, one more "
            f"than scores has rows: set i is token_ids[offsets[i]:offsets[i + 1]]"
        )
    if known_ids is None or known is None:
        return ids, offsets
    _check_entries(known_ids, known, n)
    return ids[: int(known[-1])], offsets


def _integers(name: str, value: Any, scores: Any, form: Form) -> tuple[Any, np.ndarray | None]:
    """Return integers along one axis, of the kind of the scores, and their numbers if these can be
    read without waiting for a device; lists are taken, too.
    """
    if isinstance(value, (list, tuple, range)):
        value = np.asarray(value, np.int64 if len(value) == 0 else None)
    if form.kind == "torch" and isinstance(value, np.ndarray):
        value = sys.modules["torch"].as_tensor(value, device="cpu")
    check_same_kind(f"{name} of kept", value, scores)
    if not dtype_name(value).startswith(("int", "uint")):
        raise TypeError(f"{name} of kept must be integers; got dtype {value.dtype}")
    if value.ndim != 1:
        raise ValueError(
            f"{name} of kept must have one dimension; got shape {tuple(value.shape)}: kept must "
            f"be {WHAT}"
        )
    known = at_hand(value)
    value = adopt(value, scores)
    numbers = None if known is None else np.asarray(known).astype(np.int64, copy=False)
    return beside(as_indices(value), scores), numbers


def _check_entries(ids: np.ndarray, offsets: np.ndarray, n: int) -> None:
    """Check numbers that can be read: the order of offsets, the range of ids, and that they differ
    in a row.
    """
    falls = np.flatnonzero(np.diff(offsets) < 0)
    if offsets[0] != 0 or offsets[-1] > ids.size or falls.size or (ids[offsets[-1] :] >= 0).any():
        raise ValueError(
            "offsets of kept must begin with 0, not decrease, and end with the number of "
            f"token_ids, but for padding of {PADDING}; got "
            + (
                f"{offsets[falls[0]]} before {offsets[falls[0] + 1]}"
                if falls.size
                else f"{offsets[0]} and {offsets[-1]} for {ids.size} token_ids"
            )
        )
    ids = ids[: offsets[-1]]
    if ids.size and (ids.min() < PADDING or ids.max() >= n):
        bad = ids.min() if ids.min() < PADDING else ids.max()
        raise ValueError(
            f"token_ids of kept must be in [0, {n}), or {PADDING} for padding; got {bad}"
        )
    rows = np.repeat(np.arange(offsets.size - 1), np.diff(offsets))
    places = rows * n + ids
    if (np.diff(places) > 0).all() and (ids >= 0).all():
        return
    places = np.sort(places[ids >= 0])
    twice = np.flatnonzero(np.diff(places) == 0)
    if twice.size:
        row, entry = divmod(int(places[twice[0]]), n)
        raise ValueError(f"token_ids of kept must differ in a row; row {row} has {entry} twice")
