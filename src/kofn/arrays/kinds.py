"""Kinds of arrays: framework, namespace, dtypes, casts and constants."""

from __future__ import annotations

import contextlib
import sys
from functools import partial
from typing import Any

import numpy as np

Array = Any
"""A numpy.ndarray, torch.Tensor or jax.Array; every function returns the kind it was given."""

FLOATS = ("float16", "bfloat16", "float32", "float64")


def is_torch(x: object) -> bool:
    # A tensor can only exist once torch is imported, so kofn never has to import it to ask.
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def is_jax(x: object) -> bool:
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(x, jax.Array)


def is_numpy(x: object) -> bool:
    return isinstance(x, np.ndarray)


def framework(x: object) -> str | None:
    """The name of the framework `x` belongs to, None where it is not an array."""
    if is_torch(x):
        return "torch"
    if is_jax(x):
        return "jax"
    return "numpy" if is_numpy(x) else None


def namespace(x: Array) -> Any:
    """The array-API namespace of `x`."""
    # array_api_compat.array_namespace asks a cached function, which torch.compile warns about.
    if is_torch(x):
        import array_api_compat.torch as xp

        return xp
    return sys.modules["jax"].numpy if is_jax(x) else np


def move_axis(x: Array, source: int, destination: int) -> Array:
    """`x` with its axis `source` at `destination`."""
    # In tuples: of single numbers PyTorch's vmap knows no rule.
    return namespace(x).moveaxis(x, (source,), (destination,))


def special(x: Array) -> Any:
    """expit, logit, erfc, log_ndtr and ndtri for `x`, under these names in all three."""
    if is_torch(x):
        return sys.modules["torch"].special
    if is_jax(x):
        import jax.scipy.special

        return jax.scipy.special
    import scipy.special

    return scipy.special


def dtype_name(x: Array) -> str:
    name = str(x.dtype).rpartition(".")[2]
    # ">f8" is a float64 with its bytes in the other order, which is copied before computing.
    return x.dtype.name if name[0] in "<>" else name


def compute_dtype(x: Array) -> Any:
    """float64 stays; everything narrower is computed in float32."""
    xp = namespace(x)
    return xp.float64 if dtype_name(x) == "float64" else xp.float32


def most_precise_dtype(x: Array) -> Any:
    """float64, where the framework has it for arrays like `x` without being asked."""
    without = is_jax(x) or (is_torch(x) and x.device.type == "mps")
    return compute_dtype(x) if without else namespace(x).float64


LEAST_IN_PLAY = {
    "float16": -65504.0 / 2,
    "bfloat16": -(2 - 2.0**-7) * 2.0**126,
    "float32": float(np.finfo(np.float32).min) / 2,
    "float64": float(np.finfo(np.float64).min) / 2,
}


def deleted(x: Array) -> Array:
    """Where a score is −inf, or at or below half of the least number of its dtype.

    So is what transformers' additive masks write, `finfo(dtype).min` plus a score. Ask before a
    cast: in float32 the least number of float16 is a score of −65504.
    """
    return x <= LEAST_IN_PLAY[dtype_name(x)]


def cast(x: Array, dtype: Any) -> Array:
    return x if x.dtype == dtype else namespace(x).astype(x, dtype)


def adopt(x: Array, like: Array) -> Array:
    """`x` as an array of the kind of `like`: JAX takes NumPy's, the others only their own."""
    if not (is_jax(like) and is_numpy(x)):
        return x
    return namespace(like).asarray(x.astype(x.dtype.newbyteorder("="), copy=False))


def cast_like(x: Array, like: Array) -> Array:
    """`x` with the kind, dtype and device of `like`."""
    x = cast(adopt(x, like), like.dtype)
    return x.to(like.device) if is_torch(x) and x.device != like.device else x


def full_like(like: Array, shape: tuple[int, ...], value: float) -> Array:
    """An array of `shape` filled with `value`, of the kind, dtype and device of `like`."""
    if is_torch(like):
        return like.new_full(shape, value)
    return namespace(like).full(shape, value, dtype=like.dtype)


def constant(like: Array, values: np.ndarray) -> Array:
    """The numbers `values` as an array of the kind, dtype and device of `like`."""
    if is_torch(like):
        from kofn.arrays.torch_state import beside

        torch = sys.modules["torch"]
        return beside(like, torch.as_tensor(values, dtype=like.dtype, device=like.device))
    return namespace(like).asarray(values, dtype=like.dtype)


def to_numpy(x: Array) -> np.ndarray:
    """The numbers of `x` in float64, without a gradient."""
    if is_torch(x):
        x = x.detach().cpu().double()
    return np.asarray(x, dtype=np.float64)


def scalar(like: Array, value: float) -> Array:
    """`value` with the dtype of `like`, for a `where` whose branches are both constants."""
    return full_like(like, (), value)


def contiguous(x: Array) -> Array:
    """`x` with its last dimension contiguous: NumPy sums other layouts to fewer digits."""
    if is_torch(x):
        return x.contiguous()
    return np.ascontiguousarray(x) if is_numpy(x) else x


def is_jit_tracing() -> bool:
    """Whether torch.jit.trace is recording the caller: what Python computes becomes a constant."""
    torch = sys.modules.get("torch")
    return torch is not None and not torch.compiler.is_compiling() and torch._C._is_tracing()


def _of_torch(name: str, rng: Any, shape: tuple[int, ...], like: Array) -> Array:
    """torch.rand or torch.randn. torch.compile traces the global generator, None, and no other."""
    draw = getattr(sys.modules["torch"], name)
    if rng is None:
        return draw(shape, dtype=like.dtype, device=like.device)
    from kofn.arrays.torch_state import untraced

    return untraced(partial(draw, dtype=like.dtype, device=like.device, generator=rng), shape)


def quiet(x: Array) -> contextlib.AbstractContextManager:
    """NumPy warns where infinities are part of the plan; the others never do."""
    return np.errstate(all="ignore") if is_numpy(x) else contextlib.nullcontext()
