"""What differs between NumPy, PyTorch and JAX. The only file that knows the three."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
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
        from kofn._torch import beside

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


def stop_gradient(x: Array) -> Array:
    if is_torch(x):
        return x.detach()
    return sys.modules["jax"].lax.stop_gradient(x) if is_jax(x) else x


def moving(x: Array) -> Array:
    """x − stop(x): 0, with the gradient of x; infinite entries do not move."""
    xp, fixed = namespace(x), stop_gradient(x)
    return xp.where(xp.isinf(fixed), 0.0, x - fixed)


def is_compiling() -> bool:
    """Whether torch.compile or jax.jit is tracing the caller."""
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    if torch is not None and torch.compiler.is_compiling():
        return True
    # Under jit even a constant is a tracer.
    return jax is not None and isinstance(jax.numpy.zeros(()), jax.core.Tracer)


def is_jit_tracing() -> bool:
    """Whether torch.jit.trace is recording the caller: what Python computes becomes a constant."""
    torch = sys.modules.get("torch")
    return torch is not None and not torch.compiler.is_compiling() and torch._C._is_tracing()


def is_known(x: Array) -> bool:
    """Whether the numbers of `x` can be looked at, because nothing traces or maps over it."""
    if is_torch(x):
        from kofn._torch import is_eager

        return is_eager(x)
    return not (is_jax(x) and isinstance(x, sys.modules["jax"].core.Tracer))


def is_at_hand(x: Array) -> bool:
    """Whether to look at the numbers of `x` costs no waiting for a device."""
    return is_known(x) and (is_numpy(x) or (is_torch(x) and x.device.type == "cpu"))


def has_gradients(*arrays: Any) -> bool:
    """Whether a derivative in any of these may be asked for: not NumPy's, nor plain eager ones."""
    if not is_torch(arrays[0]):
        return not is_numpy(arrays[0])
    from kofn._torch import is_eager, is_recorded

    return any(not is_eager(x) or is_recorded(x) for x in arrays if is_torch(x))


def arange(like: Array, count: int) -> Array:
    """0, 1, … count − 1 in the dtype and on the device of `like`."""
    if is_torch(like):
        from kofn._torch import beside

        torch = sys.modules["torch"]
        return beside(like, torch.arange(count, dtype=like.dtype, device=like.device))
    return namespace(like).arange(count, dtype=like.dtype)


def uniform(rng: Any, shape: tuple[int, ...], like: Array) -> Array:
    """Numbers in [0, 1) from a generator or key of `like`'s framework, in its dtype, on its device.

    float16 and bfloat16 would have too few of them.
    """
    if is_torch(like):
        return _of_torch("rand", rng, shape, like)
    if is_jax(like):
        return sys.modules["jax"].random.uniform(rng, shape, like.dtype)
    return rng.random(shape, dtype=like.dtype)


def standard_normal(rng: Any, shape: tuple[int, ...], like: Array) -> Array:
    """Standard normal noise from `rng` in `like`'s dtype, float32 or float64."""
    if is_torch(like):
        return _of_torch("randn", rng, shape, like)
    if is_jax(like):
        return sys.modules["jax"].random.normal(rng, shape, like.dtype)
    return rng.standard_normal(shape, dtype=like.dtype)


def _of_torch(name: str, rng: Any, shape: tuple[int, ...], like: Array) -> Array:
    """torch.rand or torch.randn. torch.compile traces the global generator, None, and no other."""
    draw = getattr(sys.modules["torch"], name)
    if rng is None:
        return draw(shape, dtype=like.dtype, device=like.device)
    from kofn._torch import untraced

    return untraced(partial(draw, dtype=like.dtype, device=like.device, generator=rng), shape)


def split_rng(rng: Any, count: int) -> tuple[Any, ...]:
    """`count` sources of independent numbers: keys from a JAX key, else the generator itself."""
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(rng, jax.Array):
        return tuple(jax.random.split(rng, count))
    return (rng,) * count


def values_and_slopes(function: Callable, x: Array) -> tuple[Array, Array]:
    """function(x) and the gradient of its sum in x, which is not differentiated further.

    The values keep their own graph, in what else `function` depends on.
    """
    if is_torch(x):
        from kofn._torch import values_and_slopes as of_torch

        return of_torch(function, x)
    if not is_jax(x):
        raise TypeError("this needs derivatives, which NumPy arrays have not")
    values, pull = sys.modules["jax"].vjp(function, stop_gradient(x))
    (slopes,) = pull(namespace(values).ones_like(values))
    return values, stop_gradient(slopes)


def cumulative_sums(x: Array) -> Array:
    """Σ_{j ≤ i} x_j along the last axis; array_api_compat's is nothing torch.compile can trace."""
    return sys.modules["torch"].cumsum(x, -1) if is_torch(x) else namespace(x).cumsum(x, axis=-1)


def cumulative_min(x: Array) -> Array:
    """min over j ≤ i of x_j along the last axis."""
    if is_torch(x):
        return sys.modules["torch"].cummin(x, -1).values
    if is_jax(x):
        return sys.modules["jax"].lax.cummin(x, axis=x.ndim - 1)
    return np.minimum.accumulate(x, axis=-1)


def marked(like: Array, indices: Array) -> Array:
    """Booleans with the shape of `like`, True at the indices along the last axis."""
    xp = namespace(like)
    nowhere = xp.zeros_like(like, dtype=xp.bool)
    if is_torch(like):
        return nowhere.scatter(-1, indices.long(), 1)  # torch.jit.trace has none for True
    if is_jax(like):
        return xp.put_along_axis(nowhere, indices, True, axis=-1, inplace=False)
    np.put_along_axis(nowhere, indices, True, axis=-1)
    return nowhere


def convolved(a: Array, b: Array) -> Array:
    """The convolution of a and b, of the same shape, along the first axis; no gradient.

    Directly: a Fourier transform would lose what is small, and that what is 0 is 0.
    """
    w, a, b = a.shape[0], contiguous(a), contiguous(b)
    out = full_like(a, (2 * w - 1, *a.shape[1:]), 0.0)
    if is_jax(a):
        lax = sys.modules["jax"].lax

        def add(i: Any, out: Array) -> Array:
            part = lax.dynamic_slice_in_dim(out, i, w)
            return lax.dynamic_update_slice_in_dim(out, part + a[i] * b, i, 0)

        return lax.fori_loop(0, w, add, out)
    for i in range(w):
        out[i : i + w] += a[i] * b
    return out


def top_indices(x: Array, k: int) -> Array:
    """Indices of the k largest along the last axis, largest first, ties to the lowest index."""
    if is_torch(x):
        return sys.modules["torch"].sort(x, dim=-1, descending=True, stable=True).indices[..., :k]
    if is_jax(x):
        # It would tell −0 from 0.
        return sys.modules["jax"].lax.top_k(namespace(x).where(x == 0, 0.0, x), k)[1]
    return np.argsort(-x, axis=-1, kind="stable")[..., :k]


def kth_largest(x: Array, k: int) -> Array:
    """The k-th largest number of each row, k ≥ 1; a NaN counts as the largest."""
    if is_torch(x):
        return sys.modules["torch"].topk(x, k, dim=-1).values[..., -1]
    if is_jax(x):
        return sys.modules["jax"].lax.top_k(x, k)[0][..., -1]
    return np.partition(x, x.shape[-1] - k, axis=-1)[..., -k]


def take_along_last(x: Array, indices: Array) -> Array:
    if is_torch(x):
        return x.gather(-1, indices.long())
    return namespace(x).take_along_axis(x, indices, axis=-1)


def take_along_first(x: Array, numbers: Array) -> Array:
    """As `take_along_last` along the first axis, with whole numbers in the dtype of `x`."""
    if is_torch(x):
        return x.gather(0, numbers.long())
    indices = cast(numbers, namespace(x).int32 if is_jax(x) else np.intp)
    return namespace(x).take_along_axis(x, indices, axis=0)


def quiet(x: Array) -> contextlib.AbstractContextManager:
    """NumPy warns where infinities are part of the plan; the others never do."""
    return np.errstate(all="ignore") if is_numpy(x) else contextlib.nullcontext()
