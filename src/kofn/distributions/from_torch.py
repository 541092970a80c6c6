"""Adapters that let estimators use torch.distributions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch import distributions as td

from kofn.distributions.bernoulli import Bernoulli
from kofn.distributions.categorical import Categorical
from kofn.distributions.normal import Normal
from kofn.distributions.torch_wrapper import Wrapped


def unwrapped(law: td.Distribution) -> Any:
    """Return a distribution that estimators accept, for one of torch.distributions."""
    if isinstance(law, Wrapped):
        return law.own
    if type(law) in (td.OneHotCategorical, td.OneHotCategoricalStraightThrough):
        return Categorical(law.logits)  # type: ignore[attr-defined]
    if type(law) is td.Bernoulli:
        return Bernoulli(law.logits)
    if type(law) is td.Normal:
        return Normal(law.loc, law.scale)
    return Foreign(law)


class Foreign:
    """A wrapper of any other torch distribution, which uses torch's own samples."""

    def __init__(self, law: td.Distribution) -> None:
        self.law = law
        self.batch_shape, self.event_shape = tuple(law.batch_shape), tuple(law.event_shape)
        if law.has_rsample:
            self.rsample = lambda shape=(), rng=None: law.rsample(_plain(shape, rng))
        if law.has_enumerate_support:
            self.support = self._support

    def sample(self, shape: Any = (), rng: Any = None) -> Tensor:
        return self.law.sample(_plain(shape, rng))

    def log_prob(self, value: Tensor) -> Tensor:
        return self.law.log_prob(value)

    def _support(self, factors: int = 0) -> Tensor:
        if factors:
            raise ValueError(
                f"factors must be 0 for a torch.distributions.{type(self.law).__name__}, whose "
                f"support is listed per row; got {factors}"
            )
        return self.law.enumerate_support(expand=False)


def _plain(shape: Any, rng: Any) -> torch.Size:
    if rng is not None:
        raise TypeError(
            "rng must be None for torch.distributions, which draw from torch's global generator; "
            f"got {rng!r}"
        )
    return torch.Size(shape if isinstance(shape, tuple) else (shape,))
