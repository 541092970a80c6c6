"""`python -m studies.balance`: what it reports and measures, and that a break changes nothing."""

import json
import math
import os

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from studies.balance.study import METHODS, SEQUENCES, Report, Run, violations
from studies.frame.command import app
from studies.frame.options import Settings
from studies.router import tasks
from studies.table import STUDIES


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory, short parts and little text."""
    monkeypatch.setattr(Run, "PART", 3)
    monkeypatch.setattr(tasks.Text, "LENGTH", 2000)
    monkeypatch.setattr(tasks.Text, "HELD_OUT", 2 * 256 + 1)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def settings_of(*methods, steps, task="text"):
    return Settings(tasks=(task,), methods=methods, steps=steps, seeds=1, seed=0)


def trained(method, steps, task="text"):
    settings = settings_of(method, steps=steps, task=task)
    (key,) = Run.runs(settings)
    one = Run(settings, *key)
    while one.steps < steps:
        one.part()
    return one


def test_every_method_trains_and_is_reported(here):
    result = CliRunner().invoke(app(STUDIES["balance"]), ["--steps", "4", "--seeds", "1"])
    assert result.exit_code == 0, result.output
    assert sorted(os.listdir("kofn-balance")) == ["balance.json", "checkpoint.pt", "curves.png"]
    found = json.loads((here / "kofn-balance/balance.json").read_text())
    assert len(found["summary"]) == len(METHODS) * len(SEQUENCES)
    for each in found["summary"]:
        assert all(math.isfinite(each[name]["mean"]) for name in Report.SHOWN)
        assert (each["drift"]["mean"] > 0) == (each["method"] not in ("none", "auxiliary"))
        assert each["worst"]["mean"] >= each["violation"]["mean"]
        assert each["sequence"]["mean"] >= each["violation"]["mean"] - 1e-6
        assert 0 <= each["changed"]["mean"] <= 1


def test_a_continued_run_is_the_same(here):
    for method in ("quantile-bins", "sign", "auxiliary"):
        settings = settings_of(method, steps=7)
        (key,) = Run.runs(settings)
        whole, stopped = Run(settings, *key), Run(settings, *key)
        stopped.part()
        taken_up = Run(settings, *key)
        taken_up.load(stopped.state())
        for _ in range(3):
            whole.part()
        for _ in range(2):
            taken_up.part()
        assert np.array_equal(whole.history, taken_up.history)
        for name, tensor in whole.model.state_dict().items():
            assert torch.equal(tensor, taken_up.model.state_dict()[name])


def test_the_violation_is_that_of_each_row():
    indices = torch.tensor([[0, 0, 0, 0], [0, 1, 2, 3], [0, 0, 1, 1]])
    assert violations(indices, 4).tolist() == [3, 0, 1]


def test_quantiles_even_the_load_of_the_text(here):
    uneven, even = trained("none", 9), trained("quantile", 9)
    assert uneven.history[-1].violation > 2 * even.history[-1].violation
    assert even.history[-1].drift > 0
