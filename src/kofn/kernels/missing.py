"""A warning, once per process, where array code serves because there is no library of kernels."""

from __future__ import annotations

import sys
import warnings

NUMBA = "numba", "llvmlite"
LIBRARY = "kofn.so"
"""The `name` of the ImportError of a module that needs the library, with Numba or without it."""
HANDLER = "kofn_xla_serve"
"""The same of one that needs the library's handler of XLA's calls."""

_reasons: list[str] = []
_warned = False


def note(error: ImportError) -> None:
    """Remember that kernels could not be imported for want of Numba or a library, if it is that."""
    if error.name in (LIBRARY, HANDLER):
        _reasons.append(error.name)
    elif (error.name or "").partition(".")[0] in NUMBA:
        _reasons.append(NUMBA[0])


def tell() -> None:
    """Warn that array code serves instead of kernels, unless that is said or has another reason."""
    global _warned
    if _warned or not _reasons or sys.platform == "emscripten":  # which has no Numba to install
        return
    _warned = True
    from kofn.kernels.cpu.runtime import library

    why = library.why_none()
    if NUMBA[0] in _reasons:
        where, why = "", f"{why}, and Numba is not installed"
        cure = 'install it with: pip install "kofn[jit]", which serves NumPy and PyTorch '
    else:
        where, cure = " in JAX's programs", "Numba does not serve JAX "
        if HANDLER in _reasons:
            why = "its library of kernels was built without the handler that JAX calls"
    warnings.warn(
        f"kofn runs its array code{where}, tens of times slower than its compiled code, because "
        f"{why}; {cure}(or set the environment variable KOFN_KERNELS=reference to choose the array "
        "code without this warning)",
        RuntimeWarning,
        stacklevel=2,
    )
