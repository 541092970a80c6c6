"""Derivatives in each framework: stop them, compute them, and define rules for them."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from kofn.arrays import torch as of_torch
from kofn.arrays.flow import zeros_of
from kofn.arrays.kinds import Array, is_jax, is_numpy, is_torch, namespace, promoting, scalar
from kofn.arrays.typing import ArrayT


def stop_gradient(x: ArrayT) -> ArrayT:
    if is_torch(x):
        return x.detach()  # type: ignore[return-value]  # of the kind of x
    if is_jax(x):
        from jax import lax

        constant = lax.stop_gradient(x)
        # In jax.grad of a NumPy array it is this array, which code for NumPy would take.
        return constant if is_jax(constant) else sys.modules["jax"].numpy.asarray(constant)
    return x


def moving(x: ArrayT) -> ArrayT:
    """Return x − stop(x), which is 0 with the gradient of x; infinite entries have none."""
    xp, fixed = namespace(x), stop_gradient(x)
    return xp.where(xp.isinf(fixed), 0.0, x - fixed)


def nan_where(x: ArrayT, where: Array) -> ArrayT:
    """Return x, but NaN `where` set, with derivatives that are NaN too.

    They are NaN even where later code selects a constant: 0·NaN is NaN.
    """
    return x * namespace(x).where(where, scalar(x, math.nan), 1.0)


class _Asked(threading.local):
    for_values: bool = False


_asked = _Asked()


@contextmanager
def for_values() -> Iterator[None]:
    """Have `has_gradients` say no of JAX arrays: a primitive has its derivatives by rules."""
    before, _asked.for_values = _asked.for_values, True
    try:
        yield
    finally:
        _asked.for_values = before


def has_gradients(*arrays: Any) -> bool:
    """Return whether a derivative in any of these arrays may be needed."""
    if not is_torch(arrays[0]):
        return not (is_numpy(arrays[0]) or _asked.for_values)
    tensors = [x for x in arrays if is_torch(x)]
    if not all(map(of_torch.state.is_eager, tensors)):
        return True
    learned = [x.requires_grad for x in tensors]
    return sys.modules["torch"].is_grad_enabled() and any(learned)


def values_and_slopes(function: Callable[..., Any], x: Array) -> tuple[Array, Array]:
    """Return function(x) and the gradient of its sum in x, as a constant.

    The values keep their graph with respect to the other inputs of `function`.
    """
    if is_torch(x):
        return of_torch.state.values_and_slopes(function, x)
    if not is_jax(x):
        raise TypeError("NumPy arrays have no gradients; pass a torch.Tensor or jax.Array")
    import jax

    values, pull = jax.vjp(function, stop_gradient(x))
    (slopes,) = pull(namespace(values).ones_like(values))
    return values, stop_gradient(slopes)


def with_gradients_of(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return zeros like the first argument, with the derivatives of function(*arguments).

    For a `function` whose value is 0, which XLA cannot know. It may use only its arguments, and
    vmap must map the first if it maps any other: see `zeros_of`.
    """
    jax = sys.modules.get("jax")
    if jax is None or not is_jax(arguments[0]):
        return function(*arguments)

    @jax.custom_jvp
    def zeros(*arguments: Any) -> Any:
        return zeros_of(arguments[0])

    @zeros.defjvp
    @promoting
    def _(primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
        return zeros(*primals), jax.jvp(function, primals, tangents)[1]

    return zeros(*arguments)


def root_with_rule(
    residual: Callable[..., Any], gain: Callable[..., Any], root: Array, terms: Any
) -> Array:
    """Return the root of residual(root, terms), with d root = gain(root, terms)·d residual.

    For JAX. The rule applies to its own root again, so derivatives of any order follow.
    """
    import jax

    @jax.custom_jvp
    def of(root: Any, terms: object) -> Any:
        return root

    @of.defjvp
    @promoting
    def _(primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
        (start, terms), (_, changes) = primals, tangents
        root = of(start, terms)
        change = jax.jvp(lambda terms: residual(root, terms), (terms,), (changes,))[1]
        return root, gain(root, terms) * change

    return of(root, terms)


def function_by_slopes(
    function: Callable[..., Any], change: Callable[..., Any], z: Array, k: Array, constants: Any
) -> Array:
    """Return function(z, k, constants), with the derivative change(z, constants, dz, dk).

    For JAX. Differentiating `function` directly would store the intermediate arrays of all its
    branches, also of the branch not taken. Neither function may close over an array: under jit,
    JAX traces `change` when the arrays around this call are gone.
    """
    import jax

    @jax.custom_jvp
    def of(z: Any, k: Any, constants: Any) -> Any:
        return function(z, k, constants)

    @of.defjvp
    @promoting
    def _(primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
        z, _, constants = primals
        return of(*primals), change(z, constants, *tangents[:2])

    return of(z, k, constants)


def by_slope(function: Callable[[Any], Any], slope: Callable[[Any], Any], z: ArrayT) -> ArrayT:
    """Return function(z), whose derivative on JAX is slope(z): its own would be a longer program.

    Neither function may close over an array.
    """
    if not is_jax(z):
        return function(z)
    import jax

    of = jax.custom_jvp(function)

    @of.defjvp
    @promoting
    def _(primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
        return by_slope(function, slope, *primals), slope(*primals) * tangents[0]

    return of(z)


def gradient(function: Callable[..., Any], x: Array) -> Array:
    """Return the derivatives of the sum of function(x). For JAX."""
    import jax

    answer, pull = jax.vjp(function, x)
    return pull(jax.numpy.ones_like(answer))[0]


def reciprocal(x: Array) -> Array:
    """Return 1/x with derivatives that avoid x², which may underflow to 0."""
    if not is_jax(x):
        return 1 / x
    import jax

    custom = jax.custom_jvp(lambda x: 1 / x)

    @custom.defjvp
    @promoting
    def _(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
        inverse = reciprocal(*primals)
        return inverse, -inverse * (tangents[0] * inverse)

    return custom(x)


def quotient(x: ArrayT, y: ArrayT, wanted: Array) -> ArrayT:
    """Return x/y with derivatives that avoid y², which may underflow to 0 or overflow.

    Where it is not wanted it is x, because a derivative that is multiplied by 0 may be infinite.
    """
    y = namespace(x).where(wanted, y, 1.0)
    in_jax = is_jax(x)
    return _quotient(x, y) if in_jax else x / y


def divided(x: ArrayT, y: ArrayT) -> ArrayT:
    """Return x/y for y > 0, where x = ±inf is a constant: it would make a NaN of y's gradient."""
    xp = namespace(x)
    finite = ~xp.isinf(stop_gradient(x))
    return xp.where(finite, quotient(xp.where(finite, x, 0.0), y, finite), stop_gradient(x))


def _quotient(x: ArrayT, y: ArrayT) -> ArrayT:
    import jax

    custom = jax.custom_jvp(lambda x, y: x / y)

    @custom.defjvp
    @promoting
    def _(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
        ratio, (dx, dy) = _quotient(*primals), tangents
        return ratio, _quotient(dx - ratio * dy, primals[1])

    return custom(x, y)


def not_below_0(divergence: ArrayT) -> ArrayT:
    """Raise values that rounding left just below 0 to 0; keep the derivative."""
    value = stop_gradient(divergence)
    return divergence + namespace(value).where(value < 0, -value, 0.0)
