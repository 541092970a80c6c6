"""Kernels for a CPU compiled before they are needed, and a word where they are compiled later.

It needs Numba.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from kofn.kernels.contract import KINDS
from kofn.kernels.cpu import every
from kofn.kernels.cpu.runtime import native, processor, store
from kofn.kernels.cpu.runtime.native import Code

LINKS = tuple(dict.fromkeys(kind.link for kind in KINDS))


def functions(links: Iterable[str], sizes: Iterable[int]) -> list[Code]:
    """Return all compiled functions for these links and bytes per number."""
    wanted = set(links)
    return every.functions([n for n, kind in enumerate(KINDS) if kind.link in wanted], sizes)


def compile_quietly(function: Code) -> bool:
    """Compile a function unless it is on disk; return whether it was not."""
    native.tell = None
    return native.keep(function)


def are_kept(functions: Iterable[Code]) -> bool:
    """Return whether all are on disk."""
    return all(map(native.is_kept, functions))


def folder() -> Path:
    """Return where compiled functions are kept."""
    return store.folder()


def announce(say: Callable[[str], None]) -> None:
    """Call `say` once, before anything is compiled, if it has not been said in this process.

    Raises:
        ValueError: KOFN_CPU names no level, or one that the processor lacks.
    """
    processor.target()
    if native.tell is not None:
        native.tell = lambda: say(native.COMPILING)
