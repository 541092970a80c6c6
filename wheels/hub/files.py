"""Which files of kofn a kernel needs, and what they are in a package of another name."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
OURS = {"kofn": ROOT / "src" / "kofn", "wheels.hub.router": Path(__file__).parent / "router"}
"""The packages whose files lie together in a kernel."""
ALLOWED = {*sys.stdlib_module_names, "torch", "triton"}
"""What a kernel of the Hub may import."""


class Import(NamedTuple):
    node: ast.Import | ast.ImportFrom
    of_types: bool
    """Whether it is for type checkers alone."""
    later: bool
    """Whether it stands in a function."""


def file_of(module: str) -> Path | None:
    """Return the file of a module of `OURS`, None if it is no module there."""
    for package, folder in OURS.items():
        if f"{module}.".startswith(f"{package}."):
            path = folder.joinpath(*module.removeprefix(package).split(".")[1:])
            found = (path / "__init__.py", path.with_suffix(".py"))
            return next((each for each in found if each.is_file()), None)
    return None


def place_of(module: str) -> Path:
    """Return where a module's file lies in the kernel."""
    path = file_of(module)
    assert path is not None, module
    folder = next(each for each in OURS.values() if path.is_relative_to(each))
    return path.relative_to(folder)


def imports_of(module: str) -> list[Import]:
    path = file_of(module)
    assert path is not None, module
    return list(_imports(ast.parse(path.read_text(encoding="utf-8"))))


def modules_of(node: ast.Import | ast.ImportFrom) -> list[str]:
    """Return the modules that an import needs, of `OURS` or not."""
    if isinstance(node, ast.Import):
        return [each.name for each in node.names]
    assert not node.level, "kofn imports by full names"
    below = [f"{node.module}.{each.name}" for each in node.names]
    return [each if file_of(each) else node.module or "" for each in below]


def closure(starts: list[str], without: tuple[str, ...]) -> list[str]:
    """Return the modules that these import, in functions, too, and the packages that they lie in.

    Those that begin with a name of `without` are left out; they may be imported in functions alone.
    """
    found: set[str] = set()
    left = [*starts]
    while left:
        module = left.pop()
        parent = module.rpartition(".")[0]
        own = [] if parent in ("kofn", *OURS) or not file_of(parent) else [parent]
        for each in imports_of(module):
            for other in [] if each.of_types else modules_of(each.node):
                if file_of(other) is None or other == "kofn":
                    continue
                if not _starts(other, without):
                    own.append(other)
                elif not each.later:
                    raise ImportError(
                        f"{module} imports {other} at its top; a kernel has no such file"
                    )
        found.add(module)
        left += [each for each in own if each not in found]
    return sorted(found)


def _starts(module: str, names: tuple[str, ...]) -> bool:
    return any(f"{module}.".startswith(f"{name}.") for name in names)


def _imports(node: ast.AST, of_types: bool = False, later: bool = False) -> Iterator[Import]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield Import(node, of_types, later)
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        for each in node.body:
            yield from _imports(each, True, later)
        for each in node.orelse:
            yield from _imports(each, of_types, later)
        return
    later = later or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    for child in ast.iter_child_nodes(node):
        yield from _imports(child, of_types, later)


def rewritten(module: str) -> str:
    """Return the text of a module with relative imports, and none of what is not `ALLOWED`.

    Other packages are looked up where they are needed, for whoever passes their arrays has them.
    """
    path = file_of(module)
    assert path is not None, module
    lines = path.read_text(encoding="utf-8").splitlines()
    dots = "." * len(place_of(module).parts)
    for node, of_types, _ in sorted(imports_of(module), key=lambda each: -each.node.lineno):
        first, last = node.lineno - 1, node.end_lineno
        package = modules_of(node)[0].partition(".")[0]
        if any(map(file_of, modules_of(node))):
            if isinstance(node, ast.Import):
                raise ImportError(f"{module}, line {node.lineno}: write `from … import`")
            old = f"from {node.module} import"
            assert lines[first].lstrip().startswith(old), (module, lines[first])
            lines[first] = lines[first].replace(
                old, f"from {_relative(node.module, dots)} import", 1
            )
        elif package not in ALLOWED and package != "__future__" and not of_types:
            indent = " " * node.col_offset
            lines[first:last] = [indent + each for each in _looked_up(node, dots)]
    return "\n".join(lines) + "\n"


def _relative(module: str | None, dots: str) -> str:
    assert module is not None
    inside = next(module.removeprefix(each) for each in OURS if f"{module}.".startswith(f"{each}."))
    return dots + inside.removeprefix(".")


def _looked_up(node: ast.Import | ast.ImportFrom, dots: str) -> list[str]:
    """Return lines that give the names of an import what they mean if the package is there."""
    lines = [f"from {dots}absent import package"]
    for each in node.names:
        if isinstance(node, ast.ImportFrom):
            lines.append(f'{each.asname or each.name} = package("{node.module}").{each.name}')
        else:
            named = each.name if each.asname else each.name.partition(".")[0]
            lines.append(f'{each.asname or named} = package("{named}")')
    return lines
