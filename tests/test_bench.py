"""`kofn bench`: right before it is fast, and whole files or none."""

import json

import pytest
import torch
from typer.testing import CliRunner

import kofn
from kofn import cli
from kofn._bench import contenders, measure


@pytest.fixture(autouse=True)
def the_number_of_threads_comes_back():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def run(*arguments):
    return CliRunner().invoke(cli.app, ["bench", *arguments])


def test_bench_times_what_runs_and_writes_both_files(tmp_path, monkeypatch):
    small = (contenders.Case("router", (8, 16), 2),)
    monkeypatch.setattr(contenders, "CASES", small)
    monkeypatch.setattr(contenders, "_jax", lambda k, versions: iter(()))  # it compiles for minutes
    result = run("--rounds", "2", "--threads", "1", "--out", str(tmp_path / "out"))
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "out" / "bench.json").read_text())
    assert [(each["case"], each["dtype"]) for each in found["results"]] == [
        ("router", "float32"),
        ("router", "bfloat16"),
    ]
    ours = [c for c in found["results"][0]["contenders"] if c["group"] == "kofn"]
    assert len(ours) == len(kofn.links.TABLE) + 3
    for each in ours:
        assert each["trouble"] is None
        assert set(each["ratio_to_softmax"]) == {"forward", "forward + backward"}
    page = (tmp_path / "out" / "bench.md").read_text()
    assert "| soft_topk, logistic |" in page
    assert "Router: 8 × 16, k = 2, float32" in page


def test_bench_times_nothing_that_is_wrong(monkeypatch):
    def wrong(case):
        softmax = contenders.softmax
        yield contenders.Contender("half", "peer", lambda x: x.softmax(-1) / 2, softmax)
        still = lambda x: x.detach().softmax(-1) + 0 * x  # noqa: E731
        yield contenders.Contender("still", "peer", still, softmax)

    monkeypatch.setattr(measure, "contenders", wrong)
    case = contenders.Case("tiny", (2, 3), 1)
    timings, _ = measure.measure(case, "float32", 2, lambda name: None)
    for timing, trouble in zip(timings, ("wrong by", "gradient wrong by"), strict=True):
        assert timing.trouble.startswith(trouble)
        assert not timing.ratios


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--case", "cluster"], "--case must be one of router, attention, vocabulary, pruning"),
        (["--dtype", "float8"], "--dtype must be one of float32, bfloat16"),
        (["--rounds", "1"], "--rounds must be at least 2; got 1"),
        (["--threads", "0"], "--threads must be at least 1; got 0"),
    ],
)
def test_bench_refuses_what_it_does_not_have(arguments, message):
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.output
