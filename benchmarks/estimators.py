"""Bias and deviation of every estimator of ∇E f, on problems from the literature: tables.

    python benchmarks/estimators.py

If samples are the only randomness of an estimator, `kofn.estimators.study` sums over all of them,
and the figures are exact. Otherwise it draws, and the bias has a bound with 95 % confidence. All
figures are for the mean of two samples: norms, relative to the exact gradient. This takes a few
minutes on one core. The figures do not depend on the machine, except for rounding and within the
bounds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kofn import Categorical, KSubset, Normal, PlackettLuce, estimators
from kofn.estimators import Study, study

DRAWS = 200_000
CATEGORICAL: list[tuple[str, str, dict[str, Any]]] = [
    ("`score_function`", "score_function", {}),
    ("`score_function`, running mean", "score_function", {"baseline": "mean"}),
    ("`leave_one_out`", "leave_one_out", {}),
    ("`rebar`, temperature 0.5", "rebar", {"temperature": 0.5}),
    ("`reparameterized`, temperature 1", "reparameterized", {"temperature": 1.0}),
    ("`reparameterized`, temperature 0.1", "reparameterized", {"temperature": 0.1}),
    ("the same, hard, temperature 1", "reparameterized", {"temperature": 1.0, "hard": True}),
    ("`gumbel_rao`, temperature 1", "gumbel_rao", {"temperature": 1.0}),
    ("`gumbel_rao`, temperature 0.1", "gumbel_rao", {"temperature": 0.1}),
    ("`straight_through`", "straight_through", {}),
    ("`reinmax`", "reinmax", {}),
    ("`perturbed`, step 1", "perturbed", {"step": 1.0}),
    ("`perturbed`, step 0.1", "perturbed", {"step": 0.1}),
]
SUBSETS: list[tuple[str, str, dict[str, Any]]] = [
    *CATEGORICAL[:3],
    ("`straight_through` (SIMPLE)", "straight_through", {}),
    ("`reparameterized`, temperature 1", "reparameterized", {"temperature": 1.0}),
    ("`reparameterized`, temperature 0.1", "reparameterized", {"temperature": 0.1}),
    ("the same, hard, temperature 1", "reparameterized", {"temperature": 1.0, "hard": True}),
    ("the same, hard, temperature 0.1", "reparameterized", {"temperature": 0.1, "hard": True}),
    ("`perturbed`, step 1", "perturbed", {"step": 1.0}),
    ("`perturbed`, step 0.1", "perturbed", {"step": 0.1}),
]


def studied(rows: Iterable[tuple[str, str, dict[str, Any]]], f: Callable[[Tensor], Tensor],
            logits: Tensor, mean: float, **more: Any) -> list[tuple[str, Study]]:  # fmt: skip
    """Study each estimator of `rows`; a running mean is replaced by its limit, E f."""
    found = []
    for label, name, options in rows:
        settled = {**options, "baseline": mean} if "baseline" in options else options
        rng = torch.Generator().manual_seed(1)
        result = study(name, f, logits, samples=2, rng=rng, draws=DRAWS, **settled, **more)
        found.append((label, result))
    return found


def bias_of(found: Study) -> str:
    bias, bound, _ = found.relative
    return f"{bias:.3f} ± {bound:.3f}" if bound else f"{bias:.3f}".replace("0.000", "0")


def skewed() -> None:
    """Storchastic's: one likely category and five rare ones, cost 2.4·i."""
    logits = torch.tensor([0.95] + [0.01] * 5, dtype=torch.float64).log()
    cost = 2.4 * torch.arange(6.0, dtype=torch.float64)
    problems = {"f = 2.4·i": lambda s: s @ cost, "f = (2.4·i)²": lambda s: (s @ cost) ** 2}
    columns = []
    for f in problems.values():
        mean = float(estimators.exact(Categorical(logits), f))
        columns.append(studied(CATEGORICAL, f, logits, mean))
    print("## p = (.95, .01, .01, .01, .01, .01), f = 2.4·i, and its square\n")
    print("| Two samples | Calls of f | Bias | Deviation | Bias, f² | Deviation, f² |")
    print("| --- | --- | --- | --- | --- | --- |")
    for (label, one), (_, two) in zip(*columns, strict=True):
        cells = [f"{bias_of(each)} | {each.relative[2]:.2f}" for each in (one, two)]
        print(f"| {label} | {one.calls:g} | {' | '.join(cells)} |", flush=True)


def subsets() -> None:
    """SIMPLE's: n = 10, k = 5, f = ‖x − b‖²."""
    n, k = 10, 5
    logits, b = torch.randn(2, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    b = b.abs()
    members = torch.tensor(list(itertools.combinations(range(n), k)))

    def cost(s: Tensor) -> Tensor:
        return ((s - b) ** 2).sum(-1)

    leaf = logits.clone().requires_grad_()
    every = torch.zeros(len(members), n, dtype=torch.float64).scatter(1, members, 1.0)
    p = PlackettLuce(leaf).log_prob(members, ordered=False).exp()
    (of_race,) = torch.autograd.grad((p * cost(every)).sum(), leaf)
    law = partial(KSubset, k=k)
    mean = float(estimators.exact(law(logits), cost))
    print("\n## n = 10, k = 5, logits normal, b = |normal|, f = ‖x − b‖²\n")
    print("| Two samples | Bias | Deviation | Bias against Plackett–Luce's gradient |")
    print("| --- | --- | --- | --- |")
    for row in SUBSETS:
        ((label, found),) = studied([row], cost, logits, mean, distribution=law)
        race = ""
        if not found.enumerated:
            ((_, again),) = studied([row], cost, logits, mean, distribution=law, exact=of_race)
            race = bias_of(again)
        print(f"| {label} | {bias_of(found)} | {found.relative[2]:.2f} | {race} |", flush=True)
    apart = float((of_race - torch.tensor(found.gradient)).norm() / of_race.norm())
    print(f"\nThe two distributions' exact gradients are {apart:.3f} apart.")


def lotteries() -> None:
    """The article's: 4, 5, 6 and 0, 5, 10, one of three at random."""
    print("\n## The article's numbers, each with probability ⅓: variance of one sample\n")
    print(
        "| f | E f | Variance of f | Gradient: score function | Baseline E f | Leave-one-out, two |"
    )
    print("| --- | --- | --- | --- | --- | --- |")
    logits = torch.zeros(3, dtype=torch.float64)
    for numbers in ((4.0, 5.0, 6.0), (0.0, 5.0, 10.0)):
        cost = torch.tensor(numbers, dtype=torch.float64)

        def f(s: Tensor, cost: Tensor = cost) -> Tensor:
            return s @ cost

        plain = study("score_function", f, logits)
        based = study("score_function", f, logits, baseline=5.0)
        pairs = study("leave_one_out", f, logits, samples=2)
        name = ", ".join(f"{number:g}" for number in numbers)
        variances = " | ".join(f"{each.variance:.2f}" for each in (plain, based, pairs))
        print(f"| {name} | {plain.value:g} | {plain.value_variance:.2f} | {variances} |")


def gaussians() -> None:
    """Where reparameterisation has less variance than the score function, and where more."""
    print("\n## z ~ N(μ, σ²) with μ = 1, σ = 1, gradients in μ and log σ: variance of one sample\n")
    print("| f | Score function | The same, baseline E f | Reparameterised |")
    print("| --- | --- | --- | --- |")
    y = torch.tensor([1.0, 0.0], dtype=torch.float64)

    def law(y: Tensor) -> Normal:
        return Normal(y[..., :1], y[..., 1:].exp())

    cases = [("z²", lambda z: z[..., 0] ** 2, 2.0, (2.0, 2.0))]
    for w in (1, 3, 10):
        fall = math.exp(-w * w / 2)  # E sin wz = sin(wμ)·e^{−w²σ²/2}
        slope = (w * math.cos(w) * fall, -w * w * math.sin(w) * fall)
        name = "sin z" if w == 1 else f"sin {w}z"
        cases.append((name, lambda z, w=w: (w * z[..., 0]).sin(), math.sin(w) * fall, slope))
    for name, f, mean, slope in cases:
        exact = torch.tensor(slope, dtype=torch.float64)
        cells = []
        for estimator, options in (
            ("score_function", {}),
            ("score_function", {"baseline": mean}),
            ("reparameterized", {}),
        ):
            rng = torch.Generator().manual_seed(2)
            found = study(
                estimator, f, y, distribution=law, rng=rng, draws=DRAWS, exact=exact,
                confidence=0.999, **options,
            )  # fmt: skip
            assert found.unbiased, found
            cells.append(f"{found.variance:.2f} ± {found.variance_bound:.2f}")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    skewed()
    subsets()
    lotteries()
    gaussians()


if __name__ == "__main__":
    main()
