"""The tables of links on the pages have those of the library, with their supports."""

import itertools
import re

import numpy as np
import pytest

from kofn.links.table import TABLE
from places import ROOT

PAGES = {
    "README.md": "| `link=` | Weights |",
    "docs/links.md": "| `link=` | F(z) |",
    "docs/mathematics.md": "| link | $F(z)$ |",
    "docs/behaviour.md": "| Link | x86-64-v2 |",
}


def rows(page):
    """The cells of the rows of a page's table, by the name of the link in the first."""
    lines = (ROOT / page).read_text("utf-8").splitlines()
    (start,) = (i for i, line in enumerate(lines) if line.startswith(PAGES[page]))
    found = {}
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        found[re.search(r"[a-z]+(?!.*\.[a-z])", cells[0].replace("links.", ""))[0]] = cells
    return found


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_every_link_in_the_order_of_the_table(page):
    assert [*rows(page)] == [*TABLE]


def test_supports_are_those_of_the_links():
    """The column "0 < F(z) < 1 for" of links.md, at α = 1.5."""
    z = np.linspace(-3, 3, 601) + 0.0013
    for name, cells in rows("docs/links.md").items():
        text = cells[2].translate({ord("−"): "-", ord("½"): "0.5", ord("α"): "1.5"})
        stated = np.ones(z.shape, bool)
        ends = [z if end.strip() == "z" else eval(end) for end in text.split("<") if "<" in text]
        for low, high in itertools.pairwise(ends):
            stated &= low < high
        cdf, sf = TABLE[name].cdf(z), TABLE[name].sf(z)
        assert np.array_equal(stated, (cdf > 0) & (sf > 0)), name


def test_formulas_of_the_regulariser_are_those_of_the_links():
    """The column Ω(q) of mathematics.md, for the links that have it in elementary functions."""
    q = np.linspace(0.01, 0.5, 50)
    compared = 0
    special = r"\\Phi|E_1"  # the normal distribution's, and the exponential integral
    for name, cells in rows("docs/mathematics.md").items():
        text = cells[2].split(" for ")[0].strip("$ ")
        changes = {r"\\log 2q": "np.log(2*q)", r"\\log \(1 - q\)|\\log\(1 - q\)": "np.log(1-q)"}
        changes |= {r"\\log q": "np.log(q)", r"\\alpha": "1.5", r"\^": "**"}
        changes |= {
            r"(?<=[q)]) (?=[(n])": "*",
            r"(?<=q)\(": "*(",
            r"(?<=5)\(": "*(",
            r"\)\(": ")*(",
        }
        for old, new in changes.items():
            text = re.sub(old, new, text)
        if re.search(special, text):
            continue
        compared += 1
        assert np.allclose(eval(text, {"np": np, "q": q}), TABLE[name].omega(q)), (name, text)
    assert compared >= 5  # all that were there when this was written but the normal link
