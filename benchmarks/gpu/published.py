"""What docs/platforms.md and README say of times on a GPU, from the results of `make gpu`.

`python -m benchmarks.gpu.published` prints the table, and with --write the pages take it; a test
holds them to the file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "gpu.json"
CASES = ("router", "router, large", "attention", "attention, large", "vocabulary, large")
NAMES = (
    *("soft_topk, logistic", "soft_topk, linear", "softmax", "sparsemax", "entmax"),
    *("torch.topk", "torch.sort", "sigmoid, bisected", "sparsemax, sorted"),
    *("entmax.sparsemax", "entmax.entmax15", "entmax.entmax_bisect", "liger_sparsemax"),
)
PAGES = {
    ROOT / "docs" / "platforms.md": NAMES,
    ROOT / "README.md": ("soft_topk, logistic", "sparsemax", "torch.topk", "entmax.sparsemax"),
}
BEGIN = "<!-- times: python -m benchmarks.gpu.published --write -->"
END = "<!-- /times -->"


def table(results: dict[str, Any], names: tuple[str, ...], dtype: str = "float32") -> list[str]:
    """Return the lines of a table: softmaxes forward, and with backward, of each case."""
    times = [one for one in results["times"] if one.get("dtype") == dtype]
    found = {(one["case"], one["name"]): one for one in times}
    shapes = {one["case"]: one["shape"] for one in times}
    cases = [case for case in CASES if case in shapes]
    heads = [f"{shapes[case][0]:,} × {shapes[case][1]:,}" for case in cases]
    lines = [f"| | {' | '.join(heads)} |", f"| --- |{' ---: |' * len(cases)}"]
    base = [found[case, "torch.softmax"]["seconds"] for case in cases]
    said = [
        f"{1e6 * one['forward']:,.0f}, {1e6 * one['forward + backward']:,.0f} µs" for one in base
    ]
    lines.append(f"| torch.softmax | {' | '.join(said)} |")
    for name in names:
        cells = [_cell(found.get((case, name))) for case in cases]
        if any(cells):
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def _cell(one: dict[str, Any] | None) -> str:
    if one is None or not one["ratio"]:
        return "" if one is None else "wrong" if "wrong" in one["trouble"] else "none"
    return ", ".join(_few_digits(one["ratio"][what]) for what in ("forward", "forward + backward"))


def _few_digits(ratio: float) -> str:
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.1f}"


def text_for(page: Path, results: dict[str, Any]) -> str:
    """Return a page with its table."""
    about = results["machine"]
    note = (
        f"*Measured on one {about['card']}* (PyTorch {about['torch']}, Triton {about['triton']}, "
        f"kofn at {about['commit']}): times of `torch.softmax`, forward, and forward and backward."
    )
    lines = "\n".join([note, "", *table(results, PAGES[page])])
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n\n{lines}\n\n{END}{rest.partition(END)[2]}"


def main(arguments: list[str]) -> None:
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    for page, names in PAGES.items():
        if "--write" in arguments:
            page.write_text(text_for(page, results), encoding="utf-8")
        else:
            print(*table(results, names), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
