"""Checks of arguments: each error names the argument, its value and the allowed ones.

Numbers are checked; entries of arrays are not, because reading them would wait for the device.
"""

from __future__ import annotations

import math
import numbers
import operator
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from kofn.arrays.kinds import FLOATS, Array, dtype_name, framework
from kofn.arrays.unfit import refuse_unfit

Said = str | Callable[[], str]
"""The allowed values: made only for a message that is raised where it names a size, for
torch.compile takes a symbolic size for a fixed one once it is printed.
"""

LONGEST = 80  # most characters of a value in a message
INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
"""The integers that are compared: JAX has smaller ones, which it cannot sort."""
REALS = (*FLOATS, "float80", "float96", "float128", "longdouble", *INTEGERS)
NO_NUMBERS = (bool, np.bool_, np.timedelta64)
"""Types that Python or NumPy counts among the integers, and a caller hardly means."""


def _text(allowed: Said) -> str:
    return allowed if isinstance(allowed, str) else allowed()


def shown(value: object) -> str:
    """Show `value` in a message: its repr if that is short and on one line, else its type."""
    text = repr(value)
    short = len(text) <= LONGEST and "\n" not in text
    return text if short else f"a {_type(value)}"


def _type(value: object) -> str:
    hint = "; pass its to_numpy()" if hasattr(value, "to_numpy") else ""
    return f"{type(value).__qualname__}{hint}"


REAL_NUMBERS = (numbers.Real, np.floating, np.integer)


def check_number(
    name: str,
    value: object,
    *,
    low: float,
    allowed: Said,
    strict: bool = False,
    arrays: bool = True,
    high: float = math.inf,
    below: float = math.inf,
) -> float:
    """Return `value` as a float if it is finite and > `low` (≥ `low` unless strict).

    `high` is the largest allowed value; `below` is the smallest value that is too large.
    """
    # Most are of these two types, and numbers.Real takes a while to ask.
    if type(value) not in (float, int) and (
        isinstance(value, NO_NUMBERS) or not isinstance(value, REAL_NUMBERS)
    ):
        also = ", or an array" if arrays else ""
        raise TypeError(f"{name} must be {_text(allowed)}{also}; got {shown(value)}")
    try:
        number = float(value)  # type: ignore[arg-type]  # a real number
    except OverflowError:  # an integer beyond all floats
        number = math.inf if value > 0 else -math.inf  # type: ignore[operator]
    # A NaN fails every comparison; math.isfinite would break the graph for symbolic numbers.
    if not low <= number < below or number > high or (strict and number == low):
        also = _thought_of(name, number, min(high, below))
        raise ValueError(f"{name} must be {_text(allowed)}; got {value!r}{also}")
    return number


def _thought_of(name: str, number: float, most: float) -> str:
    """Return what someone may have meant by a number that is refused: a limit, or percent."""
    if name == "temperature" and number == 0:
        return "; the limit of 0 is the hard choice, as by hard_topk"
    return f"; {number:g} % is {number / 100:g}" if most == 1 < number <= 100 else ""


def check_k(k: object, n: int) -> float:
    """Return `k` as a float if it is a number in [0, n]."""

    def allowed() -> str:
        return f"a number in [0, n] (here n = {n} entries to choose from)"

    number = check_number("k", k, low=0.0, allowed=allowed)
    # A symbolic n of JAX can be compared with integers only.
    if n < (number if isinstance(n, int) else math.ceil(number)):
        raise ValueError(f"k must be {allowed()}; got {k!r}")
    return number


def check_temperature(temperature: object) -> float:
    allowed = "a finite number > 0, in the units of the scores"
    return check_number("temperature", temperature, low=0.0, allowed=allowed, strict=True)


def refuse_divided(name: str, x: Array, what: str) -> None:
    """Refuse a JAX array that an explicit mesh divides."""
    if "jax" not in sys.modules or framework(x) != "jax":
        return
    from kofn.arrays.jax import layout

    if layout.is_divided(x):
        raise TypeError(
            f"{name} is divided by an explicit mesh, and its {what} have to lie whole on a device; "
            "use a mesh with AxisType.Auto, or jax.sharding.reshard it to PartitionSpec()"
        )


def check_scores(
    scores: Any, name: str = "scores", integers: bool = False, scalars: bool = False
) -> tuple[str, str]:
    """Return the framework and the dtype's name of `scores`, an array of floats, or of integers.

    With `scalars`, it may have no dimensions.
    """
    kind = framework(scores)
    if kind is None:
        if type(scores).__module__ == "torch.fx.proxy":
            raise TypeError(
                f"{name} is a torch.fx.Proxy, which has no shape and no dtype: symbolic_trace "
                "cannot trace kofn. Trace with torch.export, or call kofn in a function of your "
                "module that you register with torch.fx.wrap"
            )
        raise TypeError(
            f"{name} must be a torch.Tensor, jax.Array or numpy.ndarray; got {_type(scores)}"
        )
    # Most are tensors, which are asked here: for short rows, each call of a function counts.
    if (
        kind != "torch"
        or scores.is_nested
        or scores.layout is not sys.modules["torch"].strided
        or type(scores).__name__ == "MaskedTensor"
    ):
        refuse_unfit(kind, name, scores)
    dtype = dtype_name(scores)
    if dtype not in FLOATS and not (integers and dtype in INTEGERS):
        allowed = ", ".join(FLOATS) + " or an integer type of 8 to 64 bits" * integers
        hint = _cast_hint(name, kind, dtype, integers)
        raise TypeError(f"{name} must have dtype {allowed}; got {scores.dtype}{hint}")
    if scores.ndim == 0 and not scalars:
        raise ValueError(f"{name} must have at least one dimension; got a single number")
    return kind, dtype


def _cast_hint(name: str, kind: str, dtype: str, integers: bool) -> str:
    """Return how integers and booleans become an allowed dtype; nothing for other dtypes."""
    if not dtype.startswith(("int", "uint", "bool")):
        return ""
    if integers and not dtype.startswith("bool"):
        how = "to(torch.int8)" if kind == "torch" else 'astype("int8")'
        return f"; cast it, as in {name}.{how}"
    how = {"torch": "float()", "jax": 'astype("float32")', "numpy": "astype(float)"}[kind]
    return f"; cast it, as in {name}.{how}"


def check_integer(
    name: str, value: object, allowed: Said, low: int | None = None, high: int | None = None
) -> int:
    """Return `value` as a Python integer if it is of any integer type and in [low, high]."""
    is_bool = framework(value) is not None and "bool" in str(value.dtype)  # type: ignore[attr-defined]
    try:
        if is_bool or isinstance(value, NO_NUMBERS):
            raise TypeError
        number = operator.index(value)  # type: ignore[arg-type]  # or it raises
    except TypeError:
        message = f"{name} must be {_text(allowed)}; got {shown(value)}{static_hint(name, value)}"
        raise TypeError(message) from None
    if (low is not None and number < low) or (high is not None and number > high):
        raise ValueError(f"{name} must be {_text(allowed)}; got {number}")
    return number


def static_hint(name: str, value: object) -> str:
    """Return how an argument that jax.jit traces becomes a number; nothing for others."""
    if framework(value) != "jax" or not isinstance(value, sys.modules["jax"].core.Tracer):
        return ""
    return (
        f", a value that JAX traces; make the argument static, as in jax.jit(function, "
        f'static_argnames="{name}")'
    )


def check_count(k: object, n: int, also: str = "") -> int:
    """Return `k` as a Python integer if it is in [0, n]."""

    def allowed() -> str:
        return f"an integer in [0, n] (here n = {n} entries to choose from)"

    if framework(k) is not None:
        message = f"k must be {allowed()}{also}; got {shown(k)}{static_hint('k', k)}"
        raise TypeError(message)
    number = check_integer("k", k, lambda: allowed() + also)
    if not 0 <= number <= n:
        raise ValueError(f"k must be {allowed()}{also}; got {k!r}")
    return number


def check_shape(shape: object) -> tuple[int, ...]:
    """Return the shape of a sample as a tuple."""
    sizes = shape if isinstance(shape, (tuple, list)) else (shape,)
    allowed = "a tuple of integers ≥ 0, or one"
    sizes = tuple(check_integer("shape", size, allowed) for size in sizes)
    if any(size < 0 for size in sizes):
        raise ValueError(f"shape must be {allowed}; got {shape!r}")
    return sizes


def check_dim(dim: object, ndim: int) -> int:
    """Return `dim` as a negative number, counted from the end."""
    if type(dim) is int and -ndim <= dim < 0:
        return dim
    if isinstance(dim, NO_NUMBERS) or not isinstance(dim, (int, np.integer)):
        raise TypeError(f"dim must be an integer; got {shown(dim)}{static_hint('dim', dim)}")
    if not -ndim <= dim < ndim:
        raise ValueError(
            f"dim must be in [{-ndim}, {ndim - 1}] for a {ndim}-dimensional array; got {dim}"
        )
    return int(dim) - ndim if dim >= 0 else int(dim)


def check_mask(mask: object, scores: Array, of: str = "scores") -> Array:
    """Return `mask` if it is an array of booleans that broadcasts to the scores."""
    mask = _check_framework("mask", mask, scores, of)
    if dtype_name(mask) not in ("bool", "bool_"):
        raise TypeError(
            f"mask must be boolean, True where an entry may be chosen; got {mask.dtype}"
        )
    check_broadcasts("mask", tuple(mask.shape), tuple(scores.shape), f"the shape of {of}")
    check_same_device("mask", mask, scores, of)
    return mask


def check_same_device(name: str, value: Array, scores: Array, of: str = "scores") -> None:
    """Check that tensors with a number for each entry or row are not on two devices.

    Kernels would take an address on one for memory of the other.
    """
    if framework(value) == framework(scores) == "torch" and value.device != scores.device:
        where = f"{value.device}, and {of} on {scores.device}"
        raise ValueError(f"{name} is on the device {where}; move one of them")


def check_same_kind(name: str, value: object, scores: Array, of: str = "scores") -> Array:
    """Return `value` if it is an array of numbers or booleans of the framework of `scores`."""
    value = _check_framework(name, value, scores, of)
    if not dtype_name(value).startswith("bool"):
        check_real(name, value)
    return value


def _check_framework(name: str, value: object, scores: Array, of: str) -> Array:
    """Return `value` if the arrays are of one framework; JAX also accepts NumPy arrays."""
    if isinstance(value, np.generic):  # what NumPy makes of an array of one number
        value = np.asarray(value)
    kind, wanted = framework(value), framework(scores)
    if kind is None:
        raise TypeError(
            f"{name} must be an array of the same framework as {of}; got {shown(value)}"
        )
    if kind != wanted and (kind, wanted) != ("numpy", "jax"):
        raise TypeError(
            f"{name} is a {type(value).__qualname__} and {of} a {type(scores).__qualname__}; "
            "convert one of them"
        )
    refuse_unfit(kind, name, value)
    return value  # type: ignore[return-value]  # `framework` says so


def check_ends(name: str, value: object, like: Array, of: str = "logits") -> None:
    """Check that `value` has the framework of `like`, and that its shape ends in `like`'s."""
    shape, wanted = tuple(check_same_kind(name, value, like, of).shape), tuple(like.shape)
    if shape[max(len(shape) - len(wanted), 0) :] != wanted:
        raise ValueError(f"{name} has shape {shape}; it must end in that of {of}, {wanted}")


def check_other(mine: object, other: object, of: str = "logits") -> None:
    """Check that two distributions have one class, one shape of logits and, if any, one dim."""
    if not isinstance(other, type(mine)):
        raise TypeError(f"other must be a {type(mine).__name__}; got {type(other).__name__}")
    check_same_kind(f"other.{of}", getattr(other, of), getattr(mine, of), of)
    (wanted, wanted_dim), (got, got_dim) = (
        (tuple(getattr(one, of).shape), getattr(one, "dim", None)) for one in (mine, other)
    )
    if got != wanted or got_dim != wanted_dim:
        along = (
            ("", "") if wanted_dim is None else (f" and dim {wanted_dim}", f" and dim {got_dim}")
        )
        raise ValueError(
            f"other must have {of} of shape {wanted}{along[0]}; got {of} of shape {got}{along[1]}"
        )


def check_real(name: str, value: Array) -> None:
    """Check that `value` is an array of numbers, not of booleans, objects, dates or text."""
    if dtype_name(value) not in REALS:
        allowed = "real numbers, floats of 16 bits or more, or integers of 8 or more"
        raise TypeError(f"{name} must be {allowed}; got dtype {value.dtype}")


def check_broadcasts(name: str, shape: tuple[int, ...], target: tuple[int, ...], what: str) -> None:
    """Check that `shape` broadcasts to `target` without enlarging it."""
    fits = len(shape) <= len(target) and all(
        # Not `in`, which is False for a size that torch.compile has made a symbol.
        size == 1 or size == wanted
        for size, wanted in zip(reversed(shape), reversed(target), strict=False)
    )
    if not fits:
        meant = _meant(shape, target)
        hint = "" if meant is None else f"; give it the shape {meant}"
        raise ValueError(
            f"{name} has shape {tuple(shape)}; it must broadcast to {what}, {tuple(target)}{hint}"
        )


def _meant(shape: tuple[int, ...], target: tuple[int, ...]) -> tuple[int, ...] | None:
    """Find the shape with the sizes of `shape`, in order, that broadcasts to `target`."""
    sizes = [size for size in shape if size != 1]
    placed: list[int] = []
    for size in target:
        fits = bool(sizes) and sizes[0] == size
        if fits or placed:  # leading dimensions of size 1 may be omitted
            placed.append(sizes.pop(0) if fits else 1)
    return None if sizes else tuple(placed)


def check_per_row(
    name: str, value: Array, batch: tuple[int, ...], dim: int | None, of: str = "scores"
) -> Array:
    """Check that `value` broadcasts to the batch shape; remove a dimension `dim` of size 1.

    `dim` is counted from the end; None if every entry is a row.
    """
    if dim is not None and value.ndim == len(batch) + 1 and value.shape[dim] == 1:
        value = value.squeeze(dim)
    what = f"the batch shape ({of}.shape without dim)"
    check_broadcasts(name, tuple(value.shape), batch, what)
    return value


def check_flag(name: str, value: object) -> bool:
    """Return True or False; a string such as "no" would count as True."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(
            f"{name} must be True or False; got {shown(value)}{static_hint(name, value)}"
        )
    return bool(value)


def check_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}; got {value!r}")
