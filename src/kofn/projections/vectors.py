"""The vectors that a projection moves: rows of an array, or all of it as one."""

from __future__ import annotations

import math
from typing import Any, Generic, NamedTuple

from kofn.arrays.checks import (
    check_broadcasts,
    check_count,
    check_number,
    check_per_row,
    check_real,
    check_same_kind,
)
from kofn.arrays.form import Form, form_of
from kofn.arrays.kinds import Array, cast_like, framework
from kofn.arrays.typing import ArrayT, KindT, Number
from kofn.rows.given import last_mask


class Vectors(NamedTuple, Generic[KindT]):
    """Vectors along the last dimension, in the compute dtype, and the way back."""

    rows: Any  # of the kind of x
    x: KindT  # the caller's array
    form: Form[KindT]
    whole: bool  # all of x is one vector

    @property
    def batch(self) -> tuple[int, ...]:
        """Return the shape of what there is per vector."""
        return () if self.whole else self.form.batch

    def restored(self, values: Array) -> KindT:
        """Return projected vectors in the caller's form and dtype."""
        if self.whole:
            values = values.reshape((*self.form.batch, self.form.n))
        return self.form.restored(values)

    def mask(self, mask: Array | None) -> Any:
        """Return where an entry may be other than 0, if there is a mask."""
        return None if mask is None else self._lined(last_mask(mask, self.x, self.form, "x"))

    def per_entry(self, name: str, value: object, *, infinite: bool = False) -> Any:
        """Return a number for each entry; `infinite` says whether a number may be ±inf."""
        if framework(value) is None:
            number = value if infinite and value in (math.inf, -math.inf) else None
            if number is None:
                allowed = "a number or ±inf, not NaN" if infinite else "a finite number"
                number = check_number(name, value, low=-math.inf, strict=True, allowed=allowed)
            return self.form.xp.zeros_like(self.rows) + number
        array = check_same_kind(name, value, self.x, "x")
        check_real(name, array)
        shape = tuple(self.form.shape)
        check_broadcasts(name, tuple(array.shape), shape, "the shape of x")
        spread = self.form.xp.broadcast_to(cast_like(array, self.rows), shape)
        return self._lined(self.form.turned(spread))

    def per_vector(self, name: str, value: object, *, positive: bool) -> Number:
        """Return a number, or an array of the batch shape, NaN where it must be > 0 and is not."""
        if framework(value) is None:
            allowed = "a finite number" + " > 0" * positive
            low = 0.0 if positive else -math.inf
            return check_number(name, value, low=low, strict=True, allowed=allowed)
        array = check_same_kind(name, value, self.x, "x")
        check_real(name, array)
        xp, dim = self.form.xp, None if self.whole else self.form.dim
        array = check_per_row(name, array, self.batch, dim, "x")
        spread = xp.broadcast_to(cast_like(array, self.rows), self.batch)
        if positive:
            spread = xp.where((spread > 0) & (spread < math.inf), spread, math.nan)
        return spread

    def count(self, k: object) -> Any:
        """Return a number of entries in [0, n], or an array of them, NaN where it is no integer."""
        if framework(k) is None:
            return check_count(k, self.rows.shape[-1], also=", or an array")
        xp, count = self.form.xp, self.per_vector("k", k, positive=False)
        return xp.where(xp.floor(count) == count, count, math.nan)  # type: ignore[arg-type]  # an array

    def _lined(self, values: Array) -> Array:
        return values.reshape(-1) if self.whole else values


def vectors(x: ArrayT, dim: int | None) -> Vectors[ArrayT]:
    """Return the vectors of x along `dim`, or, for None, all of x as one."""
    form = form_of(x, -1 if dim is None else dim, "x")
    rows = form.rows(x)
    return Vectors(rows.reshape(-1) if dim is None else rows, x, form, dim is None)


def along(number: Number) -> Any:
    """Return a number per vector so that it meets each entry."""
    return number if isinstance(number, float) else number[..., None]
