"""Whether compiled code serves a link of a user's own, and a warning where it might and does not.

(Tests: test_kernels_own.py.)
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

from kofn.links.scalar import ScalarLink

NEEDS = {"LOGARITHMS": ("logarithm", "hazard")}
"""The formulas that an answer needs, by what a backend offers for it; others need all formulas."""


def serves(kernels: Any, link: ScalarLink, offered: str) -> bool:
    """Return whether kernels that offer this take a link, and warn once if its formulas are why."""
    asked = getattr(kernels, "why_not", None)  # a GPU's
    if asked is None and getattr(getattr(kernels, "layout", None), "SERVES_OWN", False):
        asked = why_not
    if asked is None:
        return False
    reason = _reason(asked, link.number, repr(link))
    return reason is None and {*NEEDS.get(offered, ())} <= {*link.kinds[0].formulas}


def why_not(number: int) -> str | None:
    """Say why a link, by its number, cannot be compiled; None if it can."""
    try:
        from kofn.kernels.cpu.compiler import own
    except ImportError:
        return 'Numba is not installed (pip install "kofn[jit]")'
    return own.why_not(number)


@cache
def _reason(asked: Any, number: int, link: str) -> str | None:
    reason: str | None = asked(number)
    if reason is not None:
        warnings.warn(
            f"array code serves {link}, tens of times slower than compiled code: {reason}",
            RuntimeWarning,
            stacklevel=2,
        )
    return reason
