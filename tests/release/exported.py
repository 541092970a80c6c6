"""The names that a library exports, of ELF, Mach-O or PE: `python exported.py FILE`.

Of 64-bit files for processors whose lowest byte comes first, as all of kofn's are.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from struct import calcsize, unpack_from


def names(data: bytes) -> set[str]:
    """Return the names of functions and data that a program finds in a library."""
    for start, read in ((b"\x7fELF", _elf), (b"\xcf\xfa\xed\xfe", _mach), (b"MZ", _pe)):
        if data.startswith(start):
            return set(read(data))
    raise ValueError(f"data must be of ELF, Mach-O or PE, 64 bits; they begin with {data[:4]!r}")


def _text(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode()


def _records(form: str, data: bytes, at: int, count: int) -> list[tuple[int, ...]]:
    return [unpack_from(form, data, at + i * calcsize(form)) for i in range(count)]


def _elf(data: bytes) -> Iterator[str]:
    (sections,) = unpack_from("<Q", data, 40)
    (count,) = unpack_from("<H", data, 60)
    found = _records("<IIQQQQIIQQ", data, sections, count)
    for _, kind, _, _, at, size, strings, *_ in found:
        if kind == 11:  # the table of dynamic symbols
            for name, info, _, section, _, _ in _records("<IBBHQQ", data, at, size // 24):
                if section and info >> 4:  # defined here, and not local
                    yield _text(data, found[strings][4] + name)


def _mach(data: bytes) -> Iterator[str]:
    at = 32
    for _ in range(*unpack_from("<I", data, 16)):
        command, size = unpack_from("<II", data, at)
        if command & 0x7FFFFFFF == 0x22:  # what the loader should know; its exports are last
            yield from _trie(data, *unpack_from("<II", data, at + 40))
        if command == 0x80000033:  # the same alone
            yield from _trie(data, *unpack_from("<II", data, at + 8))
        at += size


def _trie(data: bytes, start: int, size: int) -> Iterator[str]:
    """A tree whose edges have the parts of names."""
    left = [(0, "")] if size else []
    while left:
        at, name = left.pop()
        terminal, at = _number(data, start + at)
        if terminal:
            yield name.removeprefix("_")
        at += terminal
        edges, at = data[at], at + 1
        for _ in range(edges):
            part = _text(data, at)
            child, at = _number(data, at + len(part.encode()) + 1)
            left.append((child, name + part))


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits per byte, and where the next one is."""
    found = shift = 0
    while True:
        found |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 128:
            return found, at


def _pe(data: bytes) -> Iterator[str]:
    (head,) = unpack_from("<I", data, 60)
    count, options = unpack_from("<H12xH", data, head + 6)
    sections = _records("<8xIIII16x", data, head + 24 + options, count)

    def place(address: int) -> int:
        for size, first, kept, at in sections:
            if first <= address < first + max(size, kept):
                return at + address - first
        raise ValueError(f"no section has the address {address}")

    (table,) = unpack_from("<I", data, head + 24 + 112)
    if table:
        number, _, at = unpack_from("<III", data, place(table) + 24)
        for (name,) in _records("<I", data, place(at), number):
            yield _text(data, place(name))


if __name__ == "__main__":
    print(*sorted(names(Path(sys.argv[1]).read_bytes())), sep="\n")
