"""Translated functions that come with kofn: with them, a machine's first call takes no Numba.

`shipped.xz` is made by `make kernels` from the sources, and serves no others. Its code is for one
system and kind of processor, before any of LLVM's choices for a certain one.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path

import llvmlite.binding as llvm

FILE = Path(__file__).with_name("shipped.xz")


def digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:24]


@cache
def sources() -> str:
    """Return a digest of all files that make compiled functions what they are."""
    kernels = Path(__file__).parents[2]
    read = {file: file.read_bytes() for file in sorted((kernels / "cpu").rglob("*.py"))}
    ours = (data for file, data in read.items() if _counts(file, data))
    return digest(
        *((kernels / name).read_bytes() for name in ("contract.py", "constants.py")), *ours
    )


def _counts(file: Path, data: bytes) -> bool:
    compiled = any(mark in data for mark in (b"from numba", b"@plain\n", b"@inline\n"))
    return compiled or file.name in ("layout.py", "machine.py")


def _made_for() -> list[str]:
    return [sources(), llvm.get_process_triple(), str(llvm.llvm_version_info[0])]


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
