"""The table of examples/bits.py; maps_knapsack.md has it.

`python docs/table_of_bits.py` prints it of docs/results/bits.json; with `--write` the page takes
it. `--train` measures it anew, with five seeds, in minutes; rows and seeds that are in the file
already are not repeated.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections import Counter
from pathlib import Path
from statistics import fmean
from typing import Any

from written import Part, show

from kofn.commands.results import spread

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "bits.json"
PART = Part("docs/maps_knapsack.md", "bits", "python docs/table_of_bits.py --write")
SEEDS = range(5)
NAMES = {"full": "full precision"}


def example() -> Any:
    spec = importlib.util.spec_from_file_location("bits", HERE.parent / "examples" / "bits.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def measured() -> dict[str, list[Any]]:
    """Return bits per weight, accuracy and bits of layers of every seed, by way and budget."""
    return json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}


def train() -> None:
    """Measure what is not in the file."""
    module, found = example(), measured()
    for way, budget in module.ROWS:
        runs = found.setdefault(f"{way} {budget:g}", [])
        for seed in SEEDS[len(runs) :]:
            spent, right, layers = module.train(way, budget, seed)
            runs.append([round(spent, 4), round(right, 6), layers])
            RESULTS.write_text(json.dumps(found) + "\n", encoding="utf-8")
            print(way, f"{budget:g}", seed, *runs[-1], flush=True)


def table() -> str:
    lines = ["| Bits | budget | spent | accuracy | layers |", "| --- | --- | --- | --- | --- |"]
    for name, runs in measured().items():
        way, budget = name.split()
        spent, right, layers = zip(*runs, strict=True)
        mean, deviation = spread([*right])
        ((often, number),) = Counter(map(tuple, layers)).most_common(1)
        shown = "-".join(map(str, often)) + f" ({number} of {len(runs)})" if often else ""
        cells = f"{fmean(spent):.2f} | {mean:.3f} ± {deviation:.3f} | {shown}"
        lines.append(f"| {NAMES.get(way, way)} | {budget} | {cells} |")
    return "\n".join(lines)


def main() -> None:
    if "--train" in sys.argv[1:]:
        train()
    show({PART: table()})


if __name__ == "__main__":
    main()
