"""Random numbers from each framework's generators."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

from kofn.arrays import torch as of_torch
from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.checks import INTEGERS, NO_NUMBERS, check_shape
from kofn.arrays.dtensor import is_dtensor
from kofn.arrays.kinds import (
    Array,
    cast,
    dtype_name,
    framework,
    is_jax,
    is_torch,
    most_precise_dtype,
    namespace,
    quiet,
    scalar,
)
from kofn.arrays.tracing import is_at_hand
from kofn.arrays.typing import ArrayT

GENERATORS = {
    "torch": "torch.Generator",
    "jax": "JAX key (jax.random.key)",
    "numpy": "numpy.random.Generator",
}


def check_rng(rng: Any, like: Array) -> Any:
    """Return the random generator or key for arrays like these.

    By default it is PyTorch's global generator (None), or a new NumPy generator.

    Raises:
        TypeError: a JAX array without a key, a generator of another framework, or a DTensor.
        ValueError: an integer that is no seed.
    """
    kind = str(framework(like))
    if is_dtensor(like):
        raise TypeError(
            "kofn cannot sample from a DTensor: processes with different generators would draw "
            "different copies of one sample; sample from its full_tensor(), with generators in "
            "the same state in every process"
        )
    if rng is None:
        if kind == "jax":
            raise TypeError(
                "rng must be a JAX key, such as jax.random.key(0), or an integer for arrays of "
                "jax, which has no global generator; got None"
            )
        return np.random.default_rng() if kind == "numpy" else None
    if _is_seed(rng):
        return _seeded(rng, like)
    got = _kind_of_generator(rng)
    if got != kind:
        said = type(rng).__qualname__ if got is None else f"a {GENERATORS[got]}"
        raise TypeError(
            f"rng must be a {GENERATORS[kind]} or an integer for arrays of {kind}; got {said}"
        )
    return rng


def _kind_of_generator(rng: object) -> str | None:
    if isinstance(rng, np.random.Generator):
        return "numpy"
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(rng, torch.Generator):
        return "torch"
    return "jax" if framework(rng) == "jax" else None


def _is_seed(rng: Any) -> bool:
    """Return whether `rng` is an integer, or one that jax.jit or vmap traces."""
    if isinstance(rng, (int, np.integer)):
        return not isinstance(rng, NO_NUMBERS)
    return is_jax(rng) and rng.ndim == 0 and dtype_name(rng) in INTEGERS


def _seeded(seed: Any, like: Array) -> Any:
    """Return a new generator, in the state that the integer stands for."""
    if is_jax(seed):
        if not is_jax(like):
            raise TypeError(f"rng must be a Python integer for arrays of {framework(like)}")
    elif not 0 <= (seed := int(seed)) < 1 << 63:
        raise ValueError(f"rng must be a seed in [0, 2**63), if it is an integer; got {seed}")
    if is_torch(like):
        return of_torch.state.seeded(seed, like)
    if is_jax(like):
        from jax import random

        return random.key(seed)
    return np.random.default_rng(seed)


def uniform(rng: Any, shape: tuple[int, ...], like: ArrayT) -> ArrayT:
    """Draw numbers in [0, 1) with the framework, dtype and device of `like`.

    float16 and bfloat16 are excluded: they have too few numbers in [0, 1).
    """
    if is_torch(like):
        return of_torch.state.drawn(False, rng, shape, like)  # type: ignore[return-value]  # of its kind
    if is_jax(like):
        from jax import random

        return random.uniform(rng, shape, like.dtype)  # type: ignore[return-value]  # of its kind
    return rng.random(shape, dtype=like.dtype)


def standard_normal(rng: Any, shape: tuple[int, ...], like: ArrayT) -> ArrayT:
    """Draw standard normal noise from `rng` in `like`'s dtype, float32 or float64."""
    if is_torch(like):
        return of_torch.state.drawn(True, rng, shape, like)  # type: ignore[return-value]  # of its kind
    if is_jax(like):
        from jax import random

        return random.normal(rng, shape, like.dtype)  # type: ignore[return-value]  # of its kind
    return rng.standard_normal(shape, dtype=like.dtype)


def split_rng(rng: Any, count: int, like: Array) -> tuple[Any, ...]:
    """Return `count` independent sources: keys split from a JAX key, else the generator itself."""
    if _is_seed(rng):
        rng = _seeded(rng, like)
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(rng, jax.Array):
        return tuple(jax.random.split(rng, count))
    return (rng,) * count


def with_gumbel(y: ArrayT, shape: Any, rng: Any) -> ArrayT:
    """Return `centred` y plus Gumbel noise, of shape `shape + y.shape`, differentiable in y."""
    shape, rng = check_shape(shape), check_rng(rng, y)
    with quiet(y):
        return y + gumbel(rng, (*shape, *y.shape), y)


def centred(y: ArrayT, dim: int) -> ArrayT:
    """Subtract the largest finite entry of each row from y, which changes no choice.

    For y far from 0, rounding the sum with the noise would produce ties.
    """
    if y.shape[dim] == 0:
        return y
    known = centred_at_hand(y, dim)
    if known is not None:
        return known
    xp = namespace(y)
    with quiet(y):
        finite = xp.abs(stop_gradient(y)) < math.inf
        top = xp.max(xp.where(finite, stop_gradient(y), -math.inf), axis=dim, keepdims=True)
        return y - xp.where(top == -math.inf, 0.0, top)


def centred_at_hand(y: ArrayT, dim: int) -> ArrayT | None:
    """Return `centred` y, if it can be looked at and the largest entry of each row is finite."""
    if y.shape[dim] == 0 or not is_at_hand(y):
        return None
    with quiet(y):
        top = namespace(y).max(stop_gradient(y), axis=dim, keepdims=True)
        return y - top if math.isfinite(top.sum()) else None


def gumbel(rng: Any, shape: tuple[int, ...], like: ArrayT) -> ArrayT:
    """Draw standard Gumbel noise, −log of an exponential variable, in `like`'s dtype.

    It is always finite. It is made from one float64 number, or, without float64 (JAX by default,
    Apple's GPUs), from two float32 numbers: the largest values of one are spaced too widely for
    the maximum over many entries.
    """
    xp, u = namespace(like), _fine(rng, shape, like)
    tiny = float(xp.finfo(u.dtype).smallest_normal)
    noise: Any = -xp.log(xp.clip(-xp.log1p(-u), tiny, None))
    return cast(noise, like.dtype)


def halves(rng: Any, shape: tuple[int, ...], like: ArrayT) -> tuple[ArrayT, ArrayT]:
    """Draw numbers in (0, ½] in the most precise dtype, and booleans that are as often True.

    A distribution's quantiles of the first, from below where True and from above elsewhere, have
    that distribution, with the digits of both tails.
    """
    xp = namespace(like)
    below, side = split_rng(rng, 2, like)
    u = _fine(below, shape, like)
    tiny = float(xp.finfo(u.dtype).smallest_normal)
    flags: Any = uniform(side, shape, u) < 0.5
    return xp.clip(u / 2, tiny, None), flags


def _fine(rng: Any, shape: tuple[int, ...], like: ArrayT) -> ArrayT:
    """Draw numbers in [0, 1) in the most precise dtype, close together near 0."""
    xp, dtype = namespace(like), most_precise_dtype(like)
    number = cast(scalar(like, 0.0), dtype)
    if dtype == xp.float64:
        return uniform(rng, shape, number)
    high, low = uniform(rng, (2, *shape), number)
    # From ½ on, the sum could round up to 1.
    return xp.where(high < 0.5, high + float(xp.finfo(dtype).eps) * low, high)
