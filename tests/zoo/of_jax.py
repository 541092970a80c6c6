"""Forms of JAX's arrays, and settings of JAX that change what a call makes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from calls import BOOLEAN, FLOAT, INTEGER, Call
from support import jax_x64
from zoo.form import (
    EVERY,
    Form,
    Values,
    always,
    any_argument,
    as_it_is,
    beside,
    may_be_a_number,
    never,
    not_in_parts,
    of_eight_bits,
    one_number,
    zeros_and_ones,
)
from zoo.of_numpy import INTEGERS, swapped


def weak(x: Any) -> Any:
    """An array whose dtype gives way to those of others, as that of a Python number does."""
    number = {"f": 0.0, "i": 0, "b": False}[np.asarray(x).dtype.kind]
    found = jnp.where(jnp.zeros(x.shape, bool), number, number)
    for place, value in np.ndenumerate(np.asarray(x)):
        here = np.zeros(x.shape, bool)
        here[place] = True
        found = jnp.where(here, value.item(), found)
    return found


def committed(x: Any) -> Any:
    return jax.device_put(x, jax.devices()[0])


def placed(x: Any) -> Any:
    """On a mesh of one device."""
    mesh = jax.make_mesh((1,), ("rows",), devices=jax.devices()[:1])
    return jax.device_put(x, jax.NamedSharding(mesh, jax.sharding.PartitionSpec()))


def without_x64() -> contextlib.AbstractContextManager[Any]:
    return jax_x64(False)


def turned(x: Any) -> np.ndarray:
    return swapped(np.asarray(x))


def is_small(call: Call, name: str) -> bool:
    """Four bits hold its numbers."""
    return int(call.arguments[name].max()) < 8


def has_its_numbers(dtype: str) -> Callable[[Call, str], bool]:
    """An unsigned type has no -1, by which ids say that they are padding."""
    return lambda call, name: int(call.arguments[name].min()) >= np.iinfo(dtype).min


def needs_jax(call: Call) -> bool:
    """JAX's values have no use for a log-probability, nor JAX's scale for a mean, of NumPy."""
    return "surrogate" in call.name or call.name == "kofn.Normal.kl"


def first(x: Any) -> Any:
    return x.ravel()[0]


def narrow(x: Any) -> Any:
    with jax_x64(False):
        return jnp.asarray(np.asarray(x))


def not_of_processes(call: Call, name: str) -> bool:
    return ".distributed." not in call.name


def form(
    name: str,
    make: Callable[[Any], Any] = lambda x: x,
    kinds: str = EVERY,
    of: Callable[[Call, str], bool] = any_argument,
    values: Values = as_it_is,
    refused: Callable[[Call], bool] = never,
    **more: Any,
) -> Form:
    return Form(name, "jax", make, kinds, of, values, refused, **more)


RIGHT = (
    form("weak type", weak, FLOAT + INTEGER, dtype="float64"),  # as that of a Python float
    form("committed", committed),
    form("on a mesh", placed, of=not_of_processes),
    form("NumPy beside JAX", np.asarray, of=beside, refused=needs_jax),
    form("NumPy beside JAX, turned", turned, FLOAT + INTEGER, beside, refused=needs_jax),
    form("without float64", narrow, around=without_x64, dtype="float32", wide=False),
    form(
        *("array without dimensions", first),
        of=may_be_a_number,
        values=one_number,
        refused=always,
        learned=False,
    ),
    form(
        *("scalar of NumPy", lambda x: np.asarray(x).flat[0]),
        of=may_be_a_number,
        values=one_number,
        refused=always,
        learned=False,
    ),
)
"""Arrays that functions take."""


def other(name: str, make: Callable[[Any], Any], kinds: str = EVERY, **more: Any) -> Form:
    return form(name, make, kinds, refused=always, learned=False, **more)


OTHERS = (
    other("list", lambda x: x.tolist()),
    other("tuple of rows", tuple, of=not_in_parts),
    other("complex", lambda x: x.astype(complex), FLOAT),
    other("float8", lambda x: x.astype(jnp.float8_e4m3fn), FLOAT, values=of_eight_bits),
    other("int4", lambda x: x.astype(jnp.int4), INTEGER, of=is_small),
    other("uint4", lambda x: x.astype(jnp.uint4), INTEGER, of=is_small),
    other("booleans for numbers", lambda x: x > 0, FLOAT, values=zeros_and_ones),
    other("numbers for booleans", lambda x: x.astype(int), BOOLEAN),
    other("masked array", lambda x: np.ma.masked_array(x), of=beside),
    other("objects", lambda x: np.asarray(x).astype(object), of=beside),
    *(
        other(dtype, lambda x, dtype=dtype: x.astype(dtype), INTEGER, of=has_its_numbers(dtype))
        for dtype in INTEGERS
    ),
)
"""What functions may refuse."""

FORMS = (*RIGHT, *OTHERS)
