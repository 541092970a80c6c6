"""What the pages say of seeds, spreads and winners is what docs/results holds."""

import json
import re
from itertools import combinations, product
from statistics import fmean
from types import SimpleNamespace

import pytest
import table_of_bits
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


SETS = ("digits", "mnist")


def test_what_is_said_of_losses():
    found = of_losses()
    text = PAGES["losses.md"]
    page = text[text.index("## What each finds") : text.index("## What they cost")]

    def leads(task, name, method, dataset):
        """By how much each seed is before cross-entropy."""
        both = (found[dataset, task, each][name] for each in (method, "cross-entropy"))
        return [one - other for one, other in zip(*both, strict=True)]

    def lead(*of):
        return round(fmean(leads(*of)), 3)

    def both(task, name, method):
        return [lead(task, name, method, dataset) for dataset in SETS]

    def lost(task, name, *methods):
        """By how much the methods are behind in the mean: on the digits, then on MNIST."""
        return [-lead(task, name, each, dataset) for dataset in SETS for each in methods]

    def ranges(task, name, *methods):
        """The least and the greatest lead of all, each of them with each of the seeds."""
        assert all(min(leads(task, name, m, d)) > 0 for m, d in product(methods, SETS))
        means = ([lead(task, name, each, dataset) for each in methods] for dataset in SETS)
        return [end(each) for each in means for end in (min, max)]

    def over(task, method):
        return [round(fmean(found[dataset, task, method]["over"]), 3) for dataset in SETS]

    early, bounded = ("sparsemax", "entmax", "am-softmax"), ("accuracy", "exact")
    sparse = ("sparse-2", "sparse-3", "sparse-p")
    four = said(
        page, r"each of the seeds, by ([\d.]+) to ([\d.]+) in the mean on the digits and by",
        r"([\d.]+) to ([\d.]+) on MNIST\. Sparse softmax",
    )  # fmt: skip
    assert four == ranges("scratch", "few", *early)
    two = said(page, r"is so on the digits, by ([\d.]+) and ([\d.]+); on MNIST it is before")
    assert two == [lead("scratch", "few", each, "digits") for each in sparse[:2]]
    assert all(min(leads("scratch", "few", each, "digits")) > 0 for each in sparse[:2])
    two = said(page, r"is before by ([\d.]+) and ([\d.]+), and not with each of the seeds")
    assert two == [lead("scratch", "few", each, "mnist") for each in sparse[:2]]
    assert all(min(leads("scratch", "few", each, "mnist")) <= 0 for each in sparse[:2])
    behind = said(
        page, r"−p is ([\d.]+) behind and EXACT ([\d.]+), on MNIST ([\d.]+) and",
        r"([\d.]+), with each of the seeds",
    )  # fmt: skip
    assert behind == lost("scratch", "few", *bounded)
    assert all(max(leads("scratch", "few", m, d)) < 0 for m, d in product(bounded, SETS))
    four = said(
        page, r"of the seeds, too, by ([\d.]+) to ([\d.]+) on the digits and by ([\d.]+) to",
        r"([\d.]+) on MNIST",
    )  # fmt: skip
    assert four == ranges("scratch", "accuracy", *early)

    assert all(min(both("scratch", "accuracy", each)) > 0 for each in sparse)
    assert all(min(leads("scratch", "accuracy", each, "mnist")) > 0 for each in sparse)
    two = said(page, r"on MNIST, by ([\d.]+) with k = 2 and ([\d.]+) with k = 3\.")
    assert two == [lead("scratch", "accuracy", each, "mnist") for each in sparse[:2]]
    two = said(
        page, r"from scratch it ends ([\d.]+) behind, on MNIST ([\d.]+), most of it with one"
    )
    assert two == lost("scratch", "accuracy", "accuracy")
    for dataset in SETS:
        each = leads("scratch", "accuracy", "accuracy", dataset)
        assert min(each) < 0.5 * sum(each)
    two = said(
        page, r"it is ([\d.]+) behind with each of the seeds, on MNIST ([\d.]+) in the mean, and",
    )  # fmt: skip
    assert two == lost("after", "accuracy", "accuracy")
    assert max(leads("after", "accuracy", "accuracy", "digits")) < 0
    (most,) = said(page, r"no loss but AM-softmax gains more than ([\d.]+) on either\.")
    for dataset in SETS:
        after = {each: lead("after", "accuracy", each, dataset) for each in LOSSES.values()}
        assert sorted(after.values())[-2] <= most < after["am-softmax"]

    gains = said(
        page, r"with each of the seeds, by ([\d.]+) and ([\d.]+) on the digits and by ([\d.]+) and",
        r"([\d.]+) on MNIST: a row whose",
    )  # fmt: skip
    assert gains == [-each for each in lost("noisy", "accuracy", *bounded)]
    assert all(min(leads("noisy", "accuracy", m, d)) > 0 for m, d in product(bounded, SETS))
    one, least, other, worst, left = said(
        page, r"k = 2 loses ([\d.]+), at least ([\d.]+) with each of the seeds, and on MNIST",
        r"([\d.]+), at least ([\d.]+), which leaves ([\d.]+):",
    )  # fmt: skip
    assert [one, other] == lost("noisy", "accuracy", "sparse-2")
    ends = [-round(max(leads("noisy", "accuracy", "sparse-2", dataset)), 3) for dataset in SETS]
    assert [least, worst] == ends
    assert left == round(fmean(found["mnist", "noisy", "sparse-2"]["accuracy"]), 2)
    assert all(min(both("noisy", "accuracy", each)) > 0 for each in sparse[1:])
    two = said(page, r"is before cross-entropy with each of the seeds, by ([\d.]+) and ([\d.]+)\.")
    assert two == both("noisy", "accuracy", "taylor")
    assert all(min(leads("noisy", "accuracy", "taylor", dataset)) > 0 for dataset in SETS)
    two = said(
        page, r"AM-softmax loses ([\d.]+) and ε-cross-entropy ([\d.]+); on MNIST, neither does"
    )
    assert two == [-lead("noisy", "accuracy", each, "digits") for each in ("am-softmax", "epsilon")]
    assert min(lead("noisy", "accuracy", e, "mnist") for e in ("am-softmax", "epsilon")) > -0.005

    gap, sure = said(
        page, r"labels is ([\d.]+) less sure than it is right, and on MNIST as sure \(−([\d.]+)\)"
    )
    assert [-gap, -sure] == over("scratch", "cross-entropy")
    (near,) = said(page, r"softmax differs from it by at most ([\d.]+)\.")
    assert max(abs(x) for each in sparse for x in both("scratch", "over", each)) <= near
    three = said(page, r"bounded losses, by ([\d.]+) and ([\d.]+), and AM-softmax, by ([\d.]+)\.")
    assert three == [over("scratch", each)[1] for each in (*bounded, "am-softmax")]
    four = said(
        page, r"sure as a label is right, ([\d.]+) to ([\d.]+) on the digits and ([\d.]+) to",
        r"([\d.]+) on MNIST, against 0\.55, which is far below their accuracy but for k = 2 on",
    )  # fmt: skip
    confidence = {dataset: [] for dataset in SETS}
    for (dataset, task, method), each in found.items():
        if task == "noisy" and method not in (*bounded, "am-softmax"):
            mean = fmean(map(sum, zip(each["accuracy"], each["over"], strict=True)))
            confidence[dataset].append(round(mean, 2))
            assert (fmean(each["over"]) < -0.15) == ((dataset, method) != ("mnist", "sparse-2"))
    assert four == [end(each) for each in confidence.values() for end in (min, max)]
    three = said(
        page, r"labels were right, \+([\d.]+) on the digits, \+([\d.]+) and \+([\d.]+) on MNIST",
    )  # fmt: skip
    (one, two), (same, third) = (over("noisy", each) for each in bounded)
    assert (one, [one, two, third]) == (same, three)
    means = said(page, r"from scratch it loses ([\d.]+) on the digits and ([\d.]+) on MNIST,")
    assert means == lost("scratch", "accuracy", "epsilon")
    worst = said(page, r"with one seed each by at least ([\d.]+) and ([\d.]+)\.")
    for dataset, least in zip(SETS, worst, strict=True):
        assert -min(leads("scratch", "accuracy", "epsilon", dataset)) >= least


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


def test_what_is_said_of_what_learns_through_samples():
    found = json.loads((DOCS / "results" / "curves.json").read_text(encoding="utf-8"))
    page = PAGES["estimators_examples.md"]

    def values(name, way, half=False):
        return [each[len(each) // 2 - 1 if half else -1][1] for each in found[name][way]]

    def leads(name, way, other, half=False):
        """By how much each seed of a way is before the same seed of the other."""
        both = values(name, way, half), values(name, other, half)
        return [one - two for one, two in zip(*both, strict=True)]

    def open_ended(*of):
        return min(leads(*of)) <= 0 <= max(leads(*of))

    vae = [("normal_rsample, 4 samples",), ("normal_rsample",)]
    vae = [leads("normal_vae", *each, "leave_one_out, 4 samples") for each in vae]
    assert min(map(min, vae)) > 0
    by = said(
        page, r"each of the seeds: by ([\d.]+) in the mean with four samples, and by ([\d.]+)"
    )
    assert by == [round(fmean(each), 1) for each in vae]

    said(
        page, "no way is before or behind `labels only` with each of the seeds, and all are within"
    )
    first, *others = found["few_labels"]
    for way in others:
        gaps = leads("few_labels", way, first)
        assert min(gaps) < 0 < max(gaps)
        assert abs(fmean(gaps)) < spread(values("few_labels", first))[1]

    said(page, "both baselines are before none with each of the seeds,")
    first, *others = found["sequence_policy"]
    assert all(min(leads("sequence_policy", way, first, True)) > 0 for way in others)
    said(page, "the mean of past rewards is no worse than the other samples of the same example")
    assert min(leads("sequence_policy", *others, True)) > 0
    said(page, "In the end, the three are within three hundredths of each other")
    ends = [fmean(values("sequence_policy", way)) for way in (first, *others)]
    assert max(ends) - min(ends) < 0.03

    warm, *others = found["messages"]
    lost = [leads("messages", warm, way) for way in others]
    assert min(map(min, lost[:2])) > 0
    by = said(page, r"with each of the seeds, by ([\d.]+) and ([\d.]+) in the mean, although")
    by += said(page, r"are ([\d.]+) behind T = 1, and no better or worse than the others with each")
    assert by == [round(fmean(each), 3) for each in lost]
    cooled, hard, scored = others
    assert open_ended("messages", cooled, scored)
    assert open_ended("messages", hard, scored)
    spreads = {way: spread(values("messages", way))[1] for way in found["messages"]}
    assert max(spreads, key=spreads.get) == hard
    said(page, "training is slower, and hard ones have the largest spread")
    assert all(fmean(leads("messages", warm, way, True)) > 0 for way in (cooled, hard))

    *tails, bounded = found["five_noises"]
    gains = [leads("five_noises", bounded, noise) for noise in tails]
    assert min(map(min, gains)) > 0
    (least,) = said(page, r"each other one with each of the seeds, and by at least ([\d.]+) in the")
    assert least == round(min(map(fmean, gains)), 1)
    (by,) = said(page, r"normal noise is behind Laplace noise with each of the seeds, by ([\d.]+)")
    ahead = leads("five_noises", "laplace", "normal")
    assert min(ahead) > 0
    assert by == round(fmean(ahead), 1)
    said(page, "no other two differ with each of the seeds")
    for pair in set(combinations(tails, 2)) - {("normal", "laplace")}:
        assert open_ended("five_noises", *pair)


# --- bits ---


def test_the_table_of_bits():
    assert table_of_bits.PART.text == table_of_bits.table()
    rows = [f"{way} {budget:g}" for way, budget in table_of_bits.example().ROWS]
    assert [*table_of_bits.measured()] == rows
    assert all(
        len(runs) == len(table_of_bits.SEEDS) == 5 for runs in table_of_bits.measured().values()
    )


def test_what_is_said_of_bits():
    page = PAGES["maps_knapsack.md"]
    found = {}
    for name, runs in table_of_bits.measured().items():
        spent, right, layers = zip(*runs, strict=True)
        found[name] = SimpleNamespace(spent=fmean(spent), right=right, layers=layers)

    def leads(one, other):
        """By how much each seed is before the same seed of the other."""
        return [x - y for x, y in zip(found[one].right, found[other].right, strict=True)]

    def lost(one, other="full 32"):
        return -round(fmean(leads(one, other)), 3)

    ways = ("measured", "learned")
    said(
        page, "The large layer has one bit with every seed, and most bits are at the first layer or"
    )
    for name, each in found.items():
        if name.startswith(ways):
            assert all(bits[2] == 1 and max(bits) in (bits[0], bits[3]) for bits in each.layers)
    assert [round(found[f"{way} 1.25"].spent, 2) for way in ways] == pytest.approx(
        [1.12] * 2, abs=0.011
    )
    by = said(page, r"learned bits lose ([\d.]+) and ([\d.]+) to full precision in the mean,")
    assert by == [lost(f"{way} 1.25") for way in ways]
    assert said(page, r"where one bit for all loses ([\d.]+);") == [lost("uniform 1")]
    said(
        page,
        "learned ones are behind one bit for all with none of the seeds, measured ones with two",
    )
    behind = [sum(lead < 0 for lead in leads(f"{way} 1.25", "uniform 1")) for way in ways]
    assert behind == [2, 0]
    (most,) = said(page, r"level with two for all, to ([\d.]+) in the mean")
    assert max(abs(lost(f"{way} 1.5", "uniform 2")) for way in ways) == most
    said(page, "at no budget is it ahead with each of the seeds")
    assert all(min(leads(f"learned {b}", f"measured {b}")) <= 0 for b in ("1.25", "1.5", "2"))
    by = said(page, r"Two bits for all are ([\d.]+) behind full precision, and three ([\d.]+)\.")
    assert by == [lost("uniform 2"), lost("uniform 3")]
    said(page, "a budget of 2 is spent to three quarters")
    assert all(0.7 < found[f"{way} 2"].spent / 2 < 0.8 for way in ways)


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


# --- units of pruning ---

UNITS = {
    "single weights": "single",
    "blocks of 4 × 1": "blocks",
    "channels, by weights": "channels",
    "channels, by number": "channels-k",
}
SHARES = ("0.5", "0.8", "0.95")


def units(model):
    """Accuracy and weights of every seed, by the unit and the share that is removed."""
    settings, results = stored("prune_units")
    found = {}
    for run in results:
        network, method, removed, seed = run["key"]
        if network == model:
            found.setdefault((method, removed), {})[seed] = run["measured"]
    assert all([*each] == [*range(settings["seeds"])] for each in found.values())
    return {key: [*zip(*each.values(), strict=True)] for key, each in found.items()}


@pytest.mark.parametrize(("model", "nth"), [("mlp", 0), ("cnn", 1)])
def test_the_tables_of_units_of_pruning(model, nth):
    head = "| Removed |"
    before, after = PAGES["nn_pruning.md"].split(head)[nth : nth + 2]
    found, rows = units(model), table(head + after, head)
    assert rows.keys() == UNITS.keys()
    for label, cells in rows.items():
        for removed, cell in zip(SHARES, cells.values(), strict=True):
            right, kept = found[UNITS[label], removed]
            assert cell == f"{shown(right)} ({fmean(kept):,.0f})", (label, removed)
    right, kept = found["dense", "0"]
    stated = f"dense, it is {shown(right)} with {kept[0]:,} weights:"
    assert " ".join(before.split()).endswith(stated)


def test_what_is_said_of_units_of_pruning():
    page = PAGES["nn_pruning.md"]
    found = {model: units(model) for model in ("mlp", "cnn")}

    def leads(model, removed, method, other):
        """By how much each seed of a unit is before the same seed of the other."""
        both = (found[model][each, removed][0] for each in (method, other))
        return [one - two for one, two in zip(*both, strict=True)]

    for model, removed in product(found, SHARES[:2]):
        assert abs(fmean(leads(model, removed, "single", "blocks"))) < 0.004
    (lost,) = said(page, r"At 95 % they are ([\d.]+) behind, in the perceptron with each of")
    for model in found:
        assert lost == round(fmean(leads(model, "0.95", "single", "blocks")), 3)
    assert min(leads("mlp", "0.95", "single", "blocks")) > 0
    (most,) = said(page, r"single weights at 50 %, within ([\d.]+) in the mean")
    assert all(abs(fmean(leads(model, "0.5", "single", "channels-k"))) < most for model in found)
    lost = said(
        page, r"seeds, by ([\d.]+) in the perceptron and ([\d.]+) in the convolutional network,"
    )
    assert lost == [round(fmean(leads(m, "0.8", "single", "channels-k")), 3) for m in found]
    assert all(min(leads(model, "0.8", "single", "channels-k")) > 0 for model in found)
    shares = said(page, r"but they have ([\d.]+) and ([\d.]+) % of the weights that single ones")
    left = [[fmean(f[m, "0.8"][1]) for m in ("channels-k", "single")] for f in found.values()]
    assert shares == [round(100 * one / other) for one, other in left]
    said(page, "keep more weights and are worse: at 80 and 95 %, behind those by number with each")
    for model, removed in product(found, SHARES[1:]):
        assert min(leads(model, removed, "channels-k", "channels")) > 0
        one, other = (fmean(found[model][m, removed][1]) for m in ("channels", "channels-k"))
        assert one > other


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


def test_what_is_said_of_means_far_from_0():
    settings, of = measured(Autoencoders, "sae", "sae_means")
    page = PAGES["nn_autoencoders.md"]
    page = page[page.index("## Means far from 0") :]
    keys = product(settings["tasks"], settings["methods"])
    found = {key: of(task=key[0], method=key[1]) for key in keys}
    assert all(len(runs) == 5 for runs in found.values())

    def values(mean, method, name="explained"):
        return [getattr(each, name) for each in found[f"mean-{mean}", method]]

    def leads(mean, method, other):
        """By how much more each seed of a method explains than the same seed of the other."""
        return [x - y for x, y in zip(values(mean, method), values(mean, other), strict=True)]

    started = {"topk": "topk-initialized", "kofn-token": "kofn-token-initialized"}
    said(page, "three deviations cost TopK a third of what is explained, and at ten nearly all of")
    lost = 1 - fmean(values(3, "topk")) / fmean(values(0, "topk"))
    assert round(3 * lost, 1) == 1.0
    assert min(values(10, "topk", "dead")) > 0.97
    said(page, "brings most of them back at three deviations, and less than half at ten")
    for mean, low, high in ((3, 0.5, 1), (10, 0, 0.5)):
        dead = (fmean(values(mean, each, "dead")) for each in ("kofn-token", "topk"))
        kept, were = dead
        assert low < 1 - kept / were < high
    (more,) = said(
        page, r"There it explains ([\d.]+) more, with each of the seeds, but at three no"
    )
    assert more == round(fmean(leads(10, "kofn-token", "topk")), 3)
    assert min(leads(10, "kofn-token", "topk")) > 0 > min(leads(3, "kofn-token", "topk"))
    (gain,) = said(
        page, r"The auxiliary loss gains ([\d.]+) at three, with each of the seeds, and nothing"
    )
    assert gain == round(fmean(leads(3, "topk-auxk", "topk")), 3)
    assert min(leads(3, "topk-auxk", "topk")) > 0 > fmean(leads(10, "topk-auxk", "topk"))
    dead = (round(fmean(values(10, each, "dead")), 2) for each in ("topk-auxk", "topk"))
    assert len({*dead}) == 1
    (apart,) = said(page, r"three means are alike, to ([\d.]+) with each of the seeds,")
    gains = said(page, r"its scale gains ([\d.]+) and ([\d.]+) after so few steps")
    for method, gain in zip(started, gains, strict=True):
        seeds = zip(*(values(mean, started[method]) for mean in (0, 3, 10)), strict=True)
        assert max(max(each) - min(each) for each in seeds) <= apart
        ahead = leads(0, started[method], method)
        assert min(ahead) > 0
        assert gain == round(fmean(ahead), 3)
    said(page, "the few of TopK after `initialize` it brings back, too")
    for mean in (0, 3, 10):
        assert fmean(values(mean, started["topk"], "dead")) > 0
        assert not any(values(mean, started["kofn-token"], "dead"))


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
    cases = [f"{n:,} × {n:,} | {t:g}" for n in assignment.SIZES for t in assignment.TEMPERATURES]
    short = [f"T = {t:g}" for t in assignment.TEMPERATURES]
    for head, names, numbers in ((assignment.HEAD, cases, 4), (assignment.SHORT_HEAD, short, 3)):
        rows = page.partition("\n".join(head) + "\n")[2].partition("\n\n")[0].splitlines()
        assert [row.strip("| ").rsplit(" | ", numbers)[0] for row in rows] == names
        assert assignment.written(page, head, rows) == page
        assert assignment.written(page, head, rows[1:]) == page.replace(rows[0] + "\n", "")


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
