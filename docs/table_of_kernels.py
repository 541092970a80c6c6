"""Print the table of what has kernels, from the declarations; behaviour.md has it.

`python docs/table_of_kernels.py` prints it; with `--write` the page takes it.
"""

from __future__ import annotations

from written import Part, show

from kofn.operations.declared import DECLARED
from kofn.operations.operation import Operation
from kofn.operations.signatures import CHOICES, ROWS, TEMPERED

PART = Part("docs/behaviour.md", "kernels", "python docs/table_of_kernels.py --write")
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


if __name__ == "__main__":
    show({PART: table()})
