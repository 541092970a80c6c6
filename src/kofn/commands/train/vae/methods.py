"""The training methods: each estimates E_q log p(x | z) and its gradient."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kofn import estimators

Function = Callable[[Tensor], Tensor]


class Method(NamedTuple):
    """A training method: a differentiable estimate of E f, of shape (images,)."""

    name: str
    about: str
    estimate: Callable[[Any, Function, torch.Generator, float, int], Tensor]
    subsets: bool = False
    cools: bool = False
    """Whether the temperature is that of the posterior itself, not of what stands for a sample."""
    enumerates: bool = False
    fewest_samples: int = 1

    def calls(self, samples: int, choices: int) -> int:
        """Return the number of decoder evaluations per image."""
        if self.enumerates:
            return choices
        return {"softmax": 1, "rebar": 2 * samples}.get(self.name, samples)


def _through(estimator: Callable[..., Tensor], annealed: bool = False, **options: Any) -> Any:
    def estimate(
        choice: Any, f: Function, generator: torch.Generator, temperature: float, samples: int
    ) -> Tensor:
        cooled = {"temperature": temperature} if annealed else {}
        return estimator(choice, f, generator, samples=samples, **options, **cooled)

    return estimate


def _softmax(choice: Any, f: Function, *_: Any) -> Tensor:
    return f(choice.probs()[None])[0]


def _exact(choice: Any, f: Function, *_: Any, factors: int) -> Tensor:
    return estimators.exact(choice, f, factors=factors)


METHODS = {
    method.name: method
    for method in (
        Method(
            "gumbel-softmax",
            "Gumbel-softmax samples, annealed",
            _through(estimators.reparameterized, annealed=True),
        ),
        Method(
            "straight-through",
            "hard samples, softmax's Jacobian",
            _through(estimators.straight_through),
        ),
        Method("reinmax", "hard samples, ReinMax", _through(estimators.reinmax)),
        Method(
            "leave-one-out",
            "score function, the other samples as baseline",
            _through(estimators.leave_one_out),
            fewest_samples=2,
        ),
        Method("softmax", "the softmax itself, annealed: no samples", _softmax, cools=True),
        Method("exact", "the sum over every choice", partial(_exact, factors=1), enumerates=True),
        Method(
            "k-hot",
            "subsets, exact samples with the marginals' gradient (SIMPLE)",
            _through(estimators.straight_through),
            subsets=True,
        ),
        Method(
            "k-hot-exact",
            "subsets, the sum over every one",
            partial(_exact, factors=0),
            subsets=True,
            enumerates=True,
        ),
        Method(
            "st-gumbel",
            "hard samples, annealed Gumbel-softmax's Jacobian",
            _through(estimators.reparameterized, annealed=True, hard=True),
        ),
        Method(
            "gumbel-rao",
            "the same, averaged over 10 draws of the noise",
            _through(estimators.gumbel_rao, annealed=True),
        ),
        Method("rebar", "REBAR at temperature 0.5", _through(estimators.rebar)),
        Method(
            "k-hot-score",
            "subsets, score function, the other samples as baseline",
            _through(estimators.leave_one_out),
            subsets=True,
            fewest_samples=2,
        ),
    )
}
USUAL = list(METHODS)[:8]
