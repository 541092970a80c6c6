"""Samples with the gradient of a surrogate: straight-through, relaxed, Gumbel–Rao, ReinMax.

Each is the exact sample plus a term of value 0. `estimators/pathwise.py` applies f to them.
"""

from __future__ import annotations

from typing import Any, Never

from kofn.arrays.autodiff import moving, stop_gradient
from kofn.arrays.checks import check_integer, check_shape
from kofn.arrays.kinds import Array, cast, namespace, quiet
from kofn.arrays.names import unknown_keyword
from kofn.arrays.random import split_rng
from kofn.arrays.typing import ArrayT
from kofn.distributions.bernoulli import Bernoulli
from kofn.distributions.categorical import Categorical
from kofn.estimators.protocol import Distribution, adopted, name_of, needs


def marginals_through(
    choice: Distribution[ArrayT],
    shape: int | tuple[int, ...] = (),
    rng: Any = None,
    **others: Never,
) -> ArrayT:
    """Return s + (π − stop π): an exact sample s with the gradient of the marginals.

    For a `Categorical` the classical straight-through estimator, for a `KSubset` SIMPLE. Exact, as
    an expectation, where f is linear; biased elsewhere, but of small variance.

    Args:
        choice: a distribution with `sample` and `marginals`.
        shape, rng: as for `KSubset.sample`.

    Returns:
        shape + logits.shape: ones and zeros, with a gradient in the logits.

    Source: Bengio, Léonard & Courville, "Estimating or Propagating Gradients Through Stochastic
    Neurons" (2013); Ahmed, Zeng, Niepert & Van den Broeck, "SIMPLE" (2023).

    Example:
        >>> import numpy as np
        >>> from kofn import KSubset, estimators
        >>> choice = KSubset(np.array([2.0, 1.0, 0.0]), 2)
        >>> estimators.marginals_through(choice, (), np.random.default_rng(0)).sum()
        np.float64(2.0)
    """
    if others:
        raise unknown_keyword(marginals_through, others)
    law = needs(choice, "straight_through", "sample", "marginals")
    sample, change = law.sample(shape, rng), moving(law.marginals())
    with quiet(sample):
        return sample + change


def relaxed_through(
    choice: Distribution[ArrayT],
    shape: int | tuple[int, ...] = (),
    rng: Any = None,
    *,
    temperature: float | Array = 1.0,
    hard: bool = False,
    **others: Never,
) -> ArrayT:
    """Return a relaxed sample from perturbed logits: `gumbel_softmax` for any distribution.

    Args:
        choice: a distribution with `perturb`, `choose` and `relax`.
        shape, rng: as for `KSubset.sample`.
        temperature: > 0; towards 0 the sample itself.
        hard: the sample itself, with the relaxed one's gradient.

    Returns:
        shape + logits.shape, with a gradient in the logits.

    Source: Jang, Gu & Poole; Maddison, Mnih & Teh (2017); Xie & Ermon (2019) for subsets.
    """
    if others:
        raise unknown_keyword(relaxed_through, others)
    law = needs(choice, "reparameterized", "perturb", "choose", "relax")
    noisy = law.perturb(shape, rng)
    weights = law.relax(noisy, temperature)
    if hard:
        weights = law.choose(noisy) + moving(weights)
    return cast(weights, law.logits.dtype)


def gumbel_rao_through(
    choice: Distribution[ArrayT],
    shape: int | tuple[int, ...] = (),
    rng: Any = None,
    *,
    temperature: float | Array = 1.0,
    draws: int = 10,
    **others: Never,
) -> ArrayT:
    """`relaxed_through(hard=True)` with its gradient averaged over noise that gives this sample.

    The same expectation, and less variance, at the cost of `draws` relaxations; f sees one sample.

    Args:
        choice: a `Categorical` or `Bernoulli`, or what else has `perturb_given`.
        shape, rng: as for `KSubset.sample`.
        temperature: > 0.
        draws: of noise, for each sample.

    Returns:
        shape + logits.shape: the sample, with a gradient in the logits.

    Source: Paulus, Maddison & Krause, "Rao-Blackwellizing the Straight-Through Gumbel-Softmax
    Gradient Estimator" (2021).
    """
    if others:
        raise unknown_keyword(gumbel_rao_through, others)
    law = needs(choice, "gumbel_rao", "sample", "perturb_given", "relax")
    check_integer("draws", draws, "an integer, at least 1", 1)
    first, second = split_rng(rng, 2, law.logits)
    sample = law.sample(check_shape(shape), first)
    xp = namespace(sample)
    repeated = xp.broadcast_to(sample, (draws, *sample.shape))
    noisy = stop_gradient(law.perturb_given(repeated, second))
    # Masked entries are −inf here, and may be NaN in the logits.
    with quiet(sample):
        change = xp.where(xp.isinf(noisy), 0.0, moving(cast(law.logits, noisy.dtype)))
        relaxed = law.relax(noisy + change, temperature)
        return sample + cast(moving(xp.mean(relaxed, axis=0)), sample.dtype)


def reinmax_through(
    choice: Distribution[ArrayT],
    shape: int | tuple[int, ...] = (),
    rng: Any = None,
    *,
    temperature: float | Array = 1.0,
    **others: Never,
) -> ArrayT:
    """Return a sample with the gradient 2·J((p_T + s)/2) − ½·J(p), J(w) = diag(w) − wwᵀ: ReinMax.

    Second-order accurate, where straight-through is first-order: exact, as an expectation, where f
    is quadratic (at temperature 1).

    Args:
        choice: a `Categorical` or `Bernoulli`.
        shape, rng: as for `KSubset.sample`.
        temperature: T of p_T = softmax(logits/T); above 1 trades accuracy for variance.

    Returns:
        shape + logits.shape: the sample, with a gradient in the logits.

    Source: Liu, Dong, Liu, Yu & Gao, "Bridging Discrete and Backpropagation: Straight-Through and
    Beyond" (2023).
    """
    if others:
        raise unknown_keyword(reinmax_through, others)
    choice = adopted(choice)
    if not isinstance(choice, (Categorical, Bernoulli)):
        raise TypeError(f"reinmax needs a Categorical or a Bernoulli; got {name_of(choice)}")
    sample = choice.sample(shape, rng)
    logits = choice._settled()
    with quiet(sample):
        p = stop_gradient(choice.relax(logits, 1.0))
        half = (stop_gradient(choice.relax(logits, temperature)) + sample) / 2
        slope = 2 * _tangent(choice, half, logits) - _tangent(choice, p, logits) / 2
        return sample + cast(slope, sample.dtype)


def _tangent(choice: Categorical[Any] | Bernoulli[Any], weights: Array, logits: Array) -> Array:
    """Return 0, with the gradient of the probabilities, evaluated at `weights`, in the logits."""
    change = moving(logits)
    if isinstance(choice, Bernoulli):
        return weights * (1 - weights) * change
    xp = namespace(weights)
    return weights * (change - xp.sum(weights * change, axis=choice.dim, keepdims=True))
