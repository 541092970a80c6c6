"""Names that are not there, and the nearest of those that are; test_package_names.py holds them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping


def plain(name: str) -> str:
    return name.lower().replace("_", "")


def meant(module: str, name: str, known: Mapping[str, str]) -> str:
    """Say that a module has no such name, and which of the known ones may be meant."""
    from difflib import get_close_matches

    # Tools ask every module for names such as __wrapped__.
    close = [] if name.startswith("_") else get_close_matches(plain(name), known, 1, cutoff=0.8)
    hint = f"; you may mean {module}.{known[close[0]]}" if close else ""
    return f"module {module!r} has no attribute {name!r}{hint}"


def answer_for_others(module: str, names: Iterable[str]) -> None:
    """Have a module answer for a name that it lacks, with the nearest of its own."""

    def missing(name: str) -> object:
        raise AttributeError(meant(module, name, {plain(own): own for own in names}))

    # Not by a `def` in the module, for which type checkers would accept every name.
    sys.modules[module].__dict__["__getattr__"] = missing
