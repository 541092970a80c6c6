"""Fused rows: one look after another at a row that stays in cache. README.md says what bounds each.

Those of a CPU are compiled by Numba, those of a GPU by Triton; each is imported when such an array
first comes. Nothing here defines an answer: threshold.py and implicit.py do, these are their faster
twins, and the tests hold them to it. KOFN_KERNELS=reference in the environment turns them off, "on"
or nothing leaves them on; it is read at every call, and any other value is a ValueError.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import Any

from kofn.arrays.kinds import Array, dtype_name, is_numpy, is_torch
from kofn.rows.given import Given
from kofn.rows.settled import Rows


def weights(given: Given, reference: Callable[[Rows], Array]) -> Array | None:
    """What `reference` makes of the rows of `given`, None where no kernel serves them."""
    kernels = _serving_eagerly(given)
    if kernels is None:
        return None
    if is_torch(given.scores):
        from kofn.rows.fused import weights as eager

        return eager(given, kernels, reference)
    return kernels.weights(*given)[0]


def value(given: Given) -> Array | None:
    """S_k of rows, None where no kernel serves them: a GPU's have its threshold only."""
    kernels = _serving_eagerly(given)
    if kernels is None or not hasattr(kernels, "values"):
        return None
    if is_torch(given.scores):
        from kofn.rows.fused import value as eager

        return eager(given, kernels)
    return kernels.values(given.scores, kernels.threshold(*given), *given[1:])[0]


def threshold(x: Array, k: Array, temperature: Array, link: Any) -> Array | None:
    """θ of `kofn.solver.threshold.solve` as one array of two floats, None where no kernel serves.

    A torch tensor that comes here is one with memory: the operator is called below all transforms.
    """
    kernels = serving(x, link)
    return None if kernels is None else kernels.threshold(x, k, temperature, link)


def _serving_eagerly(given: Given) -> Any:
    """`serving` where nothing traces or transforms the rows."""
    if is_torch(given.scores):
        from kofn.arrays.torch_state import is_plain

        # Asked first: what follows is no code for torch.compile to trace.
        if not is_plain(given.scores):
            return None
    return serving(given.scores, given.link)


def serving(x: Array, link: Any) -> Any:
    """The module whose kernels serve such rows: weights, gradients, threshold; else None."""
    module = _module(x, "kofn.kernels.cpu.rows.launch", "kofn.kernels.gpu.rows.launch")
    return None if module is None or module.kind_of(link) is None else module


def serving_subsets(x: Array) -> Any:
    """The module whose kernels serve such rows of k-subsets; else None."""
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
