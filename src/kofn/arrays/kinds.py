"""Kinds of arrays: framework, namespace, dtypes, casts and constants."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import numpy as np

from kofn.arrays.typing import Array as Array
from kofn.arrays.typing import ArrayT, DType, Namespace, Special

if TYPE_CHECKING:
    import jax
    import torch
    from typing_extensions import TypeIs

FLOATS = ("float16", "bfloat16", "float32", "float64")


def is_torch(x: object) -> TypeIs[torch.Tensor]:
    # A tensor exists only if torch has been imported, so kofn need not import it to check.
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def is_jax(x: object) -> TypeIs[jax.Array]:
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(x, jax.Array)


def is_numpy(x: object) -> TypeIs[np.ndarray]:
    return isinstance(x, np.ndarray)


def framework(x: object) -> str | None:
    """Return the name of the framework of `x`, None if `x` is not an array."""
    if is_torch(x):
        return "torch"
    if is_jax(x):
        return "jax"
    return "numpy" if is_numpy(x) else None


_OF_TORCH = f"{__package__}.torch.namespace"


def namespace(x: ArrayT) -> Namespace[ArrayT]:
    """Return the array-API namespace of `x`."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):  # as `is_torch`: a call less, or two
        return sys.modules.get(_OF_TORCH) or namespace_of("torch")
    return namespace_of("jax" if is_jax(x) else "numpy")


def namespace_of(kind: str) -> Namespace[Any]:
    """Return the array-API namespace of a framework."""
    if kind == "torch":
        from kofn.arrays.torch import namespace as xp

        return xp  # type: ignore[return-value]
    return np if kind == "numpy" else sys.modules["jax"].numpy  # type: ignore[return-value]


def move_axis(x: ArrayT, source: int, destination: int) -> ArrayT:
    """Move axis `source` of `x` to `destination`."""
    # Tuples, because PyTorch's vmap has no rule for single numbers.
    return namespace(x).moveaxis(x, (source,), (destination,))


def special(x: ArrayT) -> Special[ArrayT]:
    """Return expit, erfc, ndtri and gammaln for the framework of `x`."""
    if is_torch(x):
        return sys.modules["torch"].special
    if is_jax(x):
        import jax.scipy.special

        return jax.scipy.special  # type: ignore[return-value]  # its functions take more
    from kofn.arrays import numpy_special

    return numpy_special


def dtype_name(x: Array) -> str:
    name = str(x.dtype).rpartition(".")[2]
    # ">f8" is NumPy's float64 in the other order of bytes; `contiguous` makes it native.
    return x.dtype.name if name[0] in "<>" else name  # type: ignore[attr-defined]


def compute_dtype(x: Array) -> DType:
    """Return the dtype to compute in: float64 for float64, float32 for all narrower ones.

    For integers it is the most precise one.
    """
    xp, name = namespace(x), dtype_name(x)
    if name.startswith(("int", "uint")):
        return most_precise_dtype(x)
    return xp.float64 if name == "float64" else xp.float32


def default_float(x: Array) -> DType:
    """Return the dtype that the framework of `x` gives to a number, and kofn to integers."""
    if is_torch(x):
        default: DType = sys.modules["torch"].get_default_dtype()
        return default
    return namespace(x).asarray(0.0).dtype


def most_precise_dtype(x: Array) -> DType:
    """Return float64 if the framework supports it by default for arrays like `x`."""
    if is_torch(x) and x.device.type == "mps":
        return namespace(x).float32
    if is_jax(x):
        return compute_dtype(x) if "float" in dtype_name(x) else default_float(x)
    return namespace(x).float64


# Binary digits after the point, and the greatest exponent.
_FORMATS = {"float16": (10, 15), "bfloat16": (7, 127), "float32": (23, 127), "float64": (52, 1023)}

EPSILONS = {name: 2.0**-digits for name, (digits, _) in _FORMATS.items()}
GREATEST = {name: (2 - EPSILONS[name]) * 2.0**most for name, (_, most) in _FORMATS.items()}
SMALLEST_NORMAL = {name: 2.0 ** (1 - most) for name, (_, most) in _FORMATS.items()}
LEAST_IN_PLAY = {name: -greatest / 2 for name, greatest in GREATEST.items()}


def epsilon(x: Array) -> float:
    """Return the distance from 1 to the next number of a dtype of floats, of NumPy's bfloat16, too.

    NumPy has no such type of its own, and its finfo does not know other packages'.
    """
    return EPSILONS[dtype_name(x)]


def deleted(x: ArrayT) -> ArrayT:
    """Return where a score counts as masked: −inf, or at most half of its dtype's least number.

    The additive masks of transformers produce such scores: `finfo(dtype).min` plus a score. Test
    before a cast: in float32, float16's least number is an ordinary score of −65504.
    """
    flags: Any = x <= LEAST_IN_PLAY[dtype_name(x)]
    return flags  # of the framework of x


def cast(x: ArrayT, dtype: DType) -> ArrayT:
    if x.dtype == dtype:
        return x
    if is_torch(x):
        return x.to(dtype)  # type: ignore[call-overload]  # of the kind of x
    # NumPy 2.0's function refuses NumPy's own scalars; their method does not.
    return x.astype(dtype)  # type: ignore[union-attr, call-overload]  # of NumPy or JAX


def adopt(x: Array, like: ArrayT) -> ArrayT:
    """Return `x` as an array of the framework of `like`; only JAX converts NumPy arrays."""
    if not (is_jax(like) and is_numpy(x)):
        return x  # type: ignore[return-value]  # checked to be of one framework
    return namespace(like).asarray(native(x))


def as_array(x: Any) -> Any:
    """Return NumPy's own scalars as arrays without dimensions, all else as it is."""
    return np.asarray(x) if isinstance(x, np.generic) else x


def cast_like(x: Array, like: ArrayT) -> ArrayT:
    """Return `x` with the framework, dtype and device of `like`."""
    return beside(cast(adopt(x, like), like.dtype), like)


def beside(x: ArrayT, like: Array) -> ArrayT:
    """Return a tensor on the device of `like`, and any other array as it is."""
    tensor: Any = x
    return tensor.to(like.device) if is_torch(x) and x.device != like.device else tensor


def full_like(like: ArrayT, shape: tuple[int, ...], value: float) -> ArrayT:
    """Return an array filled with `value`, with the framework, dtype and device of `like`."""
    if is_torch(like):
        return like.new_full(shape, value)  # type: ignore[return-value]  # of the kind of like
    return namespace(like).full(shape, value, dtype=like.dtype)


def to_numpy(x: Array) -> np.ndarray:
    """Return the values of `x` as a float64 NumPy array without a gradient."""
    if is_torch(x):
        x = x.detach().cpu().double()
    return np.asarray(x, dtype=np.float64)


def scalar(like: ArrayT, value: float) -> ArrayT:
    """Return `value` with the dtype of `like`, for a `where` with two constant branches."""
    if is_torch(like) and like.is_cuda:
        from kofn.arrays.torch.kept import kept

        number = kept(like, value)
        if number is not None:
            return number  # type: ignore[return-value]  # of the kind of like
    return full_like(like, (), value)


def clip(x: ArrayT, low: float, high: float) -> ArrayT:
    """Return `x`, limited to a range; of tensors without a question whether an end is NaN, which
    torch.compile cannot trace where it has made symbols of numbers.
    """
    if is_torch(x):
        return x.clamp(low, high)  # type: ignore[return-value]  # of the kind of x
    return namespace(x).clip(x, low, high)


def contiguous(x: ArrayT) -> ArrayT:
    """Return `x` with a contiguous last dimension; NumPy sums other layouts less accurately.

    NumPy's numbers are in the order of bytes of this machine, as kernels read them.
    """
    if is_torch(x):
        return x.contiguous()  # type: ignore[return-value]  # of the kind of x
    return native(np.ascontiguousarray(x)) if is_numpy(x) else x  # type: ignore[return-value]


def native(x: np.ndarray) -> np.ndarray:
    """Return numbers in the order of bytes of this machine."""
    return x if x.dtype.isnative else x.astype(x.dtype.newbyteorder("="))


def is_jit_tracing() -> bool:
    """Return whether torch.jit.trace is recording; it makes Python numbers constants."""
    torch = sys.modules.get("torch")
    return torch is not None and not torch.compiler.is_compiling() and torch.jit.is_tracing()


def quiet(x: Array) -> contextlib.AbstractContextManager[Any]:
    """Silence NumPy's warnings about intended infinities, and JAX's strict rules of promotion."""
    return quiet_for(framework(x))


def quiet_for(kind: str | None) -> contextlib.AbstractContextManager[Any]:
    """Return `quiet` for arrays of a framework."""
    if kind == "numpy":
        return np.errstate(all="ignore")
    if kind == "jax":
        from kofn.arrays.jax.promotion import usual

        return usual()
    return _AS_IT_IS


_AS_IT_IS = contextlib.nullcontext()


def promoting(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Make a rule, which JAX calls when kofn has returned, run as `quiet` code does."""

    @wraps(rule)
    def whole(*arguments: Any, **named: Any) -> Any:
        with quiet_for("jax"):
            return rule(*arguments, **named)

    return whole
