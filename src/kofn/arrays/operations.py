"""Operations along an axis that the array API lacks."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from kofn.arrays import torch as of_torch
from kofn.arrays.dtensor import is_dtensor
from kofn.arrays.keys import keys_of, with_one_nan, without_negative_zeros
from kofn.arrays.kinds import (
    LEAST_IN_PLAY,
    Array,
    cast,
    contiguous,
    deleted,
    dtype_name,
    full_like,
    is_jax,
    is_torch,
    namespace,
)
from kofn.arrays.tracing import is_at_hand
from kofn.arrays.typing import ArrayT, DType

if TYPE_CHECKING:
    import torch


def arange(like: ArrayT, count: int) -> ArrayT:
    """Return 0, 1, … count − 1 in the dtype and on the device of `like`."""
    if is_torch(like):
        return of_torch.state.numbers(like, count)  # type: ignore[return-value]  # of its kind
    return namespace(like).arange(count, dtype=like.dtype)


def constant(like: ArrayT, values: np.ndarray) -> ArrayT:
    """Return `values` as an array with the framework, dtype and device of `like`."""
    if is_torch(like):
        return of_torch.state.constant(like, values)  # type: ignore[return-value]  # of its kind
    return namespace(like).asarray(values, dtype=like.dtype)


def whole_rows(x: ArrayT, dim: int = -1) -> ArrayT:
    """Return `x`; a DTensor without a cut along `dim`."""
    if not is_dtensor(x):
        return x
    return of_torch.dtensors.with_whole_rows(x, dim)  # type: ignore[arg-type, return-value]  # of torch


def with_undivided_rows(x: ArrayT) -> ArrayT:
    """Return `x`; with rows that no explicit mesh of JAX divides, which refuses to sort those."""
    if not is_jax(x):
        return x
    from kofn.arrays.jax import layout

    return layout.with_whole_rows(x)


def divided_as(x: ArrayT, like: Array) -> ArrayT:
    """Return `x`, divided by an explicit mesh of JAX as another array with the same first axes."""
    if not is_jax(x):
        return x
    from kofn.arrays.jax import layout

    return layout.laid_as(x, like)


def cumulative_sums(x: ArrayT) -> ArrayT:
    """Return Σ_{j ≤ i} x_j along the last axis."""
    return x.cumsum(-1) if is_torch(x) else namespace(x).cumsum(x, axis=-1)  # type: ignore[return-value]  # of the kind of x


def cumulative_min(x: Array) -> Array:
    """Return the minimum over j ≤ i of x_j along the last axis."""
    if is_torch(x):
        return x.cummin(-1).values
    if is_jax(x):
        from jax import lax

        return lax.cummin(x, axis=x.ndim - 1)
    return np.minimum.accumulate(x, axis=-1)


def marked(like: Array, indices: Array) -> Array:
    """Return booleans of the shape of `like`, True at the indices along the last axis."""
    xp = namespace(like)
    nowhere: Array = xp.zeros_like(like, dtype=xp.bool)
    if is_torch(like):
        return _scattered(nowhere, indices, 1)  # torch.jit.trace cannot convert True
    if is_jax(like):
        return _replaced(nowhere, indices, xp.ones_like(indices, dtype=xp.bool))
    return _put(nowhere, indices, True)


def put_along_last(like: Array, indices: Array, values: Array) -> Array:
    """Return zeros of the shape of `like` with `values` at the indices along the last axis."""
    xp = namespace(like)
    nowhere = xp.zeros_like(like)
    if is_torch(like):
        return _scattered(nowhere, indices, values)
    if is_jax(like):
        return _replaced(nowhere, indices, values)
    return _put(nowhere, indices, values)


def _scattered(x: Any, indices: Array, values: Any) -> torch.Tensor:
    return x.scatter(-1, _long(indices), values)


def as_indices(x: ArrayT) -> ArrayT:
    """Return integers as indices: int64, or int32 of a JAX without 64 bits."""
    return cast(x, namespace(x).asarray(0).dtype if is_jax(x) else namespace(x).int64)


def _long(indices: Any) -> torch.Tensor:
    return indices.long()


def _put(x: Any, indices: Any, values: Any) -> Array:
    """Put values into a NumPy array that nobody else has, and return it."""
    np.put_along_axis(x, indices, values, axis=-1)
    return x


def _replaced(x: Array, indices: Array, values: Array) -> Array:
    """Return `replaced_along_last` on JAX; its put_along_axis takes no symbolic sizes."""
    xp = namespace(x)
    batch = xp.broadcast_shapes(x.shape[:-1], indices.shape[:-1], values.shape[:-1])
    rows = (xp.broadcast_to(each, (*batch, each.shape[-1])) for each in (x, indices, values))

    def replace(row: Any, at: Array, new: Array) -> Any:
        return row.at[at].set(new)

    import jax

    for _ in batch:
        replace = jax.vmap(replace)
    return replace(*rows)


def convolved(a: Array, b: Array) -> Array:
    """Convolve a and b, of the same shape, along the first axis, without a gradient.

    The sums are direct: a Fourier transform would lose small terms and exact zeros.
    """
    w, a, b = a.shape[0], contiguous(a), contiguous(b)
    if is_jax(a):
        from jax import lax

        zeros = namespace(a).zeros_like(a)  # on the mesh of a
        out: Any = namespace(a).concat([zeros, zeros[1:]])

        def add(i: Any, out: Any) -> Any:
            part = lax.dynamic_slice_in_dim(out, i, w)
            return lax.dynamic_update_slice_in_dim(out, part + a[i] * b, i, 0)  # type: ignore[arg-type]  # of JAX

        return lax.fori_loop(0, w, add, out)
    out = full_like(a, (2 * w - 1, *a.shape[1:]), 0.0)
    for i in range(w):
        out[i : i + w] += a[i] * b
    return out


def top_indices(x: ArrayT, k: int) -> ArrayT:
    """Return the indices of the k largest entries, largest first, ties to the lowest index."""
    if is_torch(x):
        return x.sort(dim=-1, descending=True, stable=True).indices[..., :k]  # type: ignore[return-value]  # of the kind of x
    if is_jax(x):
        from jax import lax

        # JAX's top_k orders −0 below 0.
        return lax.top_k(without_negative_zeros(with_undivided_rows(x)), k)[1]  # type: ignore[return-value]  # of its kind
    return np.argsort(-x, axis=-1, kind="stable")[..., :k]  # type: ignore[return-value]  # of the kind of x


def stable_order(x: Array, descending: bool = False) -> Array:
    """Return the indices that sort x along the last axis, equal numbers in their order.

    A NaN counts as the largest number.
    """
    if is_torch(x):
        return x.sort(dim=-1, descending=descending, stable=True).indices
    if is_jax(x):
        return namespace(x).argsort(
            keys_of(with_one_nan(x)), axis=-1, stable=True, descending=descending
        )
    if descending:
        return x.shape[-1] - 1 - np.argsort(x[..., ::-1], axis=-1, kind="stable")[..., ::-1]
    return np.argsort(x, axis=-1, kind="stable")


def comparable(x: Array) -> Array:
    """Return numbers in the order of x, as float32, float64, int32 or int64."""
    name = dtype_name(x)
    if name in ("float32", "float64", "int32", "int64") or is_jax(x):
        return x
    xp = namespace(x)
    if name == "uint64":  # half of them are greater than any int64
        numbers = cast(x, xp.int64)
        return numbers ^ np.iinfo(np.int64).min
    wide = xp.float32 if "float" in name else xp.int64 if name == "uint32" else xp.int32
    return cast(x, wide)


def outermost(like: ArrayT, greatest: bool) -> ArrayT:
    """Return ±inf in the dtype of `like`; of integers, the greatest or the least."""
    name, end = dtype_name(like), math.inf if greatest else -math.inf
    if "float" not in name:
        info = np.iinfo(name)
        end = int(info.max if greatest else info.min)
    return full_like(like, (), end)


def kth_largest(x: Array, k: int) -> Array:
    """Return the k-th largest number of each row, k ≥ 1; a NaN counts as the largest."""
    if is_torch(x):
        return x.topk(k, dim=-1).values[..., -1]
    if is_jax(x):
        from jax import lax

        return lax.top_k(with_undivided_rows(x), k)[0][..., -1]
    return np.partition(np.asarray(x), x.shape[-1] - k, axis=-1)[..., -k]


def as_numbers(x: Array, dtype: DType) -> Array:
    """Return `cast` of x; PyTorch converts the bytes of booleans five times as fast as these."""
    if is_torch(x) and x.dtype == sys.modules["torch"].bool and of_torch.state.is_plain(x):
        x = x.view(sys.modules["torch"].uint8)
    return cast(x, dtype)


def greatest(x: ArrayT) -> ArrayT:
    """Return the maximum along the last axis; NaN if there is one."""
    if is_jax(x):
        from kofn.arrays.jax.extremes import extreme

        return extreme(x, -math.inf)  # type: ignore[return-value]  # of its kind
    return namespace(x).max(x, axis=-1)


def least(x: ArrayT) -> ArrayT:
    """Return the minimum along the last axis; NaN if there is one."""
    if is_jax(x):
        from kofn.arrays.jax.extremes import extreme

        return extreme(x, math.inf)  # type: ignore[return-value]  # of its kind
    return namespace(x).min(x, axis=-1)


def take_along_last(x: ArrayT, indices: Array) -> ArrayT:
    if is_torch(x):
        if x.dtype.itemsize > 1 and dtype_name(x).startswith("uint"):  # PyTorch cannot gather them
            return of_torch.state.signed(x).gather(-1, _long(indices)).view(x.dtype)  # type: ignore[return-value]  # of its kind
        return x.gather(-1, _long(indices))  # type: ignore[return-value]  # of the kind of x
    if is_jax(x):
        from kofn.arrays.jax import layout

        return layout.take_along_last(x, indices)
    return namespace(x).take_along_axis(x, indices, axis=-1)


def flattened(x: ArrayT) -> ArrayT:
    """Return an array of one dimension."""
    if is_jax(x):
        from kofn.arrays.jax import layout

        return layout.flattened(x)
    return x.reshape(-1)  # type: ignore[return-value]  # of its kind


def at_labels(x: ArrayT, labels: Array) -> ArrayT:
    """Return the entry of each row that its label names."""
    return take_along_last(x, labels[..., None])[..., 0]  # type: ignore[return-value]  # of its kind


def of_places(values: ArrayT, places: Array) -> ArrayT:
    """Return the numbers of `values`, one per entry of a row, at these places of any shape."""
    if not is_jax(values):
        return values[places]  # type: ignore[return-value]  # of its kind
    from kofn.arrays.jax import layout

    return layout.of_places(values, places)


def take_along_first(x: Array, numbers: Array) -> Array:
    """Take along the first axis, by indices given as whole numbers in the dtype of `x`."""
    if is_torch(x):
        return x.gather(0, _long(numbers))
    indices = cast(numbers, namespace(x).int32 if is_jax(x) else np.dtype(np.intp))
    return namespace(x).take_along_axis(x, indices, axis=0)


def copied(x: ArrayT) -> ArrayT:
    """Return `x` in memory that nobody else has."""
    return x.clone() if is_torch(x) else x.copy()  # type: ignore[return-value,union-attr]  # of its kind


def without_deleted(scores: ArrayT) -> ArrayT:
    """Return `scores` with −inf where `kinds.deleted` says that they count as masked.

    They themselves, if their least number tells that none does: to find it takes less than a copy.
    They lie in memory as a copy would, so that the bits of sums are the same.
    """
    if is_at_hand(scores) and 0 not in scores.shape:
        least = (scores.detach() if is_torch(scores) else scores).min()
        if float(least) > LEAST_IN_PLAY[dtype_name(scores)]:
            return contiguous(scores) if scores.ndim else scores
    return namespace(scores).where(deleted(scores), -math.inf, scores)


def same(a: Array, b: Array) -> bool:
    """Return whether two arrays in main memory are equal; a NaN is equal to nothing."""
    if type(a) is not type(b) or a.dtype != b.dtype:
        return False
    return a.equal(b) if is_torch(a) and is_torch(b) else np.array_equal(a, b)


def replaced_along_last(x: Array, indices: Array, values: Array, is_own: bool = False) -> Array:
    """Return `x`, which nobody else has if `is_own`, with `values` at indices of the last axis."""
    if is_torch(x):
        return _scattered(x, indices, values)
    if is_jax(x):
        return _replaced(x, indices, values)
    return _put(np.array(x, order="C", copy=None if is_own else True), indices, values)


def power_of_two(x: ArrayT) -> ArrayT:
    """Return the power of two in (x/2, x] for numbers x > 0, and 1 for 0; without a gradient."""
    some = namespace(x).where(x > 0, x, 1.0)
    return some / 2 / namespace(x).frexp(some)[0]


def in_parts(x: Array) -> tuple[Array, Array]:
    """Return x as a sum of two numbers of half the digits, whose products are exact (Veltkamp).

    Without a gradient. Numbers so large that this overflows are returned whole.
    """
    xp = namespace(x)
    if is_jax(x):  # XLA may compute a·b − c with one rounding, which spoils the other way
        from jax import lax

        bits = xp.finfo(x.dtype).bits
        exponent = {16: 5, 32: 8, 64: 11}[bits]
        large: Array = lax.reduce_precision(x, exponent, (bits - exponent - 2) // 2)
    else:
        factor = 2.0 ** ((_digits(x) + 1) // 2) + 1
        product = factor * x
        large = product - (product - x)
    large = xp.where(xp.isfinite(large), large, x)
    return large, x - large


def on_grid(x: ArrayT) -> ArrayT:
    """Return x rounded to half of the digits that a number of size 1 has."""
    grid = 2.0 ** ((_digits(x) - 1) // 2)
    return namespace(x).round(x * grid) / grid


def _digits(x: Array) -> int:
    return 1 - round(math.log2(float(namespace(x).finfo(x.dtype).eps)))
