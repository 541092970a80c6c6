"""The figures of the documentation have scripts that draw them."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import numpy as np
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


# What takes long in the scripts, and what is put in its place.
SMALLER: dict[str, dict[str, Any]] = {
    "links": {},
    "subsets": {
        "N": 40,
        "SIZES": [1, 2, 5],
        "differences": lambda: None,
        "first_failures": lambda: [9],
    },
    "curves": {},
    "maps": {"STEPS": 3, "ROWS": np.random.default_rng(0).normal(size=(4, 32))},
}


@pytest.mark.parametrize("name", SMALLER)
def test_a_figure_is_drawn_by_its_script(name: str, tmp_path, monkeypatch) -> None:
    """As `make docs` runs it."""
    import matplotlib

    script = importlib.import_module(f"make_{name}_figure")
    for attribute, value in {"IMAGES": tmp_path, **SMALLER[name]}.items():
        monkeypatch.setattr(script, attribute, value)
    with matplotlib.rc_context():
        script.main()
    assert (tmp_path / f"{name}.png").stat().st_size > 10_000


def test_the_results_of_studies_are_checkpoints_of_today() -> None:
    from studies.frame.checkpoint import DIGEST, _digest

    found = list((DOCS / "results").glob("*.pt"))
    assert found
    for path in found:
        content = path.read_bytes()
        assert content[-DIGEST:] == _digest(content[:-DIGEST]), path.name


@pytest.mark.full
@pytest.mark.parametrize(
    "name",
    [
        *("router", "balance", "attention", "choice", "losses", "prune_mlp", "prune_cnn"),
        *("prune_units", "sae", "sae_others", "sae_signed", "sae_means"),
    ],
)
def test_figures_of_studies_are_drawn_from_their_results(name: str, tmp_path) -> None:
    import make_study_figures
    from PIL import Image

    make_study_figures.draw(name, tmp_path)
    drawn = sorted(path.name for path in tmp_path.iterdir())
    assert drawn == sorted(make_study_figures.STUDIES[name].figures.values())
    for figure in drawn:
        with Image.open(tmp_path / figure) as new, Image.open(DOCS / "images" / figure) as kept:
            assert abs(new.width - kept.width) <= 2


SAES = {
    "features": (("explained", ".3f", 1), ("mcc", ".2f", 1), ("dead", ".2f", 0)),
    "digits": (("explained", ".4f", 1), ("dead", ".2f", 0)),
    **dict.fromkeys(("mean-0", "mean-3", "mean-10"), (("explained", ".3f", 1), ("dead", ".2f", 0))),
}


@pytest.mark.parametrize("name", ["sae", "sae_others", "sae_signed", "sae_means"])
def test_the_tables_of_autoencoders_are_those_of_their_results(name: str) -> None:
    import torch
    from make_study_figures import STUDIES, methods

    from studies.frame.options import Settings
    from studies.sae.study import Report
    from studies.table import STUDIES as TABLE

    saved = torch.load(DOCS / "results" / f"{name}.pt", weights_only=True)
    found = saved["settings"]["methods"]
    report = Report(TABLE["sae"], Settings(**saved["settings"]))
    report.results = saved["finished"]
    far = name == "sae_means"
    tasks = "".join(f"--task {task} " for task in saved["settings"]["tasks"] if far)
    rest = f" --steps 500 --seeds {saved['settings']['seeds']}" if far else ""
    assert STUDIES[name].command == f"studies.sae {tasks}{methods(' '.join(found))}{rest}"
    for method in found:
        cells = []
        for task in saved["settings"]["tasks"]:
            key = {"task": task, "method": method}
            figures = report.summary_of(report.figures(**key), **key)
            l0 = [] if far else [("l0", ".2f", name != "sae")]
            for column, form, spread in (*SAES[task], *l0):
                mean, deviation = figures[column].values()
                cells.append(f"{mean:{form}}" + (f" ± {deviation:{form}}" if spread else ""))
        assert " | ".join(cells) in PAGES["nn_autoencoders.md"], (method, cells)
