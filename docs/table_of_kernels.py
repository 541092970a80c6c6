"""Print the table of what has kernels, from the declarations; behaviour.md has it.

`python docs/table_of_kernels.py` prints it; with `--write` the page takes it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from kofn.operations.declared import DECLARED
from kofn.operations.operation import Operation
from kofn.operations.signatures import CHOICES, ROWS, TEMPERED

PAGE = Path(__file__).parent / "behaviour.md"
BEGIN, END = "<!-- kernels: python docs/table_of_kernels.py --write -->", "<!-- /kernels -->"
HEAD = (
    "| Functions | NumPy, PyTorch, DTensor, `torch.compile` | Segments | JAX |",
    "| --- | --- | --- | --- |",
)


def table() -> str:
    """Return a line for each operation; one without functions is part of another."""
    return "\n".join([*HEAD, *(_line(each) for each in DECLARED if each.functions)])


def _line(operation: Operation) -> str:
    names = ", ".join(f"`{name}`" for name in operation.functions.split(", "))
    return f"| {names} | kernel | {_segments(operation)} | {_jax(operation)} |"


def _segments(operation: Operation) -> str:
    reason = operation.lacks.get("segments")
    assert reason or operation.of in (ROWS, CHOICES, TEMPERED), f"{operation.name} needs a reason"
    return reason or "kernel"


def _jax(operation: Operation) -> str:
    reason = operation.lacks.get("JAX")
    assert (operation.xla is not None) != bool(reason), f"{operation.name} needs a reason"
    return reason or "kernel"


def page_with_table() -> str:
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(page_with_table(), encoding="utf-8")
    else:
        print(table())
