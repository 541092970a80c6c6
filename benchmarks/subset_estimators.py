"""Bias and variance of estimators of ∇E f(S), f(S) = ‖1[S] − b‖², n = 10, k = 5: a table.

    python benchmarks/subset_estimators.py

Estimators that draw from KSubset are summed over all of their samples, 252 subsets or 252² pairs
of them: bias and variance are exact. Those that perturb by Gumbel noise draw from Plackett–Luce,
another distribution with another expectation, and are held to the exact gradient of that one; their
own expectation is a mean over many draws, with its standard error.
"""

from __future__ import annotations

import itertools

import torch

from kofn import KSubset, PlackettLuce, estimators

N, K, DRAWS = 10, 5, 200_000


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    logits, b = torch.randn(2, N, generator=generator, dtype=torch.float64)
    members = torch.tensor(list(itertools.combinations(range(N), K)))
    subsets = torch.zeros(len(members), N, dtype=torch.float64).scatter(1, members, 1.0)

    def cost(s: torch.Tensor) -> torch.Tensor:
        return ((s - b) ** 2).sum(-1)

    def slopes(function: object, count: int) -> torch.Tensor:
        """The gradient in the logits of each of `count` scalars, each by a copy of its own."""
        y = logits.expand(count, N).clone().requires_grad_()
        return torch.autograd.grad(function(y).sum(), y)[0]  # type: ignore[operator]

    def exact(log_prob: object) -> torch.Tensor:
        y = logits.clone().requires_grad_()
        value = (log_prob(y).exp() * cost(subsets)).sum()  # type: ignore[operator]
        return torch.autograd.grad(value, y)[0]

    of_subset = exact(lambda y: KSubset(y, K).log_prob(subsets))
    of_race = exact(lambda y: PlackettLuce(y).log_prob(members, ordered=False))
    p = KSubset(logits, K).log_prob(subsets).exp()
    pair = torch.cartesian_prod(torch.arange(len(p)), torch.arange(len(p)))
    pairs, p_pairs = subsets[pair], p[pair].prod(-1)

    def simple(y: torch.Tensor) -> torch.Tensor:
        pi = KSubset(y, K).marginals()
        return cost(subsets + (pi - pi.detach()))

    def score(y: torch.Tensor) -> torch.Tensor:
        return estimators.score_function(cost(subsets)[None], KSubset(y, K).log_prob(subsets)[None])

    def leave_one_out(y: torch.Tensor) -> torch.Tensor:
        one = torch.stack([KSubset(y, K).log_prob(pairs[:, i]) for i in range(2)])
        return estimators.leave_one_out(cost(pairs).T, one)

    rows = []
    for name, found, weight, samples in (
        ("SIMPLE: exact sample, marginals' Jacobian", slopes(simple, len(p)), p, 2),
        ("score function", slopes(score, len(p)), p, 2),
        ("score function, leave-one-out", slopes(leave_one_out, len(pair)), p_pairs, 1),
    ):
        mean = (weight[:, None] * found).sum(0)
        variance = (weight[:, None] * (found - mean) ** 2).sum() / samples
        rows.append((name, of_subset, mean, variance, 0.0))
    for name, temperature, hard in (
        ("relaxed Gumbel top-k, temperature 1", 1.0, False),
        ("relaxed Gumbel top-k, temperature 0.1", 0.1, False),
        ("straight-through Gumbel top-k, temperature 1", 1.0, True),
        ("straight-through Gumbel top-k, temperature 0.1", 0.1, True),
    ):

        def relaxed(y: torch.Tensor, temperature: float = temperature, hard: bool = hard):  # type: ignore[no-untyped-def]
            rng = torch.Generator().manual_seed(1)
            return cost(PlackettLuce(y).relaxed_sample(K, temperature, rng, hard=hard))

        found = slopes(relaxed, DRAWS)
        mean = found.mean(0)
        variance = found.var(0).sum()
        rows.append((name, of_race, mean, variance / 2, float((variance / DRAWS).sqrt())))

    print("| Estimator, two samples | Bias | Standard deviation |\n| --- | --- | --- |")
    for name, truth, mean, variance, error in rows:
        size = truth.norm()
        bias = f"{float((mean - truth).norm() / size):.3f}"
        bias = f"{bias} ± {error / size:.3f}" if error else bias
        print(f"| {name} | {bias} | {float(variance.sqrt() / size):.3f} |")
    print("\nBoth in norm, relative to the exact gradient.")


if __name__ == "__main__":
    main()
