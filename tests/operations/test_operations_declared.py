"""Whoever declares an operation registers it, in a file that is listed."""

from importlib import import_module
from pathlib import Path

from kofn import operations
from kofn.operations.declared import DECLARED
from kofn.operations.operation import Operation


def test_no_file_has_an_operation_that_nobody_registers():
    registered = {operation.name for operation in DECLARED}
    registered |= {back.name for operation in DECLARED for back in operation.back}
    for path in Path(operations.__file__).parent.glob("[!_]*.py"):
        file = import_module(f"kofn.operations.{path.stem}")
        named = {each.name for each in vars(file).values() if isinstance(each, Operation)}
        assert named - {""} <= registered, f"{path.name} is missing in FILES of declared.py"
