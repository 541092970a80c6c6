"""What the instructions of a compiled kernel are, without the disassembler, which takes long.

From compute capability 7 to 10 an instruction has 16 bytes, and its first twelve bits say what it
does; bits 8 to 11 are how it takes its arguments.
"""

import struct
from pathlib import Path

import numpy as np

LOCAL_MEMORY = (0x983, 0x387)  # LDL and STL


def instructions(path: Path) -> np.ndarray:
    """The first twelve bits of each instruction of an ELF file: of its sections .text.NAME."""
    whole = path.read_bytes()
    (table,) = struct.unpack_from("<Q", whole, 0x28)
    size, count, of_names = struct.unpack_from("<HHH", whole, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", whole, table + i * size) for i in range(count)]
    names = whole[headers[of_names][4] :]
    return np.concatenate(
        [
            np.frombuffer(whole, "<u8", length // 8, start)[::2] & 0xFFF
            for name, _, _, _, start, length in headers
            if names[name:].startswith(b".text.")
        ]
    )


def local_memory(path: Path) -> int:
    """The number of instructions that read or write a thread's memory."""
    return int(np.isin(instructions(path), LOCAL_MEMORY).sum())
