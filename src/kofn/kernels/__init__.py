"""Fused rows: one look after another at a row that stays in cache. README.md says what bounds each.

Those of a CPU are compiled by Numba, those of a GPU by Triton; each is imported when such an array
first comes. Nothing here defines an answer: threshold.py and implicit.py do, these are their faster
twins, and the tests hold them to it. KOFN_KERNELS=reference in the environment turns them off, "on"
or nothing leaves them on; it is read at every call, and any other value is a ValueError.
"""

from __future__ import annotations

import os
from functools import lru_cache
from importlib import import_module
from typing import Any, Protocol

from kofn.arrays.kinds import Array, dtype_name, is_numpy, is_torch


class RowKernels(Protocol):
    """What a backend answers for rows: scores (…, n); k and temperature per row (…).

    θ is two floats' worth, (2, …). The second is NaN in rows that a kernel gave up on; a bool says
    whether there are any. Who asks finishes them. Whole rows at k = 0, k = n or with a NaN are
    answered: θ = ∞, −∞, NaN.
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
