"""Write names where type checkers and `import kofn` find them: the first step of `make signatures`.

A file of `links/built_in` is a link and bears its name; files that kofn loads late have their names
in their own `__all__`. Only texts are read here: kofn itself may not know a new name yet.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "src" / "kofn"
LONGEST = 100
"""The characters of a line, as ruff counts them."""


def listed(begin: str, names: Iterable[str], end: str = "") -> str:
    """Return a list as ruff writes it: in one line, or an item a line."""
    items = [f'"{name}"' for name in names]
    line, space = f"{begin}[{', '.join(items)}]{end}", re.match(" *", begin)[0]  # type: ignore[index]
    if len(line) <= LONGEST:
        return line
    return "\n".join([f"{begin}[", *(f"{space}    {each}," for each in items), f"{space}]{end}"])


def own_names(file: Path) -> list[str]:
    """Return `__all__` of a file."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    raise ValueError(f"{file} has no __all__")


def written(package: Path = PACKAGE) -> dict[Path, str]:
    """Return the files that have such names as they have to be."""

    def of_file(entry: re.Match[str]) -> str:
        file = package.joinpath(*entry[1].split(".")).with_suffix(".py")
        return listed(f'    "{entry[1]}": ', own_names(file), ",")

    def of_files(table: re.Match[str]) -> str:
        return re.sub(r'    "([\w.]+)": \[[^]]*\],', of_file, table[0])

    links = sorted(path.stem for path in package.glob("links/built_in/[!_]*.py"))
    imports = (f"from kofn.links.built_in.{name} import {name} as {name}\n" for name in links)
    of_links = listed("__all__ = ", ["Link", "ScalarLink", *links])
    changes = (
        ("links/__init__.py", r"(from kofn\.links\.built_in\..*\n)+", "".join(imports)),
        ("links/__init__.py", r"__all__ = \[[^]]*\]", of_links),
        ("arrays/typing.py", r"LinkName = Literal\[[^]]*\]", listed("LinkName = Literal", links)),
        ("__init__.py", r"_FILES = \{[^}]*\}", of_files),
    )
    texts: dict[Path, str] = {}
    for name, old, new in changes:
        path = package / name
        text = texts.get(path) or path.read_text(encoding="utf-8")
        texts[path] = re.sub(old, new, text, count=1)
    return texts


if __name__ == "__main__":
    for path, text in written().items():
        path.write_text(text, encoding="utf-8")
