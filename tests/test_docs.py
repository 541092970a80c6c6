"""The pages of docs/: their code runs as pasted and prints what it says it prints."""

import re

import pytest

from layers import LEVEL
from test_readme import ROOT, Block, blocks, run

PAGES = {
    path.name: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))
}


@pytest.mark.usefixtures("own_warnings")
@pytest.mark.parametrize(
    ("name", "block"),
    [
        pytest.param(name, block, id=f"{name} line {block.line}")
        for name, page in PAGES.items()
        for block in blocks(page)
    ],
)
def test_block_prints_what_it_says(name: str, block: Block) -> None:
    for promise, printed in run(block):
        assert printed.split() == promise.split()


@pytest.fixture
def own_warnings():
    """A block may silence warnings, for itself alone."""
    import warnings

    with warnings.catch_warnings():
        yield


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    targets = re.findall(r"\]\(([^)#:]+)[)#]", PAGES[name])
    assert [target for target in targets if not (ROOT / "docs" / target).exists()] == []


# Pages about the whole library; every other page is named after a room of src/kofn.
GENERAL = {
    *("README", "guide", "behaviour", "names", "speed"),
    *("from_the_articles", "errata", "sources"),
}


def test_pages_are_named_after_rooms() -> None:
    stems = {name.removesuffix(".md") for name in PAGES} - GENERAL
    assert [s for s in stems if not any(f"{s}_".startswith(f"{room}_") for room in LEVEL)] == []


def test_the_index_lists_every_page() -> None:
    listed = set(re.findall(r"\]\((\w+\.md)\)", PAGES["README.md"]))
    assert listed == set(PAGES) - {"README.md"}
