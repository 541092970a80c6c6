"""Check a built site: every link leads somewhere, and no page fetches anything from elsewhere.

    python docs/site/check.py site

MkDocs checks the links of pages as they are written. This reads what it wrote, with the links that
the theme, the reference and finish.py add.
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

ADDRESS = re.compile(r"url\(\s*[\"']?(https?:)?//")


class Read(NamedTuple):
    """What a page links to, what it loads, and the anchors that it has."""

    links: set[str]
    loads: set[str]
    anchors: set[str]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.read = Read(set(), set(), {""})

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value for name, value in attrs if value}
        self.read.anchors.update(found[name] for name in ("id", "name") if name in found)
        if tag == "a" and "href" in found:
            self.read.links.add(found["href"])
        elif tag == "link" and "href" in found and found.get("rel") != "canonical":
            self.read.loads.add(found["href"])
        elif tag in ("script", "img", "iframe", "source") and "src" in found:
            self.read.loads.add(found["src"])


def read(page: Path) -> Read:
    """Return what a page links to."""
    reader = _Reader()
    reader.feed(page.read_text(encoding="utf-8"))
    return reader.read


def problems(site: Path) -> list[str]:
    """Return a line for each link that leads nowhere, and for each thing from elsewhere."""
    pages = {page: read(page) for page in sorted(site.rglob("*.html"))}
    found = []
    for page, (links, loads, _) in pages.items():
        shown = page.relative_to(site)
        reasons = {
            target: _wrong(site, page, target, pages, loaded=target in loads)
            for target in sorted(links | loads)
        }
        found += [f"{shown}: {target}: {why}" for target, why in reasons.items() if why]
    styles = [style for style in sorted(site.rglob("*.css")) if ADDRESS.search(style.read_text())]
    return found + [f"{style.relative_to(site)}: loads from elsewhere" for style in styles]


def _wrong(site: Path, page: Path, target: str, pages: dict, *, loaded: bool) -> str | None:
    parts = urlsplit(target)
    if parts.scheme == "data":
        return None
    if parts.scheme or parts.netloc:
        return "is loaded from elsewhere" if loaded else None
    root = site if parts.path.startswith("/") else page.parent
    path = (root / unquote(parts.path).lstrip("/")).resolve() if parts.path else page
    path = path / "index.html" if path.is_dir() else path
    if not path.exists():
        return "no such file"
    known = pages[path].anchors if path in pages else {unquote(parts.fragment)}
    return None if unquote(parts.fragment) in known else "no such anchor"


def main() -> None:
    site = Path(sys.argv[1]).resolve()
    found = problems(site)
    print("\n".join(found) or f"{len(list(site.rglob('*.html')))} pages, all links lead somewhere")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
