"""Check that a library has all bytes that its headers promise.

The system maps the file without a look at them, and ends the process (SIGBUS) once it touches what
a copy that was interrupted, or a full disk, has cut.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import BinaryIO

HEAD = 1 << 16
"""Bytes within which all headers are."""


def check(path: Path) -> None:
    """Raise OSError for a library that is cut; unknown formats pass."""
    with open(path, "rb") as file:
        has, promised = os.fstat(file.fileno()).st_size, _promised(file)
    if has < promised:
        raise OSError(f"{path} is cut: it has {has} of {promised} bytes")


def _promised(file: BinaryIO) -> int:
    """Return the least size that a file may have by its headers; 0 if it has none."""
    head = file.read(HEAD)
    for magic, size_of in _FORMATS.items():
        if head.startswith(magic):
            try:
                return size_of(head)
            except (struct.error, IndexError):  # the headers themselves are cut
                return HEAD
    return HEAD if len(head) < 5 else 0


def _of_elf(head: bytes) -> int:
    """ELF, of Linux: segments, and the table of sections, which is last."""
    order = "<" if head[5] == 1 else ">"
    segments, sections = struct.unpack_from(f"{order}QQ", head, 32)
    size, count, section_size, section_count = struct.unpack_from(f"{order}4H", head, 54)
    ends = [sections + section_size * section_count]
    for i in range(count):
        offset, _, _, length = struct.unpack_from(f"{order}4Q", head, segments + i * size + 8)
        ends.append(offset + length)
    return max(ends)


def _of_mach(head: bytes) -> int:
    """Mach-O, of macOS: segments of 64 bits."""
    ends, place = [0], 32
    for _ in range(struct.unpack_from("<I", head, 16)[0]):
        command, length = struct.unpack_from("<2I", head, place)
        if command == 0x19:  # LC_SEGMENT_64
            ends.append(sum(struct.unpack_from("<2Q", head, place + 40)))
        place += length
    return max(ends)


def _of_pe(head: bytes) -> int:
    """PE, of Windows: sections."""
    place = struct.unpack_from("<I", head, 60)[0]
    count, options = struct.unpack_from("<H12xH", head, place + 6)
    first = place + 24 + options
    return max(
        (sum(struct.unpack_from("<2I", head, first + 40 * i + 16)) for i in range(count)), default=0
    )


_FORMATS = {b"\x7fELF\x02": _of_elf, b"\xcf\xfa\xed\xfe": _of_mach, b"MZ": _of_pe}
