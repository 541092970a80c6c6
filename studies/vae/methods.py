"""The training methods: each estimates E_q log p(x | z) and its gradient."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kofn import estimators

Function = Callable[[Tensor], Tensor]


class Method(NamedTuple):
    """A training method: a differentiable estimate of E f, of shape (images,)."""

    estimate: Callable[[Any, Function, torch.Generator, float, int], Tensor]
    subsets: bool = False
    cools: bool = False
    """Whether the temperature is that of the posterior itself, not of what stands for a sample."""
    enumerates: bool = False
    fewest_samples: int = 1


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


_straight_through = _through(estimators.straight_through)
_score = _through(estimators.leave_one_out)

METHODS = {
    "gumbel-softmax": Method(_through(estimators.reparameterized, annealed=True)),
    "straight-through": Method(_straight_through),
    "reinmax": Method(_through(estimators.reinmax)),
    "leave-one-out": Method(_score, fewest_samples=2),
    "softmax": Method(_softmax, cools=True),
    "exact": Method(partial(_exact, factors=1), enumerates=True),
    "k-hot": Method(_straight_through, subsets=True),
    "k-hot-exact": Method(partial(_exact, factors=0), subsets=True, enumerates=True),
    "st-gumbel": Method(_through(estimators.reparameterized, annealed=True, hard=True)),
    "gumbel-rao": Method(_through(estimators.gumbel_rao, annealed=True)),
    "rebar": Method(_through(estimators.rebar)),
    "k-hot-score": Method(_score, subsets=True, fewest_samples=2),
}


def decoder_calls(name: str, samples: int, choices: int) -> int:
    """Return the number of evaluations of the decoder for an image."""
    if METHODS[name].enumerates:
        return choices
    return {"softmax": 1, "rebar": 2 * samples}.get(name, samples)
