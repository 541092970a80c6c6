"""Measure what each kind of link costs; links.md has the table.

`python docs/table_of_own_links.py` prints it; with `--write` the page takes it. Times are the least
of many calls by one thread, in turn with those of the other links; compiling is the seconds of the
processor that the first call of a process takes beyond those of later ones. With `--launches` it is
the table of launches on a GPU, which are counted without one.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from written import ROOT, Part, show

import kofn
from kofn.links import ScalarLink
from kofn.links.vocabulary import exp, log, log1p, over, size, where

COSTS = Part("docs/links.md", "costs", "python docs/table_of_own_links.py --write")
LAUNCHES = COSTS._replace(
    name="launches", command="python docs/table_of_own_links.py --launches --write"
)
SHAPES = (4, 8), (256, 1024)
ROUNDS, SECONDS = 6, 0.4


class Logistic(ScalarLink):
    """The logistic link by two formulas."""

    smooth = True

    @staticmethod
    def tail(z: Any) -> Any:
        e = exp(-size(z))
        t = over(e, 1 + e)
        slope = t - t * t
        return t, z > 0, slope, where(z > 0, -slope, slope) * (1 - 2 * t)

    @staticmethod
    def quantile(q: Any) -> Any:
        return log(q) - log1p(-q)


def by_arrays() -> kofn.Link:
    return kofn.Link(
        cdf=torch.sigmoid,
        pdf=lambda z: torch.sigmoid(z) * torch.sigmoid(-z),
        sf=lambda z: torch.sigmoid(-z),
        quantile=torch.logit,
    )


def learned(x: torch.Tensor, link: Any) -> None:
    kofn.soft_topk(x, 3, link=link).backward(torch.ones_like(x))


def chosen(x: torch.Tensor, link: Any) -> None:
    kofn.soft_topk(x.detach(), 3, link=link)


def reference(call: Callable[[], None]) -> None:
    os.environ["KOFN_KERNELS"] = "reference"
    try:
        call()
    finally:
        del os.environ["KOFN_KERNELS"]


def table() -> str:
    """Return the table, by measuring."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    own, arrays = Logistic(), by_arrays()
    calls: dict[str, list[Callable[[], None]]] = {}
    compiling: dict[str, float] = {}
    for shape in SHAPES:
        x = torch.randn(shape, requires_grad=True)
        for function in (chosen, learned):
            each = {
                'a name, such as `"logistic"`': partial(function, x, "logistic"),
                "a `ScalarLink`, compiled": partial(function, x, own),
                "a `ScalarLink` without Numba, or on JAX": partial(
                    reference, partial(function, x, own)
                ),
                "a `Link` of functions of arrays": partial(function, x, arrays),
            }
            for name, call in each.items():
                calls.setdefault(name, []).append(call)
                begun = time.process_time()
                call()
                compiling[name] = compiling.get(name, 0.0) + time.process_time() - begun
    least = {name: [float("inf")] * len(each) for name, each in calls.items()}
    for name, each in [*calls.items()] * ROUNDS:
        for place, call in enumerate(each):
            until = time.monotonic() + SECONDS
            while time.monotonic() < until:
                begun = time.perf_counter()
                call()
                least[name][place] = min(least[name][place], time.perf_counter() - begun)
    lines = [
        "| `link=` | 4 × 8, µs | and gradient | 256 × 1,024, ms | and gradient | first calls, s |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, (a, b, c, d) in least.items():
        first = compiling[name] if "compiled" in name else 0.0
        shown = f"{first:.0f}" if first else "0"
        times = f"{a * 1e6:.0f} | {b * 1e6:.0f} | {_ms(c)} | {_ms(d)}"
        lines.append(f"| {name} | {times} | {shown} |")
    return "\n".join(lines)


def _ms(seconds: float) -> str:
    """Return milliseconds with two digits."""
    ms = seconds * 1e3
    return f"{ms:.0f}" if ms >= 10 else f"{ms:.2g}"


def launches() -> str:
    """Return the table of launches for 1,024 rows of 64 scores, by counting."""
    sys.path.insert(0, str(ROOT))
    from benchmarks.gpu.counted import counting

    links = {
        'a name, such as `"logistic"`': "logistic",
        "a `ScalarLink`": Logistic(),
        "a `Link` of functions of arrays": by_arrays(),
    }
    lines = ["| `link=` | launches on a GPU | for the gradient |", "| --- | ---: | ---: |"]
    for name, link in links.items():
        with counting() as tally:
            x = torch.linspace(-2, 2, 1024 * 64).reshape(1024, 64).requires_grad_()
            tally.taken()
            p = kofn.soft_topk(x, 8, link=link)
            forward, ones = tally.taken(), torch.ones_like(p)
            tally.taken()
            torch.autograd.grad(p, x, ones)
            lines.append(f"| {name} | {forward.launches:,} | {tally.taken().launches:,} |")
    return "\n".join(lines)


if __name__ == "__main__":
    show({LAUNCHES: launches()} if "--launches" in sys.argv else {COSTS: table()})
