"""A digest of the files that make compiled functions what they are."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

KERNELS = Path(__file__).parents[2]


def digest(*parts: bytes) -> str:
    """Return a short digest of some data."""
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:24]


def are_here() -> bool:
    """Return whether there are sources: an application may be packed without them."""
    return (KERNELS / "contract.py").exists()


@cache
def sources(*kinds: str) -> str:
    """Return the digest of the sources beside this file, of kinds such as "*.py"."""
    files = [file for kind in kinds for file in sorted((KERNELS / "cpu").rglob(kind))]
    read = {file: file.read_bytes() for file in files}
    ours = (data for file, data in read.items() if counts(file, data))
    return digest(*(file.read_bytes() for file in shared()), *ours)


def shared() -> list[Path]:
    """Return the files of other rooms that compiled code depends on."""
    names = "kernels/contract.py", "kernels/constants.py", "arrays/kinds.py"
    links = sorted((KERNELS.parent / "links").rglob("*.py"))
    rooms = (sorted((KERNELS.parent / room).glob("*.py")) for room in ("operations", "metrics"))
    passes = [file for room in rooms for file in room if is_of_passes(file.read_bytes())]
    return [*(KERNELS.parent / name for name in names), *links, *passes]


def is_of_passes(data: bytes) -> bool:
    """Return whether a file of another room has a pass."""
    return b"= Pass(" in data or b"= Sum(" in data


def counts(file: Path, data: bytes) -> bool:
    """Return whether compiled code depends on a file."""
    compiled = any(mark in data for mark in (b"from numba", b"@plain\n", b"@inline\n"))
    return (
        compiled
        or file.suffix == ".c"
        or file.name in ("layout.py", "machine.py", "target.py", "code.py", "passes.py")
    )
