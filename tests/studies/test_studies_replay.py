"""`python -m studies.replay`: what it reports, what its parts compute, what it refuses."""

import json
import os

import pytest
import torch
from typer.testing import CliRunner

from kofn.losses import topk_kl
from studies.frame.command import app
from studies.frame.options import Settings
from studies.replay import policies, teachers
from studies.replay.study import METHODS, Run
from studies.table import REPLAYS, SAMPLERS, STUDIES


def run(*arguments):
    return CliRunner().invoke(app(STUDIES["replay"]), [*map(str, arguments)])


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory, short parts and small batches."""
    monkeypatch.setattr(Run, "PART", 2)
    monkeypatch.setattr(policies, "SEQUENCES", 4)
    monkeypatch.setattr(policies, "LENGTH", 3)
    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield tmp_path


def test_every_method_is_reported_and_draws_its_curve(here):
    result = run("--steps", 3, "--seeds", 1)
    assert result.exit_code == 0, result.output
    assert sorted(os.listdir("kofn-replay")) == ["checkpoint.pt", "curves.png", "replay.json"]
    found = json.loads((here / "kofn-replay/replay.json").read_text())
    assert {each["method"] for each in found["runs"]} == set(REPLAYS)
    assert {each["task"] for each in found["runs"]} == set(SAMPLERS)
    assert [*REPLAYS] == [*METHODS]
    summary = {each["method"]: each for each in found["summary"]}
    assert summary["kept"]["outside"]["mean"] == 0  # the sampler's own distribution
    assert summary["whole"]["ratio"]["mean"] < 0.98
    assert summary["experts"]["ratio"]["mean"] == pytest.approx(1, abs=0.05)
    assert "ratio" not in summary["bucket"]


def test_sets_and_experts_are_those_that_were_sampled_with(here):
    generator = torch.Generator().manual_seed(0)
    model = policies.Model(mixture=False)
    seen = policies.sampled(model, generator, truncated=True, mixture=False)
    ids, offsets = seen.kept
    assert len(offsets) == len(seen.tokens) + 1 == 13
    for token, first, last in zip(seen.tokens, offsets[:-1], offsets[1:], strict=True):
        assert token in ids[first:last]
        assert 1 <= last - first <= policies.TOP_K
    for method in ("kept", "recomputed"):  # before an update, the sets are the same
        assert torch.allclose(policies.log_probs(model, seen, method), seen.log_probs, atol=1e-5)
    whole = policies.log_probs(model, seen, "whole")
    assert (whole <= seen.log_probs + 1e-6).all()
    mixture = policies.Model(mixture=True)
    seen = policies.sampled(mixture, generator, truncated=False, mixture=True)
    assert seen.experts.shape == (12, policies.LAYERS, policies.CHOSEN)
    policies.log_probs(mixture, seen, "experts")
    first = mixture.layers[0].router.statistics()
    assert first["replayed_assignments"] == 12 * policies.CHOSEN
    assert first["assignments"] == 0
    advantages = policies.advantages(torch.tensor([0.0, 1, 1, 1, 0, 0, 0, 0, 0, 1, 1, 1]))
    assert advantages.view(3, 4).sum(1).abs().max() < 1e-6


def test_costs_are_their_formulas():
    scores, log_p = torch.randn(5, 12), torch.randn(5, 12).log_softmax(-1)
    whole = torch.nn.functional.kl_div(
        scores.log_softmax(-1), log_p, log_target=True, reduction="none"
    )
    assert torch.allclose(teachers.costs("full", scores, log_p), whole.sum(-1), atol=1e-6)
    named, ids = log_p.topk(teachers.NAMED)
    part = teachers.costs("truncated", scores, log_p)
    assert torch.allclose(part, whole.gather(-1, ids).sum(-1), atol=1e-6)
    assert torch.equal(teachers.costs("clamped", scores, log_p), part.clamp(min=0))
    bucket = teachers.costs("bucket", scores, log_p)
    assert torch.equal(bucket, topk_kl(scores, ids, named, reduction="none"))
    assert (bucket <= whole.sum(-1) + 1e-6).all()
    one = teachers.costs("renormalised", scores, log_p)
    assert torch.allclose(
        one, teachers.full(scores.gather(-1, ids), named.log_softmax(-1)), atol=1e-6
    )


@pytest.mark.parametrize("method", ["recomputed", "experts", "clamped"])
def test_a_continued_run_is_the_same(here, method):
    task = METHODS[method].task
    settings = Settings(tasks=(task,), methods=(method,), steps=6, seeds=1, seed=0)
    (key,) = Run.runs(settings)
    whole, stopped = Run(settings, *key), Run(settings, *key)
    stopped.part()
    taken_up = Run(settings, *key)
    taken_up.load(stopped.state())
    for _ in range(3):
        whole.part()
    for _ in range(2):
        taken_up.part()
    for one, other in zip(whole.history, taken_up.history, strict=True):
        assert one == pytest.approx(other, abs=1e-5, nan_ok=True)


def test_bad_arguments_are_refused_in_one_line(here):
    result = run("--method", "magic")
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert "--method must be one of whole, recomputed" in line
