"""Measure the properties of the maps, and print the tables of properties.md.

`python docs/table_of_properties.py` prints them; with `--write` the page takes them. It is NumPy in
float64 with fixed seeds, so any machine measures the same to the digits that are printed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from table_of_links import ROWS
from written import Part, show

import kofn

LAWS, NUMBERS = (
    Part("docs/properties.md", name, "python docs/table_of_properties.py --write")
    for name in ("laws", "numbers")
)
N, K = 6, 3  # scores in a row, and how many are chosen by maps of k

Function = Callable[[np.ndarray], np.ndarray]


class Map(NamedTuple):
    """A map, and what cannot be measured of it."""

    name: str
    of: Callable[..., np.ndarray]  # takes scores and k, or scores only
    total: int  # how many it chooses in the tables, K or 1
    slope: str  # its Lipschitz constant; a test compares it with what is measured
    cost: str
    when: str

    def at(self, k: int) -> Function:
        """Return the function of scores alone, for k entries."""
        return partial(self.of, k=k) if self.total == K else self.of

    @property
    def function(self) -> Function:
        """Return the function of scores alone, as the tables have it."""
        return self.at(self.total)


def _marginals(x: np.ndarray, k: int) -> np.ndarray:
    return kofn.KSubset(x, k).marginals()


def _shown(link: str) -> str:
    return "entmax(1.5)" if link == "entmax" else link


def _link(link: str) -> Callable[..., np.ndarray]:
    return partial(kofn.soft_topk, link=link)


MAPS = (
    *(
        Map(f"`soft_topk`, {_shown(name)}", _link(name), K, row.slope, "O(n)", row.short)
        for name, row in ROWS.items()
    ),
    Map(
        "`KSubset.marginals` (GradTopK)",
        _marginals,
        K,
        "1/2",
        "O(n)",
        "a distribution over subsets, samples",
    ),
    Map("`hard_topk`", kofn.hard_topk, K, "∞", "O(n)", "the choice itself, without a gradient"),
    Map("`softmax`", kofn.softmax, 1, "1/2", "O(n)", "one of n, as usual; smooth gradients"),
    Map("`sparsemax`", kofn.sparsemax, 1, "1", "O(n)", "one of n, few weights above 0"),
    Map(
        "`entmax`, α = 1.5", kofn.entmax, 1, "1, as n grows", "O(n)", "one of n, between these two"
    ),
    Map(
        "`perturbed_argmax`, normal",
        kofn.perturbed_argmax,
        1,
        "1/√π",
        "O(n), some twenty softmaxes",
        "probabilities of the largest under noise",
    ),
    Map(
        "`perturbed_argmax`, uniform",
        partial(kofn.perturbed_argmax, noise="uniform"),
        1,
        "2",
        "O(n), hundreds of passes",
        "the same for noise without tails",
    ),
    Map(
        "`taylor_softmax`, order 2",
        kofn.taylor_softmax,
        1,
        "1/2, for n = 2",
        "O(n)",
        "heavy tails; linear attention",
    ),
    Map(
        "`sparse_softmax`, k = 3",
        partial(kofn.sparse_softmax, k=3),
        1,
        "∞",
        "O(n)",
        "fine-tuning, where the tail is cut in use, too",
    ),
)


def order(function: Function) -> str:
    """Return whether a larger score has always a larger weight."""
    x = np.random.default_rng(0).normal(size=(2000, N))
    p = function(x)
    apart, less = x[:, :, None] > x[:, None, :], p[:, :, None] < p[:, None, :]
    if (apart & less).any():
        return "no"
    return "weak" if (apart & (p[:, :, None] == p[:, None, :])).any() else "strict"


def shift(function: Function) -> str:
    """Return whether a number added to all scores leaves the weights as they are."""
    x = np.random.default_rng(1).normal(size=(500, N))
    return "yes" if abs(function(x + 7.3) - function(x)).max() < 1e-9 else "no"


def total(function: Function) -> str:
    """Return the sum of the weights."""
    sums = function(np.random.default_rng(2).normal(size=(500, N)) * 2).sum(-1)
    assert abs(sums - sums.round()).max() < 1e-9
    assert np.ptp(sums.round()) == 0
    return "k" if sums[0].round() == K else "1"


def smoothness(function: Function) -> str:
    """Return how many derivatives are continuous, from fourth differences along straight lines.

    Where the j-th derivative jumps, the largest fourth difference shrinks as the j-th power of the
    step, and as the fourth power where none of the first three does.
    """
    rng, step, wide = np.random.default_rng(3), 0.01, 8
    start, way = rng.normal(size=(2, 30, 1, N))
    way = 3 * way / np.linalg.norm(way, axis=-1, keepdims=True)
    p = function(start + way * np.arange(-2, 2, step)[:, None])
    sizes = []
    for each in (step, wide * step):
        gap = round(each / step)
        four = sum(
            c * p[:, i * gap : p.shape[1] - (4 - i) * gap]
            for i, c in enumerate((1.0, -4.0, 6.0, -4.0, 1.0))
        )
        sizes.append(abs(four).max())
    power = round(math.log(sizes[1] / sizes[0], wide))
    return ("jumps", "C⁰", "C¹", "C²", "C∞")[min(max(power, 0), 4)]


def steepest(map: Map) -> float:
    """Return the largest ‖J‖₂ at random rows, and at rows where two scores compete.

    Between rows a map that jumps has no largest: ∞.
    """
    if smoothness(map.function) == "jumps":
        return math.inf
    rng = np.random.default_rng(4)
    any_rows = [rng.normal(size=(300, N)) * scale for scale in (0.3, 1.0, 3.0)]
    # Two that compete, two that are chosen, compete too, or are not, and two that are not.
    rows = [
        [near / 2, -near / 2, far * a, far * b, -far, -far]
        for far in (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
        for near in (0.0, 0.05, 0.3, 1.0)
        for a, b in ((1, 1), (1, 0), (1, -1), (0, -1), (-1, -1))
    ]
    x, h = np.concatenate([*any_rows, rows]), 1e-5
    moves = h * np.eye(N)
    up, down = (map.function(x[:, None] + sign * moves) for sign in (1, -1))
    return float(np.linalg.norm((up - down) / (2 * h), 2, axis=(-2, -1)).max())


def at_one(map: Map) -> str:
    """Return which map of one it is at k = 1."""
    x = np.random.default_rng(5).normal(size=(500, N)) * 1.5
    p = map.at(1)(x)
    flat = kofn.softmax(x).max(-1) <= 0.5
    for name, other in (
        ("softmax", kofn.softmax),
        ("sparsemax", kofn.sparsemax),
        ("entmax", kofn.entmax),
    ):
        if np.allclose(p, other(x), atol=1e-9):
            return name
    return (
        "softmax while none exceeds ½" if np.allclose(p[flat], kofn.softmax(x[flat])) else "itself"
    )


def rate(map: Map) -> str:
    """Return how the squared distance from the hard top-k falls with Δ/T."""
    x = np.arange(N, 0.0, -1.0)  # Δ = 1 for every k
    hard = kofn.hard_topk(x, map.total)

    def error(ratio: float) -> float:
        return float(((map.function(x * ratio) - hard) ** 2).sum())

    if error(1e6) > 1e-3:
        return "no limit"
    if error(20) == 0:
        low, high = 0.01, 20.0  # of Δ/T: soft, hard
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (low, middle) if error(middle) == 0 else (middle, high)
        return "0" if high < 0.02 else f"0 from T = {1 / high:.2g}Δ on".replace("1Δ", "Δ")
    first, second = math.log(error(20)), math.log(error(24))
    if second / first > 1.35:  # 1.44 for a square, 1.2 for a line
        return f"e^(−{(first - second) / (24**2 - 20**2):.2f}(Δ/T)²)"
    return f"e^(−{(first - second) / 4:.2f}Δ/T)"


def laws() -> str:
    """Return the table of laws."""
    lines = [
        "| Map | Order | Shift | Sum | Smoothness | At k = 1 |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for each in MAPS:
        f, one = each.function, at_one(each) if each.total == K else ""
        cells = (each.name, order(f), shift(f), total(f), smoothness(f), one)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def numbers() -> str:
    """Return the table of numbers."""
    lines = [
        "| Map | Lipschitz constant | Largest slope found | Squared error | Cost | Take it for |",
        "| --- | --- | ---: | --- | --- | --- |",
    ]
    for each in MAPS:
        found = steepest(each)
        shown = "∞" if found == math.inf else f"{found:.3f}"
        lines.append(
            f"| {' | '.join((each.name, each.slope, shown, rate(each), each.cost, each.when))} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    show({LAWS: laws(), NUMBERS: numbers()})
