"""The scripts of examples/ run, a few steps long; their tables take minutes."""

import importlib.util
import json
import re
import subprocess
import sys
from statistics import fmean

import pytest
import torch

import kofn
from places import ROOT
from ranks import run_on_ranks

EXAMPLES = ROOT / "examples"


def example(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "name",
    [
        "bounded_clusters",
        "expert_choice",
        "graph_pooling",
        "learned_k",
        "long_context",
        "moe",
        "moe_jax",
        "prune",
        "prune_sharded",
        "sae",
        "semantic_ids",
        "session_ranking",
        "sharded_columns",
        "vocabulary_parallel",
    ],
)
def test_the_examples_of_modules_are_short(name):
    assert len((EXAMPLES / f"{name}.py").read_text(encoding="utf-8").splitlines()) < 80


@pytest.fixture(autouse=True)
def own_seed():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def test_both_ways_to_prune_keep_as_many_as_asked(monkeypatch):
    prune = example("prune")
    monkeypatch.setattr(prune, "STEPS", 20)
    for way, kept in (("nothing", 50_200), ("magnitude", 1004), ("nn.prune", 1004)):
        accuracy, left = prune.train(way, 0)
        assert 0 <= accuracy <= 1
        assert left == kept


def test_a_price_leaves_fewer_pixels_all_of_them_whole(monkeypatch):
    learned = example("learned_k")
    monkeypatch.setattr(learned, "STEPS", 60)
    found = [learned.train(price, 0) for price in (0.003, 0.3)]
    assert found[0][0] > found[1][0] + 5
    assert all(0 <= right <= 1 for _, right in found)


def test_graph_pooling_and_session_ranking_run(monkeypatch):
    pooling, ranking = example("graph_pooling"), example("session_ranking")
    monkeypatch.setattr(pooling, "STEPS", 2)
    assert all(0 <= pooling.accuracy(soft, 0) <= 1 for soft in (False, True))
    monkeypatch.setattr(ranking, "STEPS", 200)
    assert ranking.recall(True, 0) > ranking.recall(False, 0)


def test_soft_gates_cannot_give_all_to_one_and_a_softmax_of_the_chosen_can(monkeypatch):
    gates = example("gates")
    scores = torch.tensor([[9.0, 0.0, -1.0, -2.0]])
    assert gates.soft(scores)[0][0, 1] > 0.3
    assert gates.both(scores)[0][0, 1] < 1e-3
    monkeypatch.setattr(gates, "STEPS", 20)
    assert all(gates.run(way, 0) >= 0 for way in gates.WAYS.values())


@pytest.mark.full
def test_the_readme_has_what_these_examples_print():
    page = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    gates, sae = example("gates"), example("sae")
    ways = (gates.soft, gates.stock)
    soft, stock = (fmean(gates.run(way, seed) for seed in range(5)) for way in ways)
    assert f"squared error is {soft:.3f} of the variance;" in page
    assert f"divided by their sum, have {stock:.3f} (`python examples/gates.py`)" in page
    found = {
        name: [sae.run(name, seed) for seed in range(3)] for name in ("TopKSAE", "usual top-k")
    }
    (left, none), (usual, dead) = (
        [fmean(each[i] for each in runs) for i in range(2)] for runs in found.values()
    )
    assert none == 0
    assert f"none stays dead, against {100 * dead:.1f} % for the usual top-k" in page
    assert f"({left:.3f} and {usual:.3f}; 500 steps, 3 seeds; `python examples/sae.py`)" in page


def test_the_error_of_gates_is_a_share_of_the_variance(monkeypatch):
    """Without any expert, it is 1, whatever the unit of the answers."""
    gates = example("gates")
    monkeypatch.setattr(gates, "STEPS", 0)
    randn = torch.randn
    monkeypatch.setattr(
        torch, "randn", lambda *shape: randn(*shape) * (3 if shape[0] == gates.BATCH else 1)
    )

    def none(scores):
        return torch.zeros(len(scores), 2), torch.zeros(len(scores), 2, dtype=torch.long)

    assert gates.run(none, 0) == pytest.approx(1)


def test_sparse_autoencoders_keep_k_latents_and_silent_ones_learn(monkeypatch):
    sae = example("sae")
    monkeypatch.setattr(sae, "STEPS", 30)
    dead = {}
    for name in sae.WAYS:
        left, dead[name], fired = sae.run(name, 0)
        assert 0 < left < 1
        assert fired == sae.K or "batch" in name  # whose threshold needs more steps
    assert dead["TopKSAE"] < dead["usual top-k"]


def test_bits_are_of_a_budget(monkeypatch):
    bits = example("bits")
    monkeypatch.setattr(bits, "STEPS", 10)
    _, right, of_layers = bits.train("full", 32.0, 0)
    assert 0 <= right <= 1
    assert of_layers == []
    assert bits.train("uniform", 3.0, 0)[::2] == (pytest.approx(3), [3, 3, 3, 3])
    for way in ("measured", "learned"):
        used, right, of_layers = bits.train(way, 1.5, 0)
        assert 0 <= right <= 1
        assert 1 < used <= 1.5
        spent = [n * bits_of for n, bits_of in zip((144, 4608, 8192, 640), of_layers, strict=True)]
        assert used == pytest.approx(sum(spent) / 13584)
    weight = torch.randn(1000)
    for count in bits.WIDTHS:
        assert len(bits.levels(weight, count).unique()) <= 2**count
    whole = bits.rounded(weight, torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0]))
    torch.testing.assert_close(whole, bits.levels(weight, 3))


SAMPLED = {
    "normal_vae": {"EPOCHS": 2},
    "few_labels": {"STEPS": 2, "PART": 2},
    "sequence_policy": {"STEPS": 2, "PART": 2},
    "messages": {"STEPS": 2, "PART": 2},
    "five_noises": {"EPOCHS": 2, "BATCH": 700, "WAYS": ("gumbel", "uniform")},
}


@pytest.mark.parametrize("name", SAMPLED)
def test_what_learns_through_samples_has_its_curves(name, monkeypatch, capsys):
    module = example(name)
    kept = json.loads((ROOT / "docs" / "results" / "curves.json").read_text(encoding="utf-8"))
    assert [*kept[name]] == [*module.WAYS]
    for constant, value in SAMPLED[name].items():
        monkeypatch.setattr(module, constant, value)
    monkeypatch.setattr("sys.argv", [f"{name}.py", "--seeds", "1"])
    module.main()
    first, *rows = lines_of(capsys)
    assert first == module.MEASURED
    assert len(rows) == len(module.WAYS)
    for way, row in zip(module.WAYS, rows, strict=True):
        assert row.startswith(f"{way} ")
        ((at, value),) = module.train(way, 0)
        assert at == 2
        assert f"{value:.3f}" in row or f"{value:.2f}" in row  # the same seed, the same curve


def test_scores_are_in_the_deviations_of_their_noise():
    rng = torch.Generator().manual_seed(0)
    for name, deviation in example("five_noises").DEVIATIONS.items():
        noise = kofn.Categorical(torch.zeros(100_000)).perturb((), rng, noise=name)
        assert noise.std().item() == pytest.approx(deviation, rel=0.02)


def test_the_policy_is_not_told_which_token_is_wrong():
    """log π is that of the tokens that it wrote, and the likeliest ones are as likely as any."""
    policy = example("sequence_policy").Policy()
    images = torch.rand(5, 3, 64)
    tokens, log_prob = policy(images, torch.Generator().manual_seed(0))
    best, most = policy(images, None)
    assert tokens.shape == best.shape == (5, 3)
    assert (most >= log_prob).sum() >= 4
    assert (log_prob < 0).all()


def test_hard_messages_are_whole_and_relaxed_ones_are_not():
    messages = example("messages")
    sender, images = messages.Sender(), torch.rand(5, 64)
    for way in (*messages.WAYS, "likeliest"):
        sent, _ = sender(images, way, 0.5)
        torch.testing.assert_close(sent.sum(-1), torch.ones(5, messages.LENGTH))
        assert (sent.round() == sent).all().item() == (not way.startswith("relaxed"))


def test_a_mixture_of_experts_trains_with_every_router(monkeypatch):
    moe = example("moe")
    monkeypatch.setattr(moe, "STEPS", 60)
    for name in moe.ROUTERS:
        error, share = moe.train(name, 0)
        assert 0 < error < 1
        assert share.sum() == pytest.approx(1)
        assert 1 / moe.GROUPS < share.trace() <= 1


@pytest.mark.extras
def test_a_mixture_of_experts_in_flax_trains():
    error, used, right = example("moe_jax").train(60)
    assert 0 < error < 1
    assert 1 < used <= 8
    assert 1 / 8 < right <= 1


def test_attention_beyond_the_lengths_trained_at(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["long_context.py", "--steps", "2"])
    example("long_context").main()
    first, *rows = capsys.readouterr().out.splitlines()
    assert first.split() == ["length", "64", "128", "256", "512"]
    assert [row.split()[0] for row in rows] == ["entmax", "soft_topk"]


def test_reviewers_have_their_loads(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["reviewers.py", "--steps", "5"])
    example("reviewers").main()
    found = [re.search(r"paper +(\S+) +worst load +(\S+)%", line) for line in lines_of(capsys)]
    values, worst = zip(*(map(float, each.groups()) for each in found), strict=True)
    assert values[0] > values[1] > values[4] > values[3]
    assert worst[0] > 100 > 20 > worst[2]
    assert worst[1] == worst[3] == worst[4] == 0


def test_a_teacher_with_two_margins_uses_all_prototypes():
    centring = example("centring")
    for way, steps, least, most in (
        ("softmax", 120, 2, centring.PROTOTYPES - 2),
        ("three rounds", 30, centring.PROTOTYPES, centring.PROTOTYPES),
        ("both margins", 30, centring.PROTOTYPES, centring.PROTOTYPES),
        ("exp, then three rounds", 40, 1, 1),  # NaN, once cosines are above .59
    ):
        used, right = centring.train(way, 0, steps)
        assert least <= used <= most
        assert 0 < right < 1


def test_ids_do_not_collide(monkeypatch, capsys):
    ids = example("semantic_ids")
    monkeypatch.setattr("sys.argv", ["semantic_ids.py"])
    ids.main()
    near, own = (int(line.split()[-3]) for line in lines_of(capsys))
    assert near < own == ids.ITEMS
    pairs, error = ids.ids(1, True)
    assert len({*map(tuple, pairs)}) == ids.ITEMS
    assert pairs.min() == 0
    assert pairs.max() == ids.CODES - 1
    assert 0 < error < 1


def test_clusters_have_their_bounds(monkeypatch, capsys):
    clusters = example("bounded_clusters")
    monkeypatch.setattr("sys.argv", ["bounded_clusters.py"])
    clusters.main()
    near, bounded, equal = (json.loads(line.partition("sizes")[2]) for line in lines_of(capsys))
    for sizes in (near, bounded, equal):
        assert sum(sizes) == clusters.POINTS
    assert near[0] < clusters.LEAST - 1
    assert near[-1] > clusters.MOST + 1
    assert clusters.LEAST - 1 <= bounded[0] < bounded[-1] <= clusters.MOST + 1
    assert max(equal) - min(equal) <= 2


def lines_of(capsys):
    return capsys.readouterr().out.splitlines()


def test_columns_in_one_process_are_chosen_alike(monkeypatch):
    from torch import distributed

    sharded = example("sharded_columns")
    monkeypatch.setattr(sharded, "STEPS", 5)
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        assert sharded.train(together=True) == pytest.approx(sharded.train(together=False))
    finally:
        distributed.destroy_process_group()


@pytest.mark.full
def test_columns_in_two_processes_are_chosen_as_the_guide_says():
    page = (EXAMPLES.parent / "docs" / "guides" / "distributed.md").read_text(encoding="utf-8")
    arguments, promise = re.search(r"^\$ torchrun (.*)\n((?:[^`].*\n)+)", page, re.M).groups()
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *arguments.split()],
        **dict(cwd=EXAMPLES.parent, capture_output=True, text=True, timeout=500, check=True),
    )
    assert done.stdout == promise


def several_processes():
    """What torchrun starts, a few steps long."""
    words, pruned, experts = map(example, ("vocabulary_parallel", "prune_sharded", "expert_choice"))
    words.STEPS, pruned.STEPS, experts.STEPS = 5, 20, 5
    assert words.train(cut=True) == pytest.approx(words.train(cut=False), rel=1e-5)
    accuracy, left, of_layers = pruned.train()
    assert 0 <= accuracy <= 1
    assert left == sum(of_layers) == 1004
    _, load = experts.train()
    tokens = experts.TOKENS * (len(load) - 1) + experts.TOKENS // 4
    assert load.sum(0).tolist() == [-(-tokens * experts.K // experts.EXPERTS)] * experts.EXPERTS


@pytest.mark.full
@pytest.mark.parametrize("processes", [2, 4])
def test_examples_of_several_processes_run(tmp_path, processes):
    run_on_ranks(tmp_path / "store", processes, several_processes)


@pytest.mark.full
def test_torchrun_starts_an_example():
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    path = str(EXAMPLES / "expert_choice.py")
    ran = subprocess.run([*command, path], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    assert "tokens of each expert [20, 20" in ran.stdout
