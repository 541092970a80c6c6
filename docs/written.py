"""Parts of pages that commands write, between two comments; the first names the command."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]


class Part(NamedTuple):
    """A part of a page."""

    page: str  # as README.md and docs/links.md
    name: str
    command: str  # that writes it

    @property
    def path(self) -> Path:
        return ROOT / self.page

    def _split(self) -> tuple[str, str, str]:
        begin, end = f"<!-- {self.name}: {self.command} -->\n\n", f"\n\n<!-- /{self.name} -->"
        before, found, rest = self.path.read_text(encoding="utf-8").partition(begin)
        text, closed, after = rest.partition(end)
        if not (found and closed):
            raise ValueError(f"{self.page} has no part from {begin.strip()} to {end.strip()}")
        return before + begin, text, end + after

    @property
    def text(self) -> str:
        """What the page has now."""
        return self._split()[1]

    def write(self, text: str) -> None:
        before, _, after = self._split()
        self.path.write_text(before + text + after, encoding="utf-8")


def show(parts: dict[Part, str]) -> None:
    """Print the texts of parts; with `--write` among the arguments, the pages take them."""
    if "--write" in sys.argv[1:]:
        for part, text in parts.items():
            part.write(text)
    else:
        print(*parts.values(), sep="\n\n")
