"""The figures of the documentation have scripts that draw them."""

from __future__ import annotations

import sys

import pytest

from test_docs import DOCS, PAGES
from test_readme import ROOT

sys.path.insert(0, str(DOCS))


def test_make_draws_every_figure() -> None:
    """By `make docs`, `make studies`, or `make explorer-figure`, which needs Chromium."""
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8")
    scripts = [path for path in DOCS.glob("make_*.py") if path.name in recipe]
    assert scripts == list(DOCS.glob("make_*.py"))
    code = recipe + "".join(path.read_text(encoding="utf-8") for path in scripts)
    figures = {path.name for path in (DOCS / "images").iterdir()}
    assert {name for name in figures if name not in code} == set()


def test_every_figure_is_on_a_page() -> None:
    pages = "".join(PAGES.values())
    assert {path.name for path in (DOCS / "images").iterdir() if path.name not in pages} == set()


@pytest.mark.full
@pytest.mark.parametrize("name", ["router", "attention", "prune_mlp", "prune_cnn", "sae"])
def test_figures_of_studies_are_drawn_from_their_results(name: str, tmp_path) -> None:
    import make_study_figures
    from PIL import Image

    make_study_figures.draw(name, tmp_path)
    drawn = sorted(path.name for path in tmp_path.iterdir())
    assert drawn == sorted(make_study_figures.STUDIES[name].figures.values())
    for figure in drawn:
        with Image.open(tmp_path / figure) as new, Image.open(DOCS / "images" / figure) as kept:
            assert abs(new.width - kept.width) <= 2
