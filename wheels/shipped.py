"""Compare shipped.xz with what Numba translates now, every function: `python -m wheels.shipped`.

The workflow that publishes a release runs it: libraries are made of that file.
"""

from __future__ import annotations

import re
import sys

from kofn.kernels.cpu import every
from kofn.kernels.cpu.compiler import now, shipped
from kofn.kernels.cpu.rows.layout import SERVED


def renamed(text: str) -> str:
    """Return a module with names in their order: Numba's tell of addresses and earlier functions.

    Labels have the names of the functions that were inlined there.
    """
    names: dict[str, str] = {}
    text = re.sub(r"B\d+v\d+B|ILi\d+E", "", text)
    return re.sub(
        r"@[\w.$]+|_ZN[\w.$]+", lambda name: names.setdefault(name[0], f"@{len(names)}"), text
    )


def other() -> list[str]:
    """Return the names of functions that are not as the file has them."""
    found = []
    for code in every.functions(SERVED, (4, 8)):  # in the order in which the file was made
        known = shipped.find(code.symbol)
        if known is None or renamed(known) != renamed(now.by_numba(code)):
            found.append(code.symbol)
    return found


def main() -> None:
    """Exit with an error if a function is another one, or is not there."""
    differ = other()
    if differ:
        few = ", ".join(differ[:3])
        sys.exit(f"{shipped.FILE}: {len(differ)} functions are not as Numba has them: {few}")
    print(f"{shipped.FILE}: every function is as Numba has it")


if __name__ == "__main__":
    main()
