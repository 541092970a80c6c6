"""An example call of every public function, class and method: the table that enumerations run over.

`CALLS` has a row for each line of signatures.txt that takes arrays, `WITHOUT_ARRAYS` the others
with the reason. Every argument that may be an array is one in an example, with a row per batch, so
that an enumeration can change any of them; rows lie along the first dimension, entries along the
last.

    from calls import CALLS, surroundings

    for call in CALLS:
        for framework in call.frameworks:
            with surroundings(call):  # a process group, where it needs one
                answers = call(framework, dtype="float32", scores=another)  # a tuple of arrays

`call.arrays`, `call.learned` and `call.first` name its arguments.
"""

from pathlib import Path

from calls.call import (
    ALL,
    BOOLEAN,
    FLOAT,
    INTEGER,
    Call,
    array_of,
    flat,
    generator,
    surroundings,
)
from calls.laws import of_factors, of_laws, of_numbers
from calls.losses import of_losses
from calls.maps import of_rows, of_segments
from calls.modules import of_modules
from calls.processes import of_processes
from calls.rooms import of_estimators, of_rooms
from calls.without import WITHOUT_ARRAYS

__all__ = [
    "ALL",
    "BOOLEAN",
    "CALLS",
    "FLOAT",
    "INTEGER",
    "WITHOUT_ARRAYS",
    "Call",
    "array_of",
    "flat",
    "generator",
    "public_names",
    "surroundings",
]

CALLS: tuple[Call, ...] = tuple(
    call
    for rows in (
        of_rows,
        of_segments,
        of_laws,
        of_factors,
        of_numbers,
        of_losses,
        of_rooms,
        of_estimators,
        of_processes,
        of_modules,
    )
    for call in rows()
)


def public_names() -> list[str]:
    """The name of every line of signatures.txt."""
    lines = Path(__file__).parents[1].joinpath("signatures.txt").read_text(encoding="utf-8")
    return [line.partition("(")[0].partition(":")[0].strip() for line in lines.splitlines()]
