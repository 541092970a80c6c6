"""What the handler of XLA's calls is made of: C, and the numbers that C has of layout modules."""

from __future__ import annotations

import ctypes
from importlib import import_module

from kofn.kernels.cpu.runtime import library
from kofn.kernels.cpu.runtime.sources import KERNELS, digest
from kofn.kernels.cpu.xla.layout import SYMBOL

LAYOUTS = {
    "CALL": "xla.layout",
    "ROWS": "rows.layout",
    "KNAPSACK": "knapsack.layout",
    "SUBSETS": "subsets.layout",
    "RUNTIME": "runtime.layout",
}
"""The modules whose numbers C has by these prefixes."""


def header() -> str:
    """Return these numbers as C has them."""
    lines = ["/* Made of layout modules of kofn/kernels/cpu by kofn/kernels/cpu/xla/header.py. */"]
    for prefix, module in LAYOUTS.items():
        numbers = vars(import_module(f"kofn.kernels.cpu.{module}"))
        lines += [
            f"#define {prefix}_{name} {value}"
            for name, value in numbers.items()
            if type(value) is int
        ]
    return "\n".join(lines) + "\n"


def made_of() -> str:
    """Return a digest of all that the handler is made of."""
    return digest(header().encode(), (KERNELS / "cpu" / "xla" / "handler.c").read_bytes())


def found() -> ctypes.CDLL | None:
    """Return the library, if its handler is as the sources are; its functions may be others.

    One that was built with KOFN_HANDLER=none has none.
    """
    found = library.found() or library.stale("kofn_handler", made_of())
    return found if found is not None and hasattr(found, SYMBOL) else None
