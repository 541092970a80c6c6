"""How even the load of experts becomes, over steps, by each rule of nn.TopKRouter's balance.

    python benchmarks/balance.py [STEPS]

A fresh batch at each step, of 4,096 tokens for 64 experts, 8 per token, with logits that favour
some of them: a normal number per expert plus one per token and expert, of standard deviations 0.11
and 0.3. The table has the largest load over the mean, less 1, of the batch of a step: it is chosen
with the bias of the steps before.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from kofn import nn

TOKENS, EXPERTS, K = 4096, 64, 8
SKEW, NOISE = 0.11, 0.3  # standard deviations of the logits
SHOWN = (1, 2, 3, 10, 100, 300)
RULES: dict[str, dict[str, Any]] = {
    "none": {},
    "sign, 1e-3": dict(balance=1e-3),
    "sign, 1e-2": dict(balance=1e-2),
    "quantile, exact": dict(balance="quantile"),
    "quantile, 1,000 bins": dict(balance="quantile", bins=1000),
    "quantile, ema=0.9": dict(balance="quantile", ema=0.9),
    "quantile of sigmoids": dict(balance="quantile", score_function="sigmoid"),
    "the same, 1,000 bins": dict(balance="quantile", score_function="sigmoid", bins=1000),
    "quantile, 4 of 8 groups": dict(balance="quantile", n_group=8, topk_group=4),
    "quantile of a budget": dict(balance="quantile", selection="budget"),
}


def violations(steps: int, **options: Any) -> list[float]:
    """Return the violation at each step of one rule, for the batches of one seed."""
    generator = torch.Generator().manual_seed(0)
    skew = SKEW * torch.randn(EXPERTS, generator=generator)
    router = nn.TopKRouter(EXPERTS, EXPERTS, K, **options)
    found = []
    with torch.no_grad():
        router.weight.copy_(torch.eye(EXPERTS))  # so that logits are what it is given
        for _ in range(steps):
            router(skew + NOISE * torch.randn(TOKENS, EXPERTS, generator=generator))
            found.append(router.statistics()["max_violation"].item())
            router.step()
    return found


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else max(SHOWN)
    shown = [step for step in SHOWN if step <= steps]
    print(f"{'rule':<26}" + "".join(f"{step:>7}" for step in shown) + "  most from the second on")
    for name, options in RULES.items():
        found = violations(steps, **options)
        row = "".join(f"{found[step - 1]:>7.2f}" for step in shown)
        print(f"{name:<26}{row}{max(found[1:], default=0):>10.2f}", flush=True)


if __name__ == "__main__":
    main()
