"""`python -m studies.sae`: what it reports, that a break changes nothing, what it refuses."""

import json
import math
import os

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from studies.frame.command import app
from studies.frame.options import Settings
from studies.sae import study, tasks
from studies.sae.methods import METHODS, Sizes, unexplained
from studies.sae.study import Report, Run
from studies.sae.tasks import TASKS, Digits, Features
from studies.table import STUDIES

FILES = ["checkpoint.pt", "features.png", "recovery.png", "sae.json"]


def run(*arguments):
    return CliRunner().invoke(app(STUDIES["sae"]), [*map(str, arguments)])


def settings_of(*methods, steps):
    return Settings(tasks=("features",), methods=methods, steps=steps, seeds=1, seed=0)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory, short parts and little data."""
    monkeypatch.setattr(Run, "PART", 3)
    monkeypatch.setattr(study, "BATCH", 32)
    monkeypatch.setattr(tasks.Features, "HELD_OUT", 64)
    monkeypatch.setattr(tasks.Digits, "HELD_OUT", 64)
    monkeypatch.setattr(tasks.Digits, "STEPS", 3)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "tasks", [[*TASKS][:1], pytest.param([*TASKS], marks=pytest.mark.full)], ids=["one", "every"]
)
def test_every_method_trains_on_every_task_and_is_reported(here, tasks):
    every = (("--method", METHODS), ("--task", tasks))
    given = [each for option, names in every for name in names for each in (option, name)]
    result = run("--steps", 3, "--seeds", 1, *given)
    assert result.exit_code == 0, result.output
    assert sorted(os.listdir("kofn-sae")) == FILES
    assert all((here / "kofn-sae" / name).stat().st_size > 2000 for name in FILES)
    found = json.loads((here / "kofn-sae/sae.json").read_text())
    assert len(found["summary"]) == len(tasks) * len(METHODS)
    for each in found["summary"]:
        assert math.isfinite(each["explained"]["mean"])
        assert ("mcc" in each) == (each["task"] != "digits")
        assert each["l0_asked"] == (8 if each["task"] == "digits" else 5)
        if each["method"] in ("topk", "topk-auxk", "kofn-token", "kofn-token-all"):
            assert each["l0"]["mean"] <= each["l0_asked"]
    lines = [line.split() for line in result.output.splitlines()]
    assert {line[0] for line in lines if line} >= set(METHODS)


@pytest.mark.parametrize(("task", "far"), [("mean-0", 0), ("mean-3", 3), ("mean-10", 10)])
def test_means_lie_as_many_deviations_from_0_and_move_nothing_else(task, far):
    moved, features = TASKS[task](0), TASKS["features"](0)
    x, still = moved.held_out, features.held_out
    deviation = x.var(0).sum().sqrt()
    assert math.isclose(x.mean(0).norm() / deviation, far, rel_tol=1e-4, abs_tol=1e-5)
    assert torch.allclose(x - x.mean(0), still - still.mean(0), atol=1e-4)
    assert torch.allclose(moved.batch(8192).mean(0), x.mean(0), atol=0.05)


def test_one_that_is_initialized_trains_on_the_same_inputs():
    settings = settings_of("topk", "topk-initialized", steps=1)
    plain, started = (Run(settings, "mean-3", method, 0) for method in settings.methods)
    assert torch.equal(plain.task.batch(8), started.task.batch(8))
    assert not plain.model.sae.b_dec.any()
    assert torch.allclose(started.model.sae.b_dec, started.task.held_out.mean(0), atol=0.1)


def test_help_names_every_method_and_task():
    text = "".join(run("--help").stdout.split())
    assert [name for name in (*METHODS, *TASKS) if name not in text] == []


def test_a_continued_run_is_the_same(here):
    """Whole, and stopped after its first part: every figure and every weight."""
    chosen = ("kofn-batch-annealed", "kofn-batch-learned", "kofn-token", "batchtopk-auxk", "gated")
    settings = settings_of(*chosen, steps=9)
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
    chosen = ["--task", "digits", "--method", "topk", "--steps", 3, "--seeds", 1]
    assert run(*chosen).exit_code == 0
    assert "made with steps = 3, not 5" in run(*chosen, "--steps", 5, "--resume").stderr
    assert run(*chosen, "--resume").exit_code == 0
    assert "add --force" in run(*chosen).stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--method", "magic"], "--method must be one of kofn-token, kofn-token-all"),
        (
            ["--task", "magic"],
            "--task must be one of features, digits, mean-0, mean-3, mean-10; got",
        ),
        (["--steps", 0], "--steps must be at least 1"),
        (["--quick", "--steps", 9], "--quick chooses --steps itself; give only one of them"),
        (["--seeds", 0], "--seeds must be at least 1"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(here, arguments, words):
    result = run(*arguments)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert words in line
    assert os.listdir() == []


def test_features_are_as_often_present_as_said_and_come_in_groups():
    task = Features(0)
    assert task.frequency.sum() == pytest.approx(task.K, rel=1e-3)
    assert task.frequency.max() <= 0.4
    x = task.batch(20_000)
    # Features are more than dimensions, so they are separated by a least-squares fit of a few.
    often = task.frequency.argsort(descending=True)[:2]
    along = x @ task.directions[often].T
    assert (along > 0.6).float().mean(0).min() > 0.15
    assert (study.matched(task.directions, task.directions.flip(0)) > 1 - 1e-6).all()


def test_all_methods_start_from_the_same_weights_that_are_no_features():
    task = Features(0)
    starts = []
    for method in METHODS.values():
        torch.manual_seed(0)
        model = method.make(Sizes(task.D_IN, task.D_SAE, task.K, 10))
        starts.append(model.directions().detach())
    for start in starts:
        assert torch.allclose(start, starts[0], atol=1e-2)  # bfloat16 is among them
    assert study.matched(task.directions, starts[0]).mean() < 0.6


@pytest.mark.full
def test_penalties_reach_the_target_number_of_latents():
    for method in ("jumprelu", "gated", "kofn-batch-learned"):
        settings = settings_of(method, steps=600)
        one = Run(settings, *Run.runs(settings)[0])
        one.task.held_out = one.task.held_out[:1000]
        one.measured, measured = lambda: study.Measured(0, 0, 0, 0, 0), one.measured
        while one.steps < settings.steps:
            one.part()
        assert measured().l0 == pytest.approx(5, abs=0.7)


def test_images_are_moved_and_held_out(here):
    task = Digits(0)
    images, chosen = task._images(task.train, 200)
    assert images.shape == (200, 8, 8)
    still = (images - task.train[chosen]).square().mean((1, 2)) < 0.02
    assert 0 < still.float().mean() < 0.4
    assert len(task.test) == 360
    assert task.activations(images).shape == (200, task.D_IN)


def test_pictures_are_drawn_for_a_task_that_was_left_out(here):
    settings = settings_of("topk", steps=3)
    (key,) = Run.runs(settings)
    one = Run(settings, *key)
    one.part()
    report = Report(STUDIES["sae"], settings)
    report.results = [{**one.result(), "key": key}]
    _, *pictures = report.contents(1.0).values()
    assert all(each.startswith(b"\x89PNG") for each in pictures)
    assert len(pictures) == 2
    x = torch.randn(100, 5)
    assert unexplained(x, x) == 0
    assert unexplained(x, x.mean(0).expand_as(x)) == pytest.approx(1)
