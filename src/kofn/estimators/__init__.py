"""Estimators of the gradient of E f(S) for a random choice S.

Every estimator is a function of a distribution, a function f of its samples and a source of
randomness. What it returns is an estimate of E f whose gradient estimates ∇E f:

    loss = estimators.leave_one_out(Categorical(logits), f, rng, samples=4)
    loss.mean().backward()

Unbiased: `score_function`, `leave_one_out`, `rebar`, and `reparameterized` where samples have
a gradient; `exact` sums instead. With some bias and less variance: `reparameterized` by relaxed
samples, `straight_through` (SIMPLE, for subsets), `gumbel_rao`, `reinmax`, `perturbed`. `study`
measures both for your f; docs/estimators.md has measurements.

The `…_through` functions are the samples themselves, for models that go on computing with them.
"""

from __future__ import annotations

from kofn.arrays.names import answer_for_others
from kofn.estimators.bias_variance import Study, study
from kofn.estimators.control_variates import rebar
from kofn.estimators.enumeration import exact
from kofn.estimators.implicit_mle import perturbed
from kofn.estimators.pathwise import gumbel_rao, reinmax, reparameterized, straight_through
from kofn.estimators.protocol import Distribution
from kofn.estimators.score import RunningMean, leave_one_out, score_function, surrogate
from kofn.estimators.surrogate_samples import (
    gumbel_rao_through,
    marginals_through,
    reinmax_through,
    relaxed_through,
)
from kofn.estimators.table import TABLE

__all__ = [
    # unbiased
    "score_function",
    "leave_one_out",
    "rebar",
    "exact",
    # without bias for continuous samples, with some for relaxed ones
    "reparameterized",
    # with some bias
    "straight_through",
    "gumbel_rao",
    "reinmax",
    "perturbed",
    # samples with a gradient
    "marginals_through",
    "relaxed_through",
    "gumbel_rao_through",
    "reinmax_through",
    # what they are made of
    "Distribution",
    "RunningMean",
    "surrogate",
    # their bias and variance
    "study",
    "Study",
    "TABLE",
]


def __dir__() -> list[str]:
    """List the public names only."""
    return sorted(__all__)


answer_for_others(__name__, __all__)
