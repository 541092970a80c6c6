"""The form of a caller's array: all that the way back to it needs, found once in a call."""

from __future__ import annotations

import contextlib
from typing import Any, Generic, NamedTuple

from kofn.arrays import torch as of_torch
from kofn.arrays.checks import check_dim, check_scores
from kofn.arrays.kinds import Array, cast, contiguous, move_axis, namespace_of, quiet_for
from kofn.arrays.operations import whole_rows
from kofn.arrays.typing import ArrayT, DType, KindT, Namespace

_AS_IT_IS = contextlib.nullcontext()


class Form(NamedTuple, Generic[KindT]):
    """The framework, dtype and shape of an array, and the dimension along which its rows lie."""

    kind: str  # "numpy", "torch" or "jax"
    dtype: DType
    dtype_name: str
    shape: tuple[int, ...]
    dim: int  # counted from the end
    cut: tuple[int, ...] = ()  # the dimensions of a DTensor's mesh over which rows are cut

    @property
    def xp(self) -> Namespace[KindT]:
        """Return the framework's array-API namespace."""
        return namespace_of(self.kind)

    @property
    def n(self) -> int:
        """Return the number of entries of a row."""
        return self.shape[self.dim]

    @property
    def batch(self) -> tuple[int, ...]:
        """Return the batch shape: the shape without `dim`."""
        shape = list(self.shape)
        del shape[self.dim]
        return tuple(shape)

    def last(self, values: ArrayT) -> ArrayT:
        """Return `values` with `dim` last and contiguous."""
        values = values if self.dim == -1 else move_axis(values, self.dim, -1)
        if self.kind == "torch":  # sooner than `contiguous`, which asks for it
            if hasattr(values, "device_mesh"):  # is_dtensor, without a call
                values = whole_rows(values)
            return values.contiguous()  # type: ignore[union-attr]  # of PyTorch
        return contiguous(values)

    def turned(self, values: ArrayT) -> ArrayT:
        """Return `values` with `dim` last; of a DTensor, with whole rows."""
        return whole_rows(values if self.dim == -1 else move_axis(values, self.dim, -1))

    def rows(self, values: ArrayT) -> ArrayT:
        """Return `values` in the compute dtype with `dim` last."""
        if self.kind == "numpy" or self.dtype_name not in ("float32", "float64"):
            double = self.dtype_name == "float64"
            values = cast(values, self.xp.float64 if double else self.xp.float32)
        return self.last(values)

    def entries(self, values: ArrayT) -> ArrayT:
        """Return `values` with `dim` last; one entry, 0, in a row without any, as rows have."""
        values = self.last(values)
        if self.n:
            return values
        none: Any = self.xp.sum(values, axis=-1)[..., None]  # in the graph of the values
        return none  # of their kind

    def restored(self, values: Array) -> KindT:
        """Return values of rows in the caller's dtype, with the last dimension back at `dim`."""
        values = values if values.dtype == self.dtype else cast(values, self.dtype)
        if self.shape[self.dim] == 0:
            values = values[..., :0]
        if self.cut:
            values = of_torch.dtensors.with_cut_rows(values, self.cut)  # type: ignore[arg-type]
        turned: Any = values if self.dim == -1 else move_axis(values, -1, self.dim)
        return turned  # of the kind of the caller's array

    def quiet(self) -> contextlib.AbstractContextManager[Any]:
        """Return `kinds.quiet` for the caller's array."""
        return _AS_IT_IS if self.kind == "torch" else quiet_for(self.kind)


def form_of(scores: ArrayT, dim: int, name: str = "scores", integers: bool = False) -> Form[ArrayT]:
    """Check an array of floats, or of integers, and the dimension of its rows; return its form."""
    kind, dtype_name = check_scores(scores, name, integers)
    dim = check_dim(dim, scores.ndim)
    cut = ()
    if hasattr(scores, "device_mesh"):
        cut = of_torch.dtensors.rows_are_cut(scores, dim)  # type: ignore[arg-type, assignment]
    return Form(kind, scores.dtype, dtype_name, scores.shape, dim, cut)
