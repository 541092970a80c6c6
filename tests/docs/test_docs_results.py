"""What the pages say of seeds, spreads and winners is what docs/results holds."""

import json
import re
from itertools import product
from statistics import fmean
from types import SimpleNamespace

import pytest
import torch

from kofn.commands.results import spread
from studies.balance.study import Report as Balances
from studies.choice.study import Measured as Chosen
from studies.frame.options import Settings
from studies.losses.study import Report as Losses
from studies.replay.study import Report as Replays
from studies.router.study import Report as Routers
from studies.sae.study import Report as Autoencoders
from studies.table import STUDIES
from test_docs import DOCS, FRONT, PAGES

IMAGES = 450  # held out


def stored(name):
    found = torch.load(DOCS / "results" / f"{name}.pt", weights_only=True)
    return found["settings"], found["finished"]


def measured(kind, study, name):
    """What every run of a study measured, by the parts of its key."""
    settings, results = stored(name)
    report = kind(STUDIES[study], Settings(**settings))
    report.results = results

    def of(**key):
        figures = report.figures(**key)
        rows = zip(*figures.values(), strict=True)
        return [SimpleNamespace(**dict(zip(figures, row, strict=True))) for row in rows]

    return settings, of


def said(page, *parts):
    """The numbers of a statement, which has to be on the page."""
    pattern = " ".join(parts)
    found = re.search(r"\s+".join(pattern.split()), page)
    assert found, pattern
    return [float(number) for number in found.groups()]


def table(page, head):
    """The rows below the line of a table that begins so, by their first cell."""
    lines = page[page.index(head) :].splitlines()
    names = [cell.strip() for cell in lines[0].split("|")[2:-1]]
    rows = {}
    for line in lines[2:]:
        if not line.startswith("|"):
            return rows
        label, *cells = (cell.strip() for cell in line.split("|")[1:-1])
        rows[label] = dict(zip(names, cells, strict=True))
    return rows


def shown(values, form=".3f"):
    mean, deviation = spread(values)
    return f"{mean:{form}} ± {deviation:{form}}"


# --- pruning ---

OURS = "kofn"
PRUNERS = {
    "`nn.prune`": OURS,
    '`choice="k_subset"`': "kofn-subsets",
    "gradual magnitude": "gradual",
    "magnitude after half of the steps": "magnitude",
    "Spartan": "spartan",
    "straight-through top-k": "straight-through",
    "Gumbel noise over six masks": "gumbel",
}


def accuracies(model):
    """The accuracy of every seed, by the method and the share that is removed, in percent."""
    found = {}
    for run in stored(f"prune_{model}")[1]:
        _, method, removed, _ = run["key"]
        name = removed if ":" in removed else f"{100 * float(removed):.0f} %"
        found.setdefault((method, name), []).append(run["measured"][0])
    return found


@pytest.mark.parametrize(("model", "nth"), [("mlp", 0), ("cnn", 1)])
def test_the_tables_of_pruning(model, nth):
    page = PAGES["nn_pruning.md"]
    for _ in range(nth):
        page = page[page.index("| Method |") + 1 :]
    found = accuracies(model)
    rows = table(page, "| Method |")
    assert rows.keys() == PRUNERS.keys()
    for label, cells in rows.items():
        for removed, cell in cells.items():
            values = found.get((PRUNERS[label], removed))
            assert cell == (shown(values) if values else ""), (label, removed)
    dense = shown(found["dense", "0 %"])
    assert f"dense, it is {dense}" in " ".join(page[: page.index("| Method |")].split())


def test_the_table_of_pruning_in_the_readme():
    found = accuracies("mlp")
    rows = table(FRONT["README.md"], "| Weights kept |")
    for kept, cells in rows.items():
        removed = f"{100 - int(kept.removesuffix(' %'))} %"
        for label, cell in cells.items():
            assert cell == shown(found[PRUNERS[label], removed]), (kept, label)
    assert f"Dense, it is {shown(found['dense', '0 %'])}." in FRONT["README.md"]


def leads(found, removed):
    """By how much each seed of nn.prune is before the best of the others."""
    others = [v for (m, r), v in found.items() if r == removed and m not in (OURS, "dense")]
    return [ours - max(theirs) for ours, *theirs in zip(found[OURS, removed], *others, strict=True)]


def best(found, removed):
    means = {m: fmean(v) for (m, r), v in found.items() if r == removed}
    return sorted(means, key=means.get, reverse=True)


def test_what_is_said_of_pruning():
    page = PAGES["nn_pruning.md"]
    found = accuracies("mlp")
    (lead,) = said(
        page,
        r"At 99 %, `nn.prune` has the highest accuracy with each of the seeds,",
        r"by at least ([\d.]+)\.",
    )
    assert round(min(leads(found, "99 %")), 3) == lead > 0
    (lead,) = said(page, r"At 98 %, its lead is as little as ([\d.]+), two of the 450 images")
    least = min(leads(found, "98 %"))
    assert round(least, 3) == lead
    assert round(least * IMAGES) == 2
    for removed in ("98 %", "99 %"):
        assert best(found, removed)[:2] == [OURS, "spartan"]
    most, *between = said(
        page,
        r"means differ by at most ([\d.]+), and the standard deviation",
        r"over seeds is ([\d.]+) to ([\d.]+)\.",
    )
    differences, deviations = [], []
    for removed, rival in product(("80 %", "90 %", "95 %"), ("spartan", "straight-through")):
        ours, theirs = found[OURS, removed], found[rival, removed]
        differences.append(abs(fmean(ours) - fmean(theirs)))
        deviations += [spread(ours)[1], spread(theirs)[1]]
    assert round(max(differences), 3) == most
    assert [round(min(deviations), 3), round(max(deviations), 3)] == between
    found = accuracies("cnn")
    said(page, "From 95 % on, `nn.prune` has the highest mean;")
    for removed in ("95 %", "98 %", "99 %"):
        assert best(found, removed)[0] == OURS


# --- learned choices ---

TRAINED = {
    "straight-through by hand": ("straight-through", 1),
    "straight-through by hand: `hard_topk` with the gradient of a softmax": ("straight-through", 1),
    "`soft_topk(hard=True)`": ("hard", 1),
    "`soft_topk`, T from 1 to 0.01": ("cooled", 1),
    "`soft_topk`, cooled to the last step": ("cooled", 1),
    "the same, the scores' rate 10 times the network's": ("cooled", 10),
    "the same, 40 times": ("cooled", 40),
    "`soft_topk`, T from 1 to 0.0001": ("colder", 1),
    "T from 1 to 0.01 in 70 % of the steps, then `hard_topk`": ("whole", 1),
    "`soft_topk`, then `hard_topk` for the last 30 %": ("whole", 1),
    "the same, with 40 times the network's rate": ("whole", 40),
}


@pytest.mark.parametrize(
    ("page", "rows"),
    [("guides/temperature.md", 8), ("coming_from/torch_topk.md", 4), ("README.md", 4)],
)
def test_the_tables_of_learned_choices(page, rows):
    settings, results = stored("choice")
    assert STUDIES["choice"].settings({}) == Settings(**settings)  # by the command as it is
    found = table({**PAGES, **FRONT}[page], "| Weights in training |")
    assert len(found) == rows
    for label, cells in found.items():
        ends = {}
        for each in results:
            k, *way, _ = each["key"]
            if tuple(way) == TRAINED[label]:
                ends.setdefault(f"{k} pixels", []).append(Chosen(*each["history"][-1]))
        opened = [end.open for of_k in ends.values() for end in of_k]
        for head, cell in cells.items():
            if head == "open":
                assert cell == f"{fmean(opened):.2f}", label
            else:
                assert cell == shown([end.accuracy for end in ends[head]]), (label, head)


# --- losses ---

LOSSES = {
    "`softmax_loss`: cross-entropy": "cross-entropy",
    "`accuracy_loss`: −p": "accuracy",
    "`perturbed_accuracy_loss`: EXACT": "exact",
    "`sparse_softmax_loss`, k = 2": "sparse-2",
    "the same, k = 3": "sparse-3",
    "the same, p = 0.9": "sparse-p",
    "−log `taylor_softmax`": "taylor",
    "`sparsemax_loss`": "sparsemax",
    "`entmax_loss`": "entmax",
    "`am_softmax`": "am-softmax",
    "`epsilon_cross_entropy`": "epsilon",
}
COLUMNS = {
    "40 steps": ("scratch", "few", ".3f"),
    "600 steps": ("scratch", "accuracy", ".3f"),
    "after cross-entropy": ("after", "accuracy", ".3f"),
    "half random": ("noisy", "accuracy", ".3f"),
    "confidence − accuracy": ("scratch", "over", "+.3f"),
    "the same, half random": ("noisy", "over", "+.3f"),
}


def of_losses():
    """Every figure of every seed, by the data set, the task and the loss."""
    settings, results = stored("losses")
    report = Losses(STUDIES["losses"], Settings(**settings))
    report.results = results
    assert settings == vars(STUDIES["losses"].settings({"dataset": settings["datasets"]}))
    keys = product(settings["datasets"], settings["tasks"], settings["methods"])
    names = ("dataset", "task", "method")
    return {key: report.figures(**dict(zip(names, key, strict=True))) for key in keys}


@pytest.mark.parametrize("dataset", stored("losses")[0]["datasets"])
def test_the_tables_of_losses(dataset):
    found = of_losses()
    page = PAGES["losses.md"]
    rows = table(page[page.index(f"**{dataset}**") :], "| Loss |")
    assert rows.keys() == LOSSES.keys()
    for label, cells in rows.items():
        assert cells.keys() == COLUMNS.keys()
        for head, cell in cells.items():
            task, name, form = COLUMNS[head]
            values = found[dataset, task, LOSSES[label]][name]
            wanted = shown(values, form) if name != "over" else f"{fmean(values):{form}}"
            assert cell == wanted.replace("-", "−"), (label, head)


def test_what_is_said_of_losses():
    found = of_losses()
    text = PAGES["losses.md"]
    page = text[text.index("## What each finds") : text.index("## What they cost")]

    def leads(task, name, method, dataset="digits"):
        """By how much each seed is before cross-entropy."""
        both = (found[dataset, task, each][name] for each in (method, "cross-entropy"))
        return [one - other for one, other in zip(*both, strict=True)]

    def lead(*of):
        return round(fmean(leads(*of)), 3)

    early = ("sparse-2", "sparse-3", "sparsemax", "entmax", "am-softmax")
    assert all(min(leads("scratch", "few", each)) > 0 for each in early)
    means = [lead("scratch", "few", each) for each in early]
    assert said(page, r"by ([\d.]+) to ([\d.]+) in the mean") == [min(means), max(means)]
    bounded = ("accuracy", "exact")
    behind = said(page, r"−p is ([\d.]+) behind and EXACT ([\d.]+), with each of\s+the seeds")
    assert behind == [-lead("scratch", "few", each) for each in bounded]
    assert all(max(leads("scratch", "few", each)) < 0 for each in bounded)
    sparse = ("sparse-2", "sparse-3", "sparse-p")
    assert all(lead("scratch", "accuracy", each) > 0 for each in sparse)
    assert said(page, r"from scratch it ends ([\d.]+) behind") == [
        -lead("scratch", "accuracy", "accuracy")
    ]
    after = {each: lead("after", "accuracy", each) for each in LOSSES.values()}
    assert said(page, r"after cross-entropy it is ([\d.]+) behind") == [-after["accuracy"]]
    assert max(leads("after", "accuracy", "accuracy")) < 0
    (most,) = said(page, r"no loss but AM-softmax gains more than ([\d.]+)\.")
    assert sorted(after.values())[-2] <= most < after["am-softmax"]
    gains = said(page, r"with each of the seeds, by ([\d.]+) and ([\d.]+): a row whose")
    assert gains == [lead("noisy", "accuracy", each) for each in bounded]
    assert all(min(leads("noisy", "accuracy", each)) > 0 for each in bounded)
    lost = said(
        page, r"k = 2 loses ([\d.]+), at least ([\d.]+) with each of the seeds,",
        r"AM-softmax ([\d.]+) and ε-cross-entropy ([\d.]+)\.",
    )  # fmt: skip
    two, *others = (lead("noisy", "accuracy", e) for e in ("sparse-2", "am-softmax", "epsilon"))
    assert lost == [
        -two,
        -round(max(leads("noisy", "accuracy", "sparse-2")), 3),
        -others[0],
        -others[1],
    ]
    assert all(lead("noisy", "accuracy", each) > 0 for each in sparse[1:])
    (gap,) = said(page, r"clean labels is ([\d.]+) less sure than it is right")
    assert gap == -round(fmean(found["digits", "scratch", "cross-entropy"]["over"]), 3)
    (near,) = said(page, r"or less sure by more than ([\d.]+)\.")
    assert max(abs(lead("scratch", "over", each)) for each in sparse) <= near
    (sure,) = said(page, r"right \(\+([\d.]+)\)")
    assert {round(fmean(found["digits", "noisy", each]["over"]), 3) for each in bounded} == {sure}
    low, high = said(page, r"sure as a label is right, ([\d.]+) to ([\d.]+) against 0\.55")
    confidence = [
        round(fmean(map(sum, zip(f["accuracy"], f["over"], strict=True))), 2)
        for (dataset, task, each), f in found.items()
        if (dataset, task) == ("digits", "noisy") and each not in (*bounded, "am-softmax")
    ]
    assert [low, high] == [min(confidence), max(confidence)]
    mean, worst = said(page, r"it loses ([\d.]+), and one seed ends at\s+least ([\d.]+) behind")
    assert mean == -lead("scratch", "accuracy", "epsilon")
    assert -min(leads("scratch", "accuracy", "epsilon")) >= worst


# --- examples that learn through samples ---


def test_the_tables_of_what_learns_through_samples():
    found = json.loads((DOCS / "results" / "curves.json").read_text(encoding="utf-8"))
    page = PAGES["estimators_examples.md"]
    assert set(re.findall(r"examples/(\w+)\.py", page)) == found.keys()
    for name, ways in found.items():
        rows = table(page[page.index(f"examples/{name}.py") :], "| Way |")
        assert [label.replace("`", "") for label in rows] == [*ways]
        for label, curves in ways.items():
            assert len(curves) == 5
            (cells,) = (rows[row] for row in rows if row.replace("`", "") == label)
            half, end = ([each[at][1] for each in curves] for at in (len(curves[0]) // 2 - 1, -1))
            form = ".1f" if "evidence bound, nats" in cells else ".3f"
            assert [*cells.values()] == [shown(v, form).replace("-", "−") for v in (half, end)]


# --- routers ---

ROUTERS = {
    "`TopKRouter`": "kofn",
    "`TopKRouter(balance=…)`": "kofn-balanced",
    "`normalize=False`": "kofn-unnormalized",
    '`gates="topk"`': "kofn-topk",
    "the same, divided by their sum": "kofn-topk-normalized",
    "the largest of a softmax": "softmax-topk",
    "a softmax of the largest": "topk-softmax",
    "sigmoids with a balancing bias": "sigmoid-bias",
    "ReLU with an adaptive L1 penalty": "relu-l1",
}
HARD = ("known", "regression")


def losses():
    """The runs of every router, by task, k and method."""
    settings, of = measured(Routers, "router", "router")
    keys = product(settings["tasks"], settings["ks"], settings["methods"])
    found = {key: of(task=key[0], k=key[1], method=key[2]) for key in keys}
    return {key: runs for key, runs in found.items() if runs}


def test_the_table_of_routers():
    found = losses()
    best_of = {
        (task, k): min(fmean(r.loss for r in v) for key, v in found.items() if key[:2] == (task, k))
        for task, k, _ in found
    }
    rows = table(PAGES["nn_router.md"], "| Router | known")
    assert rows.keys() == ROUTERS.keys()
    for label, cells in rows.items():
        for place, cell in cells.items():
            task, k = re.fullmatch(r"(\w+), k = (\d)", place).groups()
            runs = found.get((task, int(k), ROUTERS[label]))
            if not runs:
                assert cell == ""
                continue
            loss, in_use = fmean(r.loss for r in runs), fmean(r.in_use for r in runs)
            digits = 2 if task == "text" else 3
            bold = "**" in cell
            assert cell.replace("**", "") == f"{loss:.{digits}f} ({in_use:.1f})", (label, place)
            assert not bold or loss == best_of[task, int(k)]


def test_what_is_said_of_routers():
    page = PAGES["nn_router.md"]
    found = losses()
    spreads = {key: spread([each.loss for each in runs])[1] for key, runs in found.items()}
    two = {key: value for key, value in spreads.items() if key[0] in HARD}
    low, high, count, cells, most = said(
        page,
        r"is ([\d.]+) to ([\d.]+) in (\d+) of the (\d+)",
        r"cells, and up to ([\d.]+) in the others",
    )
    ends = (round(min(two.values()), 3), len(two), round(max(two.values()), 2))
    assert (low, cells, most) == ends
    assert sum(round(value, 2) <= high for value in two.values()) == count
    router, balanced = said(
        page, r"that of `TopKRouter` is below ([\d.]+), and with the", r"balance below ([\d.]+)\."
    )
    for name, limit in (("kofn", router), ("kofn-balanced", balanced)):
        widest = max(value for key, value in two.items() if key[2] == name)
        assert 0.8 * limit < widest < limit
    text = [value for key, value in spreads.items() if key[0] == "text"]
    low, high = said(
        page,
        r"For \*text\*, where all routers are still learning, it is",
        r"([\d.]+) to ([\d.]+)\.",
    )
    assert (round(min(text), 2), round(max(text), 2)) == pytest.approx((low, high))

    def loss(task, k, name):
        return fmean(each.loss for each in found[task, k, name])

    groups = [(task, k) for task, k, name in found if name == OURS]
    assert "is never behind the largest of a softmax by more than the seeds differ" in page
    for group in groups:
        assert loss(*group, OURS) - loss(*group, "softmax-topk") <= spreads[*group, OURS]
    ranks = {}
    for group in groups:
        names = [name for *place, name in found if tuple(place) == group]
        ranks[group] = sorted(names, key=lambda name: loss(*group, name))
    said(page, "With a balancing bias it has the lowest error on the regression")
    assert {ranks[g][0] for g in groups if g[0] == "regression"} == {"kofn-balanced"}
    said(page, "On text, sigmoids with a bias had the lowest loss")
    assert {ranks[g][0] for g in groups if g[0] == "text"} == {"sigmoid-bias"}
    readme = " ".join(FRONT["README.md"].split())
    assert "one level with it, in four of six comparisons of nine routers; on text, it" in readme
    level = [
        loss(*g, "kofn-balanced") - loss(*g, ranks[g][0]) <= spreads[*g, "kofn-balanced"]
        for g in groups
        if g[0] in HARD
    ]
    assert level == [True] * 4
    assert {ranks[g][1] for g in groups if g[0] == "text"} == {"kofn-balanced"}
    gains = [
        fmean(r.gradient for r in found[t, 1, OURS])
        / fmean(r.gradient for r in found[t, 1, "softmax-topk"])
        for t in ("known", "regression", "text")
    ]
    assert "larger by a third to two thirds at k = 1" in " ".join(page.split())
    assert (round(3 * min(gains)), round(3 * max(gains))) == (4, 5)


UNITS = {
    "single weights": "single",
    "blocks of 4 × 1": "blocks",
    "channels, by weights": "channels",
}


def test_the_table_of_units_of_pruning():
    runs, page = stored("prune_units")[1], PAGES["nn_pruning.md"]
    for label, method in UNITS.items():
        cells = []
        for removed in ("0.5", "0.8", "0.95"):
            found = [r["measured"] for r in runs if r["key"][1:3] == (method, removed)]
            right, kept = (fmean(each) for each in zip(*found, strict=True))
            cells.append(f"{right:.3f} ({kept:,.0f})")
        assert f"| {label} | {' | '.join(cells)} |" in page
    dense = fmean(r["measured"][0] for r in runs if r["key"][1] == "dense")
    (stated,) = said(page, r"Dense, it is (\S+) with 50,200 weights")
    assert stated == round(dense, 3)


# --- autoencoders ---

AUTOENCODERS = {
    "`TopKSAE`": "kofn-token",
    '`TopKSAE(selection="batch")`': "kofn-batch",
    "TopK": "topk",
    "TopK, auxiliary loss": "topk-auxk",
    "BatchTopK": "batchtopk",
    "BatchTopK, auxiliary loss": "batchtopk-auxk",
    "JumpReLU": "jumprelu",
    "Gated": "gated",
}


def test_the_table_of_autoencoders():
    _, of = measured(Autoencoders, "sae", "sae")
    page = PAGES["nn_autoencoders.md"]
    explained = {}
    for label, cells in table(page, "| Autoencoder |").items():
        for task, digits in (("features", 3), ("digits", 4)):
            runs = of(task=task, method=AUTOENCODERS[label])
            values = [each.explained for each in runs]
            assert cells[f"{task}: explained"] == shown(values, f".{digits}f"), label
            explained[task, label] = fmean(values)
    assert "Kept over the whole batch, `TopKSAE` explains most on both tasks" in page
    for task in ("features", "digits"):
        of_task = {name: value for (t, name), value in explained.items() if t == task}
        assert max(of_task, key=of_task.get) == '`TopKSAE(selection="batch")`'


def test_the_table_of_balances_is_what_was_measured():
    _, of = measured(Balances, "balance", "balance")
    labels = {
        "none": "none",
        "auxiliary": "auxiliary loss, 0.01",
        "sign-slow": "`1e-3`",
        "sign": "`1e-2`",
        "quantile": '`"quantile"`',
        "quantile-bins": "`bins=1000`",
        "quantile-ema": "`ema=0.9`",
        "quantile-sequence": "`per_sequence=True`",
    }
    page = PAGES["nn_router.md"]
    rows = page[page.index("| Balance | loss, 4 |") :].splitlines()[2:]
    cells = {row.split("|")[1].strip(): row.split("|")[2:-1] for row in rows[: len(labels)]}
    for method, label in labels.items():
        (text,), (small,) = (of(task=task, method=method) for task in ("text", "small"))
        found = [
            *(f"{text.loss:.3f}", f"{text.violation:.2f}", f"{text.sequence:.2f}"),
            *(f"{text.held_out:.2f}", f"{text.changed:.3f}", f"{small.loss:.3f}"),
            *(f"{small.violation:.2f}", f"{small.held_out:.2f}", f"{small.changed:.3f}"),
        ]
        assert [cell.strip() for cell in cells[label]] == found, method


def test_the_benchmark_of_assignments_writes_its_table_where_the_page_has_it():
    from benchmarks import assignment

    page = PAGES["maps_assignment.md"]
    rows = page.partition("\n".join(assignment.HEAD) + "\n")[2].partition("\n\n")[0].splitlines()
    cases = [f"{n:,} × {n:,} | {t:g}" for n in assignment.SIZES for t in assignment.TEMPERATURES]
    assert [row.strip("| ").rsplit(" | ", 4)[0] for row in rows] == cases
    assert assignment.written(page, rows) == page
    assert assignment.written(page, rows[1:]) == page.replace(rows[0] + "\n", "")


# --- choices made twice ---

REPLAYS = {
    "tokens": {
        "the softmax over all tokens": "whole",
        "the trainer's own k and nucleus": "recomputed",
        "the sets that were sampled from": "kept",
    },
    "experts": {"the trainer's own experts": "own", "those of the sampler, replayed": "experts"},
    "distillation": {
        "KL over all 256 tokens": "full",
        "the sum over the teacher's eight": "truncated",
        "that sum, clamped at 0": "clamped",
        '`topk_kl(tail="renormalise")`': "renormalised",
        "`topk_kl`, with a bucket": "bucket",
    },
}
OF_REPLAYS = {
    "tokens": {"reward": "score", "ratio": "ratio", "outside": "outside", "entropy": "entropy"},
    "experts": {
        "reward": "score",
        "ratio": "ratio",
        "outside": "outside",
        "entropy": "entropy",
        "other experts": "differ",
    },
    "distillation": {"KL": "score", "mass": "mass", "negative": "negative"},
}


@pytest.mark.parametrize("task", REPLAYS)
def test_the_tables_of_replays(task):
    settings, of = measured(Replays, "replay", "replay")
    page = PAGES["guides/train_on_samples.md"]
    rows = table(page, f"| {task.capitalize()} trained on |")
    assert rows.keys() == REPLAYS[task].keys()
    for label, cells in rows.items():
        found = of(task=task, method=REPLAYS[task][label])
        assert len(found) == settings["seeds"] == 5
        assert cells.keys() == OF_REPLAYS[task].keys()
        for head, cell in cells.items():
            values = [getattr(each, OF_REPLAYS[task][head]) for each in found]
            wanted = shown(values) if head in ("reward", "KL") else f"{fmean(values):.3f}"
            assert cell == wanted, (label, head)
