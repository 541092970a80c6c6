"""The library of compiled kernels: one file for a platform, made when the package is built.

It has every function once for each level of a processor that it serves, and is used if it was made
of the sources that are here. Where sources have changed since, it serves the functions whose digest
is as it was (`kept`), in processes that have Numba to tell. `make library` makes it in a checkout.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

from kofn.kernels.cpu.runtime import whole
from kofn.kernels.cpu.runtime.sources import are_here, sources

FILE = (
    Path(__file__).parents[1]
    / f"kofn.{({'win32': 'dll', 'darwin': 'dylib'}).get(sys.platform, 'so')}"
)

LEVELS = {"x86-64-v2": "v2", "x86-64-v3": "v3", "x86-64-v4": "v4"}
"""The levels of the x86-64 ABI, by what functions for them have at the end of their names."""


def name_of(symbol: str, level: str) -> str:
    """Return the name of a function for a level."""
    return f"{symbol}_{level}" if level else symbol


def address(symbol: str) -> int:
    """Return where a function is, or 0 if there is no library with it."""
    library = found()
    if library is None:
        return 0
    name = name_of(symbol, _level(library))
    return _address(library, name) if hasattr(library, name) else 0  # a user's own, say


def kept(symbol: str, digest: str) -> int:
    """Return where a function is in a library of other sources, or 0 if it is another one there."""
    library = _loaded()
    if library is None or not digest or _digests(library).get(symbol) != digest:
        return 0
    level = _level(library)
    return _address(library, name_of(symbol, level)) if level in _levels(library) else 0


@cache
def _digests(library: ctypes.CDLL) -> dict[str, str]:
    """Return the digest of each function that a library has, by symbol."""
    try:
        lines = _text(library, "kofn_functions").splitlines()
    except AttributeError:  # of a library that was made before it had them
        return {}
    return dict(line.split(" ") for line in lines)


def _address(library: ctypes.CDLL, name: str) -> int:
    place = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    assert place
    return place


@cache
def found() -> ctypes.CDLL | None:
    """Return the library, or None if there is none for this process.

    Raises:
        ValueError: KOFN_CPU names no level, or one that this processor does not reach.
    """
    library = _loaded()
    if library is None or not is_of_these_sources(library):
        return None
    return library if _level(library) in _levels(library) else None


def level() -> str | None:
    """Return the level in use, "" where there is one only, or None without a library."""
    library = found()
    return None if library is None else _level(library)


def is_stale() -> bool:
    """Return whether there is a library that was made of other sources."""
    library = _loaded()
    return library is not None and not is_of_these_sources(library)


def stale(name: str, digest: str) -> ctypes.CDLL | None:
    """Return a library of other sources, if it has this digest by this name."""
    library = _loaded() if is_stale() else None
    known = library is not None and hasattr(library, name) and _text(library, name) == digest
    return library if known else None


def why_none() -> str:
    """Return why `found` answers None, as the end of a sentence."""
    if not FILE.exists():
        return "it has no library of kernels for this platform (in a checkout, run: make library)"
    try:
        library = _load()
    except (OSError, AttributeError) as error:
        return f"its library of kernels cannot be loaded ({error})"
    if not is_of_these_sources(library):
        return f"its library of kernels, {FILE}, is made of other sources (run: make library)"
    has = ", ".join(map(repr, _levels(library)))
    return f"its library of kernels, {FILE}, has code for {has} only, not for {_wanted_level()}"


def _wanted_level() -> str:
    chosen = os.environ.get("KOFN_CPU")
    reached = ", ".join(map(repr, served() or []))
    return f"KOFN_CPU={chosen}" if chosen else f"this processor, which reaches {reached or 'none'}"


def is_of_these_sources(library: ctypes.CDLL) -> bool:
    """Return whether a library was made of the sources that are here, if any are."""
    return not are_here() or _text(library, "kofn_sources") == made_of()


def made_of() -> str:
    """Return a digest of all that a library is made of."""
    return sources("*.py", "*.c")


def served() -> list[str] | None:
    """Return the levels that this processor has, or None where nobody can tell."""
    library = _loaded()
    if library is None:
        return None
    reached = f"v{library.kofn_level()}"
    return [name for name, level in LEVELS.items() if level <= reached]


@cache
def _loaded() -> ctypes.CDLL | None:
    try:
        return _load()
    except (OSError, AttributeError):  # there is none, or one of another system, or another's
        return None


def _load() -> ctypes.CDLL:
    """Return the library, or raise OSError or AttributeError."""
    whole.check(FILE)
    library = ctypes.CDLL(str(FILE))
    for name in ("kofn_sources", "kofn_levels", "kofn_level"):
        getattr(library, name)
    return library


def _text(library: ctypes.CDLL, name: str) -> str:
    text: Any = ctypes.cast(getattr(library, name), ctypes.c_char_p).value
    return str(text, "ascii")


def _levels(library: ctypes.CDLL) -> list[str]:
    return _text(library, "kofn_levels").split(" ")


@cache
def _level(library: ctypes.CDLL) -> str:
    """Return the level in use: the highest one of this processor, or the level of KOFN_CPU."""
    chosen = chosen_level(served() or [])
    if _levels(library) == [""]:
        return ""
    reached = [LEVELS[name] for name in served() or []]
    if chosen:
        return LEVELS[chosen]
    return max((level for level in _levels(library) if level in reached), default="none")


def chosen_level(served: list[str]) -> str | None:
    """Return the level that KOFN_CPU names, of those that this processor has."""
    level = os.environ.get("KOFN_CPU")
    if not level:
        return None
    if level not in served:
        allowed = ", ".join(map(repr, served)) or "no level of x86-64"
        raise ValueError(
            f"KOFN_CPU must be a level that this processor has: {allowed}; or unset, for all that "
            f"it has; got {level!r}"
        )
    return level
