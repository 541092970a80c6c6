"""`make gpu` where there is no GPU: what it refuses, a rehearsal, and what it writes."""

import json
import os
import subprocess
import sys

import pytest
import torch

from places import ROOT
from support import full_but

pytest.importorskip("triton", reason="Triton has no release for this system")

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import noted, page

ABOUT = dict(
    card="Card",
    torch="2.11.0",
    triton="3.6.0",
    python="3.12.3",
    commit="abc",
    date="2026-11-27",
    **{"copy rate": 3e12},
)
PASSED = dict(test="test_a.py::test_it[1]", outcome="passed", seconds=0.1, reason="")
FAILED = dict(test="test_a.py::test_it[2]", outcome="failed", seconds=0.1, reason="assert 1\n== 2")


def run(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", *arguments],
        cwd=ROOT,
        env={key: v for key, v in os.environ.items() if not key.startswith("PYTEST")} | environment,
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_without_a_gpu_it_says_so(tmp_path):
    done = run("--out", str(tmp_path))
    assert done.returncode == 2
    assert "finds no CUDA device here" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.long
@pytest.mark.parametrize("times", full_but(("none",), ("none", "router")))
def test_a_rehearsal_goes_through_all_of_it(tmp_path, times):
    only = "public_function or answers_and_gradients[soft_topk-float32]"
    given = "--device", "cpu", "--workers", "1", "--only", only, "--times", times
    done = run("--out", str(tmp_path), *given)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert "All is right." in done.stdout
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert found["over"]
    assert not found["wrong"]
    names = {one["test"].split("::")[1].split("[")[0] for one in found["tests"]}
    assert names == {
        "test_every_public_function_is_in_the_table",
        "test_answers_and_gradients",
    }
    if times == "router":
        timed = {one["name"] for one in found["times"]}
        assert {"torch.softmax", "soft_topk, logistic", "torch.topk"} <= timed
        assert "| soft_topk, logistic |" in (tmp_path / "gpu.md").read_text()
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "gpu-tests.log",
        "gpu.json",
        "gpu.md",
    ]


def test_tests_that_fail_or_do_not_end_are_wrong(tmp_path):
    given = "--device", "cpu", "--workers", "1", "--times", "none", "--for-tests", "0.5"
    done = run("--out", str(tmp_path), *given)
    assert done.returncode == 1
    assert "stopped after 0 s" in done.stdout
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert found["wrong"]


@pytest.mark.parametrize(
    ("tests", "trouble", "times", "wrong"),
    [
        ([PASSED], [], [], False),
        ([], [], [], True),
        ([PASSED, FAILED], [], [], True),
        ([PASSED], ["tests: stopped"], [], True),
        ([PASSED], [], [dict(function="f", trouble="Error")], True),
        ([PASSED], [], [dict(name="entmax", group="peer", trouble="wrong")], False),
    ],
)
def test_what_is_wrong(tests, trouble, times, wrong, tmp_path):
    results = command.Results(tmp_path, ABOUT)
    results.tests, results.trouble, results.times = tests, trouble, times
    assert results.wrong == wrong
    lines = page.summary(ABOUT, tests, times, trouble, 1.0)
    assert ("WRONG" in lines[-1]) == wrong
    results.save()
    assert json.loads((tmp_path / "gpu.json").read_text())["wrong"] == wrong
    text = (tmp_path / "gpu.md").read_text()
    assert "or is not over" in text
    assert ("assert 1 == 2" in text) == (FAILED in tests)


def test_the_summary_has_forty_lines_at_most():
    case = dict(
        case="router",
        shape=[4, 4],
        dtype="float32",
        name="sparsemax",
        ratio=dict.fromkeys(("forward", "forward + backward"), 1.0),
        of_copy=0.5,
        trouble="",
    )
    lines = page.summary(ABOUT, [FAILED] * 50, [case] * 50, ["trouble"] * 3, 1.0)
    assert len(lines) == 40
    assert max(map(len, lines)) <= 160


def test_what_is_missing_has_a_name(monkeypatch):
    find = command.importlib.util.find_spec
    gone = ("xdist", "triton")
    monkeypatch.setattr(
        command.importlib.util, "find_spec", lambda name: None if name in gone else find(name)
    )
    triton, xdist = command.needed()
    assert triton.startswith("triton is missing in ")
    assert "make gpu-wheels" in xdist
    monkeypatch.setattr(torch, "__version__", "2.10.0+cu128")
    assert "torch must be 2.11 or newer; got 2.10.0+cu128" in command.needed()


def test_lines_are_told_when_they_are_whole(tmp_path):
    path, told = tmp_path / "notes", []
    path.write_text('{"a": 1}\nnoise\n{"b": 2')
    place = command._tell(path, 0, told.append)
    with path.open("a") as file:
        file.write("}\n")
    command._tell(path, place, told.append)
    assert told == [{"a": 1}, {"b": 2}]


def test_notes_say_why(tmp_path):
    class Report:
        when, outcome, duration, nodeid = "call", "failed", 1.0, "test_a"
        longrepr = "boom"

    notes = noted.Notes(str(tmp_path / "notes"))
    notes.pytest_runtest_logreport(Report())
    assert json.loads((tmp_path / "notes").read_text())["reason"] == "boom"
