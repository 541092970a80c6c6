"""The step after a site was built: formulas, figures for dark pages, and links from names.

    python docs/site/finish.py site

It reads HTML and knows no engine: a formula is what pymdownx.arithmatex writes in its generic form.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import figures
import reference
from pages import EXPLORER

import formulas

# The page that `kofn explore` opens takes the place of its picture and caption in docs/explorer.md.
PICTURE = re.compile(r"<p>\s*<img [^>]*images/explorer\.png.*?</p>\s*<p>.*?</p>", re.DOTALL)
FRAME = f"""<iframe class="explorer" src="{EXPLORER}" title="The explorer" loading="lazy"></iframe>
<p><a href="{EXPLORER}">The explorer alone</a>, in the whole window.</p>"""
ARTICLE = re.compile(r"<article\b.*?</article>", re.DOTALL)

_CODE = re.compile(r"<code>(?:kofn\.)?([A-Za-z_]+(?:\.[A-Za-z_]+)*)(\([^<]*\))?</code>")
_KEPT = re.compile(r"(<(a|pre|h\d)\b.*?</\2>)", re.DOTALL)
# Where the first column of tables has the names of other libraries.
_OF_OTHERS = re.compile(r"(<tr>\s*<(td)\b.*?</\2>|<(a|pre|h\d)\b.*?</\3>)", re.DOTALL)


def finished(content: str, place: str) -> str:
    """Return a page's HTML with formulas drawn, figures exchanged, and names linked."""
    if place == "explorer.html":
        content = PICTURE.sub(FRAME, content, count=1)
    content = figures.both(formulas.drawn(content))
    return content if place.startswith(f"{reference.FOLDER}/") else _named(content, place)


def _named(content: str, place: str) -> str:
    """Return a page with links from the public names in it to the reference."""

    def one(code: re.Match) -> str:
        name = f"kofn.{code[1]}"
        if name not in reference.home():
            return code[0]
        there = reference.home()[name].removesuffix(".md") + ".html"
        address = os.path.relpath(there, os.path.dirname(place) or ".").replace(os.sep, "/")
        return f'<a class="name" href="{address}#{name}">{code[0]}</a>'

    theirs = place == "names.html" or place.startswith("coming_from/")
    written, end = [], 0
    for kept in (_OF_OTHERS if theirs else _KEPT).finditer(content):
        written += [_CODE.sub(one, content[end : kept.start()]), kept[0]]
        end = kept.end()
    return "".join([*written, _CODE.sub(one, content[end:])])


def finish(site: Path) -> None:
    """Write the pages of a built site anew."""
    for path in sorted(site.rglob("*.html")):
        place = path.relative_to(site).as_posix()
        if place == EXPLORER:
            continue
        text = path.read_text(encoding="utf-8")
        turned = ARTICLE.sub(lambda found, place=place: finished(found[0], place), text)
        path.write_text(turned, encoding="utf-8")
    for path in site.glob("search/search_index.js*"):  # JSON, and a script with it
        before, brace, index = path.read_text(encoding="utf-8").partition("{")
        found = json.loads(brace + index)
        for section in found["docs"]:
            section["text"] = formulas.said(section["text"])
        path.write_text(before + json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    finish(Path(sys.argv[1]).resolve())
