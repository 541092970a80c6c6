"""Functions compiled in this process, where there is no library: by LLVM, and by Numba.

It is for checkouts whose library is not made yet, and for systems that have none; nothing is kept
for other processes.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from importlib.metadata import version

from kofn.kernels.cpu.compiler import machine, shipped
from kofn.kernels.cpu.runtime import library
from kofn.kernels.cpu.runtime.code import PASS, Code


def address(code: Code) -> int:
    """Return the address of a function: in a library of other sources that has it as it is here,
    else compiled now.
    """
    if library.is_stale() and not code.is_own:
        from kofn.kernels.cpu.compiler import digests

        kept = library.kept(code.symbol, digests.of_code(code))
        if kept:
            return kept
    _tell()
    return machine.load(machine.native(translated(code), code.symbol), code.symbol)


def translated(code: Code) -> str:
    """Return the function as LLVM's intermediate code."""
    return (None if code.is_own else shipped.find(code)) or by_numba(code)


def digest(code: Code) -> str:
    """Return the digest of a function as it is now; "" if nobody can tell."""
    known = shipped.found(code)
    if known is not None:
        return known.digest
    from kofn.kernels.cpu.compiler import digests

    return digests.of_code(code)


def by_numba(code: Code) -> str:
    """Return the same, translated now: many seconds."""
    from kofn.kernels.cpu.compiler.digests import made
    from kofn.kernels.cpu.compiler.translate import translated

    function, options = made(code)
    return translated(function, code.takes, code.returns, code.symbol, options)


def _tell_terminal() -> None:
    if sys.stderr is not None and sys.stderr.isatty():
        print(COMPILING, file=sys.stderr)


COMPILING = "kofn: compiling kernels for this process; this may take some seconds"
tell: Callable[[], None] | None = _tell_terminal
"""Called once, before anything is compiled."""


def _tell() -> None:
    global tell
    once, tell = tell, None
    if once is not None:
        once()


NUMBA = (0, 62), (0, 68)
"""The first and the last release whose inner parts are known to be as translate.py needs them."""


def require_numba() -> None:
    """Raise ImportError, with a warning, if the installed Numba cannot translate functions."""
    installed = version("numba")
    release = tuple(int(part) for part in installed.split(".")[:2])
    if NUMBA[0] <= release <= NUMBA[1]:
        return
    try:
        by_numba(Code("rows.pass_loops", "total", PASS, kind=0, number="f4"))
    except Exception as error:
        (_, first), (_, last) = NUMBA
        warnings.warn(
            f"kofn's kernels work with Numba 0.{first} to 0.{last}, not with {installed} "
            f"({error!r}); the slower array code serves instead",
            RuntimeWarning,
            stacklevel=2,
        )
        raise ImportError(f"Numba {installed}") from error
