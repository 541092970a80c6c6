"""Fused rows: one look after another at a row that stays in cache. README.md says what bounds each.

Nothing here defines an answer: threshold.py and implicit.py do, these are their faster twins, and
the tests hold them to it. KOFN_KERNELS=reference in the environment turns them off.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from kofn._array import Array, is_numpy, is_torch
from kofn._rows import Given, Rows


def weights(given: Given, reference: Callable[[Rows], Array]) -> Array | None:
    """What `reference` makes of the rows of `given`, None where no kernel serves them."""
    if os.environ.get("KOFN_KERNELS") == "reference":
        return None
    if is_torch(given.scores):
        from kofn._torch import is_plain

        if is_plain(given.scores) and _cpu_knows(given.link):
            from kofn.kernels.eager import weights as eager

            return eager(given, reference)
    elif is_numpy(given.scores) and _cpu_knows(given.link):
        from kofn.kernels.cpu import weights as cpu

        return cpu(given.scores, given.k, given.temperature, given.link)[0]
    return None


def value(given: Given) -> Array | None:
    """S_k of rows, None where no kernel serves them."""
    if os.environ.get("KOFN_KERNELS") == "reference":
        return None
    if is_torch(given.scores):
        from kofn._torch import is_plain

        if is_plain(given.scores) and _cpu_knows(given.link):
            from kofn.kernels.eager import value as eager

            return eager(given)
    elif is_numpy(given.scores) and _cpu_knows(given.link):
        theta = _cpu().threshold(*given)
        return _cpu().values(given.scores, theta, *given[1:])[0]
    return None


def threshold(x: Array, k: Array, temperature: Array, link: Any) -> Array | None:
    """θ of `kofn.threshold.solve` as one array of its two floats, None where no kernel serves it.

    A torch tensor that comes here is one with memory: the operator is called below all transforms.
    """
    if os.environ.get("KOFN_KERNELS") == "reference" or not _cpu_knows(link):
        return None
    if is_numpy(x) or (is_torch(x) and x.device.type == "cpu"):
        return _cpu().threshold(x, k, temperature, link)
    return None


def _cpu_knows(link: Any) -> bool:
    cpu = _cpu()
    return cpu is not None and cpu.kind_of(link) is not None


@lru_cache(maxsize=1)
def _cpu() -> Any:
    try:
        from kofn.kernels import cpu
    except ImportError:  # Numba has no release for this Python or machine
        return None
    return cpu
