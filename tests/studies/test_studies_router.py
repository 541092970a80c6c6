"""`python -m studies.router`: what it reports, that a break changes nothing, what it refuses."""

import itertools
import json
import math
import os

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from studies.frame.command import app
from studies.frame.options import Settings
from studies.router import study, tasks
from studies.router.routers import METHODS, NOT_FOR_ONE, after_step
from studies.router.study import Report, Run
from studies.router.tasks import TASKS, Regression
from studies.router.text import ALPHABET, Grammar
from studies.table import STUDIES

FILES = ["checkpoint.pt", "curves.png", "router.json"]


def run(*arguments):
    return CliRunner().invoke(app(STUDIES["router"]), [*map(str, arguments)])


def settings_of(task, *methods, k, steps):
    return Settings(tasks=(task,), methods=methods, ks=(k,), steps=steps, seeds=1, seed=0)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory, short parts and little text."""
    monkeypatch.setattr(Run, "PART", 3)
    monkeypatch.setattr(tasks.Text, "LENGTH", 2000)
    monkeypatch.setattr(tasks.Text, "HELD_OUT", 2 * 64 + 1)
    monkeypatch.setattr(tasks.Text, "BATCH", 2)
    monkeypatch.setattr(tasks.Regression, "HELD_OUT", 64)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_method_trains_on_every_task_and_is_reported(here):
    result = run("--steps", 3, "--seeds", 1)
    assert result.exit_code == 0, result.output
    assert sorted(os.listdir("kofn-router")) == FILES
    found = json.loads((here / "kofn-router/router.json").read_text())
    assert {each["task"] for each in found["summary"]} == set(TASKS)
    assert {each["method"] for each in found["summary"]} == set(METHODS)
    assert len(found["summary"]) == len(TASKS) * (2 * len(METHODS) - len(NOT_FOR_ONE))
    for each in found["summary"]:
        assert math.isfinite(each["loss"]["mean"])
        assert ("accuracy" in each) == (each["task"] != "text")
        if each["method"] != "relu-l1":
            assert each["experts_per_token"]["mean"] == each["k"]
        # A weight that is always 1 teaches the router nothing.
        constant = each["method"] == "topk-softmax" and each["k"] == 1
        assert (each["gradient"]["mean"] == 0) == constant


def test_figures_that_a_task_lacks_are_left_out_with_several_seeds(here):
    """Nobody knows the right expert of a character."""
    result = run("--task", "text", "--method", "kofn", "-k", 1, "--steps", 3, "--seeds", 2)
    assert result.exit_code == 0, result.output
    (row,) = (line for line in result.output.splitlines() if line.split()[:1] == ["kofn"])
    assert row.count("±") == 1
    assert "–" in row


def test_help_names_every_method_and_task():
    text = "".join(run("--help").stdout.split())
    assert [name for name in (*METHODS, *TASKS) if name not in text] == []


def test_a_continued_run_is_the_same(here):
    """Whole, and stopped after its first part: every figure and every weight."""
    settings = settings_of("text", "kofn-balanced", "relu-l1", k=2, steps=9)
    for key in Run.runs(settings):
        whole, stopped = Run(settings, *key), Run(settings, *key)
        stopped.part()
        taken_up = Run(settings, *key)
        taken_up.load(stopped.state())
        for _ in range(3):
            whole.part()
        for _ in range(2):
            taken_up.part()
        assert np.array_equal(whole.history, taken_up.history, equal_nan=True)
        for name, tensor in whole.model.state_dict().items():
            assert torch.equal(tensor, taken_up.model.state_dict()[name])


def test_resume(here):
    chosen = ["--task", "known", "--method", "kofn", "-k", 1, "--steps", 3, "--seeds", 1]
    assert run(*chosen).exit_code == 0
    assert "made with steps = 3, not 5" in run(*chosen, "--steps", 5, "--resume").stderr
    assert run(*chosen, "--resume").exit_code == 0
    assert "add --force" in run(*chosen).stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--method", "magic"], "--method must be one of kofn, kofn-balanced"),
        (["--task", "magic"], "--task must be one of known, regression, text; got 'magic'"),
        (["-k", 0], "-k must be in 1..7; got 0"),
        (["-k", 8], "-k must be in 1..7; got 8"),
        (["--steps", 0], "--steps must be at least 1"),
        (["--quick", "--steps", 9], "--quick chooses --steps itself; give only one of them"),
        (["--quick", "--seeds", 2], "--quick chooses --seeds itself"),
        (["--seeds", 0], "--seeds must be at least 1"),
        (["--method", "kofn-topk-normalized", "-k", 1], "needs -k of at least 2"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(here, arguments, words):
    result = run(*arguments)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert words in line
    assert os.listdir() == []


def test_the_usual_routers_weigh_as_they_say():
    torch.manual_seed(0)
    x = torch.randn(50, 6)
    for name in ("softmax-topk", "topk-softmax", "sigmoid-bias", "relu-l1"):
        router = METHODS[name].make(6, 5, 2)
        logits, weights, indices = router(x)
        chosen = logits.gather(-1, indices)
        live = logits.gather(-1, indices[:, :2]) > 0
        largest = logits.topk(2).indices
        assert torch.equal(indices[:, :2][live], largest[live])
        assert name == "relu-l1" or torch.equal(indices, largest)
        if name == "softmax-topk":
            assert torch.allclose(weights, logits.softmax(-1).gather(-1, indices))
        elif name == "topk-softmax":
            assert torch.allclose(weights, chosen.softmax(-1))
        elif name == "sigmoid-bias":
            gates = chosen.sigmoid()
            assert torch.allclose(weights, gates / gates.sum(-1, keepdim=True))
        else:
            assert torch.equal(weights, chosen.relu())


def test_a_bias_moves_towards_experts_without_load():
    router = METHODS["sigmoid-bias"].make(4, 4, 1)
    with torch.no_grad():
        router.weight.copy_(torch.eye(4))
    x = torch.tensor([[9.0, 0, 0, 0]])
    assert router(x)[2].tolist() == [[0]]
    for _ in range(200):
        router(x)
        after_step(router)
    assert router.bias()[0] < -0.3  # until its gate, near 1, is no more than the others'
    assert router.bias()[1] > 0
    assert router(x)[1].item() <= 1  # the weight is without the bias


def test_relu_routers_reach_k():
    """The penalty leaves two of eight experts to a token after a few hundred steps."""
    settings = settings_of("known", "relu-l1", k=2, steps=300)
    one = Run(settings, *Run.runs(settings)[0])
    while one.steps < settings.steps:
        one.part()
    assert one.history[0].experts_per_token > 2.5
    assert one.history[-1].experts_per_token == pytest.approx(2, abs=0.4)


def test_the_right_share_does_not_depend_on_the_order_of_experts():
    task = Regression(0, known=True)
    model = task.model("kofn", 1)
    groups = task.held_out.groups
    for order in (torch.arange(8), torch.randperm(8)):
        model.indices = order[groups][:, None]
        assert study.right_share(task.held_out, model) == 1
    model.indices = torch.zeros_like(groups)[:, None]
    assert study.right_share(task.held_out, model) == groups.bincount().max() / len(groups)


def test_known_experts_with_the_right_weights_have_no_error():
    task = Regression(3, known=True)
    model = task.model("kofn", 1)
    groups = task.held_out.groups[:, None]
    model.router.forward = lambda x: (None, torch.ones(len(x), 1), groups)
    assert task.loss(model, task.held_out) < 1e-10


def test_the_grammar_agrees():
    """The verb of each clause ends in the last letter of its subject."""
    grammar = Grammar(1)
    letters = grammar.text(5000)
    assert torch.equal(letters, Grammar(1).text(5000))
    assert not torch.equal(letters, Grammar(2).text(5000))
    text = "".join(ALPHABET[i] for i in letters)
    nouns = {word for dialect in grammar.dialects for word in dialect["noun"]}
    verbs = {word for dialect in grammar.dialects for word in dialect["verb"]}
    found = 0
    for sentence in text.split(". ")[:-1]:
        words = sentence.split()
        for before, word in itertools.pairwise(words):
            if before in nouns and word[:-1] in verbs and word not in nouns:
                found += word[-1] == before[-1]
    assert found > 50
    assert len(sentence) < 300


def test_curves_are_drawn_for_one_point(here):
    settings = settings_of("known", "kofn", k=1, steps=3)
    (key,) = Run.runs(settings)
    one = Run(settings, *key)
    one.part()
    report = Report(STUDIES["router"], settings)
    report.results = [{**one.result(), "key": key}]
    assert report.contents(1.0)["curves.png"].startswith(b"\x89PNG")
