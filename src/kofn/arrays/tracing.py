"""Tests whether a compiler traces an array or a transform maps over it."""

from __future__ import annotations

import sys

import numpy as np

from kofn.arrays import torch as of_torch
from kofn.arrays.kinds import Array, is_jax, is_numpy, is_torch


def is_compiling() -> bool:
    """Return whether torch.compile or jax.jit is tracing the caller."""
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    if torch is not None and torch.compiler.is_compiling():
        return True
    # Under jit, even a constant is a tracer.
    return jax is not None and isinstance(jax.numpy.zeros(()), jax.core.Tracer)


def is_known(x: Array) -> bool:
    """Return whether the values of `x` can be read: nothing traces or maps over it."""
    if is_torch(x):
        return of_torch.state.is_eager(x)
    return not (is_jax(x) and isinstance(x, sys.modules["jax"].core.Tracer))


def is_at_hand(x: Array) -> bool:
    """Return whether the values of `x` can be read without waiting for a device."""
    if is_torch(x):
        return x.device.type == "cpu" and of_torch.state.is_eager(x)
    return is_numpy(x)


def at_hand(x: Array) -> Array | None:
    """Return `x`, or a NumPy array of its numbers, if reading them waits for no device; else None.

    To ask `is_at_hand` of JAX would wait for a CPU as well, which no caller there does often.
    """
    if not is_jax(x):
        return x if is_at_hand(x) else None
    here = is_known(x) and x.is_fully_addressable
    if not here or any(device.platform != "cpu" for device in x.devices()):
        return None
    return np.asarray(x)


def greatest(x: Array) -> int | None:
    """Return the greatest of integers, −1 of none, or None where a trace hides them."""
    if is_torch(x):
        return of_torch.state.greatest(x)
    if not is_known(x):
        return None
    return int(x.max()) if 0 not in x.shape else -1


def may_be_kept(x: Array) -> bool:
    """Return whether numbers computed from `x` now are of use later, also under autograd."""
    return not (is_torch(x) and sys.modules["torch"].is_inference_mode_enabled())
