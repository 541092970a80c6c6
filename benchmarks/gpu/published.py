"""What docs/platforms.md and README say of times on a GPU, from benchmarks/results.

`python -m benchmarks.gpu.published` prints it, and with --write the pages take it; a test holds the
pages to the files. gpu-shapes.jsonl is of `python -m benchmarks.gpu.shapes`, gpu-router.json the
case "router" of `make gpu`; README has a part of the table that benchmarks.gpu.counted writes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PAGE, README = ROOT / "docs" / "platforms.md", ROOT / "README.md"
BEGIN = "<!-- times: python -m benchmarks.gpu.published --write -->"
END = "<!-- /times -->"
RIVALS = (
    *("torch.topk", "torch.sort", "sigmoid, bisected", "sparsemax, sorted"),
    *("entmax.sparsemax", "entmax.entmax15", "entmax.entmax_bisect", "liger_sparsemax"),
)

ROADS = {
    "torch.softmax": "PyTorch's kernel",
    "soft_topk": "a kernel of kofn",
    "sparsemax": "a kernel of kofn",
    "soft_topk, hard": "two kernels of kofn",
    "topk": "PyTorch's sort",
    "topk_gates": "two kernels of kofn",
    "sparsemax_loss": "two kernels of kofn, and the mean",
    "log_soft_topk": "two kernels of kofn",
    "KSubset.marginals": "kernels of kofn",
    "TopKRouter, balance": "kernels of kofn, and the bias",
    "TopKSAE": "kernels of kofn, and the errors",
    "quantile": "a kernel of kofn",
    "soft_knapsack": "a kernel of kofn",
    "segment_soft_topk": "array code that waits for the host",
    "soft_assignment": "kernels of kofn, which the host asks once a pass",
}
"""What runs on a GPU, as README says it."""

ANEW = frozenset(
    {
        *("soft_topk, k and T learned", "taylor_softmax", "quantile, temperature", "topk_gates"),
        *("soft_topk, hard", "soft_topk_sum", "log_soft_topk", "log_entmax"),
        *("hard_topk", "softmax_loss", "sparsemax_loss", "entmax_loss", "accuracy_loss"),
        *("epsilon_cross_entropy", "topk_cross_entropy", "topk_loss", "fenchel_young_loss"),
        *("am_softmax", "arcface", "projection_sparse_simplex", "projection_sparse_vector"),
        *("metrics.hard_gap", "sparse_softmax", "sparse_softmax, p", "sparse_softmax_loss"),
        *("quantile", "soft_knapsack", "soft_knapsack, costs fixed", "soft_knapsack, hard"),
        *("soft_knapsack_threshold", "soft_knapsack_value"),
        *("soft_assignment", "soft_assignment, hard", "soft_assignment_prices"),
        *("temperature_for", "TopKRouter, assignment"),
    }
)
"""Functions that took another road when their times were measured; empty after `make gpu`."""


def roads() -> Iterator[str]:
    """Yield the lines of README's table: what computes a function, in how many launches."""
    yield "| | computed by | launches, both passes | bytes, both passes | µs | in a graph |"
    yield "| --- | --- | ---: | ---: | ---: | ---: |"
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 10 and cells[0] in ROADS:
            both = [f"{cells[1 + i]}, {cells[4 + i]}".removesuffix(", ") for i in range(2)]
            yield f"| `{cells[0]}` | {ROADS[cells[0]]} | {' | '.join([*both, *cells[8:]])} |"


def kernels() -> Iterator[str]:
    """Yield the lines of a table: the kernels in the shapes that launch.py takes."""
    from kofn.kernels.gpu.rows.launch import shape_of

    lines = (RESULTS / "gpu-shapes.jsonl").read_text(encoding="utf-8").splitlines()
    found = [json.loads(line) for line in lines]
    yield "| Row | a copy | `torch.softmax` | logistic | its way back | linear | its way back |"
    yield "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    for n in sorted({one["n"] for one in found}):
        used = shape_of(n)
        cells = []
        for one in found:
            if one["n"] != n or one.get("shape") not in (None, [used.rows, used.block, used.warps]):
                continue
            if one["link"] in ("copy", "softmax"):
                cells.append(f"{1e3 * one['forward']:.0f}")
            elif one["shape"] is not None:
                cells += [f"{1e3 * one[what]:.0f}" for what in ("forward", "backward")]
        yield f"| {n:,} | {' | '.join(cells)} |"


def rivals(dtype: str = "float32") -> Iterator[str]:
    """Yield the lines of a table of what else there is, in softmaxes forward, and both passes."""
    kept = json.loads((RESULTS / "gpu-router.json").read_text(encoding="utf-8"))
    times = [one for one in kept["times"] if one["dtype"] == dtype]
    found = {(one["case"], one["name"]): one for one in times}
    cases = ("router", "router, large")
    shapes = [next(one["shape"] for one in times if one["case"] == case) for case in cases]
    yield f"| In softmaxes | {' | '.join(f'{rows:,} × {n:,}' for rows, n in shapes)} |"
    yield "| --- | ---: | ---: |"
    base = [found[case, "torch.softmax"]["seconds"] for case in cases]
    said = [", ".join(f"{1e6 * seconds:,.0f}" for seconds in one.values()) for one in base]
    yield f"| `torch.softmax`, in µs | {' | '.join(said)} |"
    for name in RIVALS:
        yield f"| {name} | {' | '.join(_cell(found[case, name]) for case in cases)} |"


def _cell(one: dict[str, Any]) -> str:
    return ", ".join(_few_digits(ratio) for ratio in one["ratio"].values())


def _few_digits(ratio: float) -> str:
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.1f}"


def pages() -> dict[Path, str]:
    """Return the pages with what there is to say."""
    return {
        PAGE: _with(PAGE, [*kernels(), "", *rivals()]),
        README: _with(README, roads()),
    }


def _with(page: Path, lines: Iterable[str]) -> str:
    found = "\n".join(lines)
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n\n{found}\n\n{END}{rest.partition(END)[2]}"


def main(arguments: list[str]) -> None:
    if "--write" in arguments:
        for page, text in pages().items():
            page.write_text(text, encoding="utf-8")
    else:
        print(*kernels(), "", *rivals(), "", *roads(), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
