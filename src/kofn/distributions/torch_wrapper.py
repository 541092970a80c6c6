"""To and from torch.distributions: kofn's answers in its classes, and its classes in estimators."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch import distributions as td
from torch.distributions import constraints

from kofn.arrays.tracing import is_known
from kofn.distributions.base import Distribution
from kofn.distributions.bernoulli import Bernoulli
from kofn.distributions.categorical import Categorical
from kofn.distributions.k_subset import KSubset
from kofn.distributions.normal import Normal
from kofn.distributions.relaxed_one_hot import RelaxedOneHot

PYRO = "pyro.distributions.torch_distribution"
ONES_AND_ZEROS = constraints.independent(constraints.boolean, 1)  # type: ignore[no-untyped-call]
SUPPORTS = {
    Bernoulli: constraints.boolean,
    Categorical: ONES_AND_ZEROS,
    KSubset: ONES_AND_ZEROS,
    Normal: constraints.real,
    RelaxedOneHot: constraints.simplex,
}
"""Zeros are a sample, too, in a row with nothing left; which rows those are log_prob says."""


class Wrapped(td.Distribution):
    """A distribution of kofn's as torch has them: the entries of a sample last."""

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012  # kofn has checked its own

    def __init__(self, own: Distribution, validate_args: bool | None = None) -> None:
        self.own = own
        super().__init__(
            torch.Size(own.batch_shape), torch.Size(own.event_shape), validate_args=validate_args
        )

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        return self.own.has_rsample

    @property
    def has_enumerate_support(self) -> bool:  # type: ignore[override]
        return self.own.has_enumerate_support

    @property
    def support(self) -> Any:
        return SUPPORTS[type(self.own)]

    @property
    def mean(self) -> Tensor:
        return self.own.mean  # type: ignore[attr-defined]

    @property
    def variance(self) -> Tensor:
        return self.own.variance  # type: ignore[attr-defined]

    @property
    def mode(self) -> Tensor:
        return self.own.mode()  # type: ignore[attr-defined]

    def sample(self, sample_shape: Any = ()) -> Tensor:
        return self.own.sample(tuple(sample_shape))  # type: ignore[attr-defined]

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self.own.rsample(tuple(sample_shape))  # type: ignore[attr-defined]

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args and is_known(value):
            self._validate_sample(value)
        # torch's and pyro's code hands over values of size 1 along the batch.
        shape = _broadcast(value.shape, self.batch_shape + self.event_shape)
        return self.own.log_prob(value.expand(shape))

    def entropy(self) -> Tensor:
        return self.own.entropy()  # type: ignore[attr-defined]

    def enumerate_support(self, expand: bool = True) -> Tensor:
        return self.own.enumerate_support(expand)  # type: ignore[attr-defined]

    def expand(self, batch_shape: Any, _instance: Any = None) -> Wrapped:
        return type(self)(self.own.expand(tuple(batch_shape)), self._validate_args)

    def __repr__(self) -> str:
        return f"{self.own!r}.to_torch()"


@td.register_kl(Wrapped, Wrapped)  # type: ignore[no-untyped-call]
def _(p: Wrapped, q: Wrapped) -> Tensor:
    shape = _broadcast(p.batch_shape, q.batch_shape)
    return p.own.expand(shape).kl(q.own.expand(shape))


def wrapped(own: Distribution) -> Wrapped:
    """`own` as torch has it; where pyro is imported as pyro has it, too."""
    if type(own) not in SUPPORTS:
        raise TypeError(f"to_torch knows no {type(own).__name__}")
    kind = _of_pyro() if PYRO in sys.modules else Wrapped
    return kind(own.entries_last())


@cache
def _of_pyro() -> type[Wrapped]:
    mixin = sys.modules[PYRO].TorchDistributionMixin

    class WrappedForPyro(Wrapped, mixin):  # type: ignore[misc, valid-type]
        """What pyro.sample takes."""

    return WrappedForPyro


def unwrapped(law: td.Distribution) -> Any:
    """What an estimator can ask for samples, for a distribution of torch's."""
    if isinstance(law, Wrapped):
        return law.own
    if type(law) in (td.OneHotCategorical, td.OneHotCategoricalStraightThrough):
        return Categorical(law.logits)  # type: ignore[attr-defined]
    if type(law) is td.Bernoulli and law.logits.ndim:
        return Bernoulli(law.logits)
    if type(law) is td.Normal and law.loc.ndim:
        return Normal(law.loc, law.scale)
    return Foreign(law)


class Foreign:
    """Any other distribution of torch's, by torch's own samples."""

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
                f"rows are listed each by itself; got {factors}"
            )
        return self.law.enumerate_support(expand=False)


def _plain(shape: Any, rng: Any) -> torch.Size:
    if rng is not None:
        raise TypeError(
            "rng must be None for torch.distributions, which draw from torch's global generator; "
            f"got {rng!r}"
        )
    return torch.Size(shape if isinstance(shape, tuple) else (shape,))


def _broadcast(*shapes: Any) -> torch.Size:
    return torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
