"""Arrays with nothing in them, with one number, and with numbers at the ends of their types."""

from __future__ import annotations

import functools
from typing import Any

import ml_dtypes  # noqa: F401  # gives NumPy the name bfloat16
import numpy as np
import torch

from calls import Call, array_of, surroundings
from zoo.form import Wrong, close, names_what_is_wrong, numbers

REFUSED = (TypeError, ValueError, NotImplementedError)


def cut(call: Call, axis: int, size: int) -> dict[str, Any]:
    """The arguments with another number of rows, or of entries."""
    length = call.arguments[call.first].shape[axis]

    def shorter(name: str, value: Any) -> Any:
        if not isinstance(value, np.ndarray) or not value.ndim:
            return value
        if name == "ptr":
            return np.minimum(value, size)
        if value.shape[axis] != length:
            return value
        return value[:size] if axis == 0 else value[..., :size]

    return {name: shorter(name, value) for name, value in call.arguments.items()}


def arrays(call: Call, framework: str, dtype: str, axis: int, size: int) -> dict[str, Any]:
    return {
        name: array_of(framework, value, dtype) if isinstance(value, np.ndarray) else value
        for name, value in cut(call, axis, size).items()
    }


@functools.cache
def shapes(call: Call, framework: str, dtype: str, axis: int) -> list[tuple[int | None, ...]]:
    """What the shapes of the answers are for size 0: by those for two other sizes.

    None is where another number follows from the size.
    """
    full = call.arguments[call.first].shape[axis]
    sizes = (full - 1, full)
    with surroundings(call):
        answers = [call(framework, **arrays(call, framework, dtype, axis, n)) for n in sizes]

    def of(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int | None, ...]:
        pairs = zip(one, other, strict=True)
        return tuple(a if a == b else 0 if (a, b) == sizes else None for a, b in pairs)

    return [of(np.shape(a), np.shape(b)) for a, b in zip(*answers, strict=True)]


def hold_empty(call: Call, framework: str, dtype: str, axis: int) -> None:
    """Check a call without rows, or without entries: shapes, and that a graph leads back."""
    try:
        expected = shapes(call, framework, dtype, axis)
    except Exception:
        return  # a row, or an entry, cannot be left out of this example
    given = arrays(call, framework, dtype, axis, 0)
    learned = call.learned if framework == "torch" else ()
    for name in learned:
        given[name].requires_grad_()
    try:
        with surroundings(call):
            answers = call(framework, **given)
            every = [a.sum() for a in answers if torch.is_tensor(a) and a.requires_grad]
            if learned and not every:
                raise Wrong(f"no answer has a graph, where {', '.join(learned)} have one")
            if every:
                torch.autograd.grad(sum(every), [given[n] for n in learned], allow_unused=True)
    except REFUSED as error:
        if not names_what_is_wrong(str(error), call):
            raise Wrong(f"{type(error).__name__}: {error}") from error
        return
    found = [np.shape(each) for each in answers]
    for got, wanted in zip(found, expected, strict=True):
        fits = [w in (None, g) for g, w in zip(got, wanted, strict=False)]
        if len(got) != len(wanted) or not all(fits):
            raise Wrong(f"shapes {found} for {expected}")


def hold_one_number(call: Call, framework: str, dtype: str) -> None:
    """Check a function of an array without dimensions: what one entry has, or refused."""
    number, one = {}, {}
    rows = call.arguments[call.first].shape[:-1]
    for name, value in call.arguments.items():
        number[name] = one[name] = value
        if isinstance(value, np.ndarray):
            first = array_of(framework, value.reshape(-1)[:1], dtype)
            number[name] = first.reshape(())
            per_row = value.shape == rows or name in ("k", "temperature")
            one[name] = number[name] if per_row and name != call.first else first
    with surroundings(call):
        try:
            found = call(framework, **number)
        except REFUSED as error:
            if not names_what_is_wrong(str(error), call):
                raise Wrong(f"{type(error).__name__}: {error}") from error
            return
        expected = call(framework, **one)
    for a, b in zip(expected, found, strict=True):
        close("answer", numbers(a).ravel(), numbers(b).ravel(), 1e-5)


def at_the_ends(values: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Integers in the order of these numbers, as low and as high as the type has them; places."""
    places = np.argsort(np.argsort(values, axis=None)).reshape(values.shape)
    least, greatest = np.iinfo(dtype).min, np.iinfo(dtype).max
    count = values.size
    table = [least + i if i < count // 2 else greatest - (count - 1 - i) for i in range(count)]
    return np.array(table, dtype=dtype), places


def hold_ends(call: Call, framework: str, dtype: str) -> None:
    """Check what a function of integers answers for the least and the greatest of a type."""
    table, places = at_the_ends(call.arguments[call.first], dtype)
    given = call.made(framework)
    with surroundings(call):
        try:
            found = call(framework, **{**given, call.first: array_of(framework, table[places])})
        except REFUSED as error:
            if not names_what_is_wrong(str(error), call) or dtype in ("int32", "int64"):
                raise Wrong(f"{type(error).__name__}: {error}") from error
            return
        if "quantile" in call.name:  # numbers between those that are compared
            floats = array_of(framework, table[places].astype(float))
            expected = [numbers(each) for each in call(framework, **{**given, call.first: floats})]
        else:
            floats = array_of(framework, places.astype(float))
            expected = [numbers(each) for each in call(framework, **{**given, call.first: floats})]
            if len(expected) == 2:  # values and indices
                expected[0] = table[expected[0].astype(int)]
                if not np.array_equal(expected[0], numbers(found[0])):
                    raise Wrong(f"values {numbers(found[0]).tolist()} for {expected[0].tolist()}")
    for a, b in zip(expected, found, strict=True):
        close("answer", numbers(a).astype(float), numbers(b).astype(float), 1e-6)


def hold_half(call: Call, framework: str, dtype: str) -> None:
    """Check numbers of half precision: what float32 answers for the same, to their rounding."""

    def given(other: str) -> dict[str, Any]:
        return {
            name: array_of(framework, rounded(value, dtype), other)
            for name, value in call.arguments.items()
            if isinstance(value, np.ndarray)
        }

    with surroundings(call):
        try:
            found = call(framework, dtype=dtype, **given(dtype))
        except REFUSED as error:
            if names_what_is_wrong(str(error), call):
                return
            raise Wrong(f"{type(error).__name__}: {error}") from error
        wide = call(framework, dtype="float32", **given("float32"))
    for a, b in zip(wide, found, strict=True):
        close("answer", numbers(a).astype(float), numbers(b).astype(float), 0.02)


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    return values.astype(dtype).astype(float) if values.dtype.kind == "f" else values


TAKE_0 = {
    *("kofn.Bernoulli.mode", "kofn.Categorical[probs]", "kofn.KSubset.from_marginals"),
    *("kofn.classic.ones_and_softmax", "kofn.metrics.effective_support", "kofn.metrics.hard_gap"),
    *("kofn.metrics.renyi_entropy", "kofn.metrics.sparsity", "kofn.metrics.support_size"),
    *("kofn.metrics.temperature_for", "kofn.temperature_for", "kofn.temperature_for[common]"),
    *("kofn.soft_knapsack[hard]", "kofn.sparse_softmax", "kofn.sparse_softmax[p]"),
}
"""On JAX, these answer as for 0: XLA takes subnormal numbers for it (docs/arrays.md)."""


def hold_subnormal(call: Call, framework: str) -> None:
    """Check numbers below the least normal one: what float64 answers, where they are normal."""
    first = call.arguments[call.first]
    small = (first * 2.0**-138).astype(np.float32)
    name = call.first
    reference = "numpy" if "numpy" in call.frameworks else "torch"
    taken = 0 * small if framework == "jax" and call.name in TAKE_0 else small
    with surroundings(call):
        wide = call(reference, **{name: array_of(reference, taken.astype(float))})
        try:
            found = call(
                framework, dtype="float32", **{name: array_of(framework, small, "float32")}
            )
        except REFUSED as error:
            raise Wrong(f"{type(error).__name__}: {error}") from error
    for a, b in zip(wide, found, strict=True):
        close("answer", numbers(a).astype(float), numbers(b).astype(float), 3e-5)
