"""The pages of the reference: every public name, in the groups of `__all__`.

The names and their groups are read from the sources, so a new name is on a page at once.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "src"

FOLDER = "reference"
# Modules whose names have a page of their own, after the groups of kofn itself.
MODULES = (
    *("links", "losses", "estimators", "metrics", "schedules", "balance", "projections", "classic"),
    *("nn", "distributed", "streaming", "feature_selection", "onnx"),
)


class Group(NamedTuple):
    """Names that stand together in `__all__`, and the comment above them."""

    title: str
    names: list[str]


class Page(NamedTuple):
    """A page of the reference."""

    place: str
    title: str
    text: str


def source(module: str) -> Path | None:
    """Return the file of a module, by its dotted name."""
    path = SOURCES.joinpath(*module.split("."))
    files = (path / "__init__.py", path.with_suffix(".py"))
    return next((file for file in files if file.exists()), None)


def groups(module: str) -> list[Group]:
    """Return the public names of a module under the comments of its `__all__`, which may take in
    those of other files.
    """
    file = source(module)
    text = file.read_text(encoding="utf-8") if file else ""
    listed = re.search(r"^__all__ = \[(.*?)\]$", text, re.DOTALL | re.MULTILINE)
    if listed and re.search(r"\*\w+\(", listed[1]):  # made of a table
        return [Group("", list(import_module(module).__all__))]
    found = [Group("", [])]
    for line in listed[1].splitlines() if listed else ():
        if comment := re.match(r"\s*# (.+)", line):
            found.append(Group(comment[1], []))
        found[-1].names.extend(re.findall(r'"(\w+)"', line))
        if taken := re.match(r'\s*\*(?:_(?P<map>\w+)\.__all__|_FILES\["(?P<file>.+)"\])', line):
            found[-1].names.extend(names(f"kofn.{taken['file'] or 'maps.' + taken['map']}"))
    return [group for group in found if group.names]


def names(module: str) -> list[str]:
    """Return the public names of a module."""
    return [name for group in groups(module) for name in group.names]


def summary(module: str) -> str:
    """Return the docstring of a module."""
    file = source(module)
    return ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "" if file else ""


@cache
def integrations() -> list[str]:
    """Return the modules of kofn.integrations that have public names."""
    folder = SOURCES / "kofn" / "integrations"
    found = sorted(path.stem for path in folder.iterdir() if not path.name.startswith("_"))
    return [f"kofn.integrations.{name}" for name in found if names(f"kofn.integrations.{name}")]


def modules() -> list[str]:
    """Return every public module with names of its own but kofn itself."""
    return [f"kofn.{name}" for name in MODULES if source(f"kofn.{name}")] + integrations()


@cache
def home() -> dict[str, str]:
    """Return for each public name, such as kofn.losses.topk_loss, the page that documents it."""
    homes = {f"{module}.{name}": _place(module) for module in modules() for name in names(module)}
    known = set(modules())
    for group in groups("kofn"):
        for name in group.names:
            if f"kofn.{name}" not in known:
                homes[f"kofn.{name}"] = _place(group.title)
    return homes


def _place(title: str) -> str:
    """Return the file of the page of a module, or of a group of kofn's own names."""
    module = title.startswith("kofn.")
    name = title.removeprefix("kofn.") if module else f"kofn {title}"
    return f"{FOLDER}/{re.sub(r'[^a-z0-9]+', '_', name.lower())}.md"


def _entry(module: str, name: str, level: int) -> str:
    """Return a name's documentation, or where it stands if another page has it."""
    for other in modules():
        if module == "kofn" and name in names(other) and _same(other, name):
            there = Path(_place(other)).name
            head = f"{'#' * level} {name} {{ #{module}.{name} }}"
            return f"{head}\n\nIt is [`{other}.{name}`]({there}#{other}.{name}).\n"
    return f"::: {module}.{name}\n    options:\n      heading_level: {level}\n"


def _same(module: str, name: str) -> bool:
    """Whether kofn itself imports the name from this module."""
    text = source("kofn").read_text(encoding="utf-8")
    found = re.search(rf"^from ({re.escape(module)}[\w.]*) import .*\b{name}\b", text, re.MULTILINE)
    return found is not None


def _group_pages() -> list[Page]:
    pages, known = [], set(modules())
    for title, listed in groups("kofn"):
        plain = [name for name in listed if f"kofn.{name}" not in known]
        head = title[0].upper() + title[1:]
        if plain:
            entries = "\n".join(_entry("kofn", name, 2) for name in plain)
            pages.append(Page(_place(title), head, f"# {head}\n\nNames of `kofn`.\n\n{entries}"))
    return pages


def _module_page(module: str) -> Page:
    parts = [f"# {module}\n\n{summary(module)}\n"]
    titled = [group for group in groups(module) if group.title]
    for title, listed in groups(module):
        if title and titled:
            parts.append(f"## {title[0].upper() + title[1:]}\n")
        parts += [_entry(module, name, 3 if titled else 2) for name in listed]
    return Page(_place(module), module, "\n".join(parts))


def pages() -> list[Page]:
    """Return every page of the reference, the index first."""
    made = [*_group_pages(), *map(_module_page, modules())]
    rows = [f"| [{page.title}]({Path(page.place).name}) | {_listed(page)} |" for page in made]
    text = (
        "# Reference\n\nEvery public name. Those of `kofn` itself come first, in the groups of its"
        " `__all__`, then the modules.\n\n| Page | Names |\n| --- | --- |\n" + "\n".join(rows)
    )
    return [Page(f"{FOLDER}/index.md", "Reference", f"{text}\n"), *made]


def _listed(page: Page) -> str:
    """Return the names on a page, with links."""
    own = [name for name, place in home().items() if place == page.place]
    return ", ".join(
        f"[`{name.rpartition('.')[2]}`]({Path(page.place).name}#{name})" for name in own
    )
