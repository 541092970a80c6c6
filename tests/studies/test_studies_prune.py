"""`python -m studies.prune`: what it reports, that a break changes nothing, what it refuses."""

import json
import os

import pytest
import torch
from typer.testing import CliRunner

from studies.frame.command import app
from studies.frame.options import Settings
from studies.prune import study
from studies.prune.methods import METHODS
from studies.prune.study import Report, Run, model_of
from studies.table import STUDIES

FILES = ["checkpoint.pt", "curves.png", "prune.json"]


def run(*arguments):
    return CliRunner().invoke(app(STUDIES["prune"]), [*map(str, arguments)])


def settings_of(method, removed, *, steps):
    chosen = {"models": ("mlp",), "methods": (method,), "removed": (removed,)}
    return Settings(**chosen, steps=steps, seeds=1, seed=0)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory and short parts."""
    monkeypatch.setattr(Run, "PART", 3)
    monkeypatch.setattr(study, "BATCH", 8)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_method_prunes_both_networks_and_is_reported(here):
    result = run("--steps", 3, "--seeds", 1, "--removed", 0.9, "--removed", "2:4")
    assert result.exit_code == 0, result.output
    assert sorted(os.listdir("kofn-prune")) == FILES
    found = json.loads((here / "kofn-prune/prune.json").read_text())
    kept = {
        (each["model"], each["method"], each["removed"]): each["kept"] for each in found["runs"]
    }
    for model, n, pairs in (("mlp", 50_200, 25_100), ("cnn", 38_160, 144 + 19_008)):
        assert kept.pop((model, "dense", "0")) == n
        for name in STUDIES["prune"].settings({}).methods:
            method = METHODS[name]
            if method.free:
                assert kept.pop((model, name, "0.9")) == n - round(0.9 * n)
            if method.groups:
                assert kept.pop((model, name, "2:4")) == pairs
    assert not kept
    assert all(0 <= each["accuracy"] <= 1 for each in found["runs"])


def test_units_are_removed_for_the_same_number_of_weights_of_all_layers_but_the_last(here):
    ways = [
        each
        for name in ("single", "blocks", "channels", "channels-k")
        for each in ("--method", name)
    ]
    result = run("--steps", 3, "--seeds", 1, "--removed", 0.5, *ways)
    assert result.exit_code == 0, result.output
    found = json.loads((here / "kofn-prune/prune.json").read_text())
    for model, pruned, last in (("mlp", 49_200, 1_000), ("cnn", 37_520, 640)):
        kept = {each["method"]: each["kept"] for each in found["runs"] if each["model"] == model}
        assert kept["single"] == pruned // 2 + last
        assert pruned // 2 + last - 4 < kept["blocks"] <= pruned // 2 + last
        assert kept["channels"] < pruned // 2 + last  # the inputs of the next layer are out, too
        assert kept["channels-k"] < 0.6 * (pruned + last)


def test_help_names_every_method_and_network():
    text = "".join(run("--help").stdout.split())
    assert [name for name in (*METHODS, "mlp", "cnn") if name not in text] == ["dense"]


@pytest.mark.parametrize(
    ("method", "removed"),
    [("kofn", "0.9"), ("gradual", "0.9"), ("spartan", "0.9"), ("kofn", "2:4"), ("gumbel", "2:4")],
)
def test_a_continued_run_is_the_same(here, method, removed):
    """Whole, and stopped after its first part."""
    settings = settings_of(method, removed, steps=9)
    key = Run.runs(settings)[1]
    whole, stopped = Run(settings, *key), Run(settings, *key)
    stopped.part()
    taken_up = Run(settings, *key)
    taken_up.load(stopped.state())
    for _ in range(3):
        whole.part()
    for _ in range(2):
        taken_up.part()
    assert whole.history == [pytest.approx(each, abs=1e-5) for each in taken_up.history]
    assert whole.result()["measured"] == taken_up.result()["measured"]


def test_resume(here):
    chosen = ["--method", "magnitude", "--model", "mlp", "--removed", 0.5, "--seeds", 1]
    assert run(*chosen, "--steps", 3).exit_code == 0
    assert "made with steps = 3, not 5" in run(*chosen, "--steps", 5, "--resume").stderr
    assert run(*chosen, "--steps", 3, "--resume").exit_code == 0
    assert "add --force" in run(*chosen, "--steps", 3).stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--method", "magic"], "--method must be one of kofn, kofn-subsets"),
        (["--model", "vit"], "--model must be one of mlp, cnn; got 'vit'"),
        (["--removed", "1"], "--removed must be a share between 0 and 1, or 2:4; got '1'"),
        (["--removed", "most"], "--removed must be a share"),
        (["--removed", "nan"], "--removed must be a share"),
        (["--method", "gumbel", "--removed", "0.5"], "--method gumbel needs --removed 2:4"),
        (["--method", "spartan", "--removed", "2:4"], "--method spartan needs --removed a share"),
        (["--steps", 0], "--steps must be at least 1"),
        (["--quick", "--steps", 9], "--quick chooses --steps itself"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(here, arguments, words):
    result = run(*arguments)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert words in line
    assert os.listdir() == []


def test_the_contenders_choose_as_they_say():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for name in ("gradual", "spartan", "straight-through"):
            model = model_of("mlp")
            way = METHODS[name].make(model, 0.9, 100)
            first = torch.cat([each.flatten() for each in way.weights(0).values()])
            assert int((first != 0).sum()) == (5020 if name == "straight-through" else 50_200)
            row = way.row().abs()
            last = torch.cat([each.flatten() for each in way.weights(100).values()])
            assert torch.equal(last != 0, row >= row.topk(5020).values[-1])
        way = METHODS["gumbel"].make(model_of("mlp"), None, 100)
        pairs = way.row().abs()
        chosen = torch.cat([each.view(-1, 4) for each in way.weights(100).values()]) != 0
        kept = (pairs * chosen).sum(-1)
        assert torch.allclose(kept, pairs.topk(2).values.sum(-1))  # before any training


def test_all_weights_learn_through_a_straight_through_mask():
    model = model_of("mlp")
    way = METHODS["straight-through"].make(model, 0.9, 100)
    sum(each.sum() for each in way.weights(0).values()).backward()
    assert all((each.grad == 1).all() for each in way.pruned())


def test_curves_are_drawn_for_one_point(here):
    settings = settings_of("magnitude", "0.5", steps=3)
    report = Report(STUDIES["prune"], settings)
    report.results = []
    for key in Run.runs(settings):
        one = Run(settings, *key)
        one.part()
        report.results.append({**one.result(), "key": key})
    assert report.contents(1.0)["curves.png"].startswith(b"\x89PNG")
