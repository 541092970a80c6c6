"""The training methods: each estimates E_q log p(x | z) and its gradient."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kofn import Categorical, estimators

Function = Callable[[Tensor], Tensor]


class Method(NamedTuple):
    """A training method: a differentiable estimate of E f, of shape (images,)."""

    estimate: Callable[..., Tensor]
    subsets: bool = False
    anneals: bool = False
    """Whether the estimate takes the temperature."""
    cools: bool = False
    """Whether the temperature is that of the posterior itself, not of what stands for a sample."""
    enumerates: bool = False
    fewest_samples: int = 1


def softmax(choice: Any, f: Function, generator: torch.Generator, samples: int) -> Tensor:
    """Return f of the probabilities themselves."""
    return f(choice.probs()[None])[0]


def exact(choice: Any, f: Function, generator: torch.Generator, samples: int) -> Tensor:
    """Return the sum over every choice."""
    return estimators.exact(choice, f, factors=int(isinstance(choice, Categorical)))


METHODS = {
    "gumbel-softmax": Method(estimators.reparameterized, anneals=True),
    "straight-through": Method(estimators.straight_through),
    "reinmax": Method(estimators.reinmax),
    "leave-one-out": Method(estimators.leave_one_out, fewest_samples=2),
    "softmax": Method(softmax, cools=True),
    "exact": Method(exact, enumerates=True),
    "k-hot": Method(estimators.straight_through, subsets=True),
    "k-hot-exact": Method(exact, subsets=True, enumerates=True),
    "st-gumbel": Method(partial(estimators.reparameterized, hard=True), anneals=True),
    "gumbel-rao": Method(estimators.gumbel_rao, anneals=True),
    "rebar": Method(estimators.rebar),
    "k-hot-score": Method(estimators.leave_one_out, subsets=True, fewest_samples=2),
}


def decoder_calls(name: str, samples: int, choices: int) -> int:
    """Return the number of evaluations of the decoder for an image."""
    if METHODS[name].enumerates:
        return choices
    return {"softmax": 1, "rebar": 2 * samples}.get(name, samples)
