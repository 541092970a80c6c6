"""The interface that estimators expect of distributions and functions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from kofn.arrays.checks import check_integer, check_same_kind
from kofn.arrays.kinds import Array, namespace
from kofn.arrays.typing import ArrayT, ArrayT_co

Function: TypeAlias = Callable[[ArrayT], ArrayT]
"""f: samples, (samples,) + the shape of one; to (samples,) + the batch, row by row."""


class Distribution(Protocol[ArrayT_co]):
    """The methods that every estimator needs; some estimators need more.

    `Categorical`, `Bernoulli`, `KSubset` and `Normal` have all that applies to them; any of
    torch.distributions is taken, too; so may be a class of your own:

    - `rsample(shape, rng)`: samples with a gradient (`reparameterized`);
    - `marginals()`: the mean of a sample (`straight_through`);
    - `perturb(shape, rng)`, `choose(perturbed)` and `relax(perturbed, temperature)`: noisy
      logits, the sample they stand for, and the relaxed one (`reparameterized`, `perturbed`);
    - `perturb_given(sample, rng)` and `conditioned(perturbed)`: noisy logits given what they
      choose (`gumbel_rao`, `rebar`);
    - with these, `logits`, whose dtype samples have; and `dim`, the dimension of a sample's
      entries, if it is not the last (a `Bernoulli` has none: its coins are factors);
    - `support(factors)`: every sample (`exact`), with the argument `enumerate_up_to` if it has a
      limit.
    """

    # Any arguments, for a type checker: torch.distributions name theirs otherwise, and take no rng.
    def sample(self, *shape_and_rng: Any, **named: Any) -> ArrayT_co:
        """Draw samples without a gradient: shape + batch shape + the shape of one sample."""

    def log_prob(self, sample: Any, /) -> ArrayT_co:
        """Return log P of each sample, shape + batch shape, differentiable in the parameters."""


def check_samples(samples: Any, least: int = 1) -> int:
    """Return the number of samples as a Python integer."""
    return check_integer("samples", samples, f"an integer, at least {least}", least)


def adopted(choice: Any) -> Any:
    """Return `choice`; wrap it if it is one of torch.distributions."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(choice, torch.distributions.Distribution):
        return choice
    from kofn.distributions.from_torch import unwrapped

    return unwrapped(choice)


def needs(choice: Any, estimator: str, *methods: str) -> Any:
    """Return `choice`, adopted; raise TypeError unless it has these methods."""
    choice = adopted(choice)
    missing = [name for name in methods if not hasattr(choice, name)]
    if missing:
        raise TypeError(
            f"{estimator} needs a distribution with {', '.join(methods)}; "
            f"{name_of(choice)} has no {missing[0]}"
        )
    return choice


def name_of(choice: Any) -> str:
    return type(getattr(choice, "law", choice)).__name__


def values_of(f: Callable[[ArrayT], ArrayT], z: ArrayT) -> ArrayT:
    """Return f(z), checked to have one number for each sample."""
    values = f(z)
    check_same_kind("what f returns", values, z, "the samples")
    if values.ndim == 0 or values.shape[0] != z.shape[0]:
        raise ValueError(
            "f must return one number for each sample, the samples on the first axis "
            f"({z.shape[0]} of them); got the shape {tuple(values.shape)}"
        )
    return values


def together(log_prob: ArrayT, values: Array) -> ArrayT:
    """Return log P, summed over the trailing dimensions that f takes together."""
    check_same_kind("values", values, log_prob, "log_prob")
    shape, wanted = tuple(values.shape), tuple(log_prob.shape)
    if shape != wanted[: len(shape)]:
        raise ValueError(
            f"values must have the shape of log_prob, {wanted}, or its first dimensions; "
            f"got {shape}"
        )
    return added(log_prob, len(shape))


def added(x: ArrayT, ndim: int) -> ArrayT:
    """Return the sum over all but the first `ndim` dimensions."""
    return namespace(x).sum(x, axis=tuple(range(ndim, x.ndim))) if x.ndim > ndim else x


def along(choice: Any, terms: ArrayT, values: Array) -> ArrayT:
    """Return the sum of a term per logit over the entries and factors that f takes together."""
    # Coins have no dimension of entries: each is a factor.
    terms = namespace(terms).moveaxis(terms, getattr(choice, "dim", -1), -1)
    return added(terms, values.ndim)


def mean(values: ArrayT) -> ArrayT:
    return namespace(values).mean(values, axis=0)
