"""`python -m studies.choice`: what it reports, what its methods do, what it refuses."""

import json
import os
from itertools import pairwise

import pytest
import torch
from typer.testing import CliRunner

from studies.choice import study
from studies.choice.study import METHODS, WHOLE, Run, temperature
from studies.frame.command import app
from studies.frame.options import Settings
from studies.table import STUDIES


def run(*arguments):
    return CliRunner().invoke(app(STUDIES["choice"]), [*map(str, arguments)])


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory, short parts and small batches."""
    monkeypatch.setattr(Run, "PART", 3)
    monkeypatch.setattr(study, "BATCH", 8)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_method_is_reported_and_draws_its_curves(here):
    result = run("--steps", 4, "--seeds", 1, "--rate", 1, "--rate", 40, "-k", 4, "-k", 8)
    assert result.exit_code == 0, result.output
    assert sorted(os.listdir("kofn-choice")) == ["checkpoint.pt", "choice.json", "curves.png"]
    found = json.loads((here / "kofn-choice/choice.json").read_text())
    assert len(found["runs"]) == 2 * 2 * len(METHODS)
    assert {(each["method"], each["rate"]) for each in found["summary"]} == {
        (name, rate) for name in METHODS for rate in (1, 40)
    }
    assert all(0 <= each["4"]["mean"] <= 1 for each in found["summary"])


def test_only_what_is_cooled_is_open_and_a_whole_choice_stays(here):
    scores = torch.randn(64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    for name, method in METHODS.items():
        early, late = (method.make()(scores, 8, done) for done in (0.0, 1.0))
        for weights in (early, late):
            assert weights.sum().item() == pytest.approx(8, abs=1e-4)
        closed = torch.isin(early.detach().round(decimals=6), torch.tensor([0.0, 1.0])).all()
        assert bool(closed) == (name in ("straight-through", "hard"))
        assert late.requires_grad == (name != "whole")
    assert all(temperature(a) > temperature(b) for a, b in pairwise((0.0, 0.3, 0.9)))
    assert temperature(WHOLE, after=WHOLE) == temperature(1.0) == 0.01


def test_a_continued_run_is_the_same(here):
    settings = Settings(ks=(4,), methods=("whole",), rates=(40,), steps=9, seeds=1, seed=0)
    (key,) = Run.runs(settings)
    whole, stopped = Run(settings, *key), Run(settings, *key)
    stopped.part()
    taken_up = Run(settings, *key)
    taken_up.load(stopped.state())
    for _ in range(3):
        whole.part()
    for _ in range(2):
        taken_up.part()
    assert whole.history == [pytest.approx(each, abs=1e-5) for each in taken_up.history]
    assert key == (4, "whole", 40, 0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--method", "magic"], "--method must be one of straight-through, hard"),
        (["-k", 0], "kofn: -k must be from 1 to 63, of 64 pixels; got 0"),
        (["-k", 64], "-k must be from 1 to 63, of 64 pixels; got 64"),
        (["--rate", 0], "--rate must be at least 1; got 0"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(here, arguments, words):
    result = run(*arguments)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert words in line
