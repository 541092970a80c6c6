"""`python -m studies.attention`: what it reports, that a break changes nothing, what it refuses."""

import json
import os

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from studies.attention import study
from studies.attention.model import METHODS, Transformer, distances
from studies.attention.study import Run
from studies.attention.tasks import FILLER, PAIRS, SEPARATOR, SYMBOLS, TASKS
from studies.frame import report
from studies.frame.command import app
from studies.frame.options import Settings
from studies.table import STUDIES

FILES = ["attention.json", "checkpoint.pt", "curves.png", "maps.png"]


def run(*arguments):
    return CliRunner().invoke(app(STUDIES["attention"]), [*map(str, arguments)])


def settings_of(task, *methods, steps):
    return Settings(tasks=(task,), methods=methods, steps=steps, lengths=(64,), seeds=1, seed=0)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory, short parts and short tests."""
    monkeypatch.setattr(Run, "PART", 2)
    monkeypatch.setattr(study, "BATCH", 2)
    monkeypatch.setattr(study, "TESTED", 128)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def drawn(name, count, length):
    return TASKS[name](count, length, torch.Generator().manual_seed(0))


def test_every_method_trains_on_every_task_and_is_reported(here):
    result = run("--steps", 3, "--seeds", 1, "--longest", 128)
    assert result.exit_code == 0, result.output
    assert sorted(os.listdir("kofn-attention")) == FILES
    found = json.loads((here / "kofn-attention/attention.json").read_text())
    assert len(found["summary"]) == len(found["runs"]) == len(TASKS) * len(METHODS)
    assert found["settings"]["lengths"] == [64, 128]
    for each in found["summary"]:
        assert [length["length"] for length in each["accuracy"]] == [64, 128]
        assert all(0 <= length["mean"] <= 1 for length in each["accuracy"])


def test_help_names_every_method_and_task():
    text = "".join(run("--help").stdout.split())
    assert [name for name in (*METHODS, *TASKS) if name not in text] == []


def test_a_continued_run_is_the_same(here):
    settings = settings_of("recall", "entmax-scaled", "soft-topk-learned", steps=6)
    for key in Run.runs(settings):
        whole, stopped, taken_up = (Run(settings, *key) for _ in range(3))
        stopped.part()
        taken_up.load(stopped.state())
        for each, parts in ((whole, 3), (taken_up, 2)):
            for _ in range(parts):
                each.part()
        assert whole.history == taken_up.history
        for name, tensor in whole.model.state_dict().items():
            assert torch.equal(tensor, taken_up.model.state_dict()[name])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--method", "magic"], "--method must be one of softmax, entmax"),
        (["--task", "magic"], "--task must be one of copy, reverse, 2-back, recall"),
        (["--longest", 63], "--longest must be at least 64; got 63"),
        (["--steps", 0], "--steps must be at least 1"),
        (["--quick", "--steps", 9], "--quick chooses --steps itself; give only one of them"),
        (["--quick", "--seeds", 2], "--quick chooses --seeds itself"),
        (["--seeds", 0], "--seeds must be at least 1"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(here, arguments, words):
    result = run(*arguments)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert words in line
    assert os.listdir() == []


def test_copies_are_copies():
    for length in (64, 65):
        for name in ("copy", "reverse"):
            inputs, targets = drawn(name, 3, length)
            half = length // 2
            assert inputs.shape == targets.shape == (3, 2 * half)
            assert (inputs[:, half] == SEPARATOR).all()
            assert (targets[:, :half] == -100).all()
            wanted = inputs[:, :half] if name == "copy" else inputs[:, :half].flip(-1)
            assert torch.equal(targets[:, half:], wanted)
            assert torch.equal(inputs[:, half + 1 :], wanted[:, :-1])


def test_two_back_is_two_back():
    inputs, targets = drawn("2-back", 3, 20)
    assert torch.equal(targets[:, 2:], inputs[:, :-2])
    assert (targets[:, :2] == -100).all()


def test_what_is_recalled_was_said():
    """Each question is answered once in the text before, next to the key."""
    for length in (64, 65, 500):
        inputs, targets = drawn("recall", 5, length)
        for row, wanted in zip(inputs.tolist(), targets.tolist(), strict=True):
            text, end = row[: -2 * PAIRS], row[-2 * PAIRS :]
            assert sum(symbol != FILLER for symbol in text) == 2 * PAIRS
            keys = end[::2]
            assert len(set(keys)) == PAIRS
            for i, key in enumerate(keys):
                at = text.index(key)
                assert text.count(key) == 1
                assert text[at + 1] == wanted[len(text) + 2 * i] == end[2 * i + 1] >= SYMBOLS // 2
            assert sum(symbol >= 0 for symbol in wanted) == PAIRS


@pytest.mark.parametrize("method", METHODS)
def test_nothing_later_is_seen(method):
    torch.manual_seed(0)
    model = Transformer(method)
    inputs = torch.randint(SYMBOLS, (2, 24))
    changed = inputs.clone()
    changed[:, 12:] = torch.randint(SYMBOLS, (2, 12))
    with torch.no_grad():
        (one, maps), (other, _) = model(inputs), model(changed)
    assert torch.allclose(one[:, :12], other[:, :12], atol=1e-5)
    assert not torch.allclose(one[:, 12:], other[:, 12:], atol=1e-2)
    for weights in maps:
        assert torch.allclose(weights.sum(-1), torch.ones(2, 4, 24), atol=1e-5)
        assert not weights.triu(1).any()


def test_distances():
    added = distances(3)
    assert added[0].tolist() == [[0, -np.inf, -np.inf], [-1, 0, -np.inf], [-2, -1, 0]]
    assert added[3].tolist() == [[0, -np.inf, -np.inf], [0, 0, -np.inf], [0, 0, 0]]


def test_a_scaled_temperature_falls_with_the_length():
    kind = METHODS["entmax-scaled"].make()
    temperature = kind.temperature(distances(100)).detach()
    assert temperature.shape == (4, 100)
    assert (temperature[:, 0] == 1).all()
    assert (temperature.diff(dim=-1) < 0).all()


def test_learning_learns(here, monkeypatch):
    """Two back, by a head that sees distances: little is needed."""
    monkeypatch.setattr(Run, "PART", 150)
    monkeypatch.setattr(study, "BATCH", 16)
    settings = settings_of("2-back", "entmax", steps=150)
    one = Run(settings, *Run.runs(settings)[0])
    one.part()
    assert one.history[-1].accuracy > 0.3


def test_maps_say_which_is_which(here, monkeypatch):
    titles = []
    original = report.png

    def noted(figure):
        titles.extend(panel.get_title() for panel in figure.axes)
        return original(figure)

    monkeypatch.setattr(report, "png", noted)
    chosen = ["--task", "copy", "--task", "2-back", "--method", "softmax"]
    assert run(*chosen, "--steps", 1, "--longest", 64, "--seeds", 1).exit_code == 0
    assert titles[-2:] == ["softmax", ""]
