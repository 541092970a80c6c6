"""What MkDocs calls while it builds the site: pages that are made, links, formulas and figures."""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path

from mkdocs.structure.files import File, Files, InclusionLevel
from pymdownx.arithmatex import arithmatex_fenced_format
from pymdownx.slugs import slugify

sys.path.insert(0, str(Path(__file__).parent))

import figures
import reference
import repository

import formulas
from kofn.commands.explore.page import page as explorer

DOCS = Path(__file__).resolve().parents[1]

# The page that `kofn explore` opens takes the place of its picture and caption in docs/explorer.md.
EXPLORER = "explorer/page.html"
PICTURE = re.compile(r"<p>\s*<img [^>]*images/explorer\.png.*?</p>\s*<p>.*?</p>", re.DOTALL)
FRAME = f"""<iframe class="explorer" src="{EXPLORER}" title="The explorer" loading="lazy"></iframe>
<p><a href="{EXPLORER}">The explorer alone</a>, in the whole window.</p>"""


def _texts() -> dict[str, str]:
    return {
        path.relative_to(DOCS).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(DOCS.rglob("*.md"))
    }


def _sections(text: str) -> list[tuple[str, list[str]]]:
    """Return the headings of an index and the pages in the first column of the table below each."""
    found = []
    for part in re.split(r"^## ", text, flags=re.MULTILINE):
        rows = re.findall(r"^\|.*\]\(([\w/.]+\.md)\)", part, re.MULTILINE)
        rows = [row for row in rows if not row.endswith("README.md")]
        found.append((part.partition("\n")[0], rows))
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


def on_config(config):
    """Set the navigation, and anchors that are those of GitHub."""
    config.nav = navigation()
    config.mdx_configs["toc"]["slugify"] = slugify(case="lower")
    fence = {
        "name": "math",
        "class": "arithmatex",
        "format": arithmatex_fenced_format(mode="generic"),
    }
    config.mdx_configs["pymdownx.superfences"] = {"custom_fences": [fence]}
    return config


def on_files(files: Files, config) -> Files:
    """Add the reference, the files that pages link to, the explorer, figures for dark pages."""
    for page in reference.pages():
        files.append(File.generated(config, page.place, content=page.text))
    for place, text in repository.pages(_texts()).items():
        made = File.generated(config, place, content=text)
        made.inclusion = InclusionLevel.NOT_IN_NAV
        files.append(made)
    files.append(File.generated(config, EXPLORER, content=explorer()))
    for image in sorted((DOCS / "images").glob("*.png")):
        name = f"images/{image.stem}-dark.png"
        files.append(File.generated(config, name, content=figures.dark(image)))
    return files


def on_page_markdown(markdown: str, page, config, files: Files) -> str:
    """Lead links to files of the repository to their pages."""
    if page.is_homepage:
        page.meta["hide"] = ["navigation"]
    return repository.rewritten(markdown, page.file.src_uri)


def on_page_content(content: str, page, config, files: Files) -> str:
    """Draw formulas, exchange figures, and link names to the reference."""
    if page.file.src_uri == "explorer.md":
        content = PICTURE.sub(FRAME, content, count=1)
    content = figures.both(formulas.drawn(content))
    return content if page.file.src_uri.startswith("reference/") else _named(content, page, files)


_CODE = re.compile(r"<code>(?:kofn\.)?([A-Za-z_]+(?:\.[A-Za-z_]+)*)(\([^<]*\))?</code>")
_KEPT = re.compile(r"(<(a|pre|h\d)\b.*?</\2>)", re.DOTALL)
# Where the first column of tables has the names of other libraries.
_OF_OTHERS = re.compile(r"(<tr>\s*<(td)\b.*?</\2>|<(a|pre|h\d)\b.*?</\3>)", re.DOTALL)


def _named(content: str, page, files: Files) -> str:
    """Return a page with links from the public names in it to the reference."""

    def one(code: re.Match) -> str:
        name = f"kofn.{code[1]}"
        if name not in reference.home():
            return code[0]
        there = files.get_file_from_path(reference.home()[name]).url
        here = posixpath.dirname(page.file.url) or "."
        return f'<a class="name" href="{posixpath.relpath(there, here)}#{name}">{code[0]}</a>'

    theirs = page.file.src_uri == "names.md" or page.file.src_uri.startswith("coming_from/")
    written, end = [], 0
    for kept in (_OF_OTHERS if theirs else _KEPT).finditer(content):
        written += [_CODE.sub(one, content[end : kept.start()]), kept[0]]
        end = kept.end()
    return "".join([*written, _CODE.sub(one, content[end:])])
