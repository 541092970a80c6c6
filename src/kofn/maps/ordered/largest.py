"""The k largest numbers of each row, exactly: values and indices."""

from __future__ import annotations

from typing import Generic, NamedTuple, Never

from kofn.adapters import route
from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.checks import check_count, check_flag
from kofn.arrays.form import Form, form_of
from kofn.arrays.kinds import Array, cast, move_axis, quiet
from kofn.arrays.names import unknown_keyword
from kofn.arrays.operations import comparable, outermost, take_along_last
from kofn.arrays.typing import ArrayT, KindT
from kofn.operations.choice import FIRST, FIRST_OF_MASKED, way_of
from kofn.rows.given import last_mask

__all__ = ["TopK", "topk"]


class TopK(NamedTuple, Generic[KindT]):
    """The k largest numbers of each row, and where they are."""

    values: KindT
    indices: KindT


def topk(
    x: ArrayT,
    k: int,
    *,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,  # as torch.topk has it
    mask: Array | None = None,
    **others: Never,
) -> TopK[ArrayT]:
    """Return (values, indices) of the k largest entries along `dim`, exactly.

    Like torch.topk, with the same answer on every device and in every framework: ties go to the
    lowest index. On a CPU, only the k entries that are found are sorted, so it is several times as
    fast as torch.topk there.

    Args:
        x: torch.Tensor, jax.Array or numpy.ndarray of floats or integers, any shape.
        k: a Python integer in [0, n] for n = x.shape[dim]; in jax.jit a static argument
            (`static_argnames="k"`).
        dim: the dimension to choose along.
        largest: False for the k smallest.
        sorted: False leaves the order open, which spares time for large k.
        mask: boolean, broadcasts to `x`; False entries come after all others, as −inf (+inf for the
            smallest; of integers, the least and the greatest of the dtype).

    Returns:
        A named tuple of two arrays like `x` with k entries along `dim`, the largest first. NaN
        counts as the largest number, as in torch, NumPy and JAX (in the weights of `soft_topk` it
        makes the row NaN instead). −0 and 0 are equal. Values have the gradient of their
        entries, as in torch.topk; indices are int64 (on JAX its default, int32 or int64).

    Raises:
        TypeError: x has another kind or dtype; k is no integer, such as an array.
        ValueError: k is not in [0, n]; the mask does not broadcast to `x`.

    Example:
        >>> import numpy as np
        >>> from kofn import topk
        >>> topk(np.array([0.1, 2.0, -1.0, 1.5]), 2)
        TopK(values=array([2. , 1.5]), indices=array([1, 3]))
        >>> topk(np.array([3, 1, 2, 1]), 3, largest=False).indices
        array([1, 3, 2])
    """
    if others:
        raise unknown_keyword(topk, others)
    form = form_of(x, dim, "x", integers=True)
    k = check_count(k, form.n)
    rows, smallest = form.last(x), not check_flag("largest", largest)
    way = way_of(smallest, check_flag("sorted", sorted))
    with quiet(x):
        given = comparable(stop_gradient(rows))
        if mask is None:
            indices = route.answer(FIRST, given, settings=(k, way))
            values = take_along_last(rows, indices)
        else:
            playing = last_mask(mask, x, form, "x")
            indices = route.answer(FIRST_OF_MASKED, given, playing, settings=(k, way))
            kept = take_along_last(playing, indices)
            entries = take_along_last(rows, indices)
            values = form.xp.where(kept, entries, outermost(rows, greatest=smallest))
    return TopK(_back(cast(values, x.dtype), form), _back(indices, form))


def _back(values: ArrayT, form: Form) -> ArrayT:
    """Return an array of rows with their dimension where the caller has it."""
    return values if form.dim == -1 else move_axis(values, -1, form.dim)
