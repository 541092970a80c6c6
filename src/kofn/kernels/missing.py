"""A warning, once per process, where there is neither a library of kernels nor Numba."""

from __future__ import annotations

import sys
import warnings

NEEDED = ("numba", "llvmlite")

_reasons: list[str] = []
_warned = False


def note(error: ImportError) -> None:
    """Remember that kernels could not be imported for want of Numba, if that is why."""
    if error.name is not None and error.name.partition(".")[0] in NEEDED:
        _reasons.append(error.name)


def tell() -> None:
    """Warn that array code serves instead of kernels, unless that is said or has another reason."""
    global _warned
    if _warned or not _reasons or sys.platform == "emscripten":  # which has no Numba to install
        return
    _warned = True
    warnings.warn(
        "kofn runs its array code, tens of times slower than its compiled code, because it has no "
        "library for this platform and Numba is not installed; install it with: pip install "
        '"kofn[jit]" (or set the environment variable KOFN_KERNELS=reference to choose the array '
        "code without this warning)",
        RuntimeWarning,
        stacklevel=2,
    )
