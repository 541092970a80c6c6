"""Draw the curves of the examples that learn through samples, from what their runs measured.

`make docs` draws them from docs/results/curves.json. `--train` measures them anew, with five seeds,
in ten minutes or so of one core; runs that are in the file already are not repeated.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib.pyplot as plt

HERE = Path(__file__).parent
IMAGES, RESULTS = HERE / "images", HERE / "results" / "curves.json"
SEEDS = range(5)
EXAMPLES = {
    "normal_vae": "normal latents",
    "few_labels": "twenty labels",
    "sequence_policy": "a policy over sequences",
    "messages": "messages of three symbols",
    "five_noises": "choices by five noises",
}
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#222222")


def example(name: str) -> Any:
    path = HERE.parent / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def measured() -> dict[str, dict[str, list[Any]]]:
    """Return the curves of every seed, by the example and its way."""
    return json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}


def train() -> None:
    """Measure what is not in the file."""
    found = measured()
    for name in EXAMPLES:
        module = example(name)
        for way in module.WAYS:
            curves = found.setdefault(name, {}).setdefault(way, [])
            for seed in SEEDS[len(curves) :]:
                curve = module.train(way, seed)
                curves.append([(at, round(value, 4)) for at, value in curve])
                RESULTS.write_text(json.dumps(found) + "\n", encoding="utf-8")
                print(name, way, seed, curve[-1][1], flush=True)


def main() -> None:
    if "--train" in sys.argv[1:]:
        train()
    found = measured()
    figure, axes = plt.subplots(2, 3, figsize=(12, 6.6), layout="constrained", dpi=140)
    axes.flat[-1].set_axis_off()
    for panel, (name, title) in zip(axes.flat, EXAMPLES.items(), strict=False):
        module = example(name)
        for colour, (way, curves) in zip(COLOURS, found[name].items(), strict=False):
            for curve in curves:
                panel.plot(*zip(*curve, strict=True), color=colour, lw=0.6, alpha=0.35)
            mean = [(part[0][0], fmean(y for _, y in part)) for part in zip(*curves, strict=True)]
            panel.plot(*zip(*mean, strict=True), color=colour, lw=1.8, label=way)
        panel.set_title(title, loc="left", fontsize=10)
        panel.set_xlabel(module.EVERY)
        panel.set_ylabel(module.MEASURED, fontsize=7)
        panel.spines[["top", "right"]].set_visible(False)
        panel.legend(frameon=False, fontsize=7, loc="lower right")
    figure.savefig(IMAGES / "curves.png")
    plt.close(figure)
    print(f"wrote {IMAGES / 'curves.png'}")


if __name__ == "__main__":
    main()
