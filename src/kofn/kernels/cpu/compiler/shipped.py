"""Translated functions: LLVM's intermediate code, from which a library takes no Numba.

`shipped.xz` is made by `make kernels` from the sources. If they are others, it serves the functions
whose digest is as it was. Its code is for one system, before any of LLVM's choices for a certain
processor.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import llvmlite.binding as llvm

from kofn.kernels.cpu.runtime.code import Code
from kofn.kernels.cpu.runtime.sources import sources

FILE = Path(__file__).with_name("shipped.xz")


class Translated(NamedTuple):
    digest: str
    """Of digests.py: of the function and all that it reads."""
    text: str


def _system() -> list[str]:
    return [llvm.get_process_triple(), str(llvm.llvm_version_info[0])]


def find(code: Code) -> str | None:
    """Return the code of a function, if it is there and as the sources are."""
    known = found(code)
    return known and known.text


def found(code: Code) -> Translated | None:
    """Return the same with its digest."""
    known = contents().get(code.symbol)
    if known is None or is_of_these_sources():
        return known
    from kofn.kernels.cpu.compiler import digests

    return known if known.digest and known.digest == digests.of_code(code) else None


def is_of_these_sources() -> bool:
    """Return whether the file is made of the sources that are here, every one."""
    return _read()[0] == sources("*.py")


def contents() -> dict[str, Translated]:
    """Return all that the file has for this system, by symbol."""
    return _read()[1]


@cache
def _read() -> tuple[str, dict[str, Translated]]:
    try:
        import lzma
    except ImportError:  # Python may be built without it
        return "", {}
    try:
        system, made_of, known = json.loads(lzma.decompress(FILE.read_bytes()))
    except (OSError, ValueError, EOFError, lzma.LZMAError):
        return "", {}
    each = {symbol: Translated(*parts) for symbol, parts in known.items()}
    return (made_of, each) if system == _system() else ("", {})


def write(known: Mapping[str, tuple[str, str]]) -> None:
    """Make the file."""
    import lzma

    data = json.dumps([_system(), sources("*.py"), known]).encode()
    FILE.write_bytes(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME))
