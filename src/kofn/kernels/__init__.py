"""Fused rows: one look after another at a row that stays in cache. README.md says what bounds each.

Nothing here defines an answer: threshold.py and implicit.py do, these are their faster twins, and
the tests hold them to it. KOFN_KERNELS=reference in the environment turns them off.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any

from kofn._array import Array, is_numpy, is_torch
from kofn._rows import Given


def weights(given: Given) -> Array | None:
    """The weights of rows, None where no kernel serves them."""
    if os.environ.get("KOFN_KERNELS") == "reference":
        return None
    if is_torch(given.scores):
        from kofn._torch import is_plain

        if is_plain(given.scores) and _cpu_knows(given.link):
            from kofn.kernels.eager import weights as eager

            return eager(given)
    elif is_numpy(given.scores) and _cpu_knows(given.link):
        from kofn.kernels.cpu import weights as cpu

        return cpu(given.scores, given.k, given.temperature, given.link)[0]
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
