"""`python -m studies.vae`: what it reports, that a break changes nothing, what it refuses."""

import json
import math
import os
import signal
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from kofn import Categorical, KSubset
from studies.frame import checkpoint
from studies.frame.checkpoint import CHECKPOINT, Checkpoint
from studies.frame.command import app
from studies.frame.data import INK, Digits, digits
from studies.frame.options import Settings
from studies.table import STUDIES
from studies.vae import study
from studies.vae.methods import METHODS
from studies.vae.model import Autoencoder, Latent
from studies.vae.study import Report, Run

FILES = ["checkpoint.pt", "curves.png", "digits.png", "vae.json"]
SMALL = ["--factors", 2, "--categories", 3, "--items", 4, "-k", 2, "--samples", 2, "--seeds", 1]


def run(*arguments):
    return CliRunner().invoke(app(STUDIES["vae"]), [*map(str, arguments)])


def settings(*methods):
    return settings_of(*methods, epochs=2)


def settings_of(*methods, epochs, n=3):
    sizes = {"factors": 2, "n": n, "items": 4, "k": 2, "samples": 2}
    return Settings(methods=methods, epochs=epochs, **sizes, seeds=1, seed=0)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory, eighty digits and short evaluations."""
    images, labels, held_out, answers = digits(0, by_class=True)
    few = Digits(images[:64], labels[:64], held_out[:16], answers[:16])
    monkeypatch.setattr(study, "digits", lambda seed, by_class: few)
    monkeypatch.setattr(study, "BATCH", 32)
    monkeypatch.setattr(study, "SAMPLES_AT_THE_END", 16)
    monkeypatch.setattr(study, "SAMPLES_PER_EPOCH", 4)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(*arguments):
    before = sorted(os.listdir())
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert sorted(os.listdir()) == before
    (line,) = result.stderr.splitlines()
    assert line.startswith("kofn: ")
    return line


def test_the_digits():
    data = digits(3, by_class=True)
    assert data.training.shape == (1347, 64)
    assert data.held_out.shape == (450, 64)
    assert data.training.max() == INK
    assert not torch.equal(data.held_out, digits(4, by_class=True).held_out)
    shares = data.answers.bincount() / data.labels.bincount()
    assert shares.min() > 0.31  # of each class
    assert shares.max() < 0.36


def test_every_method_trains_and_is_reported(here):
    every = [part for name in METHODS for part in ("--method", name)]
    result = run(*SMALL, "--epochs", 1, *every)
    assert result.exit_code == 0, result.output
    assert sorted(os.listdir("kofn-vae")) == FILES
    found = json.loads((here / "kofn-vae" / "vae.json").read_text())
    assert {each["method"] for each in found["methods"]} == set(METHODS)
    order = [each["held_out"]["mean"] for each in found["methods"]]
    assert order == sorted(order, reverse=True)
    assert len(STUDIES["vae"].settings({}).methods) == 8
    for each in found["runs"]:
        assert each["method"] in result.stdout
        # An average of logarithms is below the logarithm of the average, which is below p's own.
        assert each["held_out"] < each["held_out_tight"]
        assert each["held_out_tight"] < each["held_out_evidence"] + 0.5
        assert [epoch["epoch"] for epoch in each["history"]] == [1]
    calls = {each["method"]: each["decoder_calls_for_an_image"] for each in found["methods"]}
    assert (calls["exact"], calls["k-hot-exact"], calls["softmax"], calls["rebar"]) == (9, 6, 1, 4)
    for name in ("curves.png", "digits.png"):
        assert (here / "kofn-vae" / name).read_bytes().startswith(b"\x89PNG")


def test_help_names_every_method():
    text = "".join(run("--help").stdout.split())
    assert [
        name for name in METHODS if f"{name}," not in text.replace(":", ",").replace(".", ",")
    ] == []


def results(out):
    found = json.loads((out / "vae.json").read_text())

    def timeless(value):
        if isinstance(value, dict):
            return {k: timeless(v) for k, v in value.items() if not k.startswith("seconds")}
        return [timeless(each) for each in value] if isinstance(value, list) else value

    return timeless(found)


@pytest.fixture
def sigint():
    """Python's own handling of Ctrl-C, which a parent process may have switched off."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield signal.SIGINT
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("at", [2, 6])
def test_a_break_changes_nothing(here, monkeypatch, sigint, at):
    """Interrupted in an epoch and taken up again: every figure and weight as without a break."""
    monkeypatch.setattr(Report, "PICTURES", ())  # drawing takes longer than training
    chosen = ["--method", "gumbel-softmax", "--method", "k-hot", *SMALL, "--epochs", 3]
    assert run(*chosen, "--out", "whole").exit_code == 0
    real, calls = Run.part, []

    def part(self):
        calls.append(0)
        if len(calls) == at:
            signal.raise_signal(sigint)
        real(self)

    with monkeypatch.context() as patched:
        patched.setattr(Run, "part", part)
        result = run(*chosen, "--out", "broken")
    assert result.exit_code == 130
    last = result.stderr.splitlines()[-1]
    assert (
        last == f"kofn: interrupted; --resume continues from {os.path.join('broken', CHECKPOINT)}"
    )
    assert sorted(os.listdir("broken")) == [CHECKPOINT]
    calls.clear()
    with monkeypatch.context() as patched:
        patched.setattr(Run, "part", lambda self: (calls.append(0), real(self)))
        result = run(*chosen, "--out", "broken", "--resume")
    assert result.exit_code == 0, result.output
    assert len(calls) == 2 * 3 - (at - 1)  # what was trained is not trained again
    assert results(here / "whole") == results(here / "broken")
    whole, broken = (
        torch.load(here / name / CHECKPOINT, weights_only=True)["finished"]
        for name in ("whole", "broken")
    )
    for one, other in zip(whole, broken, strict=True):
        for name, tensor in one["model"].items():
            assert torch.equal(tensor, other["model"][name])
    # What is finished may be reported again.
    assert run(*chosen, "--out", "broken", "--resume").exit_code == 0


def test_an_interrupt_before_the_first_epoch_leaves_nothing(here, monkeypatch, sigint):
    monkeypatch.setattr(Run, "part", lambda self: signal.raise_signal(sigint))
    result = run(*SMALL)
    assert result.exit_code == 130
    assert result.stderr.splitlines()[-1] == "kofn: interrupted; nothing was written"
    assert os.listdir() == []


def test_the_seed_decides(here):
    def history(seed):
        one = Run(settings("reinmax"), "reinmax", seed)
        one.part()
        return one.history

    assert history(0) == history(0) != history(1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--method", "magic"], "--method must be one of gumbel-softmax, straight-through"),
        (["--epochs", 0], "--epochs must be at least 1; got 0"),
        (["--categories", 1], "--categories must be at least 2; got 1"),
        (["--factors", 0], "--factors must be at least 1"),
        (["--seeds", 0], "--seeds must be at least 1"),
        (["--seed", 2**31], "--seed must be below 2147483648"),
        (["-k", 12], "-k must be in 1..11, below --items; got 12"),
        (["--samples", 1], "--method leave-one-out needs --samples of at least 2"),
        (["--factors", 5], "at most 4,096; there are 3.28e+04; choose another --method"),
        (["--factors", 999999], "--method exact sums over every choice"),
        (["--resume"], "--resume needs kofn-vae/checkpoint.pt"),
        (["--resume", "--force"], "give only one of them"),
        (["--out", "file"], "--out file is a file"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(here, arguments, words):
    (here / "file").write_text("")
    assert words in refused(*arguments)


def test_checkpoints_that_cannot_be_resumed(here):
    chosen = ["--method", "softmax", *SMALL, "--epochs", 1]
    assert run(*chosen).exit_code == 0
    assert "checkpoint.pt exists; add --force to overwrite it" in refused(*chosen)
    assert "made with epochs = 1, not 2" in refused(*chosen[:-1], 2, "--resume")
    path = here / "kofn-vae" / CHECKPOINT
    good = path.read_bytes()
    changed = good.replace(b"seconds", b"Seconds", 1)
    for bad in (b"", b"not a checkpoint", good[:1000], good[:-32], changed):
        path.write_bytes(bad)
        assert "is not a checkpoint" in refused(*chosen, "--resume")
    torch.save([1, 2], path)
    assert "is not a checkpoint" in refused(*chosen, "--resume")
    assert run(*chosen, "--force").exit_code == 0


def test_checkpoints_are_written_now_and_then(here, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(checkpoint.time, "monotonic", lambda: clock[0])
    written = []
    to = SimpleNamespace(write=lambda contents: written.append(clock[0]))
    kept = Checkpoint(to, settings("softmax"))
    state = Run(settings("softmax"), "softmax", 0).state()
    for now in (100, 101, 104, 106, 107):
        clock[0] = now
        kept.keep(state)
    kept.keep(None)
    kept.write()
    assert written == [100, 106, 107]


def test_a_run_that_diverges_says_so(here, monkeypatch):
    monkeypatch.setattr(study, "RATE", 1e30)
    assert "softmax, seed 0 diverged in step" in refused(
        "--method", "softmax", *SMALL, "--epochs", 9
    )


@pytest.mark.parametrize("latent", [Latent(2, 3), Latent(1, 5, 2)])
def test_bounds_and_evidence_are_what_they_say(latent):
    """Against every choice written out, and many samples."""
    images = digits(0, by_class=True).training[:6]
    model = Autoencoder(latent, images, torch.Generator().manual_seed(0))
    with torch.no_grad():
        model.encoder[-1].weight.mul_(3)
        every = latent.of(torch.zeros(1, latent.width)).support(None)[:, 0]
        prior = -math.log(len(every))
        odds = model.draw(every).double()
        inked = torch.distributions.Binomial(INK, logits=odds[:, None])
        log_p = inked.log_prob(images.double()).sum(-1)
        assert torch.allclose(
            model.log_likelihood(images, every[:, None]).double(), log_p, atol=1e-3
        )
        repeated = every[:, None].expand(-1, 6, *every.shape[1:])
        assert torch.allclose(model.log_likelihood(images, repeated).double(), log_p, atol=1e-3)
        evidence = (log_p + prior).logsumexp(0).mean().item()
        assert model.evidence(images) == pytest.approx(evidence, abs=1e-3)
        choice = model.choice(images)
        log_q = latent.added(choice.log_prob(repeated)).double()
        bound = (log_q.exp() * (log_p + prior - log_q)).sum(0).mean().item()
        loose, tight = model.bounds(images, 4000, torch.Generator().manual_seed(0))
        assert loose == pytest.approx(bound, abs=0.3)
        assert bound < tight <= evidence + 0.1
        kl = (log_q.exp() * (log_q - prior)).sum(0)
        assert torch.allclose(model.divergence(choice).double(), kl, atol=1e-5)
        assert isinstance(choice, Categorical if latent.k is None else KSubset)
        assert model.generated(7, torch.Generator()).shape == (7, 64)


def test_learning_learns(here):
    """Ten epochs of the exact gradient on eighty digits."""
    one = Run(settings_of("exact", epochs=10, n=4), "exact", 0)
    for _ in range(10):
        one.part()
    bounds = [each.training for each in one.history]
    assert bounds[-1] > bounds[0] + 5
    assert np.isfinite(bounds).all()
    assert one.temperature(0) == 1
    assert one.temperature(1000) == pytest.approx(study.COLD)
