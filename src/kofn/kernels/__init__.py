"""Compiled kernels for rows: repeated passes over a row that stays in cache (see README.md).

Numba compiles them for a CPU, Triton for a GPU; each is imported at the first call with such an
array. They compute the same results as `solver/threshold.py` and `rows/implicit.py`, but faster,
and the tests compare the two. KOFN_KERNELS=reference in the environment turns them off; "on" or no
value leaves them on. It is read at every call, and any other value is a ValueError.
"""

from __future__ import annotations

import os
from functools import lru_cache
from importlib import import_module
from typing import Any, Protocol

from kofn.arrays.kinds import Array, dtype_name, is_numpy, is_torch


class RowKernels(Protocol):
    """The functions of a backend for rows: scores (…, n); k and temperature per row (…).

    θ is a sum of two floats, (2, …). The second is NaN in rows that a kernel gave up on; a bool
    tells whether there are any. The caller solves those rows. For rows with k = 0, k = n or a NaN,
    θ = ∞, −∞ or NaN.
    """

    def kind_of(self, link: Any) -> int | None:
        """The kernels' number for an inner link, None where they do not have it."""

    def weights(self, x: Array, k: Array, temperature: Array, link: Any) -> tuple[Any, Any, bool]:
        """(weights, θ, whether rows were given up)."""

    def threshold(self, x: Array, k: Array, temperature: Array, link: Any) -> tuple[Any, bool]:
        """(θ, whether rows were given up)."""

    def gradients(
        self, x: Array, cotangent: Array, theta: Array, k: Array, temperature: Array, link: Any
    ) -> tuple[Any, Any]:
        """Cotangents of the scores, (…, n), and of k and temperature, (2, …)."""

    values: Any
    """(x, θ, k, temperature, link) -> S_k and its slope in the temperature, (2, …); or None."""


class SubsetKernels(Protocol):
    """What a backend answers for rows of k-subsets: logits (…, n), k per row (…).

    `what` is a number of contract.py.
    """

    def evaluate(self, what: int, z: Array, k: Array, v: Array | None = None) -> Any:
        """The sum `what` of coins z, and for COVARIANCE of entries v."""

    def at(self, what: int, y: Array, hi: Array, lo: Array, k: Array, v: Any = None) -> Any:
        """The same for logits y and their threshold, with rows that need none: hi = ±∞ or NaN."""

    draw: Any
    """(z, k, uniforms) -> booleans, k of each row True; or None."""


def serving(x: Array, link: Any) -> RowKernels | None:
    """The backend for such rows, None where there is none."""
    module = _module(x, "kofn.kernels.cpu.rows.launch", "kofn.kernels.gpu.rows.launch")
    return None if module is None or module.kind_of(link) is None else module


def serving_subsets(x: Array) -> SubsetKernels | None:
    """The backend for such rows of k-subsets, None where there is none."""
    return _module(x, "kofn.kernels.cpu.subsets.launch", "kofn.kernels.gpu.subsets.launch")


_CHOICES = {"on": True, "reference": False}


def wanted() -> bool:
    """What KOFN_KERNELS says."""
    chosen = os.environ.get("KOFN_KERNELS") or "on"
    if chosen not in _CHOICES:
        allowed = " or ".join(repr(choice) for choice in _CHOICES)
        raise ValueError(f"KOFN_KERNELS must be {allowed}, got {chosen!r}")
    return _CHOICES[chosen]


def _module(x: Array, on_cpu: str, on_gpu: str) -> Any:
    if not wanted():
        return None
    if is_numpy(x) or (is_torch(x) and x.device.type == "cpu"):
        return _cpu(on_cpu)
    if is_torch(x) and x.device.type == "cuda" and dtype_name(x) == "float32":
        return _gpu(on_gpu, x.device)
    return None


@lru_cache
def _cpu(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:  # Numba has no release for this Python or machine
        return None


@lru_cache
def _gpu(name: str, device: Any) -> Any:
    import torch

    # Triton compiles for these, NVIDIA's from 2020 on.
    if torch.version.cuda is None or torch.cuda.get_device_capability(device) < (8, 0):
        return None
    try:
        import triton
    except ImportError:  # it has no release for this system
        return None
    # What torch brought along before 2.13 lacks some of what the kernels are written with.
    if tuple(map(int, triton.__version__.split(".")[:2])) < (3, 7):
        return None
    return import_module(name)
