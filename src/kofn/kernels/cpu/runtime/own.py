"""The work for rows with a link of a user's own, which all share; compiler/asked.py says how.

(Tests: test_kernels_own.py.)
"""

from __future__ import annotations

from kofn.kernels.contract import FIRST_OWN, NEXT, SHARED, WAYS, ways_of
from kofn.kernels.cpu.runtime import native
from kofn.kernels.cpu.runtime.code import WORK, Code

ASKED = Code("compiler.asked", "answers", "qd", "d")
"""What the shared work asks of a link."""
CODES = tuple(
    Code("rows.worker", name, WORK, "", SHARED) for name in ("forward", "after", "compare")
)


def work_for(kind: int, code: Code) -> Code:
    """Return the work for a link, by its number."""
    its = code._replace(kind=SHARED)
    return its if kind >= FIRST_OWN and its in CODES else code


def told_of(kind: int) -> tuple[int, float] | None:
    """Return what a job tells shared work: the link's number there, and the address to ask."""
    if kind < FIRST_OWN:
        return None
    return NEXT + WAYS.index(ways_of(kind)), float(native.address(ASKED._replace(kind=kind)))
