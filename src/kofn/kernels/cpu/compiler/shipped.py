"""Translated functions: LLVM's intermediate code, from which a library takes no Numba.

`shipped.xz` is made by `make kernels` from the sources, and serves no others. Its code is for
one system, before any of LLVM's choices for a certain processor.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import llvmlite.binding as llvm

from kofn.kernels.cpu.runtime.sources import sources

FILE = Path(__file__).with_name("shipped.xz")


def _made_for() -> list[str]:
    return [sources("*.py"), llvm.get_process_triple(), str(llvm.llvm_version_info[0])]


def find(symbol: str) -> str | None:
    """Return the code of a function, if it is there and as the sources are."""
    return _contents().get(symbol)


@cache
def _contents() -> dict[str, str]:
    try:
        import lzma
    except ImportError:  # Python may be built without it
        return {}
    try:
        made_for, code = json.loads(lzma.decompress(FILE.read_bytes()))
    except (OSError, ValueError, EOFError, lzma.LZMAError):
        return {}
    return dict(code) if made_for == _made_for() else {}


def write(code: dict[str, str]) -> None:
    """Make the file."""
    import lzma

    data = json.dumps([_made_for(), code]).encode()
    FILE.write_bytes(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME))
