"""Wrappers that make kofn's distributions torch.distributions and pyro distributions."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch import distributions as td
from torch.distributions import constraints

from kofn.arrays.checks import check_same_kind
from kofn.arrays.tracing import is_known

PYRO = "pyro.distributions.torch_distribution"
ONES_AND_ZEROS = constraints.independent(constraints.boolean, 1)  # type: ignore[no-untyped-call]
SUPPORTS = {
    "Bernoulli": constraints.boolean,
    "Categorical": ONES_AND_ZEROS,
    "KSubset": ONES_AND_ZEROS,
    "Normal": constraints.real,
    "RelaxedOneHot": constraints.simplex,
}
"""Zeros are a sample, too, in a row with nothing left; which rows those are log_prob says."""
ANY = torch.empty(0, dtype=torch.float32, device="cpu")


class Wrapped(td.Distribution):
    """A kofn distribution as a torch distribution, with the entries of a sample last."""

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012  # kofn has checked its own

    def __init__(self, own: Any, validate_args: bool | None = None) -> None:
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
        return SUPPORTS[type(self.own).__name__]

    @property
    def mean(self) -> Tensor:
        return self.own.mean

    @property
    def variance(self) -> Tensor:
        return self.own.variance

    @property
    def mode(self) -> Tensor:
        return self.own.mode()

    def sample(self, sample_shape: Any = ()) -> Tensor:
        return self.own.sample(tuple(sample_shape))

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self.own.rsample(tuple(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        check_same_kind("value", value, ANY, "the parameters")
        if self._validate_args and is_known(value):
            self._validate_sample(value)
        # torch's and pyro's code hands over values of size 1 along the batch.
        shape = _broadcast(value.shape, self.batch_shape + self.event_shape)
        return self.own.log_prob(value.expand(shape))

    def entropy(self) -> Tensor:
        return self.own.entropy()

    def enumerate_support(self, expand: bool = True) -> Tensor:
        return self.own.enumerate_support(expand)

    def expand(self, batch_shape: Any, _instance: object = None) -> Wrapped:
        return type(self)(self.own.expand(tuple(batch_shape)), self._validate_args)

    def __repr__(self) -> str:
        return f"{self.own!r}.to_torch()"


@td.register_kl(Wrapped, Wrapped)  # type: ignore[no-untyped-call]
def _(p: Wrapped, q: Wrapped) -> Tensor:
    shape = _broadcast(p.batch_shape, q.batch_shape)
    return p.own.expand(shape).kl(q.own.expand(shape))


def wrapped(own: Any) -> Wrapped:
    """Return `own` as a torch distribution, and also as a pyro one if pyro is imported."""
    if type(own).__name__ not in SUPPORTS:
        raise TypeError(f"to_torch does not support {type(own).__name__}")
    kind = _of_pyro() if PYRO in sys.modules else Wrapped
    return kind(own.entries_last())


@cache
def _of_pyro() -> type[Wrapped]:
    mixin = sys.modules[PYRO].TorchDistributionMixin

    class WrappedForPyro(Wrapped, mixin):  # type: ignore[misc, valid-type]
        """A wrapped distribution that pyro.sample accepts."""

    return WrappedForPyro


def _broadcast(*shapes: Any) -> torch.Size:
    return torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
