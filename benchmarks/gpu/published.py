"""What docs/platforms.md says of times on a GPU, from what is kept in benchmarks/results.

`python -m benchmarks.gpu.published` prints it, and with --write the page takes it; a test holds the
page to the files. gpu-shapes.jsonl is of `python -m benchmarks.gpu.shapes`, gpu-router.json the
case "router" of `make gpu`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "platforms.md"
BEGIN = "<!-- times: python -m benchmarks.gpu.published --write -->"
END = "<!-- /times -->"
RIVALS = (
    *("torch.topk", "torch.sort", "sigmoid, bisected", "sparsemax, sorted"),
    *("entmax.sparsemax", "entmax.entmax15", "entmax.entmax_bisect", "liger_sparsemax"),
)


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


def page() -> str:
    lines = "\n".join([*kernels(), "", *rivals()])
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n\n{lines}\n\n{END}{rest.partition(END)[2]}"


def main(arguments: list[str]) -> None:
    if "--write" in arguments:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        print(*kernels(), "", *rivals(), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
