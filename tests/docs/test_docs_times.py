"""Times on pages are those of benchmarks/results, which a quiet machine wrote."""

import re
import sys

import pytest
import torch

from benchmarks import published
from benchmarks.gpu.published import rivals, roads
from kofn.commands.bench import report
from places import ROOT


@pytest.mark.parametrize("name", sorted(published.PAGES))
def test_times_on_pages_are_those_of_the_benchmark(name):
    page = (ROOT / name).read_text(encoding="utf-8")
    assert published.written(name, page) == page
    for table, (where, lines) in published.TABLES.items():
        begin = published.BEGIN.format(name=table)
        if where == name:
            (row,) = [*lines()][2:3]
            assert row in page.partition(begin)[2]
            damaged = page.replace(row, re.sub(r"\d", "7", row) + "7")
            assert published.written(name, damaged) == page


def test_times_of_the_readme_are_written_row_by_row():
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    assert published.written("README.md", page.replace("exact | yes | ", "exact | yes | 1")) == page
    with pytest.raises(ValueError, match="has no row"):
        published.written("README.md", page.replace("`kofn.sparsemax`**", "`kofn.sparse`**"))
    with pytest.raises(ValueError, match="has no sentence"):
        published.written("README.md", page.replace("At a length of 64", "At a length"))


@pytest.mark.parametrize("level", published.LEVELS)
def test_the_results_name_level_threads_and_commit_and_no_machine_was_busy(level):
    found = published.results(level)
    about = found["machine"]
    assert about["threads"] >= 1
    assert re.fullmatch("[0-9a-f]{10}", about["commit"])
    assert re.fullmatch(r"x86-64-v\d", about["level"])
    if level == "avx2":
        assert (about["level"], about["level_of_torch"]) == ("x86-64-v3", "AVX2")
    assert max(each["softmax_over_its_best"] for each in found["results"]) < report.BUSY


def test_what_the_readme_says_of_a_gpu_is_in_the_tables_of_the_gpu():
    def rows(lines):
        cells = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in lines]
        return {name: rest for name, *rest in cells}

    page = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    (ours, its), (softmax, alone) = (
        rows(roads())[name][-2:] for name in ("soft_topk", "torch.softmax")
    )
    assert f"scores takes {ours} µs, of which the GPU needs {its}; `torch.softmax` takes" in page
    assert f"`torch.softmax` takes {softmax} and {alone} (" in page
    large = [rows(rivals())[name][-1].split(", ")[0] for name in ("torch.topk", "entmax.sparsemax")]
    assert "where `torch.topk` is {} and the entmax package {} (".format(*large) in page


def test_what_the_readme_says_of_divided_gates_is_what_the_guide_prints():
    page = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    guide = (ROOT / "docs" / "guides" / "route_experts.md").read_text(encoding="utf-8")
    shares = dict(re.findall(r"k = 2, scores of deviation (\S+): (\S+) % of the gradient", guide))
    share = f"{float(shares['0.1']):.1f} %"
    said = f"get {share} of their gradient where scores have a deviation of 0.1"
    assert f"{said}, and {shares['0.001']} % at 0.001" in page


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
def test_the_derivatives_that_the_readme_counts_are_those_that_are_right():
    sys.path.insert(0, str(ROOT / "docs"))
    import compare_ways

    page = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = {
        cells[1].strip(" *`"): cells[-2].split()[0]
        for line in page[page.index("| | its weights |") :].splitlines()[2:]
        if len(cells := line.split("|")) == 9
    }
    named = {
        "torch.topk`, straight-through": "torch.topk, straight-through",
        "sigmoid and your own bisection": "sigmoid, bisected",
        "sigmoid and your own Newton steps, compiled": "sigmoid, Newton, compiled",
        "sparsemax` of the entmax package": "entmax.sparsemax (k = 1)",
    }
    short = torch.linspace(-1, 1, 12)[torch.randperm(12, generator=torch.Generator())] * 1.37
    c = torch.linspace(0.5, -0.7, 12).cos() * torch.tensor([1.0, -1.0]).repeat(6)
    for shown, count in rows.items():
        way, oracle = compare_ways.WAYS[named.get(shown, f"kofn.{shown.removeprefix('kofn.')}")]
        truth = compare_ways.truths(oracle, short.double().numpy(), c.double().numpy())
        every = compare_ways.transforms(way, c).items()
        marks = [compare_ways.verdict(run, short, truth[name]) for name, run in every]
        assert marks.count("right") == int(count), shown
