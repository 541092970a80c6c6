"""The tables of links, which are written from one row for each."""

import numpy as np
import pytest
import table_of_links
import table_of_properties
from table_of_links import PARTS, ROWS
from table_of_properties import MAPS

from kofn.links.table import TABLE


def test_each_link_has_a_row_in_the_order_of_numbers():
    assert [*ROWS] == [*TABLE]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.page)
def test_pages_have_what_the_command_writes(part):
    assert part.text == PARTS[part](), f"run: {part.command}"


@pytest.mark.parametrize("name", ROWS)
def test_rows_agree_with_links(name):
    """Slopes are compared by the tests of properties.md, formulas by code on links.md."""
    (of_link,) = (each for each in MAPS if each.name.startswith(f"`soft_topk`, {name}"))
    at_one = table_of_properties.at_one(of_link).partition(" ")[0]
    assert (ROWS[name].at_one or "itself").partition(",")[0] == at_one
    far = TABLE[name].pdf(np.array([-6.0, 6.0]))
    assert (ROWS[name].inside == "all z") == (far > 0).all()


def test_a_page_without_its_comments_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(table_of_links.Part, "path", tmp_path / "page.md")
    part = table_of_links.Part("docs/page.md", "links", "python x.py")
    part.path.write_text("<!-- links: python x.py -->\n\n| a |\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"docs/page\.md has no part from <!-- links"):
        _ = part.text
    page = "before\n<!-- links: python x.py -->\n\n{}\n\n<!-- /links -->\nafter\n"
    part.path.write_text(page.format("| a |"), encoding="utf-8")
    assert part.text == "| a |"
    part.write("| b |\n| c |")
    assert part.path.read_text(encoding="utf-8") == page.format("| b |\n| c |")
