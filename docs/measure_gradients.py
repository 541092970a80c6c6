"""Measure the errors of float32 derivatives of soft_topk against float64, at levels of x86-64.

python docs/measure_gradients.py prints the tables of docs/behaviour.md; with --write the page takes
them. The kernels of each level run in a process of their own. It takes some minutes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import brentq
from written import Part, show

import kofn
from kofn import links
from kofn.kernels.cpu.runtime import library
from kofn.links.link import BuiltIn
from kofn.links.table import TABLE

PART = Part("docs/behaviour.md", "gradients", "python docs/measure_gradients.py --write")
LENGTHS, SPREADS = (64, 1_000, 70_000, 1_000_000), (1e-4, 1e-2, 1.0, 30.0)
LEVELS = ("x86-64-v2", "x86-64-v3", "own")
BOUND, FAR_BOUND = 1e-5, 1e-4
"""What is promised up to |x/T| = 30, and beyond; T is 1 here, so that a spread of 30 is beyond."""


LINKS: dict[str, BuiltIn] = {name: link.inner for name, link in TABLE.items()}
LINKS["entmax(1.3)"] = links.entmax(1.3).inner
"""Their F and F′ in float64 are array code's, which tests compare with mpmath's."""


class Errors(NamedTuple):
    """Of the derivatives in the scores, k and T, each relative to its own norm."""

    scores: float
    k: float
    temperature: float

    def or_worse(self, other: Errors) -> Errors:
        return Errors(*map(max, self, other))

    def __str__(self) -> str:
        return ", ".join(f"{each:.0e}".replace("e-0", "e-") for each in self)


NONE = Errors(0.0, 0.0, 0.0)


class Exact(NamedTuple):
    """The derivatives of Σ v·p of a row in the scores, k and T, and how many scores share them."""

    scores: np.ndarray
    k: float
    temperature: float
    sharing: int


def exact(x: np.ndarray, k: float, v: np.ndarray, link: str) -> Exact:
    """Differentiate a row in float64, at T = 1."""
    cdf, pdf = LINKS[link].cdf, LINKS[link].pdf
    x, v = x.astype(np.float64), v.astype(np.float64)
    theta = brentq(lambda t: cdf(x - t).sum() - k, x.min() - 50, x.max() + 50, xtol=1e-300)
    w = pdf(x - theta)
    mean, centre = (w * v).sum() / w.sum(), (w * x).sum() / w.sum()
    u = w * (v - mean)
    return Exact(u, mean, -(u * (x - centre)).sum(), np.count_nonzero(w))


def measured(n: int, spread: float, link: str) -> Errors:
    """Return the errors of the kernels: of the worst row's scores, of all rows' k and T.

    In a row with one score inside of the support, all derivatives but that in k are 0, and nothing
    is relative to them: such rows are left out.
    """
    rng, rows = np.random.default_rng(n), max(2, min(32, 300_000 // n))
    x, v = (rng.standard_normal((rows, n)).astype("f4") for _ in range(2))
    x *= np.float32(spread)
    # A half: where k is whole, a link of bounded support may have all scores outside of it.
    k = min(100, n // 8) + 0.5
    own = links.entmax(1.3) if link == "entmax(1.3)" else link
    leaves = [torch.tensor(x), torch.full((rows,), k), torch.ones(rows)]
    leaves = [each.requires_grad_() for each in leaves]
    p = kofn.soft_topk(leaves[0], leaves[1], temperature=leaves[2], link=own)
    found = [each.double().numpy() for each in torch.autograd.grad(p, leaves, torch.tensor(v))]
    answers = [exact(row, k, own_v, link) for row, own_v in zip(x, v, strict=True)]
    kept = [i for i, each in enumerate(answers) if each.sharing > 1]
    wanted = [np.array([answers[i][j] for i in kept]) for j in range(3)]
    off = [one[kept] - other for one, other in zip(found, wanted, strict=True)]
    in_scores = np.linalg.norm(off[0], axis=-1) / np.linalg.norm(wanted[0], axis=-1)
    per_row = (np.linalg.norm(off[i]) / np.linalg.norm(wanted[i]) for i in (1, 2))
    return Errors(float(in_scores.max()), *map(float, per_row))


def cases() -> Iterator[tuple[int, float, str]]:
    for n in LENGTHS:
        for spread in SPREADS:
            for link in LINKS:
                yield n, spread, link


def at_level(level: str) -> dict[tuple[int, float, str], Errors]:
    """Measure in a process of its own: the first compiled code of a process decides."""
    cpu = {} if level == "own" else {"KOFN_CPU": level}
    environment = {key: value for key, value in os.environ.items() if key != "KOFN_CPU"}
    command = [sys.executable, __file__, "--here"]
    done = subprocess.run(
        command,
        env={**environment, "KOFN_KERNELS": "on", **cpu},
        stdout=subprocess.PIPE,
        check=True,
    )
    found = json.loads(done.stdout)
    return dict(zip(cases(), (Errors(*each) for each in found), strict=True))


def tables(found: dict[str, dict[tuple[int, float, str], Errors]]) -> str:
    """Return both tables: by link and level, and by n and spread."""

    def worst(of: Callable[[str, tuple[int, float, str]], bool]) -> Errors:
        answer = NONE
        for level, errors in found.items():
            for case, each in errors.items():
                answer = answer.or_worse(each) if of(level, case) else answer
        return answer

    lines = ["| Link | " + " | ".join(found) + " |", "| --- |" + " ---: |" * len(found)]
    for link in LINKS:
        cells = [
            worst(lambda own, case, a=level, b=link: own == a and case[2] == b) for level in found
        ]
        lines.append(f"| {link} | " + " | ".join(map(str, cells)) + " |")
    lines += ["", "| n | " + " | ".join(f"spread {each:g}" for each in SPREADS) + " |"]
    lines.append("| ---: |" + " ---: |" * len(SPREADS))
    for n in LENGTHS:
        cells = [worst(lambda _, case, a=n, b=spread: case[:2] == (a, b)) for spread in SPREADS]
        lines.append(f"| {n:,} | " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def main() -> None:
    if "--here" in sys.argv:
        print(json.dumps([measured(*case) for case in cases()]))
        return
    served = [level for level in LEVELS if level == "own" or level in (library.served() or ())]
    text = tables({level: at_level(level) for level in served})
    show({PART: text})


if __name__ == "__main__":
    main()
