"""Names of compiled functions: by the place where they are written, and their arguments."""

from __future__ import annotations

from typing import NamedTuple

from kofn.kernels.contract import FIRST_OWN, SHARED

PASS = "qqqqqddddd"
"""The arguments of a pass, (x, g, out, n, sums, hi, lo, per_t, alpha, rest), by array's letters."""

WORK = "qqdq"
"""The work of a thread takes (job, own, number, leads), as in shares.py."""


_MARKS = str.maketrans("@.:", "___")


class Code(NamedTuple):
    """A function: its module in this folder and its name there, and what it takes and returns.

    A function for a link of a user's own has that link's number as `kind`, with a type or without;
    one that all of them share has SHARED.
    With a kind of link and a type, the name is the name of a function that makes it; if it makes it
    of a pass of rows/passes.py, "@" and where that stands follow: a file of Python, ":", a name.
    """

    module: str
    name: str
    takes: str
    returns: str = ""
    kind: int | None = None
    number: str = ""

    @property
    def is_own(self) -> bool:
        """Return whether it is for a link of a user's own, whose number no built-in one has."""
        return self.kind is not None and self.kind >= FIRST_OWN

    @property
    def is_remade(self) -> bool:
        """Return whether it is for one or all links of a user's own: see compiler/own.py."""
        return self.kind is not None and self.kind >= SHARED

    @property
    def symbol(self) -> str:
        kind = () if self.kind is None else (str(self.kind), self.number)
        name = self.name.replace("@kofn.", "@").translate(_MARKS)
        return "kofn_" + "_".join((*self.module.split("."), name, *kind))
