"""Links from a page to files of the repository that are not pages: the site shows these files.

A page links to a source as on GitHub, by its relative path. The address of the repository is not
known here, so the site has a page for each file that some page links to, in the folder
`repository/`, under the file's own path.
"""

from __future__ import annotations

import posixpath
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = "repository"

_FENCED = re.compile(r"^( *)```.*?^\1```", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(\]\()([^)#:\s]+)((?:#[^)]*)?\))")
_NAMED = re.compile(r"\[(\w[\w/]*(?:\.md)?)\]\(([^)#:\s]+\.md)((?:#[^)]*)?)\)")
_LANGUAGES = {".py": "python", ".toml": "toml", ".yml": "yaml", ".json": "json", ".html": "html"}


def outside_code(function, text: str) -> str:
    """Apply a function to the parts of a page that are not blocks of code."""
    parts, end = [], 0
    for block in _FENCED.finditer(text):
        parts += [function(text[end : block.start()]), block[0]]
        end = block.end()
    return "".join([*parts, function(text[end:])])


def place(file: str) -> str:
    """Return where in the site a file of the repository is, by its path from the root."""
    if file.startswith("docs/"):
        return file.removeprefix("docs/")
    return posixpath.join(FOLDER, file if file.endswith(".md") else f"{file}.md")


def origin(page: str) -> str:
    """Return the file that a page of the site shows; the reverse of `place`."""
    if not page.startswith(f"{FOLDER}/"):
        return f"docs/{page}"
    file = page.removeprefix(f"{FOLDER}/")
    return file if (ROOT / file).is_file() else file.removesuffix(".md")


def targets(text: str, file: str) -> list[str]:
    """Return the files of the repository that a Markdown file links to."""
    found: list[str] = []

    def collect(part: str) -> str:
        found.extend(_path(link[2], file) for link in _LINK.finditer(part))
        return part

    outside_code(collect, text)
    return [path for path in found if (ROOT / path).is_file()]


def _path(link: str, file: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(file), link))


def rewritten(text: str, page: str) -> str:
    """Return a page whose links to files of the repository lead to their pages."""
    file = origin(page)

    def one(link: re.Match) -> str:
        path = _path(link[2], file)
        if not (ROOT / path).is_file():
            return link[0]
        there = posixpath.relpath(place(path), posixpath.dirname(page) or ".")
        return f"{link[1]}{there}{link[3]}"

    def named(link: re.Match) -> str:
        """Call a page by its title where the text is the name of its file."""
        said = link[1].endswith(".md") or link[2].endswith(f"{link[1]}/README.md")
        return f"[{(said and title(_path(link[2], file))) or link[1]}]({link[2]}{link[3]})"

    return outside_code(lambda part: _LINK.sub(one, _NAMED.sub(named, part)), text)


@cache
def title(file: str) -> str:
    """Return the heading of a Markdown file of the repository, without signs of code."""
    path = ROOT / file
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    found = re.search(r"^# (.+)$", text, re.MULTILINE)
    return found[1].replace("`", "") if found else ""


def pages(texts: dict[str, str]) -> dict[str, str]:
    """Return the pages of the files that pages link to, and that those link to, if Markdown."""
    made: dict[str, str] = {}
    waiting = [path for page, text in texts.items() for path in targets(text, f"docs/{page}")]
    while waiting:
        file = waiting.pop()
        if file.startswith("docs/") or place(file) in made:
            continue
        text = (ROOT / file).read_text(encoding="utf-8")
        if file.endswith(".md"):
            waiting += targets(text, file)
        made[place(file)] = text if file.endswith(".md") else _shown(file, text)
    return made


def _shown(file: str, text: str) -> str:
    """A page that shows a file as code; the search leaves it out."""
    fence = "`" * 4
    language = _LANGUAGES.get(Path(file).suffix, "text")
    head = f"---\nsearch:\n  exclude: true\n---\n\n# {file}\n\n"
    return f"{head}{fence}{language}\n{text}{fence}\n"
