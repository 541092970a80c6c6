"""How compiled functions are known: by where they are written, and what they take."""

from __future__ import annotations

from typing import NamedTuple

PASS = "qqqqqddddd"
"""What all passes over a row take: (x, g, out, n, sums, a, b, c, d, e), by array's letters."""

WORK = "qqdq"
"""What the work of a thread takes: (job, own, number, leads), as shares.py has it."""


class Code(NamedTuple):
    """A function: its module in this folder and its name there, and what it takes and returns.

    With a kind of link and a type, the name is that of a function that makes it.
    """

    module: str
    name: str
    takes: str
    returns: str = ""
    kind: int | None = None
    number: str = ""

    @property
    def symbol(self) -> str:
        kind = () if self.kind is None else (str(self.kind), self.number)
        return "kofn_" + "_".join((*self.module.split("."), self.name, *kind))
