"""The step before a site is built: all its pages as plain Markdown in one folder, for any engine.

    python docs/site/pages.py build/pages

Beside the pages of `docs/` these are the reference, the files of the repository that pages link to,
the explorer, and figures for dark pages. What MkDocs has to know is written beside the folder:
`mkdocs.yml`, which is docs/site/mkdocs.yml with the navigation, that of the indexes.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import figures
import reference
import repository

from kofn.commands.explore.page import page as explorer

DOCS = Path(__file__).resolve().parents[1]
COPIED = ("assets", "images")
EXPLORER = "explorer/page.html"
SETTINGS = "mkdocs.yml"


def _texts() -> dict[str, str]:
    return {
        path.relative_to(DOCS).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(DOCS.rglob("*.md"))
    }


def _sections(text: str, level: str = "## ") -> list[tuple[str, list]]:
    """Return the headings of an index, with the pages in the first column of the table below each.

    A heading that has headings below it has these as groups, each with its pages.
    """
    found: list[tuple[str, list]] = []
    for part in re.split(rf"^{level}", text, flags=re.MULTILINE):
        title, _, below = part.partition("\n")
        if "\n### " in below:
            groups = _sections(below, "### ")
            found.append((title, [{group: pages} for group, pages in groups if pages]))
            continue
        rows = re.findall(r"^\|.*\]\(([\w/.]+\.md)\)", below, re.MULTILINE)
        found.append((title, [row for row in rows if not row.endswith("README.md")]))
    return found


def _folder(folder: str, texts: dict[str, str]) -> list[str]:
    """Return the pages of a folder in the order of its index."""
    index = f"{folder}/README.md"
    listed = [page for _, pages in _sections(texts[index]) for page in pages]
    return [index, *(f"{folder}/{page}" for page in listed)]


def _short(title: str) -> str:
    return re.sub(r"^kofn\.integrations\.", "for ", title)


def navigation() -> list:
    """Return the navigation: that of the indexes, which a test compares with the files."""
    texts = _texts()
    nav: list = [{"Start": "README.md"}]
    nav.append({"Guides": _folder("guides", texts)})
    nav.append({"Coming from": _folder("coming_from", texts)})
    rest = [{title: pages} for title, pages in _sections(texts["README.md"]) if pages]
    made: list = [{_short(page.title): page.place} for page in reference.pages()]
    made[0] = made[0]["Reference"]
    return [*nav, *rest[:1], {"Reference": made}, *rest[1:]]


def every() -> dict[str, str]:
    """Return every page by its place, with links to files of the repository led to their pages."""
    texts = _texts()
    made = {page.place: page.text for page in reference.pages()}
    found = {**texts, **made, **repository.pages(texts)}
    found = {place: repository.rewritten(text, place) for place, text in found.items()}
    found["README.md"] = f"---\nhide: [navigation]\n---\n\n{found['README.md']}"
    return found


def write(folder: Path) -> None:
    """Write the pages to a folder, which is emptied first, and the settings of MkDocs beside it."""
    shutil.rmtree(folder, ignore_errors=True)
    for place, text in {**every(), EXPLORER: explorer()}.items():
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for name in COPIED:
        shutil.copytree(DOCS / name, folder / name)
    for image in sorted((DOCS / "images").glob("*.png")):
        (folder / "images" / f"{image.stem}-dark.png").write_bytes(figures.dark(image))
    settings = Path(__file__).with_name(SETTINGS).read_text(encoding="utf-8")
    settings += f"\ndocs_dir: {folder.name}\nnav: {json.dumps(navigation())}\n"
    folder.with_name(SETTINGS).write_text(settings, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]).resolve())
