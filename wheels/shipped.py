"""Compare shipped.xz with what Numba translates now, every function: `python -m wheels.shipped`.

The workflow that publishes a release runs it: libraries are made of that file. With symbols as
arguments it compares these functions alone.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

from kofn.kernels.cpu import every
from kofn.kernels.cpu.compiler import now, shipped
from kofn.kernels.cpu.rows.layout import SERVED

_NAME = re.compile(
    r"""(?P<sign>[@%])(?P<name>"[^"]*"|[\w.$]+)|^(?P<label>"[^"]*"|[\w.$]+)(?=:)|(?P<text>"[^"]*")""",
    re.MULTILINE,
)
_OF_PROCESS = re.compile(r"(@numba\.dynamic\.globals\.\w+ = .*inttoptr \(i64 )\d+")
"""Where a function that another is given is in Python; library.py refuses code that reads it."""
_IN_TEXT = re.compile(r"_ZN[\w.$]+|%[\w.$]+")


def renamed(text: str) -> str:
    """Return a module with names in their order: Numba's tell of addresses and earlier functions.

    A name is that of a function (@), of a value or label (%), or stands before a label's colon.
    Texts, such as those that tell which memory is whose, have names of functions without a sign.
    """
    names: dict[str, str] = {}

    def name_of(key: str) -> str:
        return names.setdefault(key, f"{key[0]}{len(names)}")

    def of(found: re.Match[str]) -> str:
        if found["text"]:
            return _IN_TEXT.sub(lambda part: name_of("@" + part[0].lstrip("%")), found["text"])
        return name_of((found["sign"] or "%") + (found["name"] or found["label"]))

    return _NAME.sub(of, _OF_PROCESS.sub(r"\g<1>0", text))


def other(symbols: Sequence[str] = ()) -> list[str]:
    """Return the names of functions that are not as the file has them; of all, or of some."""
    found = []
    for code in every.functions(SERVED, (4, 8)):
        if symbols and code.symbol not in symbols:
            continue
        known = shipped.find(code)
        if known is None or renamed(known) != renamed(now.by_numba(code)):
            found.append(code.symbol)
    return found


def main(symbols: Sequence[str] = ()) -> None:
    """Exit with an error if a function is another one, or is not there."""
    differ = other(symbols)
    if differ:
        few = ", ".join(differ[:3])
        sys.exit(f"{shipped.FILE}: {len(differ)} functions are not as Numba has them: {few}")
    print(f"{shipped.FILE}: every function is as Numba has it")


if __name__ == "__main__":
    main(sys.argv[1:])
