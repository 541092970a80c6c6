"""Forms of NumPy's arrays."""

from __future__ import annotations

import tempfile
import warnings
from typing import Any

import numpy as np

from calls import BOOLEAN, FLOAT, INTEGER
from zoo.form import (
    Form,
    always,
    first_row,
    is_matrix,
    may_be_a_number,
    not_in_parts,
    of_rows,
    one_number,
)

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


class Own(np.ndarray):
    """A subclass without rules of its own."""


def swapped(x: np.ndarray) -> np.ndarray:
    return x.astype(x.dtype.newbyteorder())


def strange(x: np.ndarray) -> Any:
    """What must not be read: a number that would show in any answer."""
    return {"f": np.nan, "b": True}.get(x.dtype.kind, 3)


def backwards(x: np.ndarray) -> np.ndarray:
    return np.flip(np.flip(x).copy())


def with_gaps(x: np.ndarray) -> np.ndarray:
    wide = np.full([3 * size for size in x.shape], strange(x), x.dtype)
    view = wide[tuple(slice(1, None, 3) for _ in x.shape)]
    view[...] = x
    return view


def unaligned(x: np.ndarray) -> np.ndarray:
    """A field of packed records: addresses and strides are odd."""
    packed = np.zeros(x.shape, [("before", "i1"), ("x", x.dtype)])
    packed["x"] = x
    return packed["x"]


def loose(x: np.ndarray) -> np.ndarray:
    """Strides of dimensions of size 1, where they mean nothing, point far away."""
    wide = x[None]
    strides = (12345, *x.strides)
    return np.lib.stride_tricks.as_strided(wide, wide.shape, strides)[0]


def read_only(x: np.ndarray) -> np.ndarray:
    x = x.copy()
    x.setflags(write=False)
    return x


def mapped(x: np.ndarray) -> np.ndarray:
    with tempfile.TemporaryFile() as file:
        x.tofile(file)
        file.flush()
        return np.memmap(file, x.dtype, "r", shape=x.shape) if x.size else x


def matrix(x: np.ndarray) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PendingDeprecationWarning)
        return np.asmatrix(x)


def transposed(x: np.ndarray) -> np.ndarray:
    return np.asfortranarray(x)


def overlapping(x: np.ndarray) -> np.ndarray:
    """Rows that share their memory: each begins an entry after the one before."""
    if x.ndim < 2:
        return x
    line = np.concatenate([x.reshape(-1, x.shape[-1])[0], x.reshape(-1, x.shape[-1])[1:, -1]])
    return np.lib.stride_tricks.sliding_window_view(line, x.shape[-1]).reshape(x.shape)


def spread(x: np.ndarray) -> np.ndarray:
    """With strides of 0, where the entries are the same."""
    same = x.size > 0 and np.array_equal(np.broadcast_to(x[:1], x.shape), x, equal_nan=True)
    return np.broadcast_to(x[0], x.shape) if same else x


FORMS = (
    Form("other byte order", "numpy", swapped, FLOAT + INTEGER),
    Form("backwards", "numpy", backwards),
    Form("with gaps", "numpy", with_gaps),
    Form("unaligned", "numpy", unaligned),
    Form("unaligned, other byte order", "numpy", lambda x: unaligned(swapped(x))),
    Form("loose strides", "numpy", loose),
    Form("read-only", "numpy", read_only),
    Form("memory map", "numpy", mapped),
    Form("column by column", "numpy", transposed, of=of_rows),
    Form("subclass", "numpy", lambda x: x.view(Own)),
    Form("strides of 0", "numpy", spread, values=first_row),
    Form(
        *("array without dimensions", "numpy", lambda x: np.array(x.flat[0], x.dtype)),
        of=may_be_a_number,
        values=one_number,
        refused=always,
    ),
    Form(
        *("scalar of NumPy", "numpy", lambda x: x.flat[0]),
        of=may_be_a_number,
        values=one_number,
        refused=always,
    ),
    Form("list", "numpy", lambda x: x.tolist(), refused=always),
    Form("tuple of rows", "numpy", tuple, of=not_in_parts, refused=always),
    Form("masked array", "numpy", np.ma.masked_array, refused=always),
    Form("matrix", "numpy", matrix, of=is_matrix, refused=always),
    Form("objects", "numpy", lambda x: x.astype(object), refused=always),
    Form("text", "numpy", lambda x: x.astype(str), refused=always),
    Form("complex", "numpy", lambda x: x.astype(complex), FLOAT, refused=always),
    Form("long double", "numpy", lambda x: x.astype(np.longdouble), FLOAT, refused=always),
    Form("durations", "numpy", lambda x: x.astype("m8[s]"), INTEGER, refused=always),
    Form("numbers for booleans", "numpy", lambda x: x.astype(int), BOOLEAN, refused=always),
    *(
        Form(dtype, "numpy", lambda x, dtype=dtype: x.astype(dtype), INTEGER, refused=always)
        for dtype in INTEGERS
    ),
)

__all__ = ["FORMS", "INTEGERS"]
