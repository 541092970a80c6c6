"""The times in README's table, from benchmarks/results/bench.json.

`python -m benchmarks.readme` prints its rows, and with --write README takes them, as `make docs`
does; a test holds the page to the file.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README, RESULTS = ROOT / "README.md", ROOT / "benchmarks" / "results" / "bench.json"
CASE = "attention", "float32"
ROWS = {
    "`kofn.soft_topk`": "soft_topk, logistic",
    "`torch.topk`, straight-through": "torch.topk",
    "sigmoid and your own bisection": "sigmoid, bisected",
    "sigmoid and your own Newton steps, compiled": "sigmoid, Newton, compiled",
    "`kofn.sparsemax`": "sparsemax",
    "`sparsemax` of the entmax package": "entmax.sparsemax",
}
"""README's rows, and what `kofn bench` calls them."""
TIME = 5
"""The column of the times."""


def times() -> dict[str, str]:
    """Return both times of each row, in softmaxes: medians, whole numbers from ten on."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))["results"]
    (case,) = (each for each in results if (each["case"], each["dtype"]) == CASE)
    found = {each["name"]: each["ratio_to_softmax"].values() for each in case["contenders"]}
    medians = {name: map(statistics.median, passes) for name, passes in found.items() if passes}
    return {
        shown: ", ".join(f"{one:.0f}" if one >= 9.95 else f"{one:.1f}" for one in medians[name])
        for shown, name in ROWS.items()
        if name in medians
    }


def written(page: str) -> str:
    """Return the page with these times."""
    for shown, both in times().items():
        row = re.search(rf"^\|[ *]*{re.escape(shown)}[ *]*\|.*$", page, re.MULTILINE)
        if row is None:
            raise ValueError(f"README has no row {shown!r}")
        cells = row[0].split("|")
        cells[TIME] = f" {both} "
        page = page.replace(row[0], "|".join(cells))
    return page


if __name__ == "__main__":
    page = README.read_text(encoding="utf-8")
    if "--write" in sys.argv[1:]:
        README.write_text(written(page), encoding="utf-8")
    for name, both in times().items():
        print(f"{name}: {both}")
