"""What README and pages say of times on a CPU, from what `make bench` has written.

`python -m benchmarks.published` prints it, and with --write the pages take it, as `make docs` does;
a test holds the pages to the files in benchmarks/results: bench.json, of the processor's own level,
avx2/bench.json, where there is one, and calls/bench.json, of small calls. Each names the threads,
the level and the commit.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
FILES = {
    "own": RESULTS / "bench.json",
    "avx2": RESULTS / "avx2" / "bench.json",
    "calls": RESULTS / "calls" / "bench.json",
}
LEVELS = [level for level, file in FILES.items() if level != "calls" and file.exists()]
BEGIN = "<!-- times: python -m benchmarks.published --write ({name}) -->"
END = "<!-- /times -->"
CASE = "attention", "float32"
NEWTON = "sigmoid and your own Newton steps, compiled"
WAYS = {
    "`kofn.soft_topk`": "soft_topk, logistic",
    "`kofn.soft_topk(hard=True)`": "soft_topk, hard",
    "`torch.topk`, straight-through": "torch.topk, straight-through",
    "sigmoid and your own bisection": "sigmoid, bisected",
    NEWTON: "sigmoid, Newton, compiled",
    "`kofn.sparsemax`": "sparsemax",
    "`sparsemax` of the entmax package": "entmax.sparsemax",
}
"""README's rows, and what `kofn bench` calls them."""
TIME = 5
"""The column of the times."""
SHAPES = ("router", "attention", "vocabulary", "pruning")

Passes = tuple[float, ...]


@cache
def results(level: str = "own") -> dict[str, Any]:
    """Return what a file holds."""
    kept: dict[str, Any] = json.loads(FILES[level].read_text(encoding="utf-8"))
    return kept


def cases(name: str, dtype: str = "float32", level: str = "own") -> list[dict[str, Any]]:
    """Return the results of a case, one for each of its shapes."""
    every = results(level)["results"]
    return [each for each in every if (each["case"], each["dtype"]) == (name, dtype)]


def ratios(result: dict[str, Any]) -> dict[str, Passes]:
    """Return medians of each function that was timed, in softmaxes: forward, and both passes."""
    found = {each["name"]: each["ratio_to_softmax"].values() for each in result["contenders"]}
    return {name: tuple(map(statistics.median, passes)) for name, passes in found.items() if passes}


def milliseconds(result: dict[str, Any]) -> dict[str, Passes]:
    """Return the same as milliseconds."""
    return {
        each["name"]: tuple(1e3 * statistics.median(one) for one in each["seconds"].values())
        for each in result["contenders"]
        if each["seconds"]
    }


def said(passes: Iterable[float], between: str = ", ") -> str:
    """Write times: with one decimal, as whole numbers from ten on."""
    return between.join(f"{one:.0f}" if one >= 9.95 else f"{one:.1f}" for one in passes)


def machine(level: str = "own") -> str:
    """Say on what, and of which commit, the times of a file are."""
    about = results(level)["machine"]
    return (
        f"{threads(level)}; "
        f"kofn {about['commit']}, PyTorch {about['torch']} ({about['level_of_torch']})"
    )


def threads(level: str = "own") -> str:
    about = results(level)["machine"]
    several = f"{about['threads']} threads" if about["threads"] > 1 else "one thread"
    return f"{several} of an {about['processor']}, {about['level']}"


def shape(result: dict[str, Any]) -> str:
    rows, n = result["shape"]
    return f"{rows:,} × {n:,}, k = {result['k']:,}"


def rows_of(name: str) -> dict[str, str]:
    """Return the functions of kofn in a case, as a table names them, and their names there."""
    every = cases(name)[0]["contenders"]
    framework = "jax" if name == "jax" else "torch"
    found = [each["name"] for each in every if each["group"] == "kofn"]
    of = {each["name"]: each["framework"] for each in every}
    return {_shown(name): name for name in found if of[name] == framework}


def _shown(name: str) -> str:
    function, comma, rest = name.removesuffix(" (JAX)").partition(", ")
    return f"`{function}`{comma}{rest}"


def maps() -> Iterator[str]:
    """Yield the table of maps, of each shape with the processor's own level, and with AVX2."""
    every = [[cases(name, level=level)[0] for level in LEVELS] for name in SHAPES]
    yield f"| | {' | '.join(shape(own) for own, *_ in every)} |"
    yield "| --- |" + " ---: |" * len(every)
    base = [[milliseconds(one)["torch.softmax"] for one in both] for both in every]
    cells = [[", ".join(f"{one:.2f}" for one in passes) for passes in both] for both in base]
    yield f"| `torch.softmax`, in ms | {' | '.join(map(_levels, cells))} |"
    found = [[ratios(one) for one in both] for both in every]
    for shown, name in {**rows_of("attention"), "`torch.topk`": "torch.topk"}.items():
        if all(name in one for both in found for one in both):
            cells = [[said(one[name]) for one in both] for both in found]
            yield f"| {shown} | {' | '.join(map(_levels, cells))} |"
    yield ""
    for level in LEVELS:
        yield f"*{'In brackets: ' * (level != 'own')}{machine(level)}.*"


def _levels(cells: list[str]) -> str:
    return cells[0] + "".join(f" ({cell})" for cell in cells[1:])


def jax() -> Iterator[str]:
    """Yield the table of maps of JAX arrays."""
    every = [cases("jax", level=level)[0] for level in LEVELS]
    yield f"| JAX, {shape(every[0])} | in `jax.nn.softmax` |"
    yield "| --- | ---: |"
    for shown, name in rows_of("jax").items():
        yield f"| {shown} | {_levels([said(ratios(one)[name]) for one in every])} |"


def half() -> Iterator[str]:
    """Yield the table of half precision."""
    every = [cases("half", dtype)[0] for dtype in ("bfloat16", "float16")]
    yield f"| {shape(every[0])} | bfloat16 | float16 |"
    yield "| --- | ---: | ---: |"
    for name in ratios(every[0]):
        if not name.startswith("torch"):
            yield f"| {_shown(name)} | {' | '.join(said(ratios(one)[name]) for one in every)} |"


def compiled() -> Iterator[str]:
    """Yield the table of eager and compiled calls, in milliseconds."""
    (case,) = cases("compile")
    found = milliseconds(case)
    yield f"| {shape(case)}, in ms | eager | compiled |"
    yield "| --- | ---: | ---: |"
    for name, eager in found.items():
        if f"{name}, compiled" in found:
            both = (eager, found[f"{name}, compiled"])
            cells = (", ".join(f"{one:.2f}" for one in passes) for passes in both)
            yield f"| {_shown(name)} | {' | '.join(cells)} |"


def calls() -> Iterator[str]:
    """Yield the table of small calls, in softmaxes of one thread."""
    every = cases("calls", level="calls")
    shown = (f"{rows} × {n}" for rows, n in (each["shape"] for each in every))
    yield f"| k = {every[0]['k']} | {' | '.join(shown)} |"
    yield "| --- |" + " ---: |" * len(every)
    base = [milliseconds(each)["torch.softmax"] for each in every]
    cells = (said(1e3 * one for one in passes) for passes in base)
    yield f"| `torch.softmax`, in µs | {' | '.join(cells)} |"
    found = [ratios(each) for each in every]
    for name in found[0]:
        if name != "torch.softmax":
            shown_name = name if name.startswith("linear") else _shown(name)
            yield f"| {shown_name} | {' | '.join(said(one[name]) for one in found)} |"
    yield ""
    yield f"*{machine('calls')}.*"


def losses() -> Iterator[str]:
    """Yield the table of losses, in softmaxes of float32 and bfloat16."""
    every = [cases("losses", dtype)[0] for dtype in ("float32", "bfloat16")]
    k = every[0]["k"]
    of = {"topk_loss": f"{k} labels", "topk_cross_entropy": "k = 5"}
    of |= dict.fromkeys(("sparse_softmax_loss", "log_soft_topk", "sparse_softmax"), f"k = {k}")
    rows, n = every[0]["shape"]
    yield f"| {rows} × {n:,} | float32 | bfloat16 |"
    yield "| --- | --- | --- |"
    for name in ratios(every[0]):
        if name == "torch.softmax":
            continue
        shown = "PyTorch's `cross_entropy`" if name.startswith("F.") else f"`{name}`"
        shown += f", {of[name]}" if name in of else ""
        cells = ("× / ".join(said([one]) for one in ratios(each)[name]) for each in every)
        yield f"| {shown} | {' | '.join(f'{cell}×' for cell in cells)} |"


def balance() -> Iterator[str]:
    """Yield the table of what balancing costs, in times of the same router without."""
    every = cases("balance")
    found = [milliseconds(each) for each in every]
    yield "| | " + " | ".join(f"{each['shape'][1]} experts" for each in every) + " |"
    yield "| --- |" + " ---: |" * len(every)
    plain = [said(each["no balance"]) for each in found]
    yield f"| without, in ms | {' | '.join(plain)} |"
    for name in found[0]:
        if name not in ("torch.softmax", "no balance"):
            shown = "the same, `bins=1000`" if name.startswith("the same") else f"`{name}`"
            pairs = [zip(each[name], each["no balance"], strict=True) for each in found]
            cells = (said(one / base for one, base in pair) for pair in pairs)
            yield f"| {shown} | {' | '.join(cells)} |"


def segments() -> Iterator[str]:
    """Yield the table of ragged rows, in softmaxes of as many scores."""
    (case,) = cases("segments")
    rows, n = case["shape"]
    of = {
        "equal ptr": f"segments of {n}",
        "uneven ptr": f"of {n // 2} to {n + n // 2}",
        "hub ptr": f"of {n - n // 4}, and a hub of {rows * n - (rows - 1) * (n - n // 4):,}",
        "sorted ids": f"of {n // 2} to {n + n // 2}, by ids",
        "unsorted ids": "the same, unsorted",
    }
    yield "| | forward | with backward |"
    yield "| --- | ---: | ---: |"
    for name, passes in ratios(case).items():
        if name != "torch.softmax":
            function, _, kind = name.partition(", ")
            shown = f"`{function}`" if "_" in function else function
            yield f"| {shown}, {of.get(kind, kind)} | {' | '.join(said([one]) for one in passes)} |"


TABLES: dict[str, tuple[str, Callable[[], Iterable[str]]]] = {
    "maps": ("docs/speed.md", maps),
    "jax": ("docs/speed.md", jax),
    "half": ("docs/speed.md", half),
    "compile": ("docs/speed.md", compiled),
    "calls": ("docs/speed.md", calls),
    "losses": ("docs/losses.md", losses),
    "balance": ("docs/nn_router.md", balance),
    "segments": ("docs/maps_segments.md", segments),
}
"""The page of each table, between BEGIN with its name and END."""


def span(*names: str, passes: slice = slice(None)) -> str:
    """Say from where to where maps go, in softmaxes of the cases that are named."""
    own = [name for name in rows_of("attention").values() if not name.endswith("hard")]
    every = [ratios(cases(name)[0]) for name in names]
    found = [one for each in every for map_ in own for one in each[map_][passes]]
    return f"{said([min(found)])} to {said([max(found)])}"


FORWARD, BOTH = slice(1), slice(1, 2)
LONG = SHAPES[1:]
SENTENCES: dict[str, dict[str, Callable[[], str]]] = {
    "README.md": {
        r"At a length of 64, it takes (.*?) softmaxes": lambda: span("router"),
        r"so (.*?) is that many softmaxes": lambda: times()["`kofn.soft_topk`"],
        r"k = 32, float32, on (.*?) \(`kofn": threads,
    },
    "docs/speed.md": {
        r"takes the time of (.*?) softmaxes for rows of": lambda: span(*LONG, passes=FORWARD),
        r"thousand entries or more, and of (.*?) with": lambda: span(*LONG, passes=BOTH),
        r"For rows of 64 it takes (.*?)\.\n\n": lambda: span("router"),
    },
    "docs/coming_from/entmax.md": {
        r"`kofn.sparsemax` takes (.*?) softmaxes": lambda: both_of("`kofn.sparsemax`"),
        r"the package's (.*?) \(": lambda: both_of("`sparsemax` of the entmax package"),
    },
}
"""Figures within sentences: what a pattern's group holds on a page, and what it must hold."""


def both_of(shown: str) -> str:
    return times()[shown].replace(", ", " and ")


def times() -> dict[str, str]:
    """Return both times of each row of README, in softmaxes."""
    medians = ratios(cases(*CASE)[0])
    return {shown: said(medians.get(name, ())) for shown, name in WAYS.items()}


def written(name: str, page: str) -> str:
    """Return a page with its times."""
    for table, (where, lines) in TABLES.items():
        if where == name:
            begin = BEGIN.format(name=table)
            before, place, rest = page.partition(begin)
            if not place:
                raise ValueError(f"{name} has no place for the table {table!r}")
            after = rest.partition(END)[2]
            page = f"{before}{begin}\n\n" + "\n".join(lines()) + f"\n\n{END}{after}"
    for pattern, what in SENTENCES.get(name, {}).items():
        found = re.search(pattern.replace(" ", r"\s+"), page)
        if found is None:
            raise ValueError(f"{name} has no sentence {pattern!r}")
        page = page[: found.start(1)] + what() + page[found.end(1) :]
    return _with_ways(page) if name == "README.md" else page


def _with_ways(page: str) -> str:
    for shown, both in times().items():
        row = re.search(rf"^\|[ *]*{re.escape(shown)}[ *]*\|.*$", page, re.MULTILINE)
        if row is None:
            raise ValueError(f"README has no row {shown!r}")
        cells = row[0].split("|")
        cells[TIME] = f" {both} " if both else " "
        page = page.replace(row[0], "|".join(cells))
    return page


PAGES = {*SENTENCES, *(page for page, _ in TABLES.values())}


def main(arguments: list[str]) -> None:
    for name in sorted(PAGES):
        page = ROOT / name
        text = written(name, page.read_text(encoding="utf-8"))
        if "--write" in arguments:
            page.write_text(text, encoding="utf-8")
    for table, (where, lines) in TABLES.items():
        print(f"{where}, {table}:", *lines(), sep="\n")
    print(*(f"{name}: {both}" for name, both in times().items()), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
